"""The inverse undoes the forward map, and their log-determinants cancel."""

import jax.numpy as jnp
import numpy as np

from determinax import sphere

from .registry import SCALES, build, every_dtype, every_map, forward, inverse

# per scale of the parameters
TOLERANCE = {
    "float32": dict(zip(SCALES, (1e-4, 5e-4, 5e-2), strict=True)),
    "float64": dict(zip(SCALES, (1e-9, 1e-9, 1e-9), strict=True)),
}


@every_dtype
@every_map
def test_inverse_undoes_forward(name, n, dtype):
    s = sphere.uniform(_key(n), n, 500).astype(dtype)
    for scale in SCALES:
        f = build(name, n, dtype, scale)
        moved, log_det = forward(f, s)
        back, log_det_back = inverse(f, moved)
        assert moved.dtype == back.dtype == log_det.dtype == log_det_back.dtype == dtype
        tolerance = TOLERANCE[dtype][scale]
        np.testing.assert_allclose(back, s, atol=tolerance)
        np.testing.assert_allclose(log_det_back, -log_det, atol=100 * tolerance)
        assert jnp.all(jnp.isfinite(back))


@every_map
def test_forward_undoes_inverse(name, n):
    s = sphere.uniform(_key(n), n, 500)
    for scale in SCALES:
        f = build(name, n, "float64", scale)
        back, _ = inverse(f, s)
        moved, _ = forward(f, back)
        np.testing.assert_allclose(moved, s, atol=TOLERANCE["float64"][scale])


def _key(n):
    import jax

    return jax.random.key(100 + n)
