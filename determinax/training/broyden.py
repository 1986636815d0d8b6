r"""Broyden's update: follow an operator that moves, while M is its inverse up to scale.

Once $M$ is $A^{-1}$ up to scale, not just up to scale and rotation, forward products tell more than the
secant update uses: with $W = AMZ$ over its scale, $W - Z$ is what the frame misses of $B = I$, and

$$M \leftarrow M\,(I + (W - Z)Z^\top)^{-1}$$

takes $W = A\,MZ$ back to $MZ$, and $\|B - I\|_F^2$ loses its share $k/n$ a step, where the block BFGS step
without a transpose takes $(k/n)^2$ of $\|B^\top B - I\|_F^2$. It multiplies $\det M$ by
$1/\det(Z^\top W)$.
"""

import jax
import jax.numpy as jnp
import lineax as lx
from jaxtyping import Array, Float

from determinax import _linalg
from determinax._linalg import mm
from determinax.training.secant import change_of, images_of, power_of

# M is A^-1 up to scale where the frame misses less than this of it, squared: then the singular
# values of Z^T W are above 1/2
_NEAR = 0.25


def tracking_update(
    operator: lx.AbstractLinearOperator,
    matrix: Float[Array, "n n"],
    log_abs_det: Float[Array, ""],
    z: Float[Array, "n k"],
) -> tuple[Float[Array, "n n"], Float[Array, ""], Float[Array, " k"]]:
    r"""The updated M, its log-determinant, and the log-weights of the frame under the M before it.

    Broyden's update where the frame says that $\|B - I\|_F$ is below 1; elsewhere the secant update,
    and a rotation towards $B = I$, which costs nothing. Forward products only.
    """
    n, k = z.shape
    moved = mm(matrix, z)
    images = images_of(operator, moved)
    log_w = log_abs_det - n * images.log_norms
    if images.scaled.shape != z.shape:  # a tall operator has no inverse
        change = change_of(images, z)
        return matrix + mm(moved, change), log_abs_det, log_w

    def broyden():
        inner = mm(z.T, images.scaled)
        factors = _linalg.lu_factor(inner)
        missed = mm(matrix, images.scaled - z)
        new = matrix - mm(missed, _linalg.solve(inner, z.T, factors))
        return new, log_abs_det - _linalg.log_abs_det(inner, factors)

    def secant():
        root = power_of(images, -1)
        new = matrix + mm(moved, mm(root, z.T) - z.T)
        return _turned(new, z, mm(images.scaled, root)), log_abs_det

    is_near = jnp.sum((images.scaled - z) ** 2) < min(k / n, _NEAR)
    return *jax.lax.cond(is_near, broyden, secant), log_w


def _turned(matrix: Array, z: Float[Array, "n k"], u: Float[Array, "n k"]) -> Float[Array, "n n"]:
    r"""$M O^\top$ for the least rotation with $OZ = U$, of orthonormal frames.

    The product of the reflections in Z and in the subspace half-way is the rotation that takes one
    span to the other by the shortest path; what is left is a turn within the span of U.
    """
    left, cosines, right = _linalg.svd(mm(z.T, u))
    turn = mm(left, right)
    nearest = mm(u, turn.T)
    middle = mm(z + nearest, left / jnp.sqrt(2 + 2 * cosines))
    for frame in (z, middle):
        matrix = 2 * mm(mm(matrix, frame), frame.T) - matrix
    identity = jnp.eye(z.shape[1], dtype=z.dtype)
    return matrix + mm(mm(mm(matrix, nearest), turn.T - identity), nearest.T)
