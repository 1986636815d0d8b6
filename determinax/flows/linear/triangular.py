"""Lower triangular matrices: up to what leaves the density alone, all invertible ones."""

import equinox as eqx
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from ... import _checks, _linalg
from ..base import as_column
from ._base import AbstractFactor, check_size, product


class Triangular(AbstractFactor):
    r"""A lower triangular matrix with diagonal $e^{\text{log\_diagonal}}$; zeros are the identity.

    Up to scale and a right rotation, which leave the density alone, every invertible matrix is one.
    """

    log_diagonal: Float[Array, " n"]
    below: Float[Array, "n n"]  # only what is strictly below the diagonal counts
    n: int = eqx.field(static=True)

    def __init__(self, n: int, *, dtype: DTypeLike = float):
        check_size(n)
        _checks.require_memory(
            n * n * jnp.dtype(dtype).itemsize,
            f"a triangular M in {n:,} dimensions is an array of {n:,}x{n:,}",
            "take Diagonal(n) or DiagonalLowRank(n, rank)",
        )
        self.log_diagonal = jnp.zeros(n, dtype)
        self.below = jnp.zeros((n, n), dtype)
        self.n = n

    def matrix(self) -> Float[Array, "n n"]:
        r"""$M$ itself."""
        return jnp.tril(self.below, -1) + jnp.diag(jnp.exp(self.log_diagonal))

    def multiply(self, z: Float[Array, "n *num"]) -> Float[Array, "n *num"]:
        """See `AbstractFactor`."""
        scale = as_column(jnp.exp(self.log_diagonal), z)
        return scale * z + product(jnp.tril(self.below, -1), z)

    def solve(self, s: Float[Array, "n *num"]) -> Float[Array, "n *num"]:
        """See `AbstractFactor`."""
        columns = s.reshape(self.n, -1)
        solved = _linalg.solve_triangular(self.matrix(), columns, lower=True)
        return solved.reshape(s.shape)

    def log_abs_det(self) -> Float[Array, ""]:
        """See `AbstractFactor`."""
        return jnp.sum(self.log_diagonal)
