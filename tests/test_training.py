"""Fitting: closed-form targets are reached, bad steps are undone, keys decide everything."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from determinax import flows, progress, sphere
from determinax.training import _loop, divergence, fit_density, fit_samples, train

KEY = jax.random.key(0)
M = np.array([[1.0, 0.0, 0.0], [0.4, 0.7, 0.0], [-0.3, 0.2, 1.5]])


def angular_gaussian(x):
    """The law of Mz/|Mz|: what a projective linear flow can match exactly; it is normalised."""
    return -3 * jnp.log(jnp.linalg.norm(jnp.linalg.solve(M, x))) - jnp.log(jnp.linalg.det(M))


def test_reverse_kl_reaches_a_target_within_the_family():
    rate = optax.cosine_decay_schedule(0.03, 1500)
    fit = fit_density(
        angular_gaussian,
        flows.projective_linear(3),
        key=jax.random.key(1),
        steps=1500,
        learning_rate=rate,
    )
    d = divergence(fit.proposal, angular_gaussian, key=jax.random.key(1))
    assert abs(d.log_normaliser) < 1e-3
    assert 0 <= d.kl < 1e-4
    assert d.effective_sample_size > 0.999
    # up to scale and rotation M is recovered
    matrix = fit.proposal.flow.factor.matrix()
    gram = matrix @ matrix.T
    np.testing.assert_allclose(gram / gram[0, 0], M @ M.T / (M @ M.T)[0, 0], rtol=0.03, atol=0.01)


def test_maximum_likelihood_reaches_the_law_of_the_data():
    z = M @ sphere.uniform(KEY, 3, 20_000)
    points = (z / jnp.linalg.norm(z, axis=0)).T
    rate = optax.cosine_decay_schedule(0.03, 1000)
    fit = fit_samples(points, flows.projective_linear(3), key=KEY, steps=1000, learning_rate=rate)
    assert divergence(fit.proposal, angular_gaussian, key=KEY).kl < 2e-3


def test_divergence_of_the_uniform_law_is_exact_by_its_formula():
    """For p ~ exp(b x_3) on S^2: log E_U[p] = log(sinh(b)/b), E_U[log p] = 0."""
    from determinax.proposals import Proposal

    d = divergence(
        Proposal(flows.projective_linear(3)), lambda x: 2 * x[2], key=KEY, num_samples=200_000
    )
    exact = np.log(np.sinh(2) / 2)
    assert abs(d.log_normaliser - exact) < 0.01
    assert abs(d.kl - exact) < 0.02


def test_history_and_repr():
    fit = fit_density(lambda x: 2 * x[0], flows.projective_linear(3), key=KEY, steps=130)
    assert {k: v.shape for k, v in fit.history.items()} == dict.fromkeys(
        ("loss", "effective_sample_size", "spread", "finite", "log_abs_det"), (130,)
    )
    assert fit.history["finite"].all()
    assert np.all(fit.history["effective_sample_size"] <= 1 + 1e-12)
    assert "130 steps" in repr(fit)


def test_a_fit_to_data_speaks_of_likelihood(monkeypatch):
    """An effective sample size of 9 % after a decent fit would look like a failure."""
    points = np.array([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    told = []
    report = progress.Report(lambda *_: None, lambda done, note: told.append(note))
    monkeypatch.setattr(_loop, "reporting", lambda _: contextlib.nullcontext(report))
    fit = fit_samples(points, flows.projective_linear(3), key=KEY, steps=40, validation=0)
    assert f"log-likelihood of training points {fit.log_likelihood:.4f} +- " in repr(fit)
    for text in (repr(fit), *told):
        assert "log-likelihood" in text
        assert "effective" not in text
        assert "KL" not in text
    assert told


def test_the_same_key_gives_the_same_fit():
    runs = [
        fit_density(lambda x: 2 * x[0], flows.projective_linear(3), key=KEY, steps=30)
        for _ in range(2)
    ]
    np.testing.assert_array_equal(runs[0].history["loss"], runs[1].history["loss"])
    other = fit_density(
        lambda x: 2 * x[0], flows.projective_linear(3), key=jax.random.key(9), steps=30
    )
    assert not np.array_equal(other.history["loss"], runs[0].history["loss"])


def test_a_step_that_is_not_finite_is_undone_and_counted():
    def loss(flow, key):
        value = jnp.sum((flow.factor.log_diagonal - 1) ** 2)
        # every fourth key or so spoils the step
        spoiled = jax.random.uniform(key) < 0.25
        return jnp.where(spoiled, jnp.nan, value), jnp.zeros(4)

    fit = train(loss, flows.projective_linear(3), key=KEY, steps=400, learning_rate=0.1)
    assert 60 < fit.num_skipped < 140
    assert fit.num_skipped == np.sum(~fit.history["finite"])
    np.testing.assert_allclose(fit.proposal.flow.factor.log_diagonal, 1, atol=1e-3)
    assert "undone" in repr(fit)
    assert "nan" not in repr(fit)


def test_nothing_finite_is_an_error():
    with pytest.raises(FloatingPointError, match="none of the first"):
        fit_density(lambda x: jnp.nan * x[0], flows.projective_linear(3), key=KEY, steps=500)


def test_fixed_rotations_stay_fixed():
    flow = flows.cylinder(4, key=KEY, num_flows=2, hidden=(8,), num_bins=4, num_centres=3)
    fit = fit_density(lambda x: 3 * x[0], flow, key=KEY, steps=20, learning_rate=0.01)
    pairs = zip(fit.proposal.flow.maps, flow.maps, strict=True)
    for after, before in pairs:
        same = jax.tree.map(lambda a, b: bool(jnp.all(a == b)), after, before)
        assert all(jax.tree.leaves(same)) == isinstance(before, flows.Rotation)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda f: fit_density(lambda x: x, f, key=KEY, steps=10), "returns one number"),
        (
            lambda f: fit_density(lambda x: x[0], f, key=KEY, steps=0),
            "steps must be a whole number from 1",
        ),
        (lambda f: fit_samples(np.ones((5, 2)), f, key=KEY, steps=10), "not rows in 3 dimensions"),
        (lambda f: fit_samples(np.ones((0, 3)), f, key=KEY, steps=10), "are not rows"),
        (
            lambda f: fit_samples(np.ones((5, 3)), f, key=KEY, steps=10),
            "row 0 of the points has norm",
        ),
        (lambda f: fit_samples(np.eye(3)[0], f, key=KEY, steps=10), "pass one unit vector a row"),
        (
            lambda f: fit_samples(np.eye(3), f, key=KEY, validation=0),
            "nothing says when to stop: pass steps",
        ),
        (lambda f: fit_samples(np.eye(3), f, key=KEY, validation=1.5), "a share from 0"),
        (lambda f: fit_samples(np.eye(3), f, key=KEY, validation=[True] * 3), "not all True"),
        (lambda f: fit_samples(np.eye(3), f, key=KEY, context=np.eye(2)), "takes no context"),
        (lambda f: fit_samples(np.eye(3), f, key=KEY, weights=[1.0]), "weights are 3 numbers"),
        (lambda f: fit_samples(np.eye(3), f, key=KEY, jitter=-1.0), "jitter, a share"),
        (
            lambda f: fit_samples(np.eye(3), f, key=KEY, max_seconds=0),
            "max_seconds is a number above 0",
        ),
        (
            lambda f: fit_samples(np.eye(3), f, key=KEY, max_seconds=1, checkpoint="c"),
            "no checkpoint to go on from",
        ),
        (lambda f: fit_samples([[1.0, 0], [1]], f, key=KEY, steps=10), "an array of numbers"),
        (
            lambda f: fit_samples(np.full((2, 3), np.nan), f, key=KEY, steps=9),
            "row 0 of the points",
        ),
    ],
)
def test_bad_input(call, sentence):
    with pytest.raises((TypeError, ValueError), match=sentence):
        call(flows.projective_linear(3))


def test_data_may_be_a_list():
    rows = [[1, 0, 0], [0, 0.6, 0.8]]
    fits = [
        fit_samples(data, flows.projective_linear(3), key=KEY, steps=5)
        for data in (rows, np.array(rows))
    ]
    np.testing.assert_array_equal(fits[0].history["loss"], fits[1].history["loss"])
