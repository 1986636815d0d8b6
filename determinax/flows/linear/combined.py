"""Factors made of factors."""

from collections.abc import Callable, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ._base import AbstractFactor


class Product(AbstractFactor):
    r"""$M = M_1 M_2 \cdots$: the last factor acts first."""

    factors: tuple[AbstractFactor, ...]
    n: int = eqx.field(static=True)

    def __init__(self, factors: Sequence[AbstractFactor]):
        sizes = {f.n for f in factors}
        if len(sizes) != 1:
            raise ValueError(f"a product needs factors of one size, not of sizes {sorted(sizes)}")
        self.factors, self.n = tuple(factors), sizes.pop()

    def multiply(self, z: Float[Array, "n *num"]) -> Float[Array, "n *num"]:
        """See `AbstractFactor`."""
        for factor in self.factors[::-1]:
            z = factor.multiply(z)
        return z

    def solve(self, s: Float[Array, "n *num"]) -> Float[Array, "n *num"]:
        """See `AbstractFactor`."""
        for factor in self.factors:
            s = factor.solve(s)
        return s

    def log_abs_det(self) -> Float[Array, ""]:
        """See `AbstractFactor`."""
        return jnp.sum(jnp.stack([f.log_abs_det() for f in self.factors]))


class Inverse(AbstractFactor):
    r"""$M = R^{-1}$ for a factor R: what fits A becomes what proposes for it."""

    factor: AbstractFactor
    n: int = eqx.field(static=True)

    def __init__(self, factor: AbstractFactor):
        self.factor, self.n = factor, factor.n

    def multiply(self, z: Float[Array, "n *num"]) -> Float[Array, "n *num"]:
        """See `AbstractFactor`."""
        return self.factor.solve(z)

    def solve(self, s: Float[Array, "n *num"]) -> Float[Array, "n *num"]:
        """See `AbstractFactor`."""
        return self.factor.multiply(s)

    def log_abs_det(self) -> Float[Array, ""]:
        """See `AbstractFactor`."""
        return -self.factor.log_abs_det()


class Transpose(AbstractFactor):
    r"""$M = F^\top$ for a factor F: what JAX makes of its products and solves, which are linear."""

    factor: AbstractFactor
    n: int = eqx.field(static=True)

    def __init__(self, factor: AbstractFactor):
        self.factor, self.n = factor, factor.n

    def multiply(self, z: Float[Array, "n *num"]) -> Float[Array, "n *num"]:
        """See `AbstractFactor`."""
        return _transposed(self.factor.multiply, z)

    def solve(self, s: Float[Array, "n *num"]) -> Float[Array, "n *num"]:
        """See `AbstractFactor`."""
        return _transposed(self.factor.solve, s)

    def log_abs_det(self) -> Float[Array, ""]:
        """See `AbstractFactor`."""
        return self.factor.log_abs_det()


def _transposed(linear: Callable[[Array], Array], x: Array) -> Array:
    return jax.vjp(linear, jnp.zeros_like(x))[1](x)[0]
