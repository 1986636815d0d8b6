"""The maps of the interval and of the circle by themselves, and their hand-written gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from determinax import flows
from determinax.flows import moebius, splines

from .registry import jit

CIRCLES = [
    flows.CircularSpline(5),
    flows.MoebiusMixture(1),
    flows.MoebiusMixture(4),
    flows.MoebiusMixture(4, "learned"),
]
circles = pytest.mark.parametrize("circle", CIRCLES, ids=str)
bins = pytest.mark.parametrize("num_bins", [1, 2, 7])


def _both(map_):
    return jax.jit(lambda *a: map_.forward(*a)), jax.jit(lambda *a: map_.inverse(*a))


def _params(map_, num, scale=1.0, seed=0):
    shape = (map_.num_parameters, num)
    return jnp.asarray(scale * np.random.default_rng(seed).normal(size=shape))


def _angles(num=201):
    return jnp.linspace(-np.pi, np.pi, num)


def _on_circle(t):
    return jnp.stack([jnp.cos(t), jnp.sin(t)])


@bins
def test_interval_log_slope_is_the_log_of_the_derivative(num_bins):
    spline = flows.IntervalSpline(num_bins)
    h = jnp.linspace(-1, 1, 101)
    params = _params(spline, 1)
    for map_ in _both(spline):
        derivative = jit(jax.vmap(jax.grad(lambda h, map_=map_: map_(h, params[:, 0])[0])))(h)
        wide = jnp.broadcast_to(params, (params.shape[0], h.size))
        np.testing.assert_allclose(map_(h, wide)[1], jnp.log(derivative), atol=1e-12)


@bins
def test_interval_is_mapped_onto_itself(num_bins):
    spline = flows.IntervalSpline(num_bins)
    ends = jnp.array([-1.0, 1.0])
    moved, log_slope, log_ratio = spline.forward(ends, _params(spline, 2, 2.0))
    np.testing.assert_allclose(moved, ends, atol=1e-14)
    # at the ends the ratio of 1 - g^2 to 1 - h^2 is the slope
    np.testing.assert_allclose(log_ratio, log_slope, atol=1e-13)


@bins
def test_interval_log_ratio_is_what_it_says(num_bins):
    spline = flows.IntervalSpline(num_bins)
    h = jnp.linspace(-0.99, 0.99, 101)
    for map_ in _both(spline):
        moved, _, log_ratio = map_(h, _params(spline, h.size))
        np.testing.assert_allclose(log_ratio, jnp.log((1 - moved**2) / (1 - h**2)), atol=1e-11)


@bins
def test_bin_edges_are_no_seams(num_bins):
    """From both sides of every knot, value and slope agree."""
    spline = flows.IntervalSpline(num_bins)
    params = _params(spline, 1)[:, 0]
    sizes = jax.nn.softmax(params[:num_bins])
    sizes = splines._MIN_SIZE / num_bins + (1 - splines._MIN_SIZE) * sizes
    knots = 2 * jnp.cumsum(sizes)[:-1] - 1
    wide = jnp.broadcast_to(params[:, None], (params.size, knots.size))
    left, right = (spline.forward(knots + d, wide) for d in (-1e-12, 1e-12))
    for a, b in zip(left, right, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-9)


@circles
def test_circle_log_slope_is_the_log_of_the_derivative(circle):
    t = _angles()
    params = _params(circle, 1)

    def turned(t, map_):
        z = map_(_on_circle(t), params[:, 0])[0]
        start = jax.lax.stop_gradient(z)
        return start[0] * z[1] - start[1] * z[0]  # the sine of the angle moved

    for map_ in _both(circle):
        slope = jit(jax.vmap(jax.grad(lambda t, map_=map_: turned(t, map_))))(t)
        wide = jnp.broadcast_to(params, (params.shape[0], t.size))
        np.testing.assert_allclose(map_(_on_circle(t), wide)[1], jnp.log(slope), atol=1e-10)


@circles
def test_circle_inverse_is_accurate_for_large_parameters(circle):
    t = _angles()
    forward, inverse = _both(circle)
    for scale in (0.1, 1.0, 10.0):
        params = _params(circle, t.size, scale)
        moved, log_slope = forward(_on_circle(t), params)
        back, log_slope_back = inverse(moved, params)
        stretch = jnp.exp(-jnp.min(log_slope))
        np.testing.assert_allclose(back, _on_circle(t), atol=2e-15 * (1 + stretch) * 100)
        assert jnp.max(jnp.abs(log_slope + log_slope_back)) < 1e-8


@circles
def test_circle_has_no_seam(circle):
    params = _params(circle, 1)
    for t in (0.0, np.pi):
        left, right = (
            circle.forward(_on_circle(jnp.array([t + d])), params) for d in (-1e-12, 1e-12)
        )
        for a, b in zip(left, right, strict=True):
            np.testing.assert_allclose(a, b, atol=1e-9)


@circles
def test_gradients_of_circle_maps(circle):
    t, params = jnp.array([0.3, 2.0, -1.0]), _params(circle, 3)
    for map_ in _both(circle):
        check_grads(
            lambda t, p, map_=map_: map_(_on_circle(t), p), (t, params), 1, modes=["rev"], eps=1e-6
        )


@bins
def test_gradients_of_splines(num_bins):
    spline = flows.IntervalSpline(num_bins)
    h, params = jnp.array([-0.93, -0.1, 0.45, 0.98]), _params(spline, 4)
    for map_ in _both(spline):
        check_grads(map_, (h, params), 1, modes=["rev"], eps=1e-6)


@bins
@pytest.mark.parametrize("closed", [True, False])
def test_spline_gradient_by_hand_is_that_of_autodiff(num_bins, closed):
    """Also at both ends, where differences of values cannot tell."""
    x = jnp.linspace(0, 1, 50)
    params = _params(flows.IntervalSpline(num_bins), 50)[: 3 * num_bins + (not closed)]
    cotangents = tuple(_params(flows.IntervalSpline(1), 50, seed=2)[:3])

    def plain(params, x):
        return splines._evaluate(splines._choose(params, x, closed).bin, num_bins, x)

    def by_hand(params, x):
        return splines._spline(closed, params, x)

    by_autodiff, by_hand = (
        jit(lambda p, x, f=f: jax.vjp(f, p, x)[1](cotangents))(params, x) for f in (plain, by_hand)
    )
    for a, b in zip(by_hand, by_autodiff, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-11)


@pytest.mark.parametrize("weights", ["equal", "learned"])
def test_moebius_gradient_by_hand_is_that_of_autodiff(weights):
    z, params = _on_circle(_angles(50)), _params(flows.MoebiusMixture(4, weights), 50, 2.0)
    cotangents = tuple(_params(flows.IntervalSpline(1), 50, seed=2)[:2])
    by_autodiff, by_hand = (
        jit(lambda p, z, f=f: jax.vjp(lambda p, z: f(4, p, z), p, z)[1](cotangents))(params, z)
        for f in (moebius._plain_mixture, moebius._mixture)
    )
    for a, b in zip(by_hand, by_autodiff, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-11)


@pytest.mark.parametrize(("dtype", "ulps"), [("float32", 8), ("float64", 8)])
def test_arg_is_accurate(dtype, ulps):
    rng = np.random.default_rng(0)
    x = np.abs(rng.normal(size=10_000) * 10 ** rng.uniform(-3, 1, 10_000)).astype(dtype)
    y = rng.normal(size=10_000).astype(dtype)
    exact = np.arctan2(y.astype(np.longdouble), x.astype(np.longdouble))
    error = np.abs(np.asarray(moebius._arg(jnp.asarray(x), jnp.asarray(y))) - exact)
    assert error.max() < ulps * np.finfo(dtype).eps


def test_second_derivatives_exist():
    spline, h = flows.IntervalSpline(4), jnp.array(0.3)
    params = _params(spline, 1)[:, 0]
    second = jit(jax.grad(jax.grad(lambda h: spline.forward(h, params)[0])))(h)
    step = 1e-4
    values = [spline.forward(h + d, params)[0] for d in (-step, 0.0, step)]
    np.testing.assert_allclose(second, (values[0] - 2 * values[1] + values[2]) / step**2, rtol=1e-4)
