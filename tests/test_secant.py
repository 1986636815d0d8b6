"""The secant update: after it one sample is exact, and its determinant is kept account of."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse.linalg
from jax.flatten_util import ravel_pytree

from determinax import Proposal, fit_linear, flows, methods, sphere
from determinax._keys import stream
from determinax.operators import OperatorError, as_operator
from determinax.paper.matrices import MATRICES

KEY = jax.random.key(0)
A1, W = MATRICES[0].matrix, MATRICES[5].matrix


def gaussian(n, m=None):
    return np.random.default_rng(n).normal(size=(m or n, n))


def log_weights(matrix, fit, num=50):
    points, log_q = fit.proposal.sample_columns(jax.random.key(9), num)
    return np.asarray(methods.log_weights(as_operator(matrix), points, log_q))


@pytest.mark.parametrize("matrix", [A1, W, -0.01 * W, 1e200 * A1, gaussian(64), gaussian(2)])
def test_full_frames_make_one_sample_exact_after_2n_products(matrix):
    fit = fit_linear(matrix, key=KEY)
    log_w = log_weights(matrix, fit)
    assert fit.num_matvecs == 2 * len(matrix)
    assert fit.num_transposed == 0
    assert fit.converged  # as the second frame shows
    assert fit.history["spread"][0] > 0.05
    np.testing.assert_allclose(-log_w, np.linalg.slogdet(matrix)[1], rtol=0, atol=1e-10)
    assert np.std(log_w) < 1e-11


@pytest.mark.parametrize(("transpose", "allowed"), [(True, 100), (False, 400)])
@pytest.mark.parametrize("matrix", [A1, W])
def test_blocks_of_a_quarter_make_one_sample_exact(matrix, transpose, allowed):
    n = len(matrix)
    fit = fit_linear(matrix, key=KEY, block_size=n // 4, transpose=transpose)
    log_w = log_weights(matrix, fit)
    assert fit.num_matvecs <= allowed * n
    assert fit.num_transposed == (fit.num_matvecs // 2 if transpose else 0)
    np.testing.assert_allclose(-log_w, np.linalg.slogdet(matrix)[1], rtol=0, atol=1e-10)
    assert np.std(log_w) < 1e-11


def test_float32():
    matrix = A1.astype(np.float32)
    log_w = log_weights(matrix, fit_linear(matrix, key=KEY))
    truth = np.linalg.slogdet(matrix.astype(float))[1]
    assert log_w.dtype == np.float32
    assert np.max(np.abs(np.expm1(-log_w - truth))) < 1e-4


@pytest.mark.parametrize("transpose", [True, False])
def test_the_determinant_carried_is_that_of_the_matrix(transpose):
    fit = fit_linear(gaussian(12), key=KEY, block_size=3, transpose=transpose, max_matvecs=240)
    factor = fit.proposal.flow.factor
    assert abs(np.linalg.slogdet(factor.matrix())[1] - factor.log_abs_det()) < 1e-12


@pytest.mark.parametrize("transpose", [True, False])
def test_one_step_makes_the_frame_orthonormal_up_to_scale(transpose):
    a = gaussian(8)
    fit = fit_linear(
        a, key=KEY, block_size=3, transpose=transpose, max_matvecs=6 if transpose else 3
    )
    z = sphere.frame(stream(KEY, "steps"), 8, 3)
    image = a @ fit.proposal.flow.factor.matrix() @ z
    gram = image.T @ image
    np.testing.assert_allclose(gram / gram[0, 0], np.eye(3), atol=1e-12)


def test_tall_and_complex_operators():
    tall = gaussian(6, 11)
    log_w = log_weights(tall, fit_linear(tall, key=KEY))
    np.testing.assert_allclose(-log_w, 0.5 * np.linalg.slogdet(tall.T @ tall)[1], atol=1e-10)
    a = gaussian(4) + 1j * gaussian(5)[:4, :4]
    fit = fit_linear(a, key=KEY, block_size=2)
    np.testing.assert_allclose(-log_weights(a, fit) / 2, np.linalg.slogdet(a)[1], atol=1e-10)


def test_without_a_transpose_it_goes_forward_only():
    host = scipy.sparse.linalg.LinearOperator((10, 10), matvec=lambda x: A1 @ x, dtype=float)
    fit = fit_linear(host, key=KEY, block_size=5, max_matvecs=100)
    assert fit.num_transposed == 0
    with pytest.raises(OperatorError, match="transpose=False"):
        fit_linear(host, key=KEY, block_size=5, transpose=True)


def test_a_moving_operator_is_followed():
    """2 % drift a step, 8 forward and 8 transposed products: the frame before the update tells."""
    rng, n = np.random.default_rng(0), 32
    a = np.eye(n) + 0.3 * rng.normal(size=(n, n)) / n**0.5
    fit = held = fit_linear(a, key=KEY)
    followed, stale = [], []
    for step in range(60):
        a = a @ (np.eye(n) + 0.02 * rng.normal(size=(n, n)) / n**0.5)
        options = {"key": jax.random.fold_in(KEY, step), "block_size": 8, "max_matvecs": 16}
        fit = fit_linear(a, start=fit, **options)
        followed.append(fit.history["spread"][0])
        # the proposal of the first operator, on the same frame
        stale.append(fit_linear(a, start=held, **options).history["spread"][0])
    assert np.mean(followed[30:]) < 0.5 * np.mean(stale[30:])


def test_it_goes_on_from_any_projective_linear_proposal():
    triangular = Proposal(flows.projective_linear(10))
    fit = fit_linear(A1, key=KEY, start=triangular)
    assert np.std(log_weights(A1, fit)) < 1e-11


def test_history_has_an_entry_a_step():
    fit = fit_linear(A1, key=KEY, block_size=5, max_matvecs=95, transpose=False)
    assert {name: len(v) for name, v in fit.history.items()} == dict.fromkeys(
        ("loss", "effective_sample_size", "finite", "spread", "log_abs_det"), 19
    )
    assert fit.num_matvecs == 95
    assert "19 steps" in repr(fit)


@pytest.mark.parametrize("k", [1, 3])
def test_history_has_the_spread_of_the_steps_own_weights(k):
    fit = fit_linear(A1, key=KEY, block_size=k, max_matvecs=k, transpose=False)
    z = sphere.frame(stream(KEY, "steps"), 10, k)
    log_w = methods.log_weights(as_operator(A1), z)
    np.testing.assert_allclose(fit.history["spread"], [np.nan if k == 1 else np.std(log_w)])
    assert not fit.converged


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"structure": "round"}, 'structure is "dense", "probe" or a factor'),
        ({"block_size": 11}, "at most n = 10"),
        ({"block_size": 0}, "block_size must be a whole number"),
        ({"max_matvecs": 3, "block_size": 5}, "raise max_matvecs, or lower block_size"),
        ({"transpose": "yes"}, "transpose is True, False"),
        ({"start": Proposal(flows.projective_linear(3))}, "in 10 dimensions"),
        ({"key": None}, "pass key="),
    ],
)
def test_bad_input(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        fit_linear(A1, **{"key": KEY, **options})


def test_singular_operators_are_named():
    with pytest.raises(OperatorError, match="singular"):
        fit_linear(jnp.diag(jnp.array([1.0, 2.0, 0.0])), key=KEY)


def test_a_singular_value_decomposition_that_fails_is_made_up_for(monkeypatch):
    """LAPACK's does on some matrices that are all but orthogonal."""
    matrix = np.random.default_rng(0).normal(size=(11, 11))  # of a size that nobody else compiles
    real = jnp.linalg.svd

    def fails(a, **options):
        u, values, vt = real(a, **options)
        near = jnp.max(values) < 1.001 * jnp.min(values)
        return u, jnp.where(near, jnp.nan, values), jnp.where(near, jnp.nan, vt)

    monkeypatch.setattr(jnp.linalg, "svd", fails)
    log_w = log_weights(matrix, fit_linear(matrix, key=KEY))
    assert np.max(np.abs(-log_w - np.linalg.slogdet(matrix)[1])) < 1e-10


