"""Surrogates: one set of products, exact gradients in the mean, and to whom each of them goes."""

import equinox as eqx
import jax
import jax.extend.core
import jax.numpy as jnp
import numpy as np
import pytest
from registry import near_isometry, rest_slow

import determinax as dx
from determinax import Proposal, flows

KEY = jax.random.key(0)
N = 4
W = jnp.asarray(near_isometry(N))
X = jax.random.normal(jax.random.key(1), (3, N))


def f(x, t=0.5):
    return W @ x + t * jnp.tanh(W @ x)


def exact(f, x):
    return jnp.linalg.slogdet(jax.jacobian(f)(x))[1]


class Best(flows.AbstractSphereMap):
    """The best map for a Jacobian at x, given as context."""

    n: int = eqx.field(static=True, default=N)
    context_size: int = eqx.field(static=True, default=N)

    def _map(self, context):
        return flows.ProjectiveLinear(flows.Dense(jnp.linalg.inv(jax.jacobian(f)(context))))

    def _forward(self, s, context):
        return self._map(context).forward(s)

    def _inverse(self, s, context):
        return self._map(context).inverse(s)


FAMILIES = {
    "triangular": lambda n: flows.conditional_linear(n, key=KEY, hidden=(4,), dtype=float),
    "low rank": lambda n: flows.conditional_linear(n, key=KEY, rank=1, hidden=(4,), dtype=float),
    "convolution": lambda n: flows.conditional_convolution(
        (1, n), key=KEY, hidden=(4,), dtype=float
    ),
}


def random_conditional(n, key=KEY, family="triangular"):
    """A conditional family with a network that says something, and far from the best."""
    flow = FAMILIES[family](n)
    last = 0.1 * jax.random.normal(key, flow.network.weights[-1].shape)
    return Proposal(eqx.tree_at(lambda q: q.network.weights[-1], flow, last))


def test_an_exact_proposal_has_no_variance():
    s = dx.jacobian_surrogate(f, X, Proposal(Best()), key=KEY, num_samples=3)
    truth = jax.vmap(lambda x: exact(f, x))(X)
    for value in (s.log_abs_det, s.bound, s.loss, s.corrected):
        np.testing.assert_allclose(value, truth, atol=1e-6)  # directions are drawn in float32
    np.testing.assert_allclose(s.correction, 0, atol=1e-12)
    assert s.num_matvecs == 3
    assert s.code.tolist() == [1, 1, 1]
    assert s.reasons == ()


# on the circle the expectation over directions is a mean over equally spaced ones: exact
ANGLES = 2 * jnp.pi * (jnp.arange(256) + 0.5) / 256
A2, X2 = jnp.array([[1.3, 0.4], [-0.2, 0.8]]), jnp.array([0.3, -0.7])


def g(t, x):
    return A2 @ x + t * jnp.tanh(x)


def quadrature(t, proposal):
    """E_q[-log w] for the Jacobian at X2."""
    m = proposal.flow.factor(X2)
    z = jnp.stack([jnp.cos(ANGLES), jnp.sin(ANGLES)])
    images = jax.jacobian(lambda x: g(t, x))(X2) @ m.multiply(z)
    return jnp.mean(2 * jnp.log(jnp.linalg.norm(images, axis=0))) - m.log_abs_det()


def flat(tree):
    return jax.flatten_util.ravel_pytree(eqx.filter(tree, eqx.is_inexact_array))[0]


def in_standard_errors(samples, truth):
    error = jnp.std(samples, axis=0) / len(samples) ** 0.5
    return jnp.abs(jnp.mean(samples, axis=0) - truth) / jnp.where(error > 1e-9, error, 1e-9)


@pytest.mark.parametrize("family", rest_slow(list(FAMILIES), ["triangular"]))
def test_mean_gradients_over_keys_are_exact(family):
    """Of the bound, for the model and a conditional family; of the proposal's loss; of the model's."""
    q = random_conditional(2, family=family)

    def gradients(key):
        def field(name):
            def of(t, q):
                s = dx.jacobian_surrogate(lambda x: g(t, x), X2, q, key=key, num_samples=1)
                return getattr(s, name)

            return of

        names = ("bound", "loss", "log_abs_det")
        values = {name: field(name) for name in names}
        both = {
            name: eqx.filter_grad(lambda a, of: of(*a))((jnp.asarray(0.4), q), of)
            for name, of in values.items()
        }
        return {name: (jnp.asarray(d[0]), flat(d[1])) for name, d in both.items()}

    found = eqx.filter_jit(jax.vmap(gradients))(jax.random.split(KEY, 4000))
    truth = eqx.filter_grad(lambda a: quadrature(*a))((jnp.asarray(0.4), q))
    of_model, of_proposal = truth[0], flat(truth[1])
    assert jnp.linalg.norm(of_proposal) > 0.1
    for name in ("bound", "loss"):
        assert in_standard_errors(found[name][1], of_proposal).max() < 4, name
    for name in ("bound", "log_abs_det"):
        assert in_standard_errors(found[name][0], of_model) < 4, name
    # and none reaches whom it should not
    assert jnp.all(found["loss"][0] == 0)
    assert jnp.all(found["log_abs_det"][1] == 0)
    # the path gradient is not the total one, which the bound has
    assert not jnp.allclose(found["loss"][1], found["bound"][1])


