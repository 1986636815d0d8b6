"""Steps whose batch is drawn in parts, on all devices of a mesh: the same bits on any number of them.

A part is a pure function of the state and of its number, and there are as many on any mesh. Every device
runs one program, without a collective, on numbers of its own; what comes out is gathered between programs,
and the update is computed from all parts, on every process alike.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, ArrayLike, Int, PRNGKeyArray

from determinax._devices import (
    gathered,
    own_copies,
    placed,
    require_agreement,
    require_whole,
    unwaited,
)
from determinax._keys import stream
from determinax.training._base import AbstractBatchFitter, AbstractFitter

# of a batch: more devices have nothing to do
NUM_PARTS = 8


def part_size(batch_size: int, mesh: Mesh | None) -> int:
    """Of what a loss draws at a time: the batch, or a part of it."""
    if mesh is None:
        return batch_size
    if batch_size % NUM_PARTS or batch_size < 2 * NUM_PARTS:
        raise ValueError(
            f"with mesh= a batch is drawn in {NUM_PARTS} parts: batch_size is a multiple of "
            f"{NUM_PARTS}, from {2 * NUM_PARTS} on, not {batch_size}"
        )
    return batch_size // NUM_PARTS


class Split:
    """A fit whose parts are computed on all devices of a mesh."""

    def __init__(self, mesh: Mesh, fitter: AbstractFitter, key: PRNGKeyArray):
        if not isinstance(fitter, AbstractBatchFitter):
            raise ValueError(
                f"{fitter.what} cannot be split over devices: leave mesh= out (fit, fit_density, "
                "fit_jacobian and fit_samples take it)"
            )
        require_whole(fitter)
        require_agreement(mesh, fitter, key)
        self._mesh, self._fitter = mesh, fitter
        # placed once: else every step would copy A to every device
        self._copies = own_copies(mesh, (fitter, key))

    def advance(self, state: Any, start: int, stop: int) -> tuple[int, Any, Any]:
        """Steps `start` to `stop`: where it ended, the state, and the steps' records."""
        records = []
        for index in range(start, stop):
            own = {
                rank: started_parts(
                    *copy,
                    placed(state, self._mesh.devices[rank]),
                    *(np.asarray(i, np.int32) for i in (index, rank, self._mesh.size)),
                )
                for rank, copy in self._copies.items()
            }
            by_device = gathered(self._mesh, own)
            parts = jax.tree.map(lambda *stacks: _in_order(stacks), *by_device)
            state, record = started_update(self._fitter, state, parts, np.asarray(index, np.int32))
            records.append(record)
        return stop, state, jax.tree.map(lambda *x: np.stack(x), *jax.device_get(records))


def _in_order(stacks: tuple[np.ndarray, ...]) -> np.ndarray:
    """Part i from the device that computed it."""
    return np.stack([stacks[i % len(stacks)][i] for i in range(NUM_PARTS)])


def parts(
    fitter: AbstractBatchFitter,
    key: PRNGKeyArray,
    state: Any,
    index: Int[ArrayLike, ""],
    first: Int[ArrayLike, ""],
    stride: Int[ArrayLike, ""],
) -> Any:
    """Parts `first`, `first + stride`, ... of a step, at their numbers in stacks of all.

    The bounds are traced: one program serves any number of devices, so that it rounds in one way.
    """
    own = stream(key, "steps", jnp.asarray(index))

    def one(number: Array) -> Any:
        return fitter.part(state, stream(own, "parts", number))

    shapes = jax.eval_shape(one, jnp.zeros((), jnp.int32))
    empty = jax.tree.map(lambda x: jnp.zeros((NUM_PARTS, *x.shape), x.dtype), shapes)

    def take(carry: Any) -> Any:
        number, stacks = carry
        return number + stride, jax.tree.map(
            lambda stack, x: stack.at[number].set(x), stacks, one(number)
        )

    return jax.lax.while_loop(
        lambda carry: carry[0] < NUM_PARTS, take, (jnp.asarray(first), empty)
    )[1]


def update(
    fitter: AbstractBatchFitter, state: Any, parts: Any, index: Int[ArrayLike, ""]
) -> tuple[Any, Any]:
    """The next state, and what the step saw."""
    return fitter.updated(state, fitter.merged(parts), jnp.asarray(index))


started_parts, started_update = unwaited(parts), unwaited(update)
