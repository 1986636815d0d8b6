"""What a linear family offers, and what its factors share."""

import abc

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


class AbstractFactor(eqx.Module):
    """An invertible matrix with products, solves and a log-determinant that are all cheap."""

    n: eqx.AbstractVar[int]

    @abc.abstractmethod
    def multiply(self, z: Float[Array, "n *num"]) -> Float[Array, "n *num"]:
        r"""$Mz$."""

    @abc.abstractmethod
    def solve(self, s: Float[Array, "n *num"]) -> Float[Array, "n *num"]:
        r"""$M^{-1}s$."""

    @abc.abstractmethod
    def log_abs_det(self) -> Float[Array, ""]:
        r"""$\log|\det M|$."""


def product(matrix: Array, x: Array) -> Array:
    return jnp.tensordot(matrix, x, 1, precision=jax.lax.Precision.HIGHEST)


def check_size(n: int) -> None:
    if n < 2:
        raise ValueError(f"a projective map needs a sphere with n >= 2, not n = {n}")
