"""Chunks on the devices of a mesh, merged in the order of their numbers: the same bits on any number.

A chunk is a pure function of its number, and the plan does not know the devices. In a round every device
runs the same program on numbers of its own, without a collective: a program for one device, since XLA
compiles one for many in another way, and products then round in another way. What comes out (kilobytes)
is gathered between programs, and folded in one place, on every process alike.
"""

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
from jax.experimental.multihost_utils import process_allgather
from jax.sharding import Mesh
from jaxtyping import ArrayLike, Int, PRNGKeyArray

from determinax import _engine
from determinax._diagnostics import Bar
from determinax._digest import fingerprint
from determinax.distributed import Different, PeerLost
from determinax.methods import AbstractMethod, Plan
from determinax.operators import OperatorError, Traits, host_calls, num_parts, traits

AXIS = "devices"
# chunks that a device computes in a round, and the entries that they have at most, beyond one chunk
_MOST_CHUNKS, _ROUND_ENTRIES = 32, 2**24


def line_of(mesh: Any) -> Mesh:
    """All devices of a mesh, in a line: which axes it has, and of which kind, does not matter here."""
    if not isinstance(mesh, Mesh):
        raise TypeError(f"mesh is a jax.sharding.Mesh, such as jax.make_mesh gives, not {mesh!r}")
    return Mesh(mesh.devices.reshape(-1), (AXIS,))


def spans_processes(mesh: Mesh | None) -> bool:
    """Whether other processes take part."""
    return mesh is not None and any(d.process_index != jax.process_index() for d in mesh.devices)


class Rounds:
    """A run whose chunks are computed on all devices of a mesh, a round at a time."""

    def __init__(
        self,
        mesh: Mesh,
        method: AbstractMethod,
        operator: lx.AbstractLinearOperator,
        key: PRNGKeyArray | None,
        prepared: Any,
    ):
        require_whole(operator)
        t = traits(operator)
        self._mesh, self._run = mesh, (method, operator, prepared)
        plan = method.plan(t)
        self._per, self._num_chunks = chunks_a_round(t, plan), plan.num_chunks
        self._ahead: dict[int, dict[int, Any]] = {}
        self._looks_ahead = not host_calls(operator)  # whose failures belong to the round at hand
        # placed once: else every round would copy A to every device
        self._copies = own_copies(mesh, (method, operator, key, prepared))

    @property
    def size(self) -> int:
        """Chunks of a whole round."""
        return self._per * self._mesh.size

    def advance(self, state: Any, index: int, stop: int, bar: Bar) -> tuple[Any, Any]:
        """Chunks `index` to `stop`, at most a round, as `_engine.advance`: the merge is not waited for."""
        own = self._ahead.pop(index, None) or self._started(index, stop)
        if self._looks_ahead and not bar.is_set and stop < self._num_chunks:
            # devices do not wait until this round is merged
            self._ahead[stop] = self._started(stop, min(stop + self.size, self._num_chunks))
        partials = dealt(gathered(self._mesh, own))
        method, operator, prepared = self._run
        bounds = np.asarray(index, np.int32), np.asarray(stop, np.int32)
        return started_fold(method, operator, prepared, state, partials, *bounds, bar)

    def _started(self, index: int, stop: int) -> dict[int, Any]:
        """A round on the devices of this process: each call returns before its device is done."""
        return {
            rank: started_chunks(
                self._per,
                self._mesh.size,
                copy,
                np.asarray(index + rank, np.int32),
                np.asarray(stop, np.int32),
            )
            for rank, copy in self._copies.items()
        }


def own_copies(mesh: Mesh, tree: Any) -> dict[int, Any]:
    """The tree on each device of this process, by the device's place in the mesh."""
    return {
        rank: placed(tree, device)
        for rank, device in enumerate(mesh.devices)
        if device.process_index == jax.process_index()
    }


def placed(tree: Any, device: Any) -> Any:
    """The tree with its arrays on a device."""
    return jax.tree.map(lambda x: jax.device_put(x, device) if eqx.is_array(x) else x, tree)


def require_whole(tree: Any) -> None:
    """Refuse an operator that is split already: every device multiplies with all of it."""
    if num_parts(tree) > 1:
        raise OperatorError(
            f"the operator is split over {num_parts(tree)} devices already, and mesh= wants it whole "
            "on each: leave mesh= out, or pass an operator that is on one device"
        )


