"""Flows start at the identity, to the last bit where nothing is rotated."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from determinax import flows

from .registry import every_dtype, forward, inverse, jit, points


@every_dtype
def test_zero_parameters_are_exactly_the_identity_on_the_interval(dtype):
    h = jnp.linspace(-1, 1, 1001, dtype=dtype)
    for num_bins in (1, 2, 16):
        spline = flows.IntervalSpline(num_bins)
        params = jnp.zeros((spline.num_parameters, h.size), dtype)
        moved, log_slope, log_ratio = jit(lambda h, p, f=spline: f.forward(h, p))(h, params)
        np.testing.assert_array_equal(moved, h)
        np.testing.assert_array_equal(log_slope, 0)
        np.testing.assert_array_equal(log_ratio, 0)


@every_dtype
@pytest.mark.parametrize(
    "circle",
    [flows.CircularSpline(8), flows.MoebiusMixture(5), flows.MoebiusMixture(5, "learned")],
)
def test_zero_parameters_are_exactly_the_identity_on_the_circle(circle, dtype):
    z = points(2, dtype)
    params = jnp.zeros((circle.num_parameters, z.shape[1]), dtype)
    moved, log_slope = jit(lambda z, p: circle.forward(z, p))(z, params)
    np.testing.assert_array_equal(moved, z)
    np.testing.assert_array_equal(log_slope, 0)


@every_dtype
@pytest.mark.parametrize(
    ("n", "conditioning"), [(2, "coupling"), (3, "autoregressive"), (6, "coupling")]
)
def test_cylinder_flows_start_at_the_identity(n, conditioning, dtype):
    options = {"key": jax.random.key(0), "num_flows": 2, "conditioning": conditioning}
    f = flows.cylinder(n, dtype=dtype, **options)
    s = points(n, dtype)
    for map_ in (forward, inverse):
        moved, log_det = map_(f, s)
        np.testing.assert_allclose(moved, s, atol=100 * np.finfo(dtype).eps)
        np.testing.assert_allclose(log_det, 0, atol=100 * np.finfo(dtype).eps)
    np.testing.assert_array_equal(forward(f, s)[1], 0)


def test_projective_linear_starts_at_the_identity():
    s = points(5, "float64")
    moved, log_det = flows.projective_linear(5).forward(s)
    np.testing.assert_allclose(moved, s, atol=1e-15)
    np.testing.assert_allclose(log_det, 0, atol=1e-14)
