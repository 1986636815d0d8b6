"""Diagonal matrices."""

import equinox as eqx
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from ..base import as_column
from ._base import AbstractFactor, check_size


class Diagonal(AbstractFactor):
    r"""A diagonal matrix $e^{\text{log\_diagonal}}$: rows of A that differ in size."""

    log_diagonal: Float[Array, " n"]
    n: int = eqx.field(static=True)

    def __init__(self, n: int, *, dtype: DTypeLike = float):
        check_size(n)
        self.log_diagonal, self.n = jnp.zeros(n, dtype), n

    def multiply(self, z: Float[Array, "n *num"]) -> Float[Array, "n *num"]:
        """See `AbstractFactor`."""
        return as_column(jnp.exp(self.log_diagonal), z) * z

    def solve(self, s: Float[Array, "n *num"]) -> Float[Array, "n *num"]:
        """See `AbstractFactor`."""
        return as_column(jnp.exp(-self.log_diagonal), s) * s

    def log_abs_det(self) -> Float[Array, ""]:
        """See `AbstractFactor`."""
        return jnp.sum(self.log_diagonal)
