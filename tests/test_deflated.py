"""Deflation: |det A| = |det R| |det C|, exactly; all directions are an exact method."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
import scipy.sparse.linalg

from determinax import (
    Deflated,
    Exact,
    MonteCarlo,
    OperatorError,
    log_abs_det,
    log_volume,
    sphere,
)
from determinax.operators import CompressedLinearOperator, as_operator
from determinax.paper.matrices import MATRICES

KEY = jax.random.key(0)


def gaussian(n, m=None):
    return np.random.default_rng(n).normal(size=(m or n, n))


def log_det_hilbert(n):
    """Of factorials alone, so that nothing cancels."""
    products = np.cumsum(np.cumsum(np.log(np.arange(1, 2 * n))))
    return 4 * products[n - 2] - products[2 * n - 2]


@pytest.mark.parametrize("k", [1, 3, 7, 11])
def test_the_determinant_is_that_of_r_times_that_of_the_compressed_operator(k):
    a = gaussian(12)
    operator = as_operator(a)
    prepared = Deflated(k).prepare(operator, KEY)
    r, compressed = prepared.r, CompressedLinearOperator(operator, prepared.right, prepared.left)
    c = np.asarray(compressed.as_matrix())
    assert c.shape == (12 - k, 12 - k)
    total = np.linalg.slogdet(r)[1] + np.linalg.slogdet(c)[1]
    assert abs(total - np.linalg.slogdet(a)[1]) < 1e-12
    np.testing.assert_allclose(np.asarray(compressed.transpose().as_matrix()), c.T, atol=1e-13)


@pytest.mark.parametrize(
    "matrix", [m.matrix for m in MATRICES] + [gaussian(64), 1e-3 * gaussian(5)]
)
def test_all_directions_are_exact_with_n_products(matrix):
    e = log_abs_det(matrix, Deflated(len(matrix)), key=KEY)
    assert e.status == "exact"
    assert e.num_matvecs == len(matrix)
    assert abs(float(e) - np.linalg.slogdet(matrix)[1]) < 1e-10


@pytest.mark.parametrize("inner", [Exact(), MonteCarlo(10)])
def test_an_exact_method_on_the_complement_makes_an_exact_estimate(inner):
    """Monte Carlo is exact on a multiple of an isometry, in any complement too."""
    a = 0.3 * np.asarray(sphere.frame(KEY, 9)) if isinstance(inner, MonteCarlo) else gaussian(9)
    e = log_abs_det(a, Deflated(4, inner), key=KEY)
    assert abs(e.log_abs_det - np.linalg.slogdet(a)[1]) < 1e-12


@pytest.mark.parametrize("inner", [MonteCarlo(32), Exact()])
@pytest.mark.parametrize("k", [9, 17, 18])
def test_rounding_of_the_directions_is_part_of_the_error(k, inner):
    """Hilbert's matrix: condition numbers of 1e22, far beyond what double precision carries."""
    n = 18
    e = log_abs_det(scipy.linalg.hilbert(n), Deflated(k, inner), key=KEY)
    truth = log_det_hilbert(n)
    assert abs(e.log_abs_det - truth) > 30  # or it would be no test
    assert e.status == "unreliable"
    if k > 9 or isinstance(inner, Exact):
        assert any("ounding" in reason for reason in e.reasons)


@pytest.mark.parametrize("inner", [MonteCarlo(32), Exact()])
def test_rounding_is_within_its_error(inner):
    n = 8
    truth = log_det_hilbert(n)
    for key in jax.random.split(KEY, 20):
        e = log_abs_det(scipy.linalg.hilbert(n), Deflated(n - 1, inner), key=key)
        assert abs(e.log_abs_det - truth) < 4 * e.standard_error < 1e-3
        assert e.status == "exact"


