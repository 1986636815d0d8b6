"""A proposal for every block of a composition: their log-determinants add up."""

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp

from determinax.proposals.flow import Proposal


class BlockProposals(eqx.Module):
    """As many proposals as a composition has blocks, of one shape; `proposals[i]` is that of block i.

    **Fields:**

    - `stacked`: all of them in one, with the block in front of every array, so that `scan` and `vmap`
        go over them.
    - `num`: how many.
    """

    stacked: Proposal
    num: int = eqx.field(static=True)

    def __init__(self, proposals: Sequence[Proposal]):
        shapes = {str(jax.tree.map(jnp.shape, eqx.filter(p, eqx.is_array))) for p in proposals}
        if len(shapes) != 1:
            raise ValueError(
                f"{len(proposals)} proposals of {len(shapes)} shapes: the blocks of a composition need one "
                "proposal each, all of one family"
            )
        arrays, rest = eqx.partition(list(proposals), eqx.is_array)
        self.stacked = eqx.combine(jax.tree.map(lambda *a: jnp.stack(a), *arrays), rest[0])
        self.num = len(proposals)

    @property
    def n(self) -> int:
        """The dimension of the space around the sphere."""
        return self.stacked.n

    def __len__(self) -> int:
        return self.num

    def __getitem__(self, index: int) -> Proposal:
        if not -self.num <= index < self.num:
            raise IndexError(f"block {index} of {self.num}")
        return jax.tree.map(lambda a: a[index] if eqx.is_array(a) else a, self.stacked)