def member(factor, size):
    """The inverse of a random member of the factor's family."""
    parameters, rest = eqx.partition(factor, flows.trainable(factor))
    theta, unravel = ravel_pytree(parameters)
    theta = theta + size * np.random.default_rng(0).normal(size=theta.shape)
    return np.linalg.inv(eqx.combine(unravel(theta), rest).multiply(jnp.eye(factor.n)))


@pytest.mark.parametrize(("transpose", "reached"), [(True, 1e-5), (False, 0.2)])
@pytest.mark.parametrize(
    ("factor", "size"),
    [
        (flows.Diagonal(12), 0.5),
        (flows.Kronecker(flows.Triangular(3), flows.Triangular(4)), 0.3),
        (flows.Circulant((12,)), 0.1),
    ],
    ids=["diagonal", "kronecker", "circulant"],
)
def test_updates_projected_on_a_family_find_the_member_that_fits(factor, size, transpose, reached):
    matrix = 3 * member(factor, size)
    fit = fit_linear(matrix, key=KEY, structure=factor, transpose=transpose, max_matvecs=100 * 12)
    assert type(fit.proposal.flow.factor) is type(factor)
    assert fit.num_transposed == (fit.num_matvecs // 2 if transpose else 0)
    log_w = log_weights(matrix, fit)
    assert fit.history["spread"][0] > 0.3
    assert np.std(log_w) < reached
    np.testing.assert_allclose(-log_w, np.linalg.slogdet(matrix)[1], rtol=0, atol=5 * reached)


def test_a_projected_fit_stops_when_it_fits_and_stays_within_its_budget():
    matrix = member(flows.Diagonal(12), 0.5)
    fit = fit_linear(matrix, key=KEY, structure=flows.Diagonal(12))
    assert fit.converged
    assert fit.num_matvecs < 32 * 12
    assert len(fit.history["loss"]) * 2 * 3 == fit.num_matvecs
    # a family that does not hold the optimum comes as near as it can, and says that it has not converged
    fit = fit_linear(A1, key=KEY, structure=flows.Diagonal(10))
    assert not fit.converged
    assert fit.num_matvecs <= 320
    # (no diagonal M is much better than none here: it must not drift away from that)
    assert np.mean(fit.history["loss"][-20:]) < np.mean(fit.history["loss"][:20]) + 1.0


@pytest.mark.parametrize("n", [6, 32])
def test_a_projected_fit_that_has_converged_says_so_whatever_its_blocks(n):
    matrix = member(flows.Diagonal(n), 0.5)
    fit = fit_linear(matrix, key=KEY, structure=flows.Diagonal(n), max_matvecs=100 * n)
    assert fit.converged
    assert fit.num_matvecs < 64 * n
    assert (
        fit_linear(matrix, key=KEY, structure=flows.Diagonal(n), max_matvecs=10).num_matvecs <= 10
    )


def test_a_probed_factor_times_a_diagonal_is_a_family():
    band = np.eye(8) + 0.3 * np.eye(8, k=1)
    factor = fit_linear(band, key=KEY, structure="probe", pattern=(0, 1)).proposal.flow.factor
    matrix = band @ np.diag(np.linspace(0.5, 2, 8))
    family = flows.Product([flows.Diagonal(8), factor])
    fit = fit_linear(matrix, key=KEY, structure=family, max_matvecs=100 * 8)
    assert np.std(log_weights(matrix, fit)) < 1e-5


def test_a_factor_of_another_size_or_a_start_beside_it_is_refused():
    with pytest.raises(ValueError, match="build it with n = 10"):
        fit_linear(A1, key=KEY, structure=flows.Diagonal(9))
    with pytest.raises(ValueError, match="give no start"):
        fit_linear(A1, key=KEY, structure=flows.Diagonal(10), start=fit_linear(A1, key=KEY))
    with pytest.raises(ValueError, match="a Dense has no parameters to fit"):
        fit_linear(A1, key=KEY, structure=flows.Dense(jnp.eye(10)))
    with pytest.raises(ValueError, match="a factor such as"):
        fit_linear(A1, key=KEY, structure="diagonal")
