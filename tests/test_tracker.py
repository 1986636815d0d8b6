"""Moving operators: fresh weights first, then the update; an error bar that is honest."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.sparse.linalg
from registry import near_isometry, triangular

import determinax as dx
from determinax import Proposal, Tracker, flows, methods, sphere
from determinax.training.broyden import tracking_update

KEY = jax.random.key(0)
N = 16


def dense(matrix):
    return Proposal(flows.ProjectiveLinear(flows.Dense(jnp.asarray(matrix))))


def follow(tracker, a, drift, steps, num_matvecs=8, key=KEY, *, update=True):
    """The last tracker, estimates and truths along a random walk of the operator, in a scan."""

    def body(carry, key):
        a, tracker = carry
        k1, k2 = jax.random.split(key)
        a = a + drift * jnp.linalg.norm(a) * jax.random.normal(k1, a.shape) / a.shape[0]
        moved, estimate = tracker.step(a, k2, num_matvecs)
        if not update:  # the proposal held, for comparison
            moved = eqx.tree_at(lambda t: t.proposal, moved, tracker.proposal)
        return (a, moved), (estimate, jnp.linalg.slogdet(a)[1])

    run = jax.jit(lambda carry, keys: jax.lax.scan(body, carry, keys))
    (_, tracker), (estimates, truth) = run((a, tracker), jax.random.split(key, steps))
    return tracker, estimates, np.asarray(estimates.log_abs_det - truth)


def test_eight_products_follow_a_drifting_operator():
    """And the error bar covers: the first estimates are too sure of nothing."""
    a = jnp.asarray(near_isometry(64))
    tracker = Tracker.from_fit(dx.fit_linear(a, key=KEY))
    tracker, e, error = follow(tracker, a, 0.01, 300)
    assert np.median(np.abs(error)) < 0.08
    assert np.median(np.abs(error[-100:])) < 0.1
    z = error[20:] / e.standard_error[20:]
    assert np.mean(np.abs(z) < 1.96) > 0.9
    assert 0.7 < np.std(z) < 1.15
    assert e[0].status == "unreliable"  # seven numbers tell no tail
    assert e[5].status == "warn"
    assert e[200].status == "ok"
    assert int(tracker.num_matvecs) == 8 * 300
    assert e[0].num_matvecs == 8
    assert "KL bound" in str(e[200])
    assert "effective sample size" not in str(e[200])
    factor = tracker.proposal.flow.factor
    assert abs(np.linalg.slogdet(factor.matrix())[1] - factor.log_abs_det()) < 1e-11


def test_the_estimate_is_of_the_frozen_proposal():
    """The very log-weights of the frame, before the update; their mean is unbiased."""
    a, off = near_isometry(N), near_isometry(N, seed=3) * 0.05
    tracker = Tracker(dense(np.linalg.inv(a + off)))
    step = jax.jit(lambda key: tracker.step(jnp.asarray(a), key, 4)[1].log_abs_det)
    z = sphere.frame(KEY, N, 4)
    points, log_q = tracker.proposal.push(z)
    log_w = methods.log_weights(dx.as_operator(a), points, log_q)
    np.testing.assert_allclose(step(KEY), np.log(4) - jax.nn.logsumexp(log_w), rtol=1e-12)
    w = np.exp(-jax.lax.map(step, jax.random.split(KEY, 2000)) + np.linalg.slogdet(a)[1])
    assert abs(w.mean() - 1) < 4 * w.std() / 2000**0.5 < 0.05


def test_a_full_frame_makes_it_exact():
    a = jnp.asarray(near_isometry(N))
    tracker, _ = Tracker(dense(np.eye(N))).step(a, KEY, N)
    tracker, _ = tracker.step(a, KEY, N)
    _, estimate = tracker.step(a, jax.random.key(1), N)
    assert abs(estimate.log_abs_det - jnp.linalg.slogdet(a)[1]) < 1e-10


def test_the_update_takes_the_images_back_and_keeps_account_of_the_determinant():
    a, z = jnp.asarray(near_isometry(N)), sphere.frame(KEY, N, 3)
    start = jnp.linalg.inv(a) + 0.02 * near_isometry(N, seed=5)
    matrix, log_abs_det, _ = jax.jit(tracking_update)(
        dx.as_operator(a), start, jnp.linalg.slogdet(start)[1], z
    )
    back = matrix @ a @ start @ z
    scale = jnp.linalg.norm(back) / jnp.linalg.norm(start @ z)
    np.testing.assert_allclose(back / scale, start @ z, atol=1e-12)
    np.testing.assert_allclose(log_abs_det, jnp.linalg.slogdet(matrix)[1], atol=1e-12)
    # of the square of what was missed, about the frame's share is gone: 3/16
    missed = [jnp.linalg.norm(a @ m - jnp.eye(N)) for m in (start, matrix)]
    assert missed[1] < (1 - 1 / N) * missed[0]


@pytest.mark.slow
def test_far_from_the_inverse_it_takes_the_secant_update():
    """A rotation of M leaves its density alone, and the update sure of an inverse."""
    a = jnp.asarray(near_isometry(N))
    rotated = np.linalg.inv(a) @ np.linalg.qr(np.random.default_rng(1).normal(size=(N, N)))[0]
    tracker, e, error = follow(Tracker(dense(rotated)), a, 0.01, 100)
    held = follow(Tracker(dense(rotated)), a, 0.01, 100, update=False)
    assert np.median(e.spread[-50:]) < 0.5 * np.median(held[1].spread[-50:])
    assert np.median(np.abs(error[-50:])) < 0.5 * np.median(np.abs(held[2][-50:]))
    factor = tracker.proposal.flow.factor
    assert abs(np.linalg.slogdet(factor.matrix())[1] - factor.log_abs_det()) < 1e-11


def test_from_a_rotated_inverse_it_finds_the_inverse():
    """Which then is exact, from forward products in half frames: the secant update alone is not."""
    a = jnp.asarray(near_isometry(N))
    turn = np.linalg.qr(np.random.default_rng(1).normal(size=(N, N)))[0]
    turn[:, 0] *= np.sign(np.linalg.det(turn))  # no rotation undoes a reflection
    tracker, _, error = follow(Tracker(dense(np.linalg.inv(a) @ turn)), a, 0.0, 60)
    assert np.max(np.abs(error[-5:])) < 1e-9
    b = a @ tracker.proposal.flow.factor.matrix()
    np.testing.assert_allclose(b / b[0, 0], np.eye(N), atol=1e-9)


def test_a_jump_shows_at_once():
    a = jnp.asarray(near_isometry(N))
    tracker, _, _ = follow(Tracker(dense(np.linalg.inv(a))), a, 0.0, 40)
    step = jax.jit(lambda a: tracker.step(a, KEY)[1])
    quiet, jump = step(a), step(jnp.asarray(near_isometry(N, seed=8)))
    assert quiet.standard_error < 1e-10
    assert jump.standard_error > 0.3
    assert jump.status in ("warn", "unreliable")


def test_what_is_not_finite_is_not_learned():
    a = jnp.asarray(near_isometry(N))
    tracker = Tracker(dense(np.linalg.inv(a)))
    step = jax.jit(lambda t, a: t.step(a, KEY))
    spoiled, estimate = step(tracker, a.at[0, 0].set(jnp.nan))
    assert estimate.status == "unreliable"
    np.testing.assert_array_equal(
        spoiled.proposal.flow.factor.matrix(), tracker.proposal.flow.factor.matrix()
    )
    assert step(spoiled, a)[1].standard_error < 1e-10


def test_a_flow_is_tracked_by_gradients():
    a = np.tril(near_isometry(6, 0.2)) + 2 * np.eye(6)
    start = Proposal(triangular(np.linalg.inv(a)))
    _, e, error = follow(Tracker(start, optax.adam(1e-2)), jnp.asarray(a), 0.004, 200, 32)
    held = follow(Tracker(start, optax.sgd(0.0)), jnp.asarray(a), 0.004, 200, 32)
    assert np.median(e.spread[-50:]) < 0.6 * np.median(held[1].spread[-50:])
    assert (e[0].num_matvecs, e[0].num_transposed) == (32, 16)
    assert np.mean(np.abs(error / e.standard_error) < 1.96) > 0.88


def test_gradients_pass_through_a_step():
    """The self-normalised gradient, the proposal held: the same points, weighted by hand."""
    a = jnp.asarray(np.tril(near_isometry(6, 0.2)) + 2 * np.eye(6))
    # M is not quite the inverse, so that the weights differ and matter
    off = np.linalg.inv(a) + 0.05 * np.tril(near_isometry(6, seed=3))
    whole, part = dense(off), Proposal(triangular(off))
    drawn = whole.push(sphere.frame(KEY, 6, 4)), part.sample_columns(KEY, 2)
    for proposal, (points, log_q) in zip((whole, part), drawn, strict=True):

        def by_hand(a, points=points, log_q=log_q):
            log_w = -6 * jnp.log(jnp.linalg.norm(a @ points, axis=0)) - log_q
            return -jax.nn.logsumexp(log_w)

        def tracked(a, proposal=proposal):
            return Tracker(proposal).step(a, KEY, 4)[1].log_abs_det

        gradient = jax.jit(jax.grad(tracked))(a)
        np.testing.assert_allclose(gradient, jax.grad(by_hand)(a), rtol=1e-10, atol=1e-12)


def test_host_operators():
    a = near_isometry(N)
    host = scipy.sparse.linalg.LinearOperator(a.shape, matvec=lambda x: a @ x, dtype=float)
    _, estimate = Tracker(dense(np.linalg.inv(a))).step(host, KEY)
    assert abs(estimate.log_abs_det - np.linalg.slogdet(a)[1]) < 1e-10
    with pytest.raises(dx.OperatorError, match="transpose"):
        Tracker(Proposal(flows.projective_linear(N))).step(host, KEY)


@pytest.mark.slow
def test_tall_operators():
    a = near_isometry(N)
    tall = np.concatenate([a, near_isometry(N, seed=4)])
    fit = dx.fit_linear(tall, key=KEY)
    _, estimate = Tracker.from_fit(fit).step(tall, KEY)
    assert abs(estimate.log_abs_det - 0.5 * np.linalg.slogdet(tall.T @ tall)[1]) < 1e-10


def test_a_conditional_flow_is_tracked_with_its_context():
    """diag(e^-c) for contexts that move: what is learnt at one serves the next."""
    flow = flows.conditional_linear(4, key=KEY, hidden=(16,), rank=1)
    tracker = Tracker(Proposal(flow), optax.adam(1e-2))

    def body(tracker, key):
        c = 0.7 * jax.random.normal(key, (4,))
        tracker, estimate = tracker.step(jnp.diag(jnp.exp(-c)), key, 64, context=c)
        return tracker, (estimate.spread, estimate.log_abs_det + jnp.sum(c))

    tracker, (spread, error) = jax.lax.scan(body, tracker, jax.random.split(KEY, 300))
    assert int(tracker.num_matvecs) == 300 * 64
    assert jnp.mean(spread[-50:]) < 0.5 * jnp.mean(spread[:20])
    assert jnp.std(error[-50:]) < 0.5 * jnp.std(error[:50])
    with pytest.raises(ValueError, match="needs a context of 4"):
        tracker.step(jnp.eye(4), KEY)
    with pytest.raises(ValueError, match="takes no context"):
        Tracker(dense(np.eye(4))).step(jnp.eye(4), KEY, 2, context=jnp.zeros(4))


def test_bad_input():
    with pytest.raises(TypeError, match="from_fit"):
        Tracker(flows.projective_linear(3))
    with pytest.raises(ValueError, match="leave the optimiser out"):
        Tracker(dense(np.eye(3)), optax.adam(1e-3))
    with pytest.raises(ValueError, match='"path" or "total"'):
        Tracker(dense(np.eye(3)), gradient="forward")
    fixed = flows.Preconditioner(lambda z: 2 * z, 3 * np.log(2), 3)
    for proposal in (
        dx.fit_linear(np.eye(3), key=KEY, structure="probe", pattern=(0, 0)).proposal,
        Proposal(flows.ProjectiveLinear(fixed)),
    ):
        with pytest.raises(ValueError, match="no parameters to learn with"):
            Tracker(proposal)
    with pytest.raises(ValueError, match="16 dimensions"):
        Tracker(dense(np.eye(N))).step(np.eye(3), KEY)
    with pytest.raises(ValueError, match="at most n = 3"):
        Tracker(dense(np.eye(3))).step(np.eye(3), KEY, 4)
    with pytest.raises(ValueError, match="num_matvecs must be"):
        Tracker(dense(np.eye(3))).step(np.eye(3), KEY, 1)
