"""A diagonal and a term of low rank."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, PRNGKeyArray

from ... import _linalg
from ..base import as_column
from ._base import AbstractFactor, check_size, product


class DiagonalLowRank(AbstractFactor):
    r"""$M = D + UV^\top$ with diagonal $D$ and $U, V$ of `rank` columns, solved by Woodbury.

    $\log|\det M| = \log|\det D| + \log|\det(I + V^\top D^{-1} U)|$. It starts as the identity, with
    $V = 0$ and a random $U$: were both zero, neither would have a gradient.
    """

    log_diagonal: Float[Array, " n"]
    left: Float[Array, "n rank"]
    right: Float[Array, "n rank"]
    n: int = eqx.field(static=True)

    def __init__(
        self, n: int, rank: int, *, key: PRNGKeyArray | None = None, dtype: DTypeLike = float
    ):
        check_size(n)
        if not 1 <= rank <= n:
            raise ValueError(f"a low-rank term in {n} dimensions has rank 1 to {n}, not {rank}")
        self.log_diagonal = jnp.zeros(n, dtype)
        key = jax.random.key(0) if key is None else key
        self.left = jax.random.normal(key, (n, rank), dtype) / n**0.5
        self.right = jnp.zeros((n, rank), dtype)
        self.n = n

    def multiply(self, z: Float[Array, "n *num"]) -> Float[Array, "n *num"]:
        """See `AbstractFactor`."""
        scale = as_column(jnp.exp(self.log_diagonal), z)
        return scale * z + product(self.left, product(self.right.T, z))

    def solve(self, s: Float[Array, "n *num"]) -> Float[Array, "n *num"]:
        """See `AbstractFactor`."""
        inverse = jnp.exp(-self.log_diagonal)
        x = as_column(inverse, s) * s
        inner = product(self.right.T, x).reshape(self.right.shape[1], -1)
        inner = _linalg.solve(self._capacitance(), inner)
        correction = product(inverse[:, None] * self.left, inner)
        return x - correction.reshape(s.shape)

    def log_abs_det(self) -> Float[Array, ""]:
        """See `AbstractFactor`."""
        return jnp.sum(self.log_diagonal) + _linalg.log_abs_det(self._capacitance())

    def _capacitance(self) -> Array:
        scaled = jnp.exp(-self.log_diagonal)[:, None] * self.left
        return jnp.eye(self.left.shape[1], dtype=scaled.dtype) + product(self.right.T, scaled)
