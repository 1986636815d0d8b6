"""Maps one after the other, the repeated ones in a scan."""

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from .base import AbstractSphereMap


class Chain(AbstractSphereMap):
    """The composition of maps, applied first to last; log-determinants add.

    Maps that differ in their numbers only are stacked and scanned, and so are blocks of maps that
    repeat, such as (coupling, rotation, coupling of the other half, rotation): compile time does
    not grow with their number. What comes after the last block is run by itself.

    !!! example

        ```python
        turn = dx.flows.Rotation(np.linalg.qr(A)[0])
        flow = dx.flows.Chain([dx.flows.projective_linear(10), turn])
        ```
    """

    blocks: tuple[AbstractSphereMap, ...]
    rest: tuple[AbstractSphereMap, ...]
    num_blocks: int = eqx.field(static=True)
    context_size: int = eqx.field(static=True)
    n: int = eqx.field(static=True)

    @property
    def is_linear(self) -> bool:
        """See `AbstractSphereMap`."""
        return all(f.is_linear for f in (*self.blocks, *self.rest))

    def __init__(self, maps: Sequence[AbstractSphereMap]):
        maps = [inner for f in maps for inner in (f.maps if isinstance(f, Chain) else (f,))]
        if not maps:
            raise ValueError("a chain needs at least one map")
        if len({f.n for f in maps}) > 1:
            raise ValueError(f"maps of different dimensions {[f.n for f in maps]} do not compose")
        sizes = {f.context_size for f in maps} - {0}
        if len(sizes) > 1:
            raise ValueError(f"maps of different context sizes {sorted(sizes)} do not compose")
        period, self.num_blocks = _blocks([_signature(f) for f in maps])
        cut = self.num_blocks * period
        self.blocks = tuple(_stack(maps[i:cut:period]) for i in range(period))
        self.rest = tuple(maps[cut:])
        self.context_size = max(sizes, default=0)
        self.n = maps[0].n

    @property
    def maps(self) -> tuple[AbstractSphereMap, ...]:
        """The maps one by one."""
        blocks = [_take(f, i) for i in range(self.num_blocks) for f in self.blocks]
        return (*blocks, *self.rest)

    def __len__(self) -> int:
        return self.num_blocks * len(self.blocks) + len(self.rest)

    def _forward(self, s, context):
        def apply(state, f):
            s, log_det = state
            s, more = f.forward(s, context if f.context_size else None)
            return s, log_det + more

        state = self._scan(apply, (s, _zero(s)), self.blocks, reverse=False)
        for f in self.rest:
            state = apply(state, f)
        return state

    def _inverse(self, s, context):
        def apply(state, f):
            s, log_det = state
            s, more = f.inverse(s, context if f.context_size else None)
            return s, log_det + more

        state = (s, _zero(s))
        for f in self.rest[::-1]:
            state = apply(state, f)
        return self._scan(apply, state, self.blocks, reverse=True)

    def _scan(self, apply, state, blocks, reverse: bool):
        arrays, static = eqx.partition(blocks, eqx.is_array)

        def body(state, arrays):
            block = eqx.combine(arrays, static)
            for f in block[::-1] if reverse else block:
                state = apply(state, f)
            return state, None

        return jax.lax.scan(body, state, arrays, self.num_blocks, reverse=reverse)[0]


def _zero(s: Array) -> Array:
    return jnp.zeros(s.shape[1:], s.dtype)


def _signature(f: AbstractSphereMap):
    arrays, static = eqx.partition(f, eqx.is_array)
    leaves, tree = jax.tree.flatten(arrays)
    return tree, [(a.shape, a.dtype) for a in leaves], jax.tree.leaves(static)


def _blocks(signatures: list) -> tuple[int, int]:
    """The length of the block that the list starts with, and how often: so that least is left."""
    found = []
    for p in range(1, len(signatures) + 1):
        num = 1
        while signatures[num * p : (num + 1) * p] == signatures[:p]:
            num += 1
        # what is compiled: a block, and each map after the last
        found.append((p + len(signatures) - num * p, p, num))
    return min(found)[1:]


def _stack(maps: list[AbstractSphereMap]) -> AbstractSphereMap:
    arrays, static = zip(*(eqx.partition(f, eqx.is_array) for f in maps), strict=True)
    # jitted: stacking array by array compiles a function for every shape
    return eqx.combine(jax.jit(_stack_arrays)(arrays), static[0])


def _stack_arrays(trees):
    return jax.tree.map(lambda *a: jnp.stack(a), *trees)


def _take(stacked: AbstractSphereMap, i: int) -> AbstractSphereMap:
    return jax.tree.map(lambda a: a[i] if eqx.is_array(a) else a, stacked)