def require_agreement(mesh: Mesh, *run: Any) -> None:
    """Refuse processes that were given different things: their chunks would be merged all the same.

    All processes have to ask at the same place, before anything that depends on what they were given.
    """
    if not spans_processes(mesh):
        return
    digests = from_all(np.frombuffer(bytes.fromhex(fingerprint(*run)), np.uint8))
    others = [i for i, digest in enumerate(digests) if (digest != digests[0]).any()]
    if others:
        raise Different(
            f"process {others[0]} was given something else than process 0 (operator, method, key, "
            "tolerance or another setting): start all processes with the same"
        )


def chunks_a_round(t: Traits, plan: Plan) -> int:
    """For each device: some, so that a round pays for itself, but few where they are large.

    By the plan alone, never by the clock: all processes have to take the same rounds.
    """
    entries = max(1, plan.size * max(t.rows, t.cols))
    return max(1, min(_MOST_CHUNKS, _ROUND_ENTRIES // entries))


def chunks(
    per: int,
    stride: int,
    run: tuple[AbstractMethod, lx.AbstractLinearOperator, PRNGKeyArray | None, Any],
    first: Int[ArrayLike, ""],
    stop: Int[ArrayLike, ""],
) -> Any:
    """Chunks `first`, `first + stride`, ... below `stop`, stacked: `per` of them, empty ones at the end."""
    method, operator, key, prepared = run
    size = method.plan(traits(operator)).size
    empty = method.empty(operator, prepared)

    def one(number: Any) -> Any:
        return jax.lax.cond(
            number < stop,
            lambda number: method.chunk(operator, prepared, key, number, size),
            lambda _: empty,
            number,
        )

    return jax.lax.map(one, first + stride * jnp.arange(per, dtype=jnp.int32))


def gathered(mesh: Mesh, own: dict[int, Any]) -> list[Any]:
    """What every device of the mesh has computed, as NumPy arrays, on every process."""
    own = jax.device_get(own)
    if len(own) == mesh.size:
        return [own[rank] for rank in range(mesh.size)]
    stacks = from_all(jax.tree.map(lambda *parts: np.stack(parts), *own.values()))
    ranks = from_all(np.asarray(list(own)))
    where = {int(rank): (p, i) for p, row in enumerate(ranks) for i, rank in enumerate(row)}
    places = [where[rank] for rank in range(mesh.size)]
    return [jax.tree.map(lambda x, at=at: x[at], stacks) for at in places]


def from_first(tree: Any) -> Any:
    """Arrays that process 0 has, on every process; all have the same shapes."""
    return jax.tree.map(lambda x: x[0], from_all(jax.device_get(tree)))


def from_all(tree: Any) -> Any:
    """Arrays of every process, stacked, on every process."""
    try:
        return process_allgather(tree)
    except (RuntimeError, ValueError) as error:  # JAX's, or gloo's, by how it was dispatched
        raise PeerLost(
            "another process of this run has died or stopped: start them again, with resume=True if there "
            "is a checkpoint"
        ) from error


def dealt(by_device: list[Any]) -> Any:
    """Stacks of each device's turns, put into the order of the numbers."""

    def ordered(*stacks: np.ndarray) -> np.ndarray:
        together = np.stack(stacks, axis=1)
        return together.reshape(-1, *together.shape[2:])

    return jax.tree.map(ordered, *by_device)


def fold(
    method: AbstractMethod,
    operator: lx.AbstractLinearOperator,
    prepared: Any,
    state: Any,
    partials: Any,
    index: Int[ArrayLike, ""],
    stop: Int[ArrayLike, ""],
    bar: Bar,
) -> tuple[Any, Any]:
    """Merge chunks in the order of their numbers: `_engine.advance` without the products."""
    num = len(jax.tree.leaves(partials)[0])

    def take(j: Any, carry: Any) -> Any:
        i, state = carry
        going = i < stop
        if bar.is_set:
            going &= ~_engine.is_reached(method, operator, prepared, state, i, bar)
        partial = jax.tree.map(lambda x: x[j], partials)
        return i + going, _engine.merge(method, state, partial, going)

    return jax.lax.fori_loop(0, num, take, (jnp.asarray(index), state))


def unwaited(function: Callable) -> Callable:
    """The function, compiled, and called without waiting for it: `eqx.filter_jit` would wait."""

    @functools.partial(jax.jit, static_argnums=0)
    def compiled(static: Any, arrays: Any) -> Any:
        structure, leaves = static
        return function(*eqx.combine(arrays, jax.tree.unflatten(structure, leaves)))

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        arrays, static = eqx.partition(args, lambda x: isinstance(x, jax.Array | np.ndarray))
        leaves, structure = jax.tree.flatten(static)
        return compiled((structure, tuple(leaves)), arrays)

    return call


started_chunks, started_fold = unwaited(chunks), unwaited(fold)
