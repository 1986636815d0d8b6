"""Lower triangular matrices: up to what leaves the density alone, all invertible ones."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
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
    # strictly below the diagonal, two rows of the matrix in one: a network that gives M has half to give
    below: Float[Array, "rows columns"]
    n: int = eqx.field(static=True)

    def __init__(self, n: int, *, dtype: DTypeLike = float):
        check_size(n)
        _checks.require_memory(
            n * n * jnp.dtype(dtype).itemsize,
            f"a triangular M in {n:,} dimensions is an array of {n:,}x{n:,}",
            "take Diagonal(n) or DiagonalLowRank(n, rank)",
        )
        self.log_diagonal = jnp.zeros(n, dtype)
        self.below = jnp.zeros(((n + 1) // 2, n - 1), dtype)
        self.n = n

    @classmethod
    def of(cls, matrix: Float[Array, "n n"]) -> "Triangular":
        """With the lower triangle of this matrix, whose diagonal is positive."""
        n = len(matrix)
        strict = jnp.tril(matrix, -1)[:, :-1]
        rows = (n + 1) // 2
        below = jnp.flip(strict, 0)[:rows] + jnp.flip(strict, 1)[:rows]
        return eqx.tree_at(
            lambda t: (t.log_diagonal, t.below),
            cls(n, dtype=strict.dtype),
            (jnp.log(jnp.diagonal(matrix)), below),
        )

    def matrix(self) -> Float[Array, "n n"]:
        r"""$M$ itself."""
        # row i of `below` ends, from its end, with row i of the matrix and begins with row n - 1 - i
        last = jnp.flip(self.below, 0)[self.n % 2 :]
        both = jnp.concatenate([jnp.flip(self.below, 1), last])
        strict = jnp.tril(jnp.pad(both, ((0, 0), (0, 1))), -1)
        return strict + jnp.diag(jnp.exp(self.log_diagonal))

    def multiply(self, z: Float[Array, "n *num"]) -> Float[Array, "n *num"]:
        """See `AbstractFactor`: by the rows as they are kept, in half the time where M is a network's."""
        begins = np.arange(self.n - 1) < self.n - 1 - np.arange(len(self.below))[:, None]
        last = product(jnp.where(begins, self.below, 0), z[:-1])
        first = product(jnp.where(begins, 0, self.below), z[-2::-1])
        strict = jnp.concatenate([first, last[::-1][self.n % 2 :]])
        return as_column(jnp.exp(self.log_diagonal), z) * z + strict

    def solve(self, s: Float[Array, "n *num"]) -> Float[Array, "n *num"]:
        """See `AbstractFactor`."""
        columns = s.reshape(self.n, -1)
        solved = _linalg.solve_triangular(self.matrix(), columns, lower=True)
        return solved.reshape(s.shape)

    def log_abs_det(self) -> Float[Array, ""]:
        """See `AbstractFactor`."""
        return jnp.sum(self.log_diagonal)
