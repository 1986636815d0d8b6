"""jit, vmap and grad pass through; host-side checks happen only outside of tracing."""

import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import pytest
import scipy.sparse
from registry import MATRICES, near_isometry

import determinax as dx

KEY = jax.random.key(0)
A = jnp.asarray(near_isometry(5))


@pytest.mark.parametrize("directions", ["independent", "frames"])
def test_the_gradient_is_the_self_normalised_form(directions):
    """d log|det A| = sum_i w_i n <As, dA s>/||As||^2 / sum_i w_i, on the very same directions."""
    method = dx.MonteCarlo(500, directions, chunk_size=128)
    gradient = jax.grad(lambda a: dx.log_abs_det(a, method, key=KEY).log_abs_det)(A)
    t = dx.operators.traits(dx.as_operator(A))
    plan = method.plan(t)
    sizes = [plan.size] * plan.num_chunks + [plan.rest] * bool(plan.rest)
    s = jnp.concatenate([method.draw(t, KEY, i, size)[0] for i, size in enumerate(sizes)], axis=1)
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


@pytest.mark.parametrize(
    ("name", "tags"),
    [
        ("multiple of I", lx.positive_semidefinite_tag),
        ("orthogonal", ()),
        ("repeated", lx.positive_semidefinite_tag),
    ],
    ids=str,
)
def test_lanczos_differentiates_a_scale_to_rounding(name, tags):
    """d log|det cA| / dc = n/c, also where the Krylov space is exhausted."""
    a = {**MATRICES, "repeated": np.diag([1.0, 1, 1, 2, 2, 5])}[name]
    a = jnp.asarray(a if not tags else a @ a.T)

    def f(c):
        operator = lx.MatrixLinearOperator(c * a, tags)
        return dx.log_abs_det(operator, dx.Lanczos(10, 6), key=KEY).log_abs_det

    np.testing.assert_allclose(jax.grad(f)(3.0), len(a) / 3.0, rtol=1e-12)


@pytest.mark.parametrize(
    ("name", "tags"), [("multiple of I", ()), ("three", lx.positive_semidefinite_tag)], ids=str
)
def test_the_gradient_of_lanczos_is_the_inverse_transposed(name, tags):
    a = MATRICES[name]
    a = jnp.asarray(a if not tags else a @ a.T)

    def gradient(key):
        return jax.grad(
            lambda a: (
                dx.log_abs_det(
                    lx.MatrixLinearOperator(a, tags), dx.Lanczos(50, 10), key=key
                ).log_abs_det
            )
        )(a)

    gradients = jax.jit(jax.vmap(gradient))(jax.random.split(KEY, 50))
    error = jnp.std(gradients, axis=0) / jnp.sqrt(49)
    z = (jnp.mean(gradients, axis=0) - jnp.linalg.inv(a).T) / error
    assert jnp.max(jnp.abs(z)) < 4
    assert jnp.max(error) < 0.1


def test_lanczos_refuses_second_derivatives():
    def f(c):
        return dx.log_abs_det(c * A, dx.Lanczos(4, 3), key=KEY).log_abs_det

    with pytest.raises(NotImplementedError, match="first derivatives only"):
        jax.hessian(f)(2.0)


def test_auto_passes_gradients_of_its_choice():
    for budget, method in ((5, dx.Exact()), (4, None)):
        gradient = jax.grad(lambda a, b=budget: dx.log_abs_det(a, dx.Auto(b), key=KEY).log_abs_det)(
            A
        )
        assert jnp.isfinite(gradient).all()
        np.testing.assert_allclose(jnp.sum(gradient * A), 5.0, rtol=1e-12)
        if method:
            np.testing.assert_allclose(gradient, jnp.linalg.inv(A).T, rtol=1e-10)


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


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize(
    "method", [dx.Exact(), dx.Lanczos(10, 3), dx.Lanczos(10, 1), dx.Auto()], ids=str
)
def test_one_bad_entry_is_never_finite_inside_of_jit(method, bad):
    run = jax.jit(jax.vmap(lambda a: dx.log_abs_det(a, method, key=KEY).log_abs_det))
    for a in (jnp.eye(3), A[:3, :3]):
        batch = jnp.stack([a.at[i, j].set(bad) for i in range(3) for j in range(3)])
        values = run(batch)
        assert jnp.isnan(values).all() if bad is np.nan else not jnp.isfinite(values).any()


def test_a_wrong_tag_is_nan_inside_of_jit():
    def f(a):
        operator = lx.MatrixLinearOperator(a, lx.positive_semidefinite_tag)
        return dx.log_abs_det(operator, dx.Lanczos(10, 5), key=KEY).log_abs_det

    assert np.isnan(jax.jit(f)(A))
    assert np.isfinite(jax.jit(f)(A @ A.T))


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