def test_the_mean_gradient_with_the_best_proposal_is_that_of_the_determinant():
    def value(t, key):
        s = dx.jacobian_surrogate(lambda x: f(x, t), X[0], Proposal(Best()), key=key)
        return s.log_abs_det

    found = jax.jit(jax.vmap(jax.grad(value), in_axes=(None, 0)))(0.5, jax.random.split(KEY, 2000))
    truth = jax.grad(lambda t: exact(lambda x: f(x, t), X[0]))(0.5)
    assert in_standard_errors(found, truth) < 4
    assert jnp.std(found) / 2000**0.5 < 0.05 * jnp.abs(truth)


def test_the_correction_takes_off_the_bias_of_the_loss():
    q = Proposal(flows.conditional_linear(N, key=KEY, hidden=(4,)))  # uniform

    def both(key):
        s = dx.jacobian_surrogate(f, X[0], q, key=key, num_samples=3)
        return jnp.stack([s.loss, s.corrected, 3 / 2 / 2 * s.spread**2 - s.correction])

    found = jax.jit(jax.vmap(both))(jax.random.split(KEY, 4000))
    bias, left, formula = jnp.mean(found, axis=0) - jnp.array([1, 1, 0]) * exact(f, X[0])
    assert jnp.abs(formula) < 1e-12
    assert bias > 10 * jnp.std(found[:, 0]) / 4000**0.5
    assert jnp.abs(left) < 0.2 * bias


def test_the_context_passes_gradients_in_the_bound_alone():
    q = random_conditional(N)

    def field(name):
        def value(context):
            return getattr(dx.surrogate(W, q, key=KEY, num_samples=2, context=context), name)

        return value

    assert jnp.linalg.norm(jax.grad(field("bound"))(X[0])) > 1e-3
    for name in ("loss", "log_abs_det", "corrected"):
        assert jnp.all(jax.grad(field(name))(X[0]) == 0)


def test_an_operator_and_a_jacobian_agree():
    q = random_conditional(N)
    a = dx.surrogate(jax.jacobian(f)(X[0]), q, key=KEY, num_samples=2, context=X[0])
    b = dx.jacobian_surrogate(f, X[0], q, key=KEY, num_samples=2)
    np.testing.assert_allclose(jax.tree.leaves(a), jax.tree.leaves(b), rtol=1e-10)


def vectors_summed_up(jaxpr, *, reverse):
    """How many vectors go through `cumsum`, which nothing but the function below uses."""
    found = 0
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "cumsum" and eqn.params["reverse"] == reverse:
            found += eqn.invars[0].aval.size // N
        for inner in jax.extend.core.jaxprs_in_params(eqn.params):
            found += vectors_summed_up(inner, reverse=reverse)
    return found


def test_products_are_counted():
    """One product a sample whatever is read, beside f itself; a gradient goes back through them."""
    q = random_conditional(N)

    def value(q):
        function = lambda x: x + 0.1 * jax.lax.cumsum(x)  # noqa: E731
        s = dx.jacobian_surrogate(function, X[0], q, key=KEY, num_samples=3)
        assert s.num_matvecs == 3
        return s.bound + s.loss + s.corrected

    assert vectors_summed_up(jax.make_jaxpr(value)(q).jaxpr, reverse=False) == 1 + 3
    backward = eqx.filter_make_jaxpr(eqx.filter_grad(value))(q)[0].jaxpr
    assert vectors_summed_up(backward, reverse=False) == 1 + 3
    # the loss and the bound have a pull-back each
    assert vectors_summed_up(backward, reverse=True) == 2 * 3


def bad_at_one(x):
    return jnp.where(x[0] == X[1, 0], jnp.nan, 1) * f(x)


def test_a_bad_x_is_named_and_the_others_keep_their_values():
    q = random_conditional(N)
    good, bad = (dx.jacobian_surrogate(h, X, q, key=KEY, num_samples=2) for h in (f, bad_at_one))
    np.testing.assert_allclose(bad.bound[jnp.array([0, 2])], good.bound[jnp.array([0, 2])])
    assert bad.code.tolist()[1] == 3
    assert "x number 1 of the batch" in bad.reasons[0]
    health = bad.health()
    assert (int(health.num_finite), int(health.num_bad), int(health.code)) == (2, 1, 3)
    assert np.isfinite(health.spread)
    assert good.health().code == 1


def test_one_sample_says_what_it_cannot_tell():
    s = dx.jacobian_surrogate(f, X[0], random_conditional(N), key=KEY)
    assert np.isnan(s.correction)
    assert np.isnan(s.spread)
    assert s.code == 2
    assert "num_samples=2" in s.reasons[0]


def on_the_host(x):
    return jnp.asarray(np.tanh(x))


BAD = {
    "changes dimension": (lambda: (lambda x: x[:2], N), "takes 4 numbers to shape"),
    "whole numbers": (lambda: (lambda x: jnp.round(x).astype(int), N), "no derivative"),
    "not traceable": (lambda: (on_the_host, N), "cannot differentiate f"),
    "another size": (lambda: (f, 6), "lives in 6 dimensions"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_sentence(name):
    function, n = BAD[name][0]()
    with pytest.raises(ValueError, match=BAD[name][1]) as caught:
        dx.jacobian_surrogate(function, X, random_conditional(n), key=KEY)
    assert "\n" not in str(caught.value)


def test_what_is_no_proposal_or_has_no_context_is_refused():
    with pytest.raises(TypeError, match="proposal is a Proposal"):
        dx.jacobian_surrogate(f, X[0], None, key=KEY)
    with pytest.raises(ValueError, match="needs a context of 4"):
        dx.surrogate(W, random_conditional(N), key=KEY)
    with pytest.raises(ValueError, match="4 x 3"):
        dx.surrogate(W[:, :3], random_conditional(3), key=KEY)
