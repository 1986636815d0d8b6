"""The inverse undoes the forward map, and their log-determinants cancel."""

import jax.numpy as jnp
import numpy as np

from .registry import (
    EXTREME,
    MODERATE,
    build,
    every_map,
    every_map_and_dtype,
    forward,
    inverse,
    points,
)

TOLERANCE = {"float32": 5e-5, "float64": 1e-9}


@every_map_and_dtype
def test_inverse_undoes_forward(name, n, dtype):
    s = points(n, dtype)
    for scale in MODERATE:
        f = build(name, n, dtype, scale)
        moved, log_det = forward(f, s)
        back, log_det_back = inverse(f, moved)
        assert moved.dtype == back.dtype == log_det.dtype == log_det_back.dtype == dtype
        np.testing.assert_allclose(back, s, atol=TOLERANCE[dtype])
        np.testing.assert_allclose(log_det_back, -log_det, atol=10 * TOLERANCE[dtype])


@every_map
def test_forward_undoes_inverse(name, n):
    s = points(n, "float64")
    for scale in MODERATE:
        f = build(name, n, "float64", scale)
        back, log_det_back = inverse(f, s)
        moved, log_det = forward(f, back)
        np.testing.assert_allclose(moved, s, atol=TOLERANCE["float64"])
        np.testing.assert_allclose(log_det_back, -log_det, atol=10 * TOLERANCE["float64"])


@every_map_and_dtype
def test_extreme_parameters_stay_finite(name, n, dtype):
    s, f = points(n, dtype), build(name, n, dtype, EXTREME)
    for out in (*forward(f, s), *inverse(f, s)):
        assert jnp.all(jnp.isfinite(out))
