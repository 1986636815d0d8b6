"""Gradients of log|det A|: the self-normalised form, with the proposal held, and its error."""

import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import pytest
import scipy.sparse.linalg
from registry import near_isometry

import determinax as dx
from determinax import Proposal, flows, sphere
from determinax._keys import stream

KEY = jax.random.key(0)
RNG = np.random.default_rng(0)
N = 6
BASE, SLOPE = jnp.asarray(near_isometry(N)), jnp.asarray(RNG.normal(size=(2, N, N)) / N)


def dense(t):
    return BASE + jnp.tensordot(t, SLOPE, 1)


def convolution(t):
    kernel = jnp.array([[0.0, 0.1, -0.1], [0.1, 1.0, 0.05], [0.02, -0.1, 0.0]])
    kernel = kernel.at[1, 0].add(t[0]).at[0, 1].add(t[1])
    return dx.operators.convolution(kernel, (2, 3))


def jacobian(t):
    def f(x, _):
        return BASE @ x + 0.3 * jnp.tanh(t[0] * x + t[1] * (SLOPE[0] @ x) ** 2)

    return lx.JacobianLinearOperator(f, jnp.linspace(-1.0, 1.0, N))


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


OPERATORS = {"dense": dense, "convolution": convolution, "jacobian": jacobian}
THETA = jnp.array([0.3, -0.2])


def exact(operator_of, theta=THETA):
    def f(t):
        return dx.log_abs_det(operator_of(t), dx.Exact()).log_abs_det

    return jax.jit(jax.grad(f))(theta)


def matrix_of(operator_of, theta=THETA):
    return dx.as_operator(operator_of(theta)).as_matrix()


def proposal_for(matrix):
    return Proposal(flows.ProjectiveLinear(flows.Dense(jnp.linalg.inv(matrix))))


def gradients(operator_of, method, keys, theta=THETA):
    """By `jax.grad`, for each of the keys."""

    def gradient(key):
        def f(t):
            return dx.log_abs_det(operator_of(t), method, key=key).log_abs_det

        return jax.grad(f)(theta)

    return jax.jit(lambda keys: jax.lax.map(gradient, keys))(keys)


@pytest.mark.parametrize("name", ["dense", slow("convolution"), slow("jacobian")])
def test_the_mean_over_keys_is_the_exact_gradient(name):
    """tr(A^-1 dA), for a proposal that misses the best one by a tenth."""
    operator_of = OPERATORS[name]
    off = matrix_of(operator_of) @ (jnp.eye(N) + 0.1 * SLOPE[1])
    found = gradients(
        operator_of, dx.Variational(proposal_for(off), 1000), jax.random.split(KEY, 200)
    )
    error = jnp.std(found, axis=0) / np.sqrt(199)
    assert jnp.all(jnp.abs(jnp.mean(found, axis=0) - exact(operator_of)) < 4 * error)
    assert jnp.all(error < 0.01)


@pytest.mark.parametrize("name", OPERATORS)
def test_at_the_inverse_it_is_hutchinsons_sample_by_sample(name):
    """n z^T dA A^-1 z for a unit vector z: without a linear solve."""
    operator_of, keys = OPERATORS[name], jax.random.split(KEY, 5)
    a = matrix_of(operator_of)
    method = dx.Variational(proposal_for(a), 1)
    slopes = jax.jit(jax.jacobian(lambda t: matrix_of(operator_of, t)))(THETA)
    for key, gradient in zip(keys, gradients(operator_of, method, keys), strict=True):
        z = sphere.uniform(stream(key, "directions", 0), N, 1)[:, 0]
        hutchinson = N * jnp.einsum("i,ijt,j->t", z, slopes, jnp.linalg.solve(a, z))
        np.testing.assert_allclose(gradient, hutchinson, atol=1e-10)


