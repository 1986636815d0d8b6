"""log_det is the log-determinant of the Jacobian between tangent spaces."""

import jax
import jax.numpy as jnp
import numpy as np

from .registry import (
    MODERATE,
    build,
    every_map,
    every_map_in_float32,
    forward,
    inverse,
    jit,
    points,
)


def _tangent_basis(x):
    """Orthonormal columns that span the tangent space at x."""
    n = x.shape[0]
    q, _ = jnp.linalg.qr(jnp.concatenate([x[:, None], jnp.eye(n, dtype=x.dtype)], axis=1))
    return q[:, 1:n]


@jit
def _by_autodiff(f, s):
    def one(x):
        jacobian = jax.jacrev(lambda x: f.forward(x)[0])(x)
        y, _ = f.forward(x)
        return jnp.linalg.slogdet(_tangent_basis(y).T @ jacobian @ _tangent_basis(x))[1]

    return jax.lax.map(one, s.T)


@every_map
def test_log_det_matches_autodiff_in_tangent_bases(name, n):
    s = points(n, "float64")
    for scale in MODERATE:
        f = build(name, n, "float64", scale)
        expected = _by_autodiff(f, s[:, :10])
        np.testing.assert_allclose(forward(f, s)[1][:10], expected, atol=1e-8)


@every_map_in_float32
def test_float32_agrees_with_float64(name, n):
    s32, s64 = points(n, "float32"), points(n, "float64")
    for map_ in (forward, inverse):
        for scale in MODERATE:
            y32, log_det32 = map_(build(name, n, "float32", scale), s32)
            y64, log_det64 = map_(build(name, n, "float64", scale), s64)
            np.testing.assert_allclose(y32, y64, atol=5e-5)
            np.testing.assert_allclose(log_det32, log_det64, atol=5e-4)
