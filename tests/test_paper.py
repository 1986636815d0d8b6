"""The paper's matrices, and its Monte Carlo rows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import determinax as dx
from determinax.paper import FILTER, MATRICES

# of the matrices as printed, computed independently
TRUE_ABS_DET = [523.3344, 743.5488, 955.4835, 2961.7072, 248.5295, 7.7327, 2.1745]


def test_the_matrices_have_the_determinants_of_their_printed_entries():
    for item, truth in zip(MATRICES, TRUE_ABS_DET, strict=True):
        assert np.exp(item.log_abs_det) == pytest.approx(truth, abs=6e-5)
        if item.printed_abs_det:  # rounding of the entries moves them by up to 2 %
            assert np.exp(item.log_abs_det) == pytest.approx(item.printed_abs_det, rel=0.02)


def test_w_is_the_zero_padded_convolution():
    operator = dx.operators.convolution(FILTER, (4, 4))
    np.testing.assert_allclose(operator.as_matrix(), MATRICES[5].matrix, atol=1e-15)
    singular = np.linalg.svd(MATRICES[5].matrix, compute_uv=False)
    assert singular[-1] == pytest.approx(0.047, abs=5e-4)
    assert singular[-2] == pytest.approx(0.417, abs=5e-4)


def mean_error(item, num_samples, repeats=100):
    """Mean absolute relative error of |det| over keys, in per cent."""
    matrix = jnp.asarray(item.matrix)
    method = dx.MonteCarlo(num_samples)
    run = jax.jit(jax.vmap(lambda key: dx.log_abs_det(matrix, method, key=key).log_abs_det))
    values = run(jax.random.split(jax.random.key(0), repeats))
    return 100 * np.mean(np.abs(np.expm1(np.asarray(values) - item.log_abs_det)))


@pytest.mark.slow
def test_monte_carlo_errs_on_the_dense_matrices_as_the_paper_says():
    """Its row is 533 +- 660 %, 348 +- 262 %, 104 +- 30 %, 59 +- 43 %."""
    few = [mean_error(item, 100, 1000) for item in MATRICES[:5]]
    assert 450 < np.mean(few) < 750
    many = [mean_error(item, 100_000, 30) for item in MATRICES[:5]]
    assert 40 < np.mean(many) < 70


def test_monte_carlo_errs_on_the_convolution_as_the_paper_says():
    assert 200 < mean_error(MATRICES[5], 100_000, 30) < 600
