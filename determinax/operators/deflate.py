r"""Deflation: what k products reveal of A is used exactly, and only the complement is left.

For an orthonormal frame $V$ and $AV = QR$, in bases that begin with $V$ and $Q$ the operator is block
triangular: $|\det A| = |\det R|\,|\det C|$, where $C = Q_\perp^\top A V_\perp$ acts between the
orthogonal complements. Forward products only.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
from jaxtyping import Array, Float

from determinax.operators.kinds import CompressedLinearOperator, Reflector, columns


def deflate(
    operator: lx.AbstractLinearOperator, frame: Float[Array, "n k"]
) -> tuple[Float[Array, "k k"], CompressedLinearOperator]:
    """R, and the compressed operator between the complements of the frame and of its images."""
    q, r = jnp.linalg.qr(columns(operator, frame))
    return r, CompressedLinearOperator(operator, reflector(frame), reflector(q))


def reflector(frame: Float[Array, "n k"]) -> Reflector:
    r"""An orthogonal matrix whose first k columns span the frame, in memory O(nk).

    $P = I - UXU^\top$ with $U = V - E$, $X = (I - V_1^\top)^{-1}$, where $E$ are the first k unit
    vectors and $V_1$ the first k rows of $V$. We turn $V$ within its span so that $V_1$ is negative
    semidefinite: then $I - V_1 \ge I$, and nothing is ill-conditioned.
    """
    k = frame.shape[1]
    left, _, right = jnp.linalg.svd(frame[:k])
    turned = _mm(frame, -_mm(left, right).T)
    identity = jnp.eye(k, dtype=frame.dtype)
    return Reflector(turned.at[:k].add(-identity), jnp.linalg.inv(identity - turned[:k].T))


def _mm(a: Array, b: Array) -> Array:
    return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)


compiled_deflate = eqx.filter_jit(deflate)
