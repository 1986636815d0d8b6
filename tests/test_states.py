"""States that merge: associative, with an identity, and the direct formulas in the end."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
from hypothesis import given, settings
from hypothesis import strategies as st

from determinax import _states
from determinax._states import Fault, GradientSums, Spread, empty_sums, sums_of, tail_and_batch
from determinax.methods._sampling import estimate_from
from determinax.operators import Products, Traits

RNG = np.random.default_rng(0)


def stream(log_w, chunk, dtype=np.float64):
    groups, size = log_w.shape
    num_tail, batch = tail_and_batch(groups)
    sums = empty_sums(num_tail, dtype)
    for start in range(0, groups, chunk):
        piece = jnp.asarray(log_w[start : start + chunk], dtype)
        sums = sums.merge(sums_of(piece, num_tail, min(batch, chunk), start * size))
    return sums


def finish(sums, n=10, *, is_complex=False, group_size=1):
    t = Traits(n, n, sums.shift.dtype, is_complex=is_complex)
    return estimate_from(
        sums,
        t,
        group_size=group_size,
        num_tail=len(sums.tail) - 1,
        is_linear=True,
        name="test",
        cost=Products(),
    )


@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize("spread", [1e-6, 0.01, 0.5, 3.0])
@pytest.mark.parametrize("center", [0.0, -700.0, 4000.0])
def test_streamed_figures_are_the_direct_ones(size, spread, center):
    log_w = center + spread * RNG.standard_normal((1000, size))
    e = finish(stream(log_w, 96))
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
    e = finish(stream(log_w, 100))
    batch = tail_and_batch(1000)[1]
    assert batch == 16
    chunks = log_w.reshape(10, 100)[:, : 100 // batch * batch].reshape(-1, batch)
    logs = scipy.special.logsumexp(chunks, axis=1) - np.log(batch)
    assert np.isclose(e.bounds.slack, 1 / len(logs))
    assert np.isclose(e.importance_bound, -logs.mean(), rtol=1e-12)
    expected = -logs.mean() + np.log(1 / 0.1) / len(logs)
    assert np.isclose(e.certified_upper(0.1), expected, rtol=1e-12)


def test_bounds_are_in_order_in_expectation():
    """KL >= importance-weighted >= truth, in standard errors."""
    log_w = RNG.standard_normal((100_000, 1)) - 0.5  # E w = 1
    e = finish(stream(log_w, 1000))
    assert e.kl_bound > e.importance_bound + 4 * e.importance_bound_standard_error
    assert e.importance_bound > -4 * e.importance_bound_standard_error
    assert abs(e.kl_bound - 0.5) < 4 * e.kl_bound_standard_error


def test_the_tail_is_the_largest_group_weights():
    log_w = RNG.standard_normal((5000, 2))
    sums = stream(log_w, 700)
    groups = scipy.special.logsumexp(log_w, axis=1) - np.log(2)
    expected = np.sort(groups)[::-1][: len(sums.tail)]
    assert len(sums.tail) == 214  # ceil(3 sqrt(5000)) and one below
    np.testing.assert_allclose(sums.tail, expected, rtol=1e-5, atol=1e-6)


def test_float32_keeps_its_digits_over_many_chunks():
    """A plain float32 sum of 20,000 chunks is off by 1e-4 here; the compensated one is not."""
    values = RNG.standard_normal((64, 1)) * 0.1 + 50.3
    chunk = jnp.asarray(values, jnp.float32)
    num = 20_000

    num_tail, _ = tail_and_batch(num * 64)

    @jax.jit
    def run():
        def step(i, sums):  # chunks differ, as real ones do
            return sums.merge(sums_of(chunk + jnp.float32(0.01) * (i % 7 - 3), num_tail, 64))

        return jax.lax.fori_loop(0, num, step, empty_sums(num_tail, jnp.float32))

    e = finish(run())
    shifts = np.asarray([np.float32(0.01) * (i % 7 - 3) for i in range(num)])
    exact = np.asarray(chunk + shifts[None].astype(np.float32), np.float64)
    mean = np.exp(exact - 50).mean()
    np.testing.assert_allclose(e.log_abs_det, -50 - np.log(mean), rtol=2e-7)
    np.testing.assert_allclose(e.kl_bound, -exact.mean(), rtol=2e-7)
    error = np.exp(exact - 50).std() / mean / np.sqrt(num * 64)
    np.testing.assert_allclose(e.standard_error, error, rtol=1e-3)


@pytest.mark.parametrize("bad", [np.nan, -np.inf])
def test_the_first_bad_product_is_named(bad):
    log_w = np.zeros((50, 3))
    log_w[17, 2] = log_w[31, 0] = bad
    assert int(stream(log_w, 8).fault.where) == 17 * 3 + 2


def test_a_vanished_product_makes_minus_infinity_not_nan():
    log_w = np.zeros((50, 1))
    log_w[20] = np.inf
    e = finish(stream(log_w, 8))
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
    e = finish(stream(log_w, chunk))
    exact = -(scipy.special.logsumexp(log_w) - np.log(log_w.size))
    assert np.isclose(e.log_abs_det, exact, rtol=1e-12, atol=1e-9)
    assert 1 - 1e-9 <= e.effective_sample_size <= len(log_w) * (1 + 1e-9)


def test_complex_factors_scale_everything():
    log_w = RNG.standard_normal((1000, 1))
    full = finish(stream(log_w, 100))
    half = finish(stream(log_w, 100), is_complex=True)
    for name in ("log_abs_det", "standard_error", "kl_bound", "importance_bound"):
        assert np.isclose(getattr(half, name), 0.5 * getattr(full, name), rtol=1e-13)
    assert np.isclose(half.certified_upper(0.1), 0.5 * full.certified_upper(0.1), rtol=1e-13)


def pieces(seed=0, num=4):
    rng = np.random.default_rng(seed)
    sizes, centres = (5, 1, 17, 8), (0.0, 30.0, -4.0, 2.0)
    return [rng.standard_normal((k, 3)) + c for k, c in zip(sizes, centres, strict=True)][:num]


STATES = {
    "spread": (lambda x: Spread.of(x), lambda: Spread.of(jnp.zeros(0))),
    "fault": (
        lambda x: Fault.when(jnp.asarray(x[0, 0] > 0), 3, int(10 * abs(x[0, 1])), x[0, 2]),
        Fault.none,
    ),
    "weights": (lambda x: sums_of(jnp.asarray(x), 6, 1), lambda: empty_sums(6, jnp.float64)),
    "gradients": (
        lambda x: GradientSums.of(jnp.asarray(x[:, 0]), {"a": jnp.asarray(x), "b": x[:, 1]}),
        lambda: GradientSums.empty({"a": jnp.zeros(3), "b": jnp.zeros(())}, jnp.float64),
    ),
}


def close(a, b):
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-12, atol=1e-13), *map(summed, (a, b))
    )


def summed(state):
    """Compensated pairs by their sums: how rounding is shared out may differ."""

    def pair(leaf):
        return isinstance(leaf, jax.Array) and leaf.shape == (2,)

    return jax.tree.map(lambda x: jnp.sum(x) if pair(x) else x, state)


@pytest.mark.parametrize("name", STATES)
def test_merging_is_associative_and_has_an_identity(name):
    of, empty = STATES[name]
    a, b, c, d = map(of, pieces())
    close(a.merge(b).merge(c).merge(d), a.merge(b.merge(c.merge(d))))
    close(a.merge(b).merge(c), a.merge(b.merge(c)))
    close(empty().merge(a), a)
    close(a.merge(empty()), a)
    close(empty().merge(empty()), empty())


@pytest.mark.parametrize("name", ["spread", "weights", "gradients"])
def test_merging_is_what_all_at_once_gives(name):
    of, empty = STATES[name]
    state = empty()
    for piece in pieces():
        state = state.merge(of(piece))
    close(state, of(np.concatenate(pieces())))


def test_the_spread_of_values_far_from_zero_does_not_cancel():
    values = 1e8 + np.random.default_rng(0).standard_normal((50, 20))
    state = Spread.of(jnp.zeros(0))
    for row in values:
        state = state.merge(Spread.of(jnp.asarray(row)))
    assert np.isclose(state.variance, values.var(), rtol=1e-6)
    assert np.isclose(state.error, values.std(ddof=1) / np.sqrt(1000), rtol=1e-6)
    assert _states.Spread.of(jnp.ones(1)).error == np.inf


def test_the_gradient_of_a_mean_and_its_error_are_the_delta_methods():
    rng = np.random.default_rng(1)
    log_w, g = rng.standard_normal(200), rng.standard_normal((200, 4)) + 1e6
    state = GradientSums.empty(jnp.zeros(4), jnp.float64)
    for part in np.split(np.arange(200), [13, 90, 91]):
        state = state.merge(GradientSums.of(jnp.asarray(log_w[part]), jnp.asarray(g[part])))
    w = np.exp(log_w) / np.exp(log_w).sum()
    mean = w @ g
    np.testing.assert_allclose(state.mean, mean, rtol=1e-13)
    error = np.sqrt(w**2 @ (g - mean) ** 2 * 200 / 199)
    np.testing.assert_allclose(state.error(), error, rtol=1e-8)