@pytest.mark.parametrize("defensive", [0.0, slow(0.3)])
def test_the_proposal_is_held_also_where_it_was_made_from_the_operator(defensive):
    # not Dense, which holds its matrix by itself
    def f(t, proposal_theta):
        factor = jax.tree.map(lambda a: a + proposal_theta[0] * jnp.arange(N), flows.Diagonal(N))
        method = dx.Variational(Proposal(flows.ProjectiveLinear(factor)), 50, defensive=defensive)
        return dx.log_abs_det(dense(t), method, key=KEY).log_abs_det

    moving = jax.jit(jax.grad(lambda t: f(t, t)))(THETA)
    np.testing.assert_allclose(moving, jax.jit(jax.grad(f))(THETA, THETA), rtol=1e-12)


@pytest.mark.parametrize(
    "method",
    [
        slow(dx.MonteCarlo(120, "frames", chunk_size=36)),
        dx.Variational(proposal_for(dense(THETA + 0.1)), 120, chunk_size=36),
    ],
    ids=["frames", "proposal"],
)
def test_the_function_gives_what_jax_grad_gives(method):
    def f(t):
        return dx.log_abs_det(dense(t), method, key=KEY).log_abs_det

    found = dx.log_abs_det_gradient(dense, THETA, method, key=KEY)
    estimate, gradient = jax.jit(jax.value_and_grad(f))(THETA)
    np.testing.assert_allclose(found.value, gradient, rtol=1e-11)
    np.testing.assert_allclose(found.estimate.log_abs_det, estimate, rtol=1e-12)
    assert (found.estimate.num_matvecs, found.estimate.num_transposed) == (240, 120)


@pytest.mark.parametrize("directions", ["independent", slow("frames")])
def test_its_error_is_the_spread_over_keys(directions):
    method = dx.Variational(proposal_for(dense(THETA + 0.3)), 300, directions)
    found = jax.lax.map(
        lambda key: dx.log_abs_det_gradient(dense, THETA, method, key=key),
        jax.random.split(KEY, 300),
    )
    spread = jnp.std(found.value, axis=0)
    np.testing.assert_allclose(jnp.mean(found.standard_error, axis=0), spread, rtol=0.15)
    z = (found.value - exact(dense)) / found.standard_error
    assert 0.9 < jnp.mean(jnp.abs(z) < 1.96) < 0.99


def test_a_scale_has_a_gradient_without_noise():
    """d log|det cA| / dc = n/c whatever the direction; and pytrees keep their structure."""
    found = dx.log_abs_det_gradient(
        lambda p: p["c"] * BASE, {"c": 2.0 * jnp.ones(()), "name": 3}, dx.MonteCarlo(64), key=KEY
    )
    np.testing.assert_allclose(found.value["c"], N / 2.0, rtol=1e-12)
    assert found.standard_error["c"] < 1e-12
    assert found.value["name"] is None
    single = dx.log_abs_det_gradient(lambda c: c * BASE, jnp.ones(()), dx.MonteCarlo(1), key=KEY)
    assert np.isinf(single.standard_error)


@pytest.mark.slow
def test_complex_operators_are_halved():
    a = BASE + 1j * SLOPE[0]
    best = Proposal(
        flows.ProjectiveLinear(flows.Dense(jnp.linalg.inv(dx.as_operator(a).as_matrix())))
    )
    found = dx.log_abs_det_gradient(
        lambda c: c * a, 2.0 * jnp.ones(()), dx.Variational(best, 3), key=KEY
    )
    np.testing.assert_allclose(found.value, N / 2.0, rtol=1e-12)


def test_bad_input():
    with pytest.raises(TypeError, match=r"MonteCarlo\(...\) or Variational"):
        dx.log_abs_det_gradient(dense, THETA, dx.Exact(), key=KEY)
    with pytest.raises(ValueError, match="more columns than rows"):
        dx.log_abs_det_gradient(lambda t: dense(t)[:3], THETA, dx.MonteCarlo(5), key=KEY)
    with pytest.raises(ValueError, match="does not tell its gradient's error"):
        dx.log_abs_det_gradient(dense, THETA, dx.MonteCarlo(3, "frames"), key=KEY)
    host = scipy.sparse.linalg.aslinearoperator(np.asarray(BASE))
    with pytest.raises(dx.OperatorError, match=r"jax\.numpy"):
        dx.log_abs_det_gradient(lambda t: host, THETA, dx.MonteCarlo(5), key=KEY)
