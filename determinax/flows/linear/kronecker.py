"""Kronecker products of two factors."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from ._base import AbstractFactor


class Kronecker(AbstractFactor):
    r"""$M = L \otimes R$: it acts on a vector as $L X R^\top$ on the matrix X of its entries.

    $\log|\det M| = n_R \log|\det L| + n_L \log|\det R|$.
    """

    left: AbstractFactor
    right: AbstractFactor
    n: int = eqx.field(static=True)

    def __init__(self, left: AbstractFactor, right: AbstractFactor):
        self.left, self.right, self.n = left, right, left.n * right.n

    def multiply(self, z: Float[Array, "n *num"]) -> Float[Array, "n *num"]:
        """See `AbstractFactor`."""
        return self._apply(self.left.multiply, self.right.multiply, z)

    def solve(self, s: Float[Array, "n *num"]) -> Float[Array, "n *num"]:
        """See `AbstractFactor`."""
        return self._apply(self.left.solve, self.right.solve, s)

    def log_abs_det(self) -> Float[Array, ""]:
        """See `AbstractFactor`."""
        return self.right.n * self.left.log_abs_det() + self.left.n * self.right.log_abs_det()

    def _apply(self, left, right, x):
        rows = left(x.reshape(self.left.n, self.right.n, -1))
        columns = right(jnp.swapaxes(rows, 0, 1))
        return jnp.swapaxes(columns, 0, 1).reshape(x.shape)
