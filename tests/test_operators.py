import gc
import weakref

import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import pytest
import scipy.ndimage
import scipy.sparse
import scipy.sparse.linalg
from registry import FORWARD_ONLY, KINDS

import determinax as dx
from determinax import operators as ops

RNG = np.random.default_rng(0)
REAL = RNG.standard_normal((6, 6))
COMPLEX = REAL + 1j * RNG.standard_normal((6, 6))


@pytest.mark.parametrize("matrix", [REAL, COMPLEX], ids=["real", "complex"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_the_products_of_its_matrix(kind, matrix):
    operator = dx.as_operator(KINDS[kind](matrix))
    x = RNG.standard_normal((6, 3)) + (1j * RNG.standard_normal((6, 3)) if matrix is COMPLEX else 0)

    def embed(v):
        return np.concatenate([v.real, v.imag]) if matrix is COMPLEX else v

    expected, adjoint = embed(matrix @ x), embed(matrix.conj().T @ x)
    np.testing.assert_allclose(ops.columns(operator, jnp.asarray(embed(x))), expected, rtol=1e-12)
    np.testing.assert_allclose(operator.mv(jnp.asarray(embed(x)[:, 0])), expected[:, 0], rtol=1e-12)
    assert ops.user_shape(operator) == (6, 6)
    if kind in FORWARD_ONLY:
        with pytest.raises(dx.OperatorError, match="no transpose"):
            operator.transpose()
    else:
        products = ops.columns(operator.transpose(), jnp.asarray(embed(x)))
        np.testing.assert_allclose(products, adjoint, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("kind", ["numpy", "csr", "scipy operator", "callable"])
def test_tall_operators_come_in(kind):
    tall = RNG.standard_normal((7, 3))
    operator = dx.as_operator(KINDS[kind](tall))
    np.testing.assert_allclose(operator.as_matrix(), tall, rtol=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", ["numpy", "csr", "scipy operator", "callable"])
def test_the_dtype_stays(kind, dtype):
    operator = dx.as_operator(KINDS[kind](REAL.astype(dtype)))
    assert operator.mv(jnp.ones(6, dtype)).dtype == dtype


def test_integers_are_cast():
    assert dx.as_operator(np.array([[2, 1], [0, 3]])).in_structure().dtype == np.float64


@pytest.mark.parametrize(("padding", "mode"), [("zero", "constant"), ("circular", "wrap")])
@pytest.mark.parametrize("window", [(3, 3), (5, 3), (1, 1)])
def test_a_convolution_is_scipys_correlation(padding, mode, window):
    kernel, image = RNG.standard_normal(window), RNG.standard_normal((5, 7))
    operator = ops.convolution(kernel, (5, 7), padding)
    expected = scipy.ndimage.correlate(image, kernel, mode=mode)
    np.testing.assert_allclose(
        operator.mv(jnp.asarray(image).ravel()), expected.ravel(), rtol=1e-12
    )
    dense = operator.as_matrix()
    np.testing.assert_allclose(operator.transpose().as_matrix(), dense.T, atol=1e-14)


def test_a_convolution_sums_over_its_channels():
    kernel, image = RNG.standard_normal((3, 2, 3, 3)), RNG.standard_normal((2, 4, 4))
    expected = [
        sum(scipy.ndimage.correlate(image[i], kernel[o, i], mode="constant") for i in range(2))
        for o in range(3)
    ]
    operator = ops.convolution(kernel, (4, 4))
    np.testing.assert_allclose(operator.mv(image.ravel()), np.ravel(expected), rtol=1e-12)


def test_a_one_dimensional_circular_convolution_has_the_determinant_of_its_spectrum():
    kernel = np.array([0.3, 1.0, -0.2])
    estimate = dx.log_abs_det(ops.convolution(kernel, (16,), "circular"), dx.Exact())
    spectrum = np.fft.fft(np.r_[1.0, -0.2, np.zeros(13), 0.3])
    np.testing.assert_allclose(estimate.log_abs_det, np.sum(np.log(np.abs(spectrum))), rtol=1e-12)


def test_a_chunk_is_one_call_of_a_host_operator():
    calls = []

    class Counting(scipy.sparse.linalg.LinearOperator):
        def __init__(self):
            super().__init__(np.float64, (4, 4))

        def _matmat(self, x):
            calls.append(x.shape)
            return 2 * x

    dx.log_abs_det(Counting(), dx.MonteCarlo(50), key=jax.random.key(0), check_linear=False)
    assert calls == [(4, 50)]


@pytest.mark.parametrize(
    "method", [dx.MonteCarlo(100), dx.Exact(), dx.Lanczos(4, 2)], ids=["MC", "Exact", "Lanczos"]
)
@pytest.mark.parametrize("kind", ["scipy operator", "csr"])
def test_a_second_call_compiles_nothing(kind, method, caplog):
    operator = KINDS[kind](REAL)
    counts = []
    with jax.log_compiles(), caplog.at_level("WARNING", "jax"):
        for _ in range(2):
            dx.log_abs_det(operator, method, key=jax.random.key(0))
            counts.append(caplog.text.count("Finished XLA compilation"))
    assert counts[0] == counts[1]


def test_host_operators_are_kept_by_compiled_code_alone():
    operator = KINDS["scipy operator"](REAL)
    entered, again = dx.as_operator(operator), dx.as_operator(operator)
    assert entered.calls is again.calls
    assert dx.as_operator(KINDS["scipy operator"](REAL)).calls is not again.calls
    gone = weakref.ref(operator)
    del operator, entered, again
    gc.collect()
    assert gone() is None


def test_a_tagged_sparse_operator_is_still_sparse():
    """It keeps its products of many columns, its pattern, and what the door knows of it."""
    n = 300
    matrix = scipy.sparse.diags_array([-1.0, 2.1, -1], offsets=[-1, 0, 1], shape=(n, n)).tocsr()
    operator = dx.as_operator(matrix)
    tagged = lx.TaggedLinearOperator(operator, lx.positive_semidefinite_tag)
    points, key = jnp.ones((n, 3)), jax.random.key(0)
    programs = [
        str(jax.make_jaxpr(lambda x, a=a: ops.columns(a, x))(points)) for a in (operator, tagged)
    ]
    assert programs[0] == programs[1]
    exact = np.linalg.slogdet(matrix.toarray())[1]
    for method in (dx.Auto(20), dx.Probed(), dx.Exact()):
        one, other = (dx.log_abs_det(a, method, key=key) for a in (operator, tagged))
        assert other.method == one.method
        assert other.num_matvecs == one.num_matvecs
        assert abs(float(other) - exact) < 1e-9
    lanczos = dx.log_abs_det(tagged, dx.Lanczos(5, 60), key=key)
    assert (lanczos.num_matvecs, lanczos.num_transposed) == (5 * 60 + 1, 0)
    frame = dx.log_abs_det(tagged, dx.MonteCarlo(128, "frames", chunk_size=64), key=key)
    assert np.isfinite(frame.log_abs_det)
