"""Streamed sums against the direct formulas."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
from hypothesis import given, settings
from hypothesis import strategies as st

from determinax import estimate as es
from determinax import moments as mo

RNG = np.random.default_rng(0)


def stream(log_w, chunk, dtype=np.float64):
    groups = len(log_w)
    moments = mo.empty(groups, chunk, dtype)
    for start in range(0, groups, chunk):
        moments = mo.update(moments, jnp.asarray(log_w[start : start + chunk], dtype))
    return moments


def finish(moments, groups, chunk, n=10, factor=1.0):
    return es.from_moments(moments, num_groups=groups, groups_per_chunk=chunk, n=n, factor=factor)


@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize("spread", [1e-6, 0.01, 0.5, 3.0])
@pytest.mark.parametrize("center", [0.0, -700.0, 4000.0])
def test_streamed_figures_are_the_direct_ones(size, spread, center):
    log_w = center + spread * RNG.standard_normal((1000, size))
    e = finish(stream(log_w, 96), 1000, 96)
    w = np.exp(log_w - center).mean(axis=1)
    assert np.isclose(e.log_abs_det, -np.log(w.mean()) - center, rtol=1e-12, atol=1e-12)
    error = w.std(ddof=1) / w.mean() / np.sqrt(1000)
    assert np.isclose(e.standard_error, error, rtol=0.03)
    assert np.isclose(e.kl_bound, -log_w.mean(), rtol=1e-12)
    kl_error = log_w.mean(axis=1).std(ddof=1) / np.sqrt(1000)
    assert np.isclose(e.kl_bound_standard_error, kl_error, rtol=1e-5)
    assert np.isclose(e.effective_sample_size, w.sum() ** 2 / (w**2).sum(), rtol=1e-9)
    assert np.isclose(e.max_weight_share, w.max() / w.sum(), rtol=1e-9)


def test_the_importance_bound_is_the_mean_over_whole_batches():
    log_w = RNG.standard_normal((1000, 1))
    moments = stream(log_w, 100)
    e = finish(moments, 1000, 100)
    batch = moments.batch
    assert batch == 16
    chunks = log_w.reshape(10, 100)[:, : 100 // batch * batch].reshape(-1, batch)
    logs = scipy.special.logsumexp(chunks, axis=1) - np.log(batch)
    assert e.num_batches == len(logs)
    assert np.isclose(e.importance_bound, -logs.mean(), rtol=1e-12)
    expected = -logs.mean() + np.log(1 / 0.1) / len(logs)
    assert np.isclose(e.certified_upper(0.1), expected, rtol=1e-12)


def test_bounds_are_in_order_in_expectation():
    """KL >= importance-weighted >= truth, in standard errors."""
    log_w = RNG.standard_normal((100_000, 1)) - 0.5  # E w = 1
    e = finish(stream(log_w, 1000), 100_000, 1000)
    assert e.kl_bound > e.importance_bound + 4 * e.importance_bound_standard_error
    assert e.importance_bound > -4 * e.importance_bound_standard_error
    assert abs(e.kl_bound - 0.5) < 4 * e.kl_bound_standard_error


def test_the_tail_is_the_largest_group_weights():
    log_w = RNG.standard_normal((5000, 2))
    moments = stream(log_w, 700)
    groups = scipy.special.logsumexp(log_w, axis=1) - np.log(2)
    expected = np.sort(groups)[::-1][: len(moments.tail)] - float(moments.pivot)
    assert len(moments.tail) == 214  # ceil(3 sqrt(5000)) and one below
    np.testing.assert_allclose(moments.tail, expected, rtol=1e-5, atol=1e-6)


def test_float32_keeps_its_digits_over_many_chunks():
    """A plain float32 sum of 20,000 chunks is off by 1e-4 here; the compensated one is not."""
    values = RNG.standard_normal((64, 1)) * 0.1 + 50.3
    chunk = jnp.asarray(values, jnp.float32)
    num = 20_000

    @jax.jit
    def run():
        empty = mo.empty(num * 64, 64, jnp.float32)
        return jax.lax.fori_loop(0, num, lambda _, m: mo.update(m, chunk), empty)

    e = finish(run(), num * 64, 64)
    exact = np.asarray(chunk, np.float64)
    mean = np.exp(exact - 50).mean()
    np.testing.assert_allclose(e.log_abs_det, -50 - np.log(mean), rtol=2e-7)
    np.testing.assert_allclose(e.kl_bound, -exact.mean(), rtol=2e-7)
    error = np.exp(exact - 50).std() / mean / np.sqrt(num * 64)
    np.testing.assert_allclose(e.standard_error, error, rtol=1e-3)


@pytest.mark.parametrize("bad", [np.nan, -np.inf])
def test_the_first_bad_product_is_named(bad):
    log_w = np.zeros((50, 3))
    log_w[17, 2] = log_w[31, 0] = bad
    assert int(stream(log_w, 8).first_bad) == 17 * 3 + 2


def test_a_vanished_product_makes_minus_infinity_not_nan():
    log_w = np.zeros((50, 1))
    log_w[20] = np.inf
    e = finish(stream(log_w, 8), 50, 8)
    assert e.log_abs_det == -np.inf
    assert e.status == "unreliable"
    assert "singular" in e.reasons[0]


@given(
    st.lists(st.floats(-1000, 1000), min_size=30, max_size=60),
    st.integers(1, 40),
    st.integers(1, 3),
)
@settings(max_examples=5, deadline=None)
def test_any_log_weights_in_any_chunks(values, chunk, size):
    log_w = np.array(values)[: len(values) // size * size].reshape(-1, size)
    e = finish(stream(log_w, chunk), len(log_w), chunk)
    exact = -(scipy.special.logsumexp(log_w) - np.log(log_w.size))
    assert np.isclose(e.log_abs_det, exact, rtol=1e-12, atol=1e-9)
    assert 1 - 1e-9 <= e.effective_sample_size <= len(log_w) * (1 + 1e-9)


def test_complex_factors_scale_everything():
    log_w = RNG.standard_normal((1000, 1))
    full = finish(stream(log_w, 100), 1000, 100)
    half = finish(stream(log_w, 100), 1000, 100, factor=0.5)
    for name in ("log_abs_det", "standard_error", "kl_bound", "importance_bound"):
        assert np.isclose(getattr(half, name), 0.5 * getattr(full, name), rtol=1e-13)
    assert np.isclose(half.certified_upper(0.1), 0.5 * full.certified_upper(0.1), rtol=1e-13)
