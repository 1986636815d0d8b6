"""Fits to data: held-out points decide, weights and contexts count, a collapsed run begins anew."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import determinax as dx
from determinax import flows
from determinax.training import samples

KEY = jax.random.key(0)
TRUTH = dx.VonMisesFisher([[0.0, 1.0]], 5.0)
POINTS = np.asarray(TRUTH.sample(KEY, 600))


def small(context_size=0):
    spline = flows.CircularSpline(8)
    return flows.Circle(spline, key=KEY, hidden=(16,), context_size=context_size, dtype=jnp.float32)


@pytest.fixture(scope="module")
def fit():
    return dx.fit_samples(POINTS, small(), key=KEY, steps=600, learning_rate=0.03, progress=False)


def test_the_kept_weights_are_those_that_were_best_on_held_out_points(fit):
    looks = np.flatnonzero(np.isfinite(fit.history["held_out"]))
    np.testing.assert_array_equal(looks, np.arange(99, 600, 100))
    best = np.nanmax(fit.history["held_out"])
    assert fit.log_likelihood == pytest.approx(best, abs=1e-4)
    own = np.asarray(fit.proposal.log_density(POINTS[fit.held_out]))
    assert own.mean() == pytest.approx(fit.log_likelihood, abs=1e-4)
    assert own.std() / np.sqrt(60) == pytest.approx(fit.standard_error, rel=1e-3)
    assert fit.held_out.sum() == 60
    # and it is a good one: within three standard errors of the difference of the truth
    gap = np.asarray(TRUTH.log_density(POINTS[fit.held_out])) - own
    assert abs(gap.mean()) < 3 * gap.std() / np.sqrt(60) + 0.02
    assert "held-out points" in repr(fit)
    assert set(fit.history) == {"loss", "held_out", "standard_error", "finite"}


def test_it_stops_where_the_held_out_likelihood_stops_rising(monkeypatch, fit):
    """Eight points are learned by heart within a few hundred steps."""
    monkeypatch.setattr(samples, "HORIZON", 3000)
    few = np.concatenate([POINTS[:8], POINTS[100:140]])
    found = dx.fit_samples(
        few, small(), key=KEY, validation=np.arange(48) >= 8, learning_rate=0.03, progress=False
    )
    done, best = len(found.history["loss"]), int(np.nanargmax(found.history["held_out"]))
    assert done < 3000
    assert done - 1 - best >= 1000
    assert found.log_likelihood == pytest.approx(np.nanmax(found.history["held_out"]), abs=1e-4)


def test_an_ensemble_is_one_call_and_one_density():
    """Members with different keys and the same held-out points, mixed in equal shares."""
    context = np.linspace(-1, 1, 600)
    options = {"key": KEY, "context": context, "steps": 200, "progress": False}
    found = dx.fit_samples(POINTS, small(1), members=3, learning_rate=0.03, **options)
    out = found.held_out
    assert isinstance(found.proposal, dx.Mixture)
    assert len(found.members) == len(found.proposal.proposals) == 3
    assert all((fit.held_out == out).all() for fit in found.members)
    assert len({fit.log_likelihood for fit in found.members}) == 3
    own = found.proposal.log_density(POINTS[out], context[out, None])
    assert found.log_likelihood == pytest.approx(float(np.mean(own)), abs=1e-4)
    # the mean of densities is above the mean of their logarithms
    assert found.log_likelihood > np.mean([fit.log_likelihood for fit in found.members])
    assert repr(found).startswith("SampleFit(3 flows, 600 steps in")
    with pytest.raises(ValueError, match="a checkpoint is of one run"):
        dx.fit_samples(POINTS, small(1), members=2, checkpoint="a", **options)


def test_weights_count_as_copies_do():
    """Half of the points with weight 0: the law of the others."""
    north = POINTS[:300]
    both = np.concatenate([north, -north])
    weights = np.repeat([1.0, 0.0], 300)
    options = {"key": KEY, "steps": 300, "validation": 0, "progress": False, "learning_rate": 0.03}
    weighted = dx.fit_samples(both, small(), weights=weights, batch_size=512, **options)
    assert np.mean(weighted.proposal.log_density(north)) > 1
    assert np.mean(weighted.proposal.log_density(-north)) < -1
    plain = dx.fit_samples(both, small(), **options)
    assert abs(np.mean(plain.proposal.log_density(north) - plain.proposal.log_density(-north))) < 1


def test_a_run_that_ends_at_the_uniform_law_begins_anew(monkeypatch):
    """A rate of zero goes nowhere; the second attempt has a better one."""
    rates = iter([0.0, 0.03])
    import optax

    monkeypatch.setattr(samples, "clipped", lambda *_: optax.adam(next(rates)))
    found = dx.fit_samples(POINTS, small(), key=KEY, steps=300, progress=False)
    assert found.restarts == 1
    assert found.log_likelihood > 0.5
    assert "begun anew 1 times" in repr(found)


def test_no_run_begins_anew_where_there_is_nothing_to_find():
    points = dx.Uniform(2).sample(KEY, 400)
    found = dx.fit_samples(points, small(), key=KEY, steps=100, progress=False)
    assert found.restarts == 0
    assert abs(found.log_likelihood) < 0.1


def test_a_context_is_followed():
    """Points near one pole or the other, as the context says."""
    sign = np.where(np.arange(600) % 2 == 0, 1.0, -1.0)
    found = dx.fit_samples(
        POINTS * sign[:, None],
        small(1),
        key=KEY,
        context=sign,
        steps=500,
        learning_rate=0.03,
        progress=False,
    )
    q = found.proposal
    pole = np.array([0.0, 1.0])
    for c in (1.0, -1.0):
        assert float(q.log_density(c * pole, jnp.array([c]))) > 1
        assert float(q.log_density(-c * pole, jnp.array([c]))) < -1
    assert np.mean(q.sample(KEY, 50, jnp.array([1.0]))[:, 1]) > 0.6


def test_a_context_of_one_number_is_a_number_or_one_a_point():
    q = dx.Proposal(flows.RescaledContext(small(1), [0.3], [2.0]))
    context = np.linspace(-1, 1, 600)
    expected = q.log_density(POINTS, context[:, None])
    np.testing.assert_array_equal(q.log_density(POINTS, context), expected)
    np.testing.assert_array_equal(
        q.log_density(POINTS, 0.5), q.log_density(POINTS, jnp.array([0.5]))
    )
    assert q.log_density(POINTS[0], 0.5).shape == ()
    np.testing.assert_array_equal(q.sample(KEY, 600, context), q.sample(KEY, 600, context[:, None]))
    with pytest.raises(ValueError, match=r"shape \(5,\) is not one of 1 numbers, nor 600 of them"):
        q.log_density(POINTS, context[:5])
    with pytest.raises(
        ValueError, match=r"\(5, 2\) is not one row of numbers for each of 600 points"
    ):
        dx.fit_samples(POINTS, key=KEY, context=np.ones((5, 2)), steps=5)


def test_a_context_may_have_any_unit(monkeypatch):
    """Years in place of -1 and 1: the default flow sees them less their mean, over their spread."""
    monkeypatch.setattr(
        samples, "default_flow", lambda *_, **options: small(options["context_size"])
    )
    sign = np.where(np.arange(600) % 2 == 0, 1.0, -1.0)
    options = {"key": KEY, "steps": 300, "learning_rate": 0.03, "progress": False}
    fits = [
        dx.fit_samples(POINTS * sign[:, None], context=c, **options)
        for c in (sign, 1990 + 10 * sign)
    ]
    assert fits[0].log_likelihood > 0.5
    assert fits[1].log_likelihood == pytest.approx(fits[0].log_likelihood, abs=1e-3)


def test_the_default_flow_follows_n_and_the_number_of_points():
    assert samples.default_flow(3, 5000, key=KEY).maps[0].interval.num_bins == 32
    assert samples.default_flow(3, 5000, key=KEY, context_size=1).maps[0].interval.num_bins == 8
    few = samples.default_flow(2, 500, key=KEY, context_size=2)
    assert few.maps[0].circle.num_bins == 8
    assert few.context_size == 2


def test_jitter_is_a_share_of_the_distance_to_the_nearest():
    data = samples._data(POINTS, None, None, np.zeros(600, bool), 0.5, jnp.float32)
    from scipy.spatial import KDTree

    nearest = KDTree(POINTS).query(POINTS, 2)[0][:, 1]
    np.testing.assert_allclose(data.noise, 0.5 * nearest, rtol=1e-5)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"points": POINTS[:1]}, r"all points \(1\) stand at one place"),
        ({"points": POINTS[[0, 0, 0]]}, r"all points \(3\) stand at one place"),
        ({"points": np.where(np.arange(600)[:, None] == 7, np.nan, POINTS)}, "row 7 of the points"),
        ({"points": 2 * POINTS}, "has norm 2, not 1"),
        ({"points": POINTS, "weights": -np.ones(600)}, "finite and not negative"),
        ({"points": POINTS, "weights": np.zeros(600)}, "of the training points are all 0"),
        ({"points": POINTS, "weights": "a"}, "weights are 600 numbers, not 'a'"),
        ({"points": POINTS, "context": np.ones(600)}, "takes no context"),
        ({"points": POINTS, "flow": small(1)}, "needs a context of 1"),
        ({"points": POINTS, "flow": small(1), "context": np.ones(5)}, "for each of 600 points"),
        ({"points": POINTS, "flow": small(1), "context": ["a"] * 600}, "a context is numbers"),
        ({"points": POINTS, "flow": dx.Proposal(small())}, "not a Proposal"),
        ({"points": POINTS, "jitter": "a"}, "jitter, a share of the neighbour distance,"),
        ({"points": POINTS, "members": 0}, "members must be a whole number"),
        ({"points": POINTS, "max_seconds": -1}, "max_seconds is a number above 0, not -1"),
        ({"points": POINTS, "learning_rate": -1.0}, "learning_rate is a number above 0"),
        ({"points": POINTS, "learning_rate": np.nan}, "learning_rate is a number above 0"),
    ],
)
def test_bad_input(options, sentence):
    with pytest.raises((TypeError, ValueError), match=sentence):
        dx.fit_samples(**({"flow": small(), "key": KEY, "steps": 5, "progress": False} | options))
