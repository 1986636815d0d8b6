"""Rotations, which mix coordinates at no cost in volume."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.typing import DTypeLike
from jaxtyping import Array, Float, PRNGKeyArray

from .. import sphere
from .base import AbstractSphereMap, Constant, require_dimension


class Rotation(AbstractSphereMap):
    """A fixed rotation (or reflection): no parameters.

    !!! example

        ```python
        flow = dx.flows.Rotation(np.linalg.qr(A)[0])
        ```
    """

    matrix: Constant
    context_size: int = eqx.field(static=True)
    n: int = eqx.field(static=True)

    @property
    def is_linear(self) -> bool:
        """See `AbstractSphereMap`."""
        return True

    def __init__(self, matrix: Float[Array, "n n"]):
        if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
            raise ValueError(f"a rotation is a square matrix, not one of shape {matrix.shape}")
        require_dimension(matrix.shape[0])
        if not isinstance(matrix, Tracer):
            off = float(jnp.max(jnp.abs(matrix.T @ matrix - jnp.eye(len(matrix)))))
            if not off < 1e3 * len(matrix) * float(jnp.finfo(matrix.dtype).eps):
                raise ValueError(
                    f"a rotation has orthonormal columns, and these miss it by {off:.1g}: take the Q "
                    "of a QR factorisation, or ProjectiveLinear(Dense(matrix)) for any matrix"
                )
        self.matrix = Constant(matrix)
        self.n, self.context_size = matrix.shape[0], 0

    @staticmethod
    def random(n: int, *, key: PRNGKeyArray, dtype: Any = float) -> "Rotation":
        """A uniformly (Haar) distributed one."""
        require_dimension(n)
        return Rotation(sphere.frame(key, n, dtype=dtype))

    def _forward(self, s, context):
        return _apply(self.matrix(), s)

    def _inverse(self, s, context):
        return _apply(self.matrix().T, s)


class Householder(AbstractSphereMap):
    r"""A learned rotation, $\prod_i (I - 2v_iv_i^\top/\|v_i\|^2)$ with up to `n` reflections.

    `n` of them reach every orthogonal matrix of determinant $(-1)^n$; one drawn at random to start.
    """

    vectors: Array
    context_size: int = eqx.field(static=True)
    n: int = eqx.field(static=True)

    @property
    def is_linear(self) -> bool:
        """See `AbstractSphereMap`."""
        return True

    def __init__(
        self,
        n: int,
        num_reflections: int | None = None,
        *,
        key: PRNGKeyArray,
        dtype: DTypeLike = float,
    ):
        require_dimension(n)
        count = n if num_reflections is None else num_reflections
        if not 1 <= count <= n:
            raise ValueError(f"take 1 to {n} reflections in {n} dimensions, not {count}")
        self.vectors = jax.random.normal(key, (count, n), dtype)
        self.n, self.context_size = n, 0

    def _forward(self, s, context):
        return _apply(self._matrix(), s)

    def _inverse(self, s, context):
        return _apply(self._matrix().T, s)

    def _matrix(self) -> Array:
        def reflect(q, v):
            return q - 2 * jnp.outer(v, v @ q) / jnp.sum(v * v), None

        return jax.lax.scan(reflect, jnp.eye(self.n, dtype=self.vectors.dtype), self.vectors)[0]


def _apply(matrix: Array, s: Array) -> tuple[Array, Array]:
    moved = jnp.tensordot(matrix, s, 1, precision=jax.lax.Precision.HIGHEST)
    return moved, jnp.zeros(s.shape[1:], s.dtype)
