"""jit, vmap and grad pass through; host-side checks happen only outside of tracing."""

import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import pytest
import scipy.sparse
from registry import near_isometry

import determinax as dx

KEY = jax.random.key(0)
A = jnp.asarray(near_isometry(5))
METHODS = [
    dx.MonteCarlo(2000),
    dx.MonteCarlo(2000, "frames"),
    dx.Exact(),
    dx.Lanczos(50, 5),
    dx.Auto(),
]


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_jit_gives_the_same_estimate(method):
    plain = dx.log_abs_det(A, method, key=KEY)
    jitted = jax.jit(lambda a, k: dx.log_abs_det(a, method, key=k))(A, KEY)
    np.testing.assert_allclose(jitted.log_abs_det, plain.log_abs_det, rtol=1e-10)
    np.testing.assert_allclose(jitted.standard_error, plain.standard_error, rtol=1e-6, atol=1e-14)
    assert jitted.status == plain.status
    assert jitted.num_matvecs == plain.num_matvecs


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_vmap_over_matrices_is_a_loop(method):
    batch = jnp.stack([A, 2 * A, A.T @ A])
    e = jax.vmap(lambda a: dx.log_abs_det(a, method, key=KEY))(batch)
    assert e.log_abs_det.shape == (3,)
    for i in range(3):
        single = dx.log_abs_det(batch[i], method, key=KEY)
        np.testing.assert_allclose(e[i].log_abs_det, single.log_abs_det, rtol=1e-9, atol=1e-10)
        assert e[i].status == single.status
    with pytest.raises(ValueError, match="batch of estimates"):
        _ = e.status


@pytest.mark.parametrize("directions", ["independent", "frames"])
def test_the_gradient_is_the_self_normalised_form(directions):
    """d log|det A| = sum_i w_i n <As, dA s>/||As||^2 / sum_i w_i, on the very same directions."""
    method = dx.MonteCarlo(500, directions, chunk_size=128)
    gradient = jax.grad(lambda a: dx.log_abs_det(a, method, key=KEY).log_abs_det)(A)
    from determinax import weights

    plan = weights.make_plan(5, 5, 500, directions, 128)
    starts = range(-(-plan.num_groups // plan.groups_per_chunk))
    sizes = [
        min(plan.groups_per_chunk, plan.num_groups - i * plan.groups_per_chunk) for i in starts
    ]
    s = jnp.concatenate(
        [
            weights.draw(jax.random.fold_in(KEY, i), 5, size, plan.group_size, A.dtype)
            for i, size in zip(starts, sizes, strict=True)
        ],
        axis=1,
    )
    images = A @ s
    w = jnp.linalg.norm(images, axis=0) ** -5
    expected = jnp.einsum("k,ik,jk->ij", w / jnp.sum(images**2, axis=0), images, s)
    np.testing.assert_allclose(gradient, 5 * expected / w.sum(), rtol=1e-9)


@pytest.mark.parametrize(
    ("method", "tolerance"), [(dx.Exact(), 1e-12), (dx.MonteCarlo(200_000), 0.03)]
)
def test_the_gradient_is_the_inverse_transposed(method, tolerance):
    gradient = jax.jit(jax.grad(lambda a: dx.log_abs_det(a, method, key=KEY).log_abs_det))(A)
    np.testing.assert_allclose(gradient, jnp.linalg.inv(A).T, atol=tolerance)


def test_gradients_through_a_convolution_kernel():
    kernel = jnp.array([[0.1, -0.2, 0.0], [0.2, 1.0, -0.1], [0.0, 0.1, 0.2]])

    def f(kernel, method):
        operator = dx.operators.convolution(kernel, (3, 3))
        return dx.log_abs_det(operator, method, key=KEY).log_abs_det

    exact = jax.grad(f)(kernel, dx.Exact())
    step = 1e-6 * jnp.eye(9).reshape(9, 3, 3)
    numeric = [(f(kernel + d, dx.Exact()) - f(kernel - d, dx.Exact())) / 2e-6 for d in step]
    np.testing.assert_allclose(exact.ravel(), numeric, rtol=1e-6, atol=1e-7)
    sampled = jax.grad(f)(kernel, dx.MonteCarlo(50_000))
    np.testing.assert_allclose(sampled, exact, atol=0.15)


def test_jacobians_and_closures_are_traced():
    def f(scale):
        operator = lx.JacobianLinearOperator(lambda x, _: scale * jnp.tanh(A @ x), jnp.zeros(5))
        return dx.log_abs_det(operator, dx.Exact()).log_abs_det

    np.testing.assert_allclose(jax.grad(f)(2.0), 5 / 2.0, rtol=1e-12)

    def g(scale):
        operator = dx.as_operator(lambda x: scale * (A @ x), jnp.zeros(5))
        return dx.log_abs_det(operator, dx.MonteCarlo(100), key=KEY).log_abs_det

    np.testing.assert_allclose(jax.grad(g)(2.0), 5 / 2.0, rtol=1e-12)


def test_constants_inside_of_jit():
    csr = scipy.sparse.csr_array(np.asarray(A))
    for operator in (csr, np.asarray(A), dx.as_operator(lambda x: A @ x, jnp.zeros(5))):
        for method in (dx.MonteCarlo(500), dx.Exact()):
            value = jax.jit(
                lambda x, o=operator, m=method: x + dx.log_abs_det(o, m, key=KEY).log_abs_det
            )
            plain = dx.log_abs_det(operator, method, key=KEY).log_abs_det
            np.testing.assert_allclose(value(0.0), plain, rtol=1e-9)


def test_infinite_products_are_nan_inside_of_jit():
    def f(scale):
        operator = dx.as_operator(
            lambda x: jnp.where(x[0] > 0, jnp.inf, scale) * x, jnp.zeros(3), check_linear=False
        )
        return dx.log_abs_det(operator, dx.MonteCarlo(100), key=KEY).log_abs_det

    assert np.isnan(jax.jit(f)(1.0))


def test_nan_passes_through_tracing_as_nan():
    e = jax.jit(lambda a: dx.log_abs_det(a, dx.MonteCarlo(100), key=KEY))(A.at[0, 0].set(jnp.nan))
    assert np.isnan(e.log_abs_det)
    assert e.status == "unreliable"


def test_the_verdict_is_refused_inside_of_tracing():
    def f(a):
        return dx.log_abs_det(a, dx.MonteCarlo(100), key=KEY).status

    with pytest.raises(ValueError, match="ask it outside"):
        jax.jit(f)(A)


def test_chunks_do_not_depend_on_tracing():
    method = dx.MonteCarlo(1000, chunk_size=64)
    plain = dx.log_abs_det(A, method, key=KEY)
    jitted = jax.jit(lambda a: dx.log_abs_det(a, method, key=KEY))(A)
    np.testing.assert_allclose(plain.log_abs_det, jitted.log_abs_det, rtol=1e-12)
    np.testing.assert_allclose(plain.importance_bound, jitted.importance_bound, rtol=1e-12)