def test_tall_and_complex_operators():
    tall = gaussian(8, 13)
    truth = 0.5 * np.linalg.slogdet(tall.T @ tall)[1]
    assert abs(float(log_volume(tall, Deflated(3, Exact()), key=KEY)) - truth) < 1e-12
    assert abs(float(log_volume(tall, Deflated(8), key=KEY)) - truth) < 1e-12
    a = gaussian(5) + 1j * gaussian(6)[:5, :5]
    for k in (3, 10):
        assert (
            abs(float(log_abs_det(a, Deflated(k, Exact()), key=KEY)) - np.linalg.slogdet(a)[1])
            < 1e-12
        )


def test_the_error_falls_with_the_complement():
    a, inner = gaussian(40), MonteCarlo(8)
    truth = np.linalg.slogdet(a)[1]

    def error(k):
        runs = [log_abs_det(a, Deflated(k, inner), key=jax.random.key(i)) for i in range(20)]
        return np.median([abs(float(e.log_abs_det) - truth) for e in runs])

    assert error(20) < error(10) < error(1)


def test_the_error_bar_of_the_complement_is_that_of_the_whole():
    a = np.eye(30) + 0.1 * gaussian(30) / 30**0.5
    truth = np.linalg.slogdet(a)[1]
    estimates = [
        log_abs_det(a, Deflated(10, MonteCarlo(200)), key=jax.random.key(i)) for i in range(20)
    ]
    scores = [float((e.log_abs_det - truth) / e.standard_error) for e in estimates]
    assert max(map(abs, scores)) < 4
    assert all(e.standard_error < 0.05 for e in estimates)
    assert all(e.certified_upper() > truth for e in estimates)


@pytest.mark.parametrize("by_solves", [False, True])
def test_deflating_the_smallest_singular_directions_saves_monte_carlo(by_solves):
    """Two singular values of 0.01 and 0.02 among 28 near 1: nothing but they is in the way."""
    values = np.concatenate([[0.01, 0.02], np.linspace(0.9, 1.1, 28)])
    left, right = (np.asarray(sphere.frame(jax.random.key(i), 30)) for i in range(2))
    a = jnp.asarray(left * values @ right.T)
    solve = (lambda v: jnp.linalg.solve(a, v)) if by_solves else None
    found = Deflated(2, MonteCarlo(1000), "smallest", solve)
    e = log_abs_det(a, found, key=KEY)
    truth = np.sum(np.log(values))
    assert abs(e.log_abs_det - truth) < 4 * e.standard_error < 0.1
    assert (e.num_matvecs, e.num_transposed) == ((1002, 0) if by_solves else (1040, 18))
    assert log_abs_det(a, Deflated(2, MonteCarlo(1000)), key=KEY).log_abs_det > truth + 1


def test_it_can_be_differentiated():
    a = jnp.asarray(gaussian(6))
    gradient = jax.grad(lambda x: log_abs_det(x, Deflated(6), key=KEY).log_abs_det)(a)
    np.testing.assert_allclose(gradient, np.linalg.inv(a).T, atol=1e-9)
    gradient = jax.grad(lambda x: log_abs_det(x, Deflated(4, Exact()), key=KEY).log_abs_det)(a)
    np.testing.assert_allclose(gradient, np.linalg.inv(a).T, atol=1e-9)


def test_a_constant_operator_inside_of_jit():
    a = gaussian(6)
    inside = jax.jit(lambda: log_abs_det(a, Deflated(4, Exact()), key=KEY))()
    assert inside.status == "exact"
    assert abs(float(inside) - np.linalg.slogdet(a)[1]) < 1e-12


def test_bad_input():
    with pytest.raises(ValueError, match="num_directions must be a whole number"):
        Deflated(0)
    with pytest.raises(ValueError, match="random"):
        Deflated(3, which="largest")  # pyright: ignore
    with pytest.raises(ValueError, match="smallest"):
        Deflated(3, solve=lambda v: v)
    forward = scipy.sparse.linalg.LinearOperator((4, 4), matvec=lambda v: 2 * v, dtype=float)  # pyright: ignore
    with pytest.raises(OperatorError, match="give solve="):
        log_abs_det(forward, Deflated(1, which="smallest"), key=KEY)
    with pytest.raises(TypeError, match="MonteCarlo"):
        Deflated(3, 5)  # pyright: ignore
