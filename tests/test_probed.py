"""Probing: as many products as colours reveal a pattern; what the pattern misses is corrected."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse

from determinax import Exact, Probed, fit_linear, log_abs_det, methods, operators
from determinax.operators import OperatorError, as_operator, convolution
from determinax.paper.matrices import FILTER

KEY = jax.random.key(0)
GENTLE = np.array([[0.1, 0.2, 0.1], [0.2, 3.0, -0.3], [0.1, 0.1, -0.1]])
# elimination without pivoting, the same in double and in extended precision
TRUTH = {32: 94.652802, 64: 373.570605, 128: 1483.6313}


def channels(num, seed=0):
    kernel = 0.1 * np.random.default_rng(seed).normal(size=(num, num, 3, 3))
    kernel[range(num), range(num), 1, 1] += 2
    return kernel


def exact(operator):
    return np.linalg.slogdet(np.asarray(operator.as_matrix()))[1]


@pytest.mark.parametrize(
    ("operator", "num_colours"),
    [
        (convolution(GENTLE, (7, 10)), 9),
        (convolution(channels(3), (5, 6)), 27),
        (convolution(np.ones((2, 5)), (8, 8)), 10),
        (convolution(np.ones(3), (9,), "circular"), 3),
        (as_operator(scipy.sparse.csr_array(np.triu(np.tril(np.ones((9, 9)), 2), -1))), 4),
    ],
)
def test_as_many_products_as_colours_reveal_the_matrix(operator, num_colours):
    matrix, num = operators.probe(operator, operators.pattern(operator))
    assert num == num_colours
    np.testing.assert_array_equal(matrix.toarray(), np.asarray(operator.as_matrix()))


def test_columns_of_one_colour_share_no_row():
    pattern = scipy.sparse.random_array((40, 30), density=0.1, rng=np.random.default_rng(0)) != 0
    colours = operators.colour(pattern)
    for c in range(colours.max() + 1):
        assert pattern.toarray()[:, colours == c].sum(axis=1).max() <= 1


def test_the_papers_filter_on_16x16():
    operator = convolution(FILTER, (16, 16))
    e = log_abs_det(operator, Probed(), key=KEY)
    assert e.num_matvecs <= 9 + 8
    assert abs(float(e) - exact(operator)) < 1e-7
    assert e.status == "exact"


@pytest.mark.parametrize("side", [32, 64, pytest.param(128, marks=pytest.mark.slow)])
def test_the_papers_filter_where_it_is_a_trap(side):
    e = log_abs_det(convolution(FILTER, (side, side)), Probed(), key=KEY)
    assert e.num_matvecs <= 9 + 8
    assert abs(float(e) - TRUTH[side]) < (1e-3 if side == 32 else 1e-4)
    assert e.standard_error < 1e-5


def test_exact_is_not_confident_in_the_trap():
    e = log_abs_det(convolution(FILTER, (48, 48)), Exact())
    assert e.status == "unreliable"


def test_a_trap_that_elimination_falls_into_is_unreliable():
    kernel = np.random.default_rng(0).normal(size=(3, 3))
    assert log_abs_det(convolution(kernel, (64, 64)), Probed(), key=KEY).status == "unreliable"


@pytest.mark.parametrize("padding", ["zero", "circular"])
def test_channels(padding):
    operator = convolution(channels(3), (6, 6), padding)
    e = log_abs_det(operator, Probed(), key=KEY)
    assert e.num_matvecs <= 27 + 8
    assert abs(float(e) - exact(operator)) < 1e-10
    assert e.status == "exact"


@pytest.mark.slow
def test_a_well_conditioned_filter_on_128x128():
    """Against the sparse LU of the same matrix."""
    operator = convolution(GENTLE, (128, 128))
    matrix, _ = operators.probe(operator, operators.pattern(operator))
    lu = scipy.sparse.linalg.splu(scipy.sparse.csc_array(matrix))
    truth = np.sum(np.log(np.abs(lu.U.diagonal())))
    e = log_abs_det(operator, Probed(), key=KEY)
    assert abs(float(e) - truth) < 1e-8
    assert e.num_matvecs <= 9 + 8


def test_zeros_on_the_diagonal_are_left_to_pivoting():
    matrix = scipy.sparse.csr_array(np.eye(6)[::-1] * 3 + np.eye(6, k=1))
    e = log_abs_det(matrix, Probed(), key=KEY)
    assert e.status == "exact"
    assert abs(float(e) - np.linalg.slogdet(matrix.toarray())[1]) < 1e-12


def test_a_zero_that_only_the_reverse_elimination_meets_is_left_to_pivoting():
    e = log_abs_det(scipy.sparse.csr_array([[1.0, 1.0], [1.0, 0.0]]), Probed(), key=KEY)
    assert "sparse LU" in e.method
    assert e.status == "exact"
    assert abs(float(e)) < 1e-14


def test_what_only_pivoting_can_factorise_is_no_proposal():
    """Nor is it blamed on products that were finite all along."""
    pattern = scipy.sparse.csr_array(np.eye(6)[::-1] * 3 + np.eye(6, k=1))
    nearly = pattern.toarray() + 1e-4 * np.random.default_rng(0).normal(size=(6, 6))
    with pytest.raises(OperatorError, match="permute the operator's rows"):
        log_abs_det(nearly, Probed(100, pattern), key=KEY)
    with pytest.raises(OperatorError, match="permute the operator's rows"):
        fit_linear(pattern, key=KEY, structure="probe")
    # the cure works
    e = log_abs_det(nearly[::-1], Probed(100, pattern[::-1]), key=KEY)
    assert abs(float(e) - np.linalg.slogdet(nearly)[1]) < 4 * e.standard_error < 1e-3


def test_a_probed_fit_refuses_what_rounding_spoils():
    kernel = np.random.default_rng(0).normal(size=(3, 3))
    with pytest.raises(OperatorError, match="so ill-conditioned"):
        fit_linear(convolution(kernel, (64, 64)), key=KEY, structure="probe")


def test_what_the_pattern_misses_is_corrected_without_bias():
    operator = convolution(GENTLE, (10, 10))
    pattern = operators.pattern(operator)
    outside = np.random.default_rng(1).normal(size=(100, 100)) * (pattern.toarray() == 0)
    matrix = np.asarray(operator.as_matrix()) + 1e-3 * outside
    truth = np.linalg.slogdet(matrix)[1]
    assert abs(truth - exact(operator)) > 1e-5
    estimates = [
        log_abs_det(matrix, Probed(200, pattern), key=jax.random.key(i)) for i in range(20)
    ]
    scores = [float((e.log_abs_det - truth) / e.standard_error) for e in estimates]
    assert abs(np.mean(scores)) < 4 / 20**0.5
    assert max(map(abs, scores)) < 4
    assert all(e.standard_error < 0.01 for e in estimates)
    assert all(e.certified_upper() > truth for e in estimates)
    assert "differs from it" in estimates[0].reasons[-1]


def test_a_probed_fit_is_a_proposal():
    operator = convolution(FILTER, (8, 8))
    fit = fit_linear(operator, key=KEY, structure="probe")
    assert fit.num_matvecs == 9 + 8
    assert fit.history["spread"][0] < 1e-9
    assert fit_linear(operator, key=KEY, structure="probe", tolerance=1e-8).converged
    wider = np.triu(np.tril(np.random.default_rng(0).normal(size=(8, 8)) + 4 * np.eye(8), 2), -1)
    assert not fit_linear(wider, key=KEY, structure="probe", pattern=(1, 1)).converged
    points, log_q = fit.proposal.sample_columns(KEY, 5)
    log_w = methods.log_weights(operator, points, log_q)
    np.testing.assert_allclose(-log_w, exact(operator), atol=1e-9)


def test_a_second_call_with_a_sparse_pattern_compares_no_patterns(recwarn):
    matrix = np.diag([3.0, 2.0, 4.0]) + np.eye(3, k=1)
    for _ in range(2):
        method = Probed(pattern=scipy.sparse.csr_array(matrix))
        for _ in range(2):
            assert log_abs_det(matrix, method, key=KEY).status == "exact"
    assert not recwarn.list


def test_float32_knows_its_digits():
    operator = convolution(GENTLE.astype(np.float32), (8, 8))
    e = log_abs_det(operator, Probed(), key=KEY)
    assert abs(float(e) - exact(convolution(GENTLE, (8, 8)))) < 1e-4
    assert 1e-7 < e.standard_error < 1e-3


@pytest.mark.parametrize(
    ("operator", "method", "sentence"),
    [
        (jnp.eye(3), Probed(), "pass pattern="),
        (jnp.eye(3), Probed(pattern=scipy.sparse.eye_array(4)), "pattern is 4x4"),
        (jnp.eye(3), Probed(pattern=3), "SciPy sparse array or"),
        (jnp.eye(3) * 1j, Probed(pattern=(0, 0)), "real operators only"),
    ],
)
def test_bad_input(operator, method, sentence):
    with pytest.raises((ValueError, OperatorError), match=sentence):
        log_abs_det(operator, method, key=KEY)
