"""A trace is bounded, merges exactly, and changes nothing about the estimate."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import determinax as dx
from determinax._trace import NUM_BINS, NUM_POINTS, Histogram, Points

RNG = np.random.default_rng(0)
A = np.linalg.qr(RNG.standard_normal((12, 12)))[0] + 0.05 * RNG.standard_normal((12, 12))
KEY = jax.random.key(0)
METHODS = {
    "independent": dx.MonteCarlo(3001, chunk_size=256),
    "frames": dx.MonteCarlo(1200, "frames", chunk_size=120),
    "Lanczos": dx.Lanczos(40, 4),
    "Deflated": dx.Deflated(4, dx.MonteCarlo(500)),
}


@pytest.mark.parametrize("name", METHODS)
def test_the_estimate_is_the_same_with_and_without(name):
    method = METHODS[name]
    bare = dx.log_abs_det(A, method, key=KEY)
    traced = dx.log_abs_det(A, method, key=KEY, trace=True)
    assert bare.trace is None
    bare, traced = bare.to_dict(), traced.to_dict()
    # of float32 tails, whose sums XLA fuses otherwise where it has a single core
    k, same = (np.asarray(e.pop("pareto_k"), float) for e in (bare, traced))
    np.testing.assert_allclose(k, same, rtol=1e-6)
    assert bare == traced  # every bit of it


@pytest.mark.parametrize("name", ["independent", "frames", "Lanczos", "Deflated"])
def test_the_running_estimate_ends_at_the_estimate(name):
    estimate = dx.log_abs_det(A, METHODS[name], key=KEY, trace=True)
    trace = estimate.trace
    assert len(trace.points.num) == NUM_POINTS
    assert len(trace.histogram.counts) == NUM_BINS
    num, value, error = trace.running()
    diagnostics = estimate.diagnostics
    draws = int(getattr(diagnostics, "num_draws", getattr(diagnostics, "num_probes", 0)))
    assert num[-1] == draws
    assert error[-1] == pytest.approx(float(estimate.standard_error), rel=0.2)
    if name in ("independent", "frames"):
        assert value[-1] == pytest.approx(float(estimate.log_abs_det), abs=1e-12)
    drawn = draws * 12 if name == "frames" else draws
    assert trace.histogram.counts.sum() == drawn


def test_a_long_run_has_as_many_points_as_a_short_one():
    short, long = (
        dx.log_abs_det(A, dx.MonteCarlo(num), key=KEY, trace=True).trace for num in (300, 30_000)
    )
    assert [x.shape for x in jax.tree.leaves(short)][:-1] == [
        x.shape for x in jax.tree.leaves(long)
    ][:-1]
    assert len(long.tail) == 256
    assert (long.points.num > 0).all()


@pytest.mark.parametrize("scale", [1.0, 1e-6, 1e6])
def test_histograms_merge_as_if_they_were_one(scale):
    values = scale * jnp.asarray(RNG.standard_normal(1000) - 30)
    parts = [Histogram.of(x) for x in jnp.split(values, [1, 10, 700])]
    left = Histogram.empty(values.dtype)
    for part in parts:
        left = left.merge(part)
    right = parts[0].merge(parts[1].merge(parts[2].merge(parts[3])))
    for made in (left, right):
        counts, _ = np.histogram(values, made.edges())
        assert np.array_equal(made.counts, counts)
        assert made.counts.sum() == 1000
    assert 60 < (np.asarray(left.counts) > 0).sum() <= NUM_BINS


def test_values_that_are_not_finite_are_left_out():
    made = Histogram.of(jnp.array([jnp.nan, jnp.inf, -jnp.inf, 2.0, 2.0]))
    assert made.counts.sum() == 2
    assert Histogram.of(jnp.full(7, -3.0)).counts.max() == 7
    assert Histogram.of(jnp.zeros(7)).counts.max() == 7


def test_points_merge_as_if_they_were_one():
    draws = jnp.asarray(200 * RNG.standard_normal(1000))
    slots = jnp.arange(1000) // 10
    whole = Points.of(draws, slots, logs=True)
    parts = Points.empty(draws.dtype, logs=True)
    for piece in (slice(0, 13), slice(13, 500), slice(500, 1000)):
        parts = parts.merge(Points.of(draws[piece], slots[piece], logs=True))
    for a, b in zip(jax.tree.leaves(whole), jax.tree.leaves(parts), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)


def test_a_trace_passes_through_jit():
    run = jax.jit(lambda a: dx.log_abs_det(a, dx.MonteCarlo(500), key=KEY, trace=True))
    assert run(jnp.asarray(A)).trace.points.num.sum() == 500


def test_what_draws_nothing_has_no_trace():
    assert dx.log_abs_det(A, trace=True).trace is None
    assert dx.log_abs_det(A, dx.MonteCarlo(5, "frames"), key=KEY, trace=True).trace is None
