"""The linear families: products, solves and determinants that agree; banded elimination."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
import scipy.sparse

import determinax
from determinax import flows
from determinax.flows.banded import eliminate
from determinax.paper.matrices import FILTER

from .registry import REGISTRY, build


def _dense_matrix(factor, n):
    return np.asarray(factor.multiply(jnp.eye(n)))


@pytest.mark.parametrize("name", [name for name in REGISTRY if name.startswith("projective")])
def test_factors_are_the_matrices_that_they_say(name):
    """Product, solve and log-determinant against the dense matrix."""
    n = REGISTRY[name].dimensions[-1]
    factor = build(name, n, "float64", 0.3).factor
    matrix = _dense_matrix(factor, n)
    np.testing.assert_allclose(factor.log_abs_det(), np.linalg.slogdet(matrix)[1], atol=1e-10)
    np.testing.assert_allclose(factor.solve(jnp.eye(n)), np.linalg.inv(matrix), atol=1e-9)
    turned = flows.Transpose(factor)
    np.testing.assert_allclose(_dense_matrix(turned, n), matrix.T, atol=1e-12)
    np.testing.assert_allclose(turned.solve(jnp.eye(n)), np.linalg.inv(matrix).T, atol=1e-9)
    np.testing.assert_array_equal(turned.log_abs_det(), factor.log_abs_det())


def test_kronecker_and_circulant_are_numpys():
    a, b = (flows.Dense(jnp.asarray(np.random.default_rng(i).normal(size=(3, 3)))) for i in (0, 1))
    expected = np.kron(a.matrix(), b.matrix())
    np.testing.assert_allclose(_dense_matrix(flows.Kronecker(a, b), 9), expected, atol=1e-12)
    first = np.random.default_rng(2).normal(size=5)
    factor = eqx.tree_at(lambda f: f.kernel, flows.Circulant((5,)), jnp.asarray(first[None, None]))
    np.testing.assert_allclose(_dense_matrix(factor, 5), scipy.linalg.circulant(first), atol=1e-12)


def test_elimination_keeps_digits_that_pivoting_loses():
    """Zero-padded, the paper's filter on 64x64: condition number 1e20, log|det| = 373.570605."""
    found = eliminate(zero_padded(FILTER, 64))
    assert abs(found.log_abs_det - 373.570605) < 1e-6
    assert abs(found.log_abs_det - 373.570605) < found.rounding + 5e-7
    assert found.rounding < 1e-8


def test_elimination_says_when_rounding_spoils_it():
    """Other filters leave nothing: in extended precision this one moves by 9.5 nats."""
    kernel = np.random.default_rng(0).normal(size=(3, 3))
    assert eliminate(zero_padded(kernel, 64)).rounding > 1
    assert eliminate(scipy.sparse.csr_array(np.array([[0.0, 1], [1, 0]]))).rounding == np.inf


def zero_padded(kernel, side):
    """The zero-padded convolution as a SciPy sparse array."""
    shift = [
        scipy.sparse.diags_array(np.ones(side - abs(d)), offsets=d, shape=(side, side))
        for d in (-1, 0, 1)
    ]
    terms = [
        kernel[i, j] * scipy.sparse.kron(shift[i], shift[j]) for i in range(3) for j in range(3)
    ]
    return sum(terms[1:], start=terms[0])


def test_every_parameter_of_a_family_has_a_gradient_at_its_start():
    """Both sides of a low-rank term at zero would stay there."""
    start = flows.ProjectiveLinear(flows.DiagonalLowRank(4, 1))
    matrix = np.diag([1.0, 2.0, 1.0, 1.0]) + 0.5 * np.outer([1, 0, 1, 0], [0, 1, 0, 1])
    fit = determinax.fit(matrix, start, key=jax.random.key(0), steps=100, batch_size=32)
    for name in ("log_diagonal", "left", "right"):
        moved = getattr(fit.proposal.flow.factor, name) - getattr(start.factor, name)
        assert np.max(np.abs(moved)) > 0.01


def test_a_masked_convolution_is_triangular_in_the_order_of_pixels():
    """Pixels first, then channels; a shared kernel is a convolution that the library's own makes."""
    rng = np.random.default_rng(0)
    factor = flows.MaskedConvolution((3, 4), 2, size=3)
    factor = jax.tree.map(lambda a: jnp.asarray(0.3 * rng.normal(size=a.shape)), factor)
    by_pixel = np.arange(24).reshape(2, 12).T.reshape(-1)
    matrix = _dense_matrix(factor, 24)[np.ix_(by_pixel, by_pixel)]
    np.testing.assert_array_equal(np.triu(matrix, 1), 0)
    assert np.abs(np.tril(matrix, -1)).max() > 0.1
    kernel = np.zeros((3, 3))
    kernel[0], kernel[1, 0] = rng.normal(size=3), rng.normal()
    shared = flows.MaskedConvolution((5, 6), 1, size=3, shared=True)
    # offsets in order: (0, 1), (1, -1), (1, 0), (1, 1), towards pixels above and before
    taps = jnp.asarray([kernel[1, 0], kernel[0, 2], kernel[0, 1], kernel[0, 0]])
    shared = eqx.tree_at(lambda f: f.below, shared, taps[:, None, None])
    kernel[1, 1] = 1.0
    layer = determinax.operators.convolution(jnp.asarray(kernel), (5, 6))
    np.testing.assert_allclose(_dense_matrix(shared, 30), layer.as_matrix(), atol=1e-12)


@pytest.mark.parametrize("n", [2, 3, 6, 7])
def test_a_triangular_matrix_comes_back_from_its_packed_rows(n):
    matrix = np.tril(np.random.default_rng(n).normal(size=(n, n)), -1) + np.diag(
        np.arange(1, n + 1)
    )
    factor = flows.Triangular.of(jnp.asarray(matrix))
    assert factor.below.size <= n * n // 2
    np.testing.assert_allclose(factor.matrix(), matrix, rtol=1e-6)
    np.testing.assert_allclose(factor.multiply(jnp.eye(n)), matrix, rtol=1e-6)
