r"""Projective linear maps $s = Mz/\|Mz\|$: the angular central Gaussian family.

$$\log\det = \log|\det M| - n\log\|Mz\|.$$

The family holds the best proposal for $\log|\det A|$: at $M = A^{-1}$ every weight is $1/|\det A|$.

Reference: Tyler (1987), Biometrika 74(3), on the angular central Gaussian law.
"""

import abc

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from .base import AbstractSphereMap, as_column


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


class Triangular(AbstractFactor):
    r"""A lower triangular matrix with diagonal $e^{\text{log\_diagonal}}$; zeros are the identity.

    Up to scale and a right rotation, which leave the density alone, every invertible matrix is one.
    """

    log_diagonal: Float[Array, " n"]
    below: Float[Array, "n n"]  # only what is strictly below the diagonal counts
    n: int = eqx.field(static=True)

    def __init__(self, n: int, *, dtype: DTypeLike = float):
        if n < 2:
            raise ValueError(f"a projective map needs a sphere with n >= 2, not n = {n}")
        self.log_diagonal = jnp.zeros(n, dtype)
        self.below = jnp.zeros((n, n), dtype)
        self.n = n

    def matrix(self) -> Float[Array, "n n"]:
        r"""$M$ itself."""
        return jnp.tril(self.below, -1) + jnp.diag(jnp.exp(self.log_diagonal))

    def multiply(self, z):
        """See `AbstractFactor`."""
        scale = as_column(jnp.exp(self.log_diagonal), z)
        return scale * z + _product(jnp.tril(self.below, -1), z)

    def solve(self, s):
        """See `AbstractFactor`."""
        columns = s.reshape(self.n, -1)
        solved = jax.scipy.linalg.solve_triangular(self.matrix(), columns, lower=True)
        return solved.reshape(s.shape)

    def log_abs_det(self):
        """See `AbstractFactor`."""
        return jnp.sum(self.log_diagonal)


class ProjectiveLinear(AbstractSphereMap):
    r"""$s = Mz/\|Mz\|$ for a factor $M$."""

    factor: AbstractFactor
    context_size: int = eqx.field(static=True)
    n: int = eqx.field(static=True)

    def __init__(self, factor: AbstractFactor):
        self.factor = factor
        self.n, self.context_size = factor.n, 0

    def _forward(self, s, context):
        return _project(self.factor.multiply(s), self.factor.log_abs_det())

    def _inverse(self, s, context):
        return _project(self.factor.solve(s), -self.factor.log_abs_det())


def _project(x: Array, log_abs_det: Array) -> tuple[Array, Array]:
    norm = jnp.linalg.norm(x, axis=0)
    return x / norm, log_abs_det - x.shape[0] * jnp.log(norm)


def _product(matrix: Array, x: Array) -> Array:
    return jnp.tensordot(matrix, x, 1, precision=jax.lax.Precision.HIGHEST)
