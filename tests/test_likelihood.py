"""Likelihoods of encoders and decoders: closed forms, bounds from both sides, and what is refused."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import determinax as dx
from determinax.likelihood import standard_normal
from determinax.likelihood.evaluate import _sign

N = 6


def linear_pair(seed: int = 0):
    """g(z) = Az + b and its inverse, and the log-likelihood in closed form."""
    rng = np.random.default_rng(seed)
    a = jnp.asarray(np.eye(N) + 0.4 * rng.normal(size=(N, N)))
    b, inverse = jnp.asarray(rng.normal(size=N)), jnp.linalg.inv(a)

    def log_p(x):
        return jax.scipy.stats.multivariate_normal.logpdf(x, b, a @ a.T)

    return (lambda x: inverse @ (x - b)), (lambda z: a @ z + b), log_p, a


def bent(weight: float, seed: int = 1):
    """z + weight * tanh(Wz) with |W| = 1: the inverse is a fixed point, for weights below 1."""
    w = np.random.default_rng(seed).normal(size=(N, N))
    w = jnp.asarray(w / np.linalg.norm(w, 2))

    def g(z):
        return z + weight * jnp.tanh(w @ z)

    def f(x):  # nearly its inverse
        z = x
        for _ in range(4):
            z = x - weight * jnp.tanh(w @ z)
        return z

    return f, g


def exact_log_p(g, z):
    return standard_normal(z) - jnp.linalg.slogdet(jax.jacfwd(g)(z))[1]


def points(num: int = 5, seed: int = 2):
    return jnp.asarray(np.random.default_rng(seed).normal(size=(num, N)))


def proposal_for(matrix):
    return dx.Proposal(dx.flows.ProjectiveLinear(dx.flows.Dense(jnp.linalg.inv(matrix))))


def perturbed(matrix, size: float, seed: int = 3):
    noise = np.random.default_rng(seed).normal(size=(N, N))
    return proposal_for(matrix @ (np.eye(N) + size * noise))


def test_a_linear_pair_with_the_best_proposal_is_exact():
    f, g, log_p, a = linear_pair()
    x = points()
    estimate = dx.log_likelihood(f, g, x, proposal_for(a), key=jax.random.key(0))
    expected = jax.vmap(log_p)(x)
    np.testing.assert_allclose(estimate.log_likelihood, expected, atol=1e-9)
    np.testing.assert_allclose(estimate.lower_bound, expected, atol=1e-9)
    np.testing.assert_allclose(estimate.upper_bound, expected, atol=1e-9)
    np.testing.assert_allclose(jax.vmap(g)(estimate.point), x, atol=1e-9)
    assert np.all(np.asarray(estimate.code) <= 1)
    assert "surely above" in str(estimate[0])
    assert str(estimate[0]).startswith("log-likelihood = ")
    bits = -(expected + 1.0) / (N * np.log(2))
    np.testing.assert_allclose(estimate.bits_per_dimension(added=1.0), bits, atol=1e-9)


def test_bounds_bracket_and_the_value_is_below_in_the_mean():
    """Over many points and a proposal that is off: 99 of 100 between, the mean below the truth."""
    f, g = bent(0.7)
    x = points(300)
    proposal = perturbed(jax.jacfwd(g)(jnp.zeros(N)), 0.15)
    estimate = dx.log_likelihood(f, g, x, proposal, key=jax.random.key(0))
    truth = jax.vmap(lambda z: exact_log_p(g, z))(estimate.point)
    inside = (estimate.lower_bound <= truth) & (truth <= estimate.upper_bound)
    assert np.mean(inside) >= 0.98
    difference = np.asarray(truth - estimate.log_likelihood)
    error = difference.std() / 300**0.5
    assert -2 * error < difference.mean() < 0.05
    assert error < 0.05
    # and not by being vague
    assert np.median(estimate.upper_bound - estimate.lower_bound) < 1.5


def test_the_solved_point_is_solved_where_the_encoder_is_poor():
    _, g = bent(0.9)
    x = points(20)
    rough = lambda x: x  # noqa: E731
    estimate = dx.log_likelihood(rough, g, x, perturbed(jnp.eye(N), 0.05), key=jax.random.key(0))
    np.testing.assert_allclose(jax.vmap(g)(estimate.point), x, atol=1e-3)
    assert np.all(np.asarray(estimate.residual) < 1e-5)
    assert not estimate.refused


def test_a_decoder_that_does_not_invert_is_refused_with_the_residual():
    """x is out of reach of g: alone it raises, in a batch it is named and the others keep theirs."""
    g = jnp.tanh
    f = lambda x: jnp.arctanh(jnp.clip(x, -0.999, 0.999))  # noqa: E731
    x = jnp.stack([jnp.full(N, 0.5), jnp.full(N, 3.0)])
    proposal = proposal_for(jnp.eye(N))
    with pytest.raises(dx.UnsolvedPointError, match=r"\|g\(z\) - x\| is 0\.\d+ of \|x\|"):
        dx.log_likelihood(f, g, x[1], proposal, key=jax.random.key(0))
    both = dx.log_likelihood(f, g, x, proposal, key=jax.random.key(0))
    alone = dx.log_likelihood(f, g, x[:1], proposal, key=jax.random.key(0))
    assert np.isnan(both.log_likelihood[1])
    assert np.isnan(both.upper_bound[1])
    np.testing.assert_allclose(both.log_likelihood[0], alone.log_likelihood[0], rtol=1e-6)
    assert both.refused[0].startswith("x number 1 of the batch: No z was found")
    assert len(both.refused) == 1
    assert int(both.code[1]) == 3


def test_a_nan_at_one_x_is_named_and_the_others_keep_their_values():
    f, g, _, a = linear_pair()
    bad = lambda x: jnp.where(x[0] > 100, jnp.nan, f(x))  # noqa: E731
    x = points(3).at[1, 0].set(1000.0)
    estimate = dx.log_likelihood(bad, g, x, proposal_for(a), key=jax.random.key(0))
    whole = dx.log_likelihood(f, g, x, proposal_for(a), key=jax.random.key(0))
    assert estimate.refused[0].startswith("x number 1 of the batch: f or g is not finite")
    np.testing.assert_allclose(estimate.log_likelihood[::2], whole.log_likelihood[::2], rtol=1e-7)


def test_a_folded_encoder_is_said():
    f = lambda x: x.at[0].set(jnp.abs(x[0]))  # noqa: E731
    estimate = dx.log_likelihood(
        f, f, jnp.abs(points(8)), proposal_for(jnp.eye(N)), key=jax.random.key(0)
    )
    assert not any("folds" in r for r in estimate[0].reasons)
    fold = lambda x: x.at[0].set(x[0] ** 2)  # noqa: E731
    unfold = lambda z: z.at[0].set(jnp.sign(z[0]) * jnp.sqrt(jnp.abs(z[0])))  # noqa: E731
    estimate = dx.log_likelihood(
        fold, unfold, points(8), proposal_for(jnp.eye(N)), key=jax.random.key(0)
    )
    solved = np.flatnonzero(np.isfinite(estimate.log_likelihood))
    assert any("folds" in r for r in estimate[int(solved[0])].reasons)


@pytest.mark.parametrize(
    ("f", "g", "proposal", "sentence"),
    [
        (lambda x: x[:3], lambda z: z, None, "f takes 6 numbers to shape (3,)"),
        (lambda x: x, lambda z: z[:2], None, "g takes 6 numbers to shape (2,)"),
        (lambda x: x, lambda z: np.asarray(z), None, "JAX cannot differentiate g"),
        (lambda x: x, lambda z: z, 4, "lives in 4 dimensions"),
    ],
)
def test_what_does_not_fit_is_refused_in_a_sentence(f, g, proposal, sentence):
    q = dx.Proposal(dx.flows.projective_linear(proposal or N))
    for call in (
        lambda: dx.log_likelihood(f, g, points(), q, key=jax.random.key(0)),
        lambda: dx.free_form_loss(f, g, points(), q, key=jax.random.key(0), reconstruction=1.0),
    ):
        with pytest.raises((dx.OperatorError, ValueError)) as error:
            call()
        assert sentence in str(error.value)
        assert "\n" not in str(error.value)


def test_a_proposal_that_is_not_linear_has_one_bound_and_says_why():
    q = dx.Proposal(dx.flows.cylinder(N, key=jax.random.key(0), num_flows=1))
    f, g, _, _ = linear_pair()
    text = str(dx.log_likelihood(f, g, points()[0], q, key=jax.random.key(0)))
    assert "it needs a linear proposal" in text
    assert "surely above" in text
    assert "nan" not in text


def test_a_prior_of_many_numbers_and_blocks_for_a_function_are_refused():
    q = dx.Proposal(dx.flows.projective_linear(N))
    f, g, _, _ = linear_pair()
    many = lambda z: -(z**2)  # noqa: E731
    for call, sentence in (
        (
            lambda: dx.log_likelihood(f, g, points(), q, key=jax.random.key(0), prior=many),
            "sum its",
        ),
        (lambda: dx.log_likelihood([f, f], g, points(), q, key=jax.random.key(0)), "goes through"),
    ):
        with pytest.raises((TypeError, ValueError)) as error:
            call()
        assert sentence in str(error.value)


def test_a_function_without_arrays_is_not_trained_in_silence():
    q = dx.Proposal(dx.flows.projective_linear(N))
    sample_x = lambda key, num: jax.random.normal(key, (num, N))  # noqa: E731
    with pytest.raises(ValueError, match="f holds no arrays"):
        dx.fit_free_form(lambda x: x, lambda z: z, sample_x, q, key=jax.random.key(0), steps=2)


def test_the_encoder_alone_is_one_sided_and_says_so():
    f, _, log_p, a = linear_pair()
    x = points()
    q = proposal_for(jnp.linalg.inv(a))
    estimate = dx.log_likelihood(f, None, x, q, key=jax.random.key(0))
    np.testing.assert_allclose(estimate.log_likelihood, jax.vmap(log_p)(x), atol=1e-9)
    assert estimate.lower_bound is None
    assert "One-sided" in estimate[0].reasons[-1]


def test_the_correction_of_the_encoder_alone_takes_the_bias_off():
    """The bound is above by about half the variance; the value is right within its errors."""
    f, _, log_p, a = linear_pair()
    x = points(200)
    q = perturbed(jnp.linalg.inv(a), 0.1)
    estimate = dx.log_likelihood(f, None, x, q, key=jax.random.key(0), num_samples=16)
    off = np.asarray(estimate.log_likelihood - jax.vmap(log_p)(x))
    error = off.std() / 200**0.5
    above = np.asarray(estimate.upper_bound - jax.vmap(log_p)(x))
    assert above.mean() > 5 * error
    assert abs(off.mean()) < 0.25 * above.mean()


def test_the_sign_of_a_determinant_is_numpys():
    rng = np.random.default_rng(0)
    for _ in range(20):
        a = rng.normal(size=(5, 5))
        assert _sign(jnp.asarray(a)) == np.linalg.slogdet(a)[0]


def mean_gradient(of, num):
    """Over keys, with its standard error."""
    g = np.asarray(jax.lax.map(of, jax.random.split(jax.random.key(0), num), batch_size=256))
    return g.mean(axis=0), g.std(axis=0) / num**0.5


def test_the_decoders_gradient_is_that_of_its_likelihood_at_x():
    """With the best proposal the mean over keys is the exact gradient of -log p_g(x) at fixed x."""
    f, g, _, a = linear_pair()
    x = points(1)[0]
    w = jnp.asarray(np.random.default_rng(5).normal(size=(N, N)))

    def decoder(t):
        return lambda z: g(z) + t * jnp.tanh(w @ z)

    def exact(t):
        z = f(x)
        for _ in range(60):
            z = z + f(x) - f(decoder(t)(z))
        return -exact_log_p(decoder(t), z)

    step = 1e-4
    truth = (exact(step) - exact(-step)) / (2 * step)
    q = proposal_for(a)

    def one(key):
        return jax.grad(
            lambda t: (
                dx.free_form_loss(f, decoder(t), x, q, key=key, reconstruction=1e-9, num_samples=1)[
                    1
                ].bound
            )
        )(0.0)

    mean, error = mean_gradient(one, 4096)
    assert abs(mean - truth) < 4 * error
    assert error < 0.08 * abs(truth)


def test_the_encoders_gradient_is_that_of_its_own_likelihood():
    f, g, _, a = linear_pair()
    x = points(1)[0]
    w = jnp.asarray(np.random.default_rng(5).normal(size=(N, N)))
    encoder = lambda t: lambda x: f(x) + t * jnp.tanh(w @ x)  # noqa: E731

    def exact(t):
        return -standard_normal(encoder(t)(x)) - jnp.linalg.slogdet(jax.jacfwd(encoder(t))(x))[1]

    q = proposal_for(a)

    def one(key):
        return jax.grad(
            lambda t: (
                dx.free_form_loss(encoder(t), g, x, q, key=key, reconstruction=1e-9)[1].encoder
            )
        )(0.0)

    mean, error = mean_gradient(one, 4096)
    assert abs(mean - jax.grad(exact)(0.0)) < 4 * error
    assert error < 0.1 * abs(jax.grad(exact)(0.0))


def test_conditional_proposals_get_the_gradient_of_the_bound():
    """Of M(x): the mean over keys against the gradient of a quadrature of many directions."""
    f, g, _, _ = linear_pair()
    x = points(1)[0]
    flow = dx.flows.conditional_linear(N, key=jax.random.key(3), hidden=(4,))
    flow = eqx.tree_at(
        lambda q: q.network.weights[-1],
        flow,
        0.1 * jax.random.normal(jax.random.key(4), flow.network.weights[-1].shape),
    )

    def bound(t, key, num):
        moved = eqx.tree_at(
            lambda q: q.base.log_diagonal, flow, flow.base.log_diagonal.at[0].set(t)
        )
        return dx.free_form_loss(
            f, g, x, dx.Proposal(moved), key=key, reconstruction=1.0, num_samples=num
        )[1].bound

    mean, error = mean_gradient(lambda key: jax.grad(bound)(0.0, key, 1), 4096)

    def divergence(t):  # -E log w by many draws with common numbers
        keys = jax.random.split(jax.random.key(9), 8192)
        return jnp.mean(jax.vmap(lambda k: bound(t, k, 1))(keys))

    step = 1e-3
    truth = (divergence(step) - divergence(-step)) / (2 * step)
    assert abs(mean - truth) < 4 * error * 1.3  # of which the truth has a part
    assert error < 0.2


@pytest.mark.slow
def test_models_learn_together_in_the_one_loop(tmp_path):
    """A correlated normal law: the bound falls, the best is kept, and a resumed run has the same bits."""
    a = linear_pair()[3]
    sample_x = lambda key, num: jax.random.normal(key, (num, N)) @ a.T  # noqa: E731
    net = lambda k: eqx.nn.MLP(N, N, 32, 1, key=jax.random.key(k))  # noqa: E731
    f, g = net(0), net(1)
    proposal = dx.Proposal(dx.flows.conditional_linear(N, key=jax.random.key(2), hidden=(16,)))
    options = {"key": jax.random.key(0), "reconstruction": 20.0, "batch_size": 64}
    options["held_out"] = sample_x(jax.random.key(7), 50)
    path = tmp_path / "run.ck"
    dx.fit_free_form(f, g, sample_x, proposal, steps=200, checkpoint=path, **options)
    fit = dx.fit_free_form(f, g, sample_x, proposal, steps=200, **options)
    again = dx.fit_free_form(
        f, g, sample_x, proposal, steps=200, checkpoint=path, resume=True, **options
    )
    for one, other in zip(*map(jax.tree.leaves, (fit.models, again.models)), strict=True):
        np.testing.assert_array_equal(one, other)
    seen = fit.history["held_out"][np.isfinite(fit.history["held_out"])]
    assert seen[-1] > seen[0] + 0.5
    assert "held out" in repr(fit)
    assert fit.num_matvecs == 200 * 64 * 4
