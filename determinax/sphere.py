r"""Directions: uniform points and orthonormal frames on the unit sphere $S^{n-1}$.

Points are columns, the batch is the last axis: an `(n, num)` array is what a matrix multiplies,
and XLA's CPU backend reduces fast over the first axis.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Float, PRNGKeyArray


def _normal(key: PRNGKeyArray, shape: tuple[int, int], dtype: DTypeLike) -> Float[Array, "n num"]:
    def draw(key):
        # float32 draws, twice as fast: a grid of 2^23 equally likely values for each coordinate
        # moves a mean by some 1e-7 of itself, below the noise of any sample that fits in a lifetime
        return jax.random.normal(key, shape, jnp.float32)

    # one device draws them: the layout of bits that splits over devices costs a fifth more
    with jax.threefry_partitionable(False):
        # always true, which XLA does not know: so it has to keep what the branch gives. Else it may
        # draw anew for the norm, round differently there, and points are off by float32's epsilon
        always = jax.lax.population_count(jax.random.bits(key, dtype=jnp.uint32)) <= 32
        z = jax.lax.cond(always, draw, lambda _: jnp.zeros(shape, jnp.float32), key)
    return z.astype(dtype)


def uniform(key: PRNGKeyArray, n: int, num: int, dtype: DTypeLike = float) -> Float[Array, "n num"]:
    r"""`num` independent uniform points on $S^{n-1}$, as columns.

    $S^0 = \{-1, 1\}$ for `n = 1`.
    """
    z = _normal(key, (n, num), dtype)
    return z / jnp.linalg.norm(z, axis=0)


def frame(
    key: PRNGKeyArray, n: int, k: int | None = None, dtype: DTypeLike = float
) -> Float[Array, "n k"]:
    r"""A uniform (Haar) orthonormal frame of `k <= n` directions, as columns; full by default.

    Each column alone is uniform on $S^{n-1}$; together they spread out more evenly than
    independent points, which is what cancels the first-order noise of a determinant estimate.
    """
    k = n if k is None else k
    if not 1 <= k <= n:
        raise ValueError(f"a frame in {n} dimensions has 1 to {n} directions, not {k}")
    z = _normal(key, (n, k), dtype)
    return _gram_schmidt(z) if n <= _SMALL else _householder(z)


# up to here Gram-Schmidt is at least as fast as LAPACK, whose threads can also wait for each other
# for ever when XLA runs two factorisations at once (seen with OpenBLAS and batches of 20 x 20)
_SMALL = 32


def _gram_schmidt(z: Float[Array, "n k"]) -> Float[Array, "n k"]:
    def step(j, q):
        v = z[:, j]
        for _ in range(2):  # twice is enough, for orthogonality to rounding
            v = v - q @ (q.T @ v)
        return q.at[:, j].set(v / jnp.linalg.norm(v))

    return jax.lax.fori_loop(0, z.shape[1], step, jnp.zeros_like(z))


def _householder(z: Float[Array, "n k"]) -> Float[Array, "n k"]:
    q, r = jnp.linalg.qr(z)
    # LAPACK fixes the signs of R's diagonal by its own rule; undo that, else q is not Haar
    return q * jnp.where(jnp.diagonal(r) < 0, -1, 1).astype(z.dtype)
