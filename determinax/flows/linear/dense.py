"""Any matrix, whose determinant whoever made it has kept account of."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from ... import _linalg
from ..base import Constant
from ._base import AbstractFactor, product


class Dense(AbstractFactor):
    r"""Any matrix, with a $\log|\det M|$ that whoever made it has kept account of.

    It is not trained by gradients: `fit_linear` updates it, matrix and determinant together. Use
    `Triangular` for gradients.
    """

    matrix: Constant
    log_scale: Constant  # log|det M|
    n: int = eqx.field(static=True)

    def __init__(self, matrix: Float[Array, "n n"], log_abs_det: Float[Array, ""] | None = None):
        if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or len(matrix) < 2:
            raise ValueError(
                f"a dense factor is a square matrix with n >= 2, not one of shape {matrix.shape}"
            )
        if log_abs_det is None:
            log_abs_det = _linalg.log_abs_det(matrix)
        self.matrix, self.n = Constant(matrix), len(matrix)
        self.log_scale = Constant(jnp.asarray(log_abs_det, matrix.dtype))

    def multiply(self, z: Float[Array, "n *num"]) -> Float[Array, "n *num"]:
        """See `AbstractFactor`."""
        return product(self.matrix(), z)

    def solve(self, s: Float[Array, "n *num"]) -> Float[Array, "n *num"]:
        """See `AbstractFactor`."""
        return _linalg.solve(self.matrix(), s.reshape(self.n, -1)).reshape(s.shape)

    def log_abs_det(self) -> Float[Array, ""]:
        """See `AbstractFactor`."""
        return self.log_scale()
