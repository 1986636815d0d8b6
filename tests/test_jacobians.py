"""Jacobians: one product a sample, one proposal for all points, gradients of what f closes over."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from registry import near_isometry

import determinax as dx
from determinax import Proposal, flows
from determinax._keys import stream

KEY = jax.random.key(0)
N = 5
W = jnp.asarray(near_isometry(N))
X = jax.random.normal(jax.random.key(1), (4, N))


def f(x, t=0.5):
    return W @ x + t * jnp.tanh(W @ x)


def tall(x):
    return jnp.concatenate([f(x), jnp.sin(x[:2])])


def diagonal(x):
    """A Jacobian diag(e^-x): the best M(x) is diag(e^x)."""
    return -jnp.exp(-x)


def log_volume(f, x):
    j = jax.jacobian(f)(x)
    return 0.5 * jnp.linalg.slogdet(j.T @ j)[1]


class Best(flows.AbstractSphereMap):
    """The best map for a Jacobian at x, given as context."""

    f: callable = eqx.field(static=True)
    n: int = eqx.field(static=True, default=N)
    context_size: int = eqx.field(static=True, default=N)

    def _map(self, context):
        return flows.ProjectiveLinear(flows.Dense(jnp.linalg.inv(jax.jacobian(self.f)(context))))

    def _forward(self, s, context):
        return self._map(context).forward(s)

    def _inverse(self, s, context):
        return self._map(context).inverse(s)


def test_the_best_conditional_proposal_needs_one_product_a_point():
    e = dx.jacobian_log_abs_det(f, X, Proposal(Best(f)), key=KEY, num_samples=1)
    truth = jax.jit(jax.vmap(lambda x: log_volume(f, x)))(X)
    np.testing.assert_allclose(e.log_abs_det, truth, atol=1e-11)
    assert e[0].num_matvecs == 1


@pytest.mark.parametrize(
    "function", [f, pytest.param(tall, marks=pytest.mark.slow)], ids=["square", "tall"]
)
def test_uniform_directions_and_one_point(function):
    e = dx.jacobian_log_abs_det(function, X[0], key=KEY, num_samples=20_000)
    assert e.status == "ok"
    assert abs(e.log_abs_det - log_volume(function, X[0])) < 4 * e.standard_error < 0.1
    batch = dx.jacobian_log_abs_det(function, X, key=KEY, num_samples=20)
    one = dx.jacobian_log_abs_det(function, X[2], key=stream(KEY, "points", 2), num_samples=20)
    # the same draws, up to how float32 rounds in either program
    np.testing.assert_allclose(batch[2].log_abs_det, one.log_abs_det, rtol=1e-6)


def test_gradients_with_respect_to_what_f_closes_over():
    """With the best proposal, Hutchinson's estimate for each point."""

    def loss(t, directions="frames"):
        q = Proposal(Best(f))
        e = dx.jacobian_log_abs_det(
            lambda x: f(x, t), X, q, key=KEY, num_samples=N, directions=directions
        )
        return jnp.sum(e.log_abs_det)

    def exact(t):
        return jnp.sum(jax.vmap(lambda x: log_volume(lambda x: f(x, t), x))(X))

    # over a whole frame Hutchinson's estimate is the trace itself
    np.testing.assert_allclose(jax.grad(loss)(0.5), jax.jit(jax.grad(exact))(0.5), rtol=1e-10)


def test_a_conditional_linear_proposal_learns_the_jacobian_at_every_point():
    """diag(e^-x) at points that it has not seen."""

    def sample_x(key, num):
        return 0.5 * jax.random.normal(key, (num, N))

    flow = flows.conditional_linear(N, key=KEY, hidden=(32,))
    fit = dx.fit_jacobian(
        diagonal, sample_x, flow, key=KEY, steps=400, batch_size=64, learning_rate=1e-2
    )
    assert (fit.num_matvecs, fit.num_transposed) == (400 * 64 * 2, 400 * 64)
    x = sample_x(jax.random.key(7), 500)
    error = {}
    for name, q in {"uniform": None, "start": Proposal(flow), "trained": fit.proposal}.items():
        e = dx.jacobian_log_abs_det(diagonal, x, q, key=KEY, num_samples=1)
        error[name] = float(jnp.std(e.log_abs_det + jnp.sum(x, axis=1)))
    assert error["start"] == pytest.approx(error["uniform"], rel=0.2)
    assert error["trained"] < 0.2 * error["start"]


@pytest.mark.slow
def test_the_spread_in_the_history_is_that_at_one_point():
    def sample_x(key, num):
        return jax.random.normal(key, (num, N)) * jnp.ones(1).repeat(N) + 3

    def scaled(x):
        return x * jnp.exp(0.1 * jnp.sum(jax.lax.stop_gradient(x)))

    flow = flows.conditional_linear(N, key=KEY, rank=1, hidden=(4,))
    options = {"key": KEY, "steps": 1, "batch_size": 64}
    one = dx.fit_jacobian(scaled, sample_x, flow, **options)
    two = dx.fit_jacobian(scaled, sample_x, flow, num_directions=2, **options)
    assert one.history["spread"][0] > 0.5  # that of log|det J(x)|
    assert two.history["spread"][0] < 1e-6
    assert two.num_matvecs == 256


def test_bad_input():
    flow = flows.conditional_linear(N, key=KEY)
    normal = jax.random.normal

    def sample_x(key, num):
        return normal(key, (num, N))

    with pytest.raises(ValueError, match="batch, n"):
        dx.jacobian_log_abs_det(f, jnp.zeros((2, 2, N)), key=KEY, num_samples=1)
    with pytest.raises(TypeError, match="proposal is a Proposal"):
        dx.jacobian_log_abs_det(f, X, flow, key=KEY, num_samples=1)
    wrong = flows.conditional_linear(N, key=KEY, context_size=2)
    with pytest.raises(ValueError, match="context_size = 5"):
        dx.jacobian_log_abs_det(f, X, Proposal(wrong), key=KEY, num_samples=1)
    with pytest.raises(ValueError, match="more columns than rows"):
        dx.jacobian_log_abs_det(lambda x: x[:3], X, key=KEY, num_samples=1)
    with pytest.raises(ValueError, match="one a row"):
        dx.fit_jacobian(f, lambda key, num: normal(key, (N, num)), flow, key=KEY, steps=1)
    with pytest.raises(dx.OperatorError, match="5 or more"):
        dx.fit_jacobian(lambda x: x[:3], sample_x, flow, key=KEY, steps=1)
    with pytest.raises(ValueError, match='"path" or "total"'):
        dx.fit_jacobian(f, sample_x, flow, key=KEY, steps=1, gradient="forward")
