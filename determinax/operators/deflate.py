r"""Deflation: what k products reveal of A is used exactly, and only the complement is left.

For an orthonormal frame $V$ and $AV = QR$, in bases that begin with $V$ and $Q$ the operator is block
triangular: $|\det A| = |\det R|\,|\det C|$, where $C = Q_\perp^\top A V_\perp$ acts between the
orthogonal complements. Forward products only.
"""

from collections.abc import Callable

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


def smallest_directions(
    operator: lx.AbstractLinearOperator,
    transpose: lx.AbstractLinearOperator,
    start: Float[Array, "n k"],
    depth: int,
) -> Float[Array, "n k"]:
    r"""About the right singular directions of the k smallest singular values of A.

    The best in the block Krylov space of $A^\top A$ from `start`, of `depth` blocks (a Rayleigh-Ritz
    step): `depth` k products with A and `(depth - 1)` k with its transpose.
    """
    k = start.shape[1]
    basis, images = start, columns(operator, start)
    for _ in range(depth - 1):
        block = columns(transpose, images[:, -k:])
        for _ in range(2):  # twice is enough, for orthogonality to rounding
            block = jnp.linalg.qr(block - _mm(basis, _mm(basis.T, block)))[0]
        basis = jnp.concatenate([basis, block], axis=1)
        images = jnp.concatenate([images, columns(operator, block)], axis=1)
    right = jnp.linalg.svd(images, full_matrices=False)[2]
    return _mm(basis, right[-k:].T)


def smallest_by_solves(
    solve: Callable[[Array], Array], start: Float[Array, "n k"], steps: int
) -> Float[Array, "n k"]:
    r"""The same from solves: subspace iteration with $A^{-1}A^{-\top}$, the transpose by JAX."""
    zeros = jnp.zeros(start.shape[0], start.dtype)

    def both(v):
        return solve(*jax.linear_transpose(solve, zeros)(v))

    def step(_, frame):
        return jnp.linalg.qr(jax.vmap(both, in_axes=1, out_axes=1)(frame))[0]

    return jax.lax.fori_loop(0, steps, step, start)


compiled_deflate = eqx.filter_jit(deflate)
compiled_smallest = eqx.filter_jit(smallest_directions)
