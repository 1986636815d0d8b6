"""Every method against closed forms and against numpy.linalg.slogdet."""

import re

import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import pytest
import scipy.sparse.linalg
from registry import EQUAL_WEIGHTS, KINDS, MATRICES, near_isometry, orthogonal, rest_slow

import determinax as dx
from determinax import _checks
from determinax.operators._traits import own_kind
from determinax.paper.matrices import FILTER

KEY = jax.random.key(1)


def truth(matrix):
    return np.linalg.slogdet(matrix)[1]


FRAMES = ("two", "diagonal", "orthogonal", "near isometry")  # the others with the slow tests


@pytest.mark.parametrize(
    ("name", "directions"),
    [(name, "independent") for name in MATRICES]
    + [
        pytest.param(name, "frames", marks=[pytest.mark.slow] * (name not in FRAMES))
        for name in MATRICES
    ],
)
def test_monte_carlo_is_within_its_error(name, directions):
    matrix = MATRICES[name]
    e = dx.log_abs_det(matrix, dx.MonteCarlo(40_000, directions), key=KEY)
    assert e.status in ("ok", "exact")
    assert abs(e.log_abs_det - truth(matrix)) < 4 * e.standard_error + 1e-12
    assert e.standard_error < 0.02
    assert e.interval[0] <= e.log_abs_det <= e.interval[1]
    assert e.num_matvecs <= 40_000
    assert e.num_matvecs_dense == len(matrix)


@pytest.mark.parametrize("name", MATRICES)
def test_exact_is_exact(name):
    e = dx.log_abs_det(MATRICES[name], dx.Exact())
    assert e.status == "exact"
    np.testing.assert_allclose(e.log_abs_det, truth(MATRICES[name]), rtol=1e-13, atol=1e-13)
    assert e.standard_error < 1e-13
    assert e.num_matvecs == len(MATRICES[name])


@pytest.mark.parametrize("name", rest_slow(MATRICES, FRAMES))
def test_lanczos_is_within_its_error(name):
    matrix = MATRICES[name]
    e = dx.log_abs_det(matrix, dx.Lanczos(400, 10), key=KEY)
    assert e.status == "ok"
    assert abs(e.log_abs_det - truth(matrix)) < 4 * e.standard_error + 1e-12
    assert e.standard_error < 0.1
    assert e.num_matvecs == 2 * e.num_transposed + 1


@pytest.mark.parametrize("name", EQUAL_WEIGHTS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_equal_weights_are_exact(name, dtype):
    matrix = MATRICES[name].astype(dtype)
    e = dx.log_abs_det(matrix, dx.MonteCarlo(1000), key=KEY)
    assert e.status == "exact"
    np.testing.assert_allclose(e.log_abs_det, truth(matrix), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "method",
    [
        dx.MonteCarlo(2000),
        pytest.param(dx.MonteCarlo(2000, "frames"), marks=pytest.mark.slow),
        pytest.param(dx.Exact(), marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_the_kind_of_operator_does_not_change_the_estimate(kind, method):
    matrix = near_isometry(6)
    expected = dx.log_abs_det(matrix, method, key=KEY)
    e = dx.log_abs_det(KINDS[kind](matrix), method, key=KEY)
    np.testing.assert_allclose(e.log_abs_det, expected.log_abs_det, rtol=1e-10)
    np.testing.assert_allclose(e.standard_error, expected.standard_error, rtol=1e-6, atol=1e-14)


@pytest.mark.parametrize(
    "kind", rest_slow(["numpy", "csr", "scipy operator", "callable"], ["scipy operator"])
)
@pytest.mark.parametrize(
    "method", [dx.MonteCarlo(40_000), dx.Exact(), dx.Lanczos(400, 12)], ids=str
)
def test_complex_operators_are_halved_embeddings(kind, method):
    matrix = near_isometry(6) + 0.1j * near_isometry(6, seed=5)
    e = dx.log_abs_det(KINDS[kind](matrix), method, key=KEY)
    assert abs(e.log_abs_det - truth(matrix)) < 4 * e.standard_error + 1e-13
    assert e.standard_error < 0.06
    assert e.num_matvecs_dense == 6


@pytest.mark.parametrize("shape", rest_slow([(7, 3), (400, 5), (3, 3), (4, 1)], [(7, 3), (4, 1)]))
@pytest.mark.parametrize("method", [dx.MonteCarlo(40_000), dx.Exact(), dx.Lanczos(400)], ids=str)
def test_log_volume_of_tall_operators(shape, method):
    m, n = shape
    rng = np.random.default_rng(3)
    matrix = np.linalg.qr(rng.standard_normal((m, n)))[0] @ near_isometry(n)
    e = dx.log_volume(matrix, method, key=KEY)
    exact = 0.5 * truth(matrix.T @ matrix)
    assert abs(e.log_abs_det - exact) < 4 * e.standard_error + 1e-12
    assert e.standard_error < 0.05


def test_definite_operators_cost_one_product_a_step():
    a = near_isometry(8)
    spd = jnp.asarray(a @ a.T)
    tagged = lx.MatrixLinearOperator(spd, lx.positive_semidefinite_tag)
    e = dx.log_abs_det(tagged, dx.Lanczos(400, 8), key=KEY)
    assert abs(e.log_abs_det - truth(spd)) < 4 * e.standard_error
    assert e.standard_error < 0.1
    assert (e.num_matvecs, e.num_transposed) == (3201, 0)
    negative = lx.MatrixLinearOperator(-spd, lx.negative_semidefinite_tag)
    np.testing.assert_allclose(
        dx.log_abs_det(negative, dx.Lanczos(400, 8), key=KEY).log_abs_det, e.log_abs_det, rtol=1e-9
    )


@pytest.mark.parametrize("scale", [1e200, 1e-200, 2.0**600])
@pytest.mark.parametrize("method", [dx.MonteCarlo(1000), dx.Exact(), dx.Lanczos()], ids=str)
def test_a_scale_shifts_the_result_by_n_log_c(scale, method):
    matrix = near_isometry(10)
    plain = dx.log_abs_det(matrix, method, key=KEY)
    scaled = dx.log_abs_det(scale * matrix, method, key=KEY)
    shift = scaled.log_abs_det - plain.log_abs_det
    np.testing.assert_allclose(shift, 10 * np.log(scale), rtol=1e-12)
    assert scaled.status == plain.status


def test_eye_of_512_over_5e5_in_float32():
    matrix = np.eye(512, dtype=np.float32) / 5e5
    for method in (dx.MonteCarlo(100), dx.Exact(), dx.Lanczos(20, 5)):
        e = dx.log_abs_det(matrix.astype(np.float32), method, key=KEY)
        np.testing.assert_allclose(e.log_abs_det, -512 * np.log(5e5), rtol=1e-6)


def test_frames_have_the_smaller_error_near_an_isometry():
    matrix = near_isometry(10, 0.1)
    single, frames = (
        dx.log_abs_det(matrix, dx.MonteCarlo(10_000, d), key=KEY) for d in ("independent", "frames")
    )
    assert frames.standard_error < 0.5 * single.standard_error


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("num_frames", [1, 3])
def test_few_frames_are_enough_where_all_weights_are_equal(num_frames, dtype):
    method = dx.MonteCarlo(30 * num_frames, "frames")
    e = dx.log_abs_det(2 * orthogonal(30).astype(dtype), method, key=KEY)
    assert e.status == "exact"
    assert abs(e.log_abs_det - 30 * np.log(2)) < 500 * np.finfo(dtype).eps
    assert e.standard_error <= 500 * np.finfo(dtype).eps
    assert e.interval[0] <= e.log_abs_det <= e.interval[1]
    # one frame cannot disagree with itself: its directions must
    assert dx.log_abs_det(near_isometry(30, 0.01), method, key=KEY).status == "unreliable"
    small = dx.MonteCarlo(6 * num_frames, "frames")
    assert dx.log_abs_det(orthogonal(6), small, key=KEY).status == "unreliable"


def test_fewer_directions_than_dimensions_make_one_partial_frame():
    e = dx.log_abs_det(near_isometry(10), dx.MonteCarlo(4, "frames"), key=KEY)
    assert e.num_matvecs == 4
    assert e.status == "unreliable"


@pytest.mark.parametrize("size", [0.3, 1.0])
def test_one_partial_frame_is_unbiased_and_better_than_independent_directions(size):
    n, k, num_keys = 64, 32, 500
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(n, n))
    noise = (noise + noise.T) * size / np.linalg.norm(noise + noise.T)
    # A^T A is I + noise, turned and scaled
    matrix = 3 * orthogonal(n) @ np.linalg.cholesky(np.eye(n) + noise).T

    def run(directions):
        method = dx.MonteCarlo(k, directions)
        each = jax.jit(jax.vmap(lambda key: dx.log_abs_det(jnp.asarray(matrix), method, key=key)))
        e = each(jax.random.split(KEY, num_keys))
        return np.asarray(e.log_abs_det) - truth(matrix), np.asarray(e.standard_error)

    independent, _ = run("independent")
    frame, error = run("frames")
    e = dx.log_abs_det(matrix, dx.MonteCarlo(k, "frames"), key=KEY)
    assert e.bounds.slack == 1  # its directions are not independent
    np.testing.assert_allclose(e.certified_upper(0.05), e.importance_bound + np.log(20), rtol=1e-12)
    # half of the first-order noise is gone, and almost all of the second
    first, second = size**2 / 2, size**4 / 8
    expected = ((first / 2 + second / 10) / k) ** 0.5
    assert 0.85 < np.std(frame) / expected < 1.25
    assert np.std(frame) < 0.8 * np.std(independent)
    assert 1 < np.mean(error) / np.std(frame) < 2
    jensen = np.std(frame) ** 2 / 2
    assert abs(np.mean(frame) - jensen) < 4 * np.std(frame) / num_keys**0.5


def test_the_streamed_error_is_the_spread_over_keys():
    matrix = jnp.asarray(near_isometry(5))
    run = jax.jit(jax.vmap(lambda k: dx.log_abs_det(matrix, dx.MonteCarlo(500), key=k)))
    e = run(jax.random.split(KEY, 2000))
    ratio = np.std(e.log_abs_det) / np.mean(e.standard_error)
    assert 0.93 < ratio < 1.07
    bias = np.mean(np.exp(-e.log_abs_det)) * np.exp(truth(matrix)) - 1
    assert abs(bias) < 4 * np.std(e.log_abs_det) / np.sqrt(2000)


def test_auto_is_exact_where_the_budget_allows():
    matrix = near_isometry(20)
    for method in (dx.Auto(), dx.Auto(20), None):
        e = dx.log_abs_det(matrix, method, key=KEY)
        assert e.status == "exact"
        assert "Auto chose Exact" in e.reasons[0]


def test_auto_follows_the_pilot_run():
    near, broad = near_isometry(200, 0.02), np.random.default_rng(0).standard_normal((200, 200))
    first = dx.log_abs_det(near, dx.Auto(150), key=KEY)
    assert "Auto chose MonteCarlo" in first.reasons[-1]
    assert abs(first.log_abs_det - truth(near)) < 4 * first.standard_error
    second = dx.log_abs_det(broad, dx.Auto(150), key=KEY)
    assert "Auto chose Lanczos" in second.reasons[-1]
    for e in (first, second):
        assert 100 < e.num_matvecs <= 150


@pytest.mark.parametrize("n", [3, 257])
def test_products_are_counted_as_they_are_made(n):
    made = {"forward": 0, "transposed": 0}

    def counted(name, sign):
        def product(x):
            made[name] += x.shape[1]
            return 2.0 * x

        return product

    class Counting(scipy.sparse.linalg.LinearOperator):
        def __init__(self):
            super().__init__(np.float64, (n, n))

        def _matmat(self, x):
            return counted("forward", 1)(x)

        def _rmatmat(self, x):
            return counted("transposed", 1)(x)

    for method in (dx.Exact(), dx.MonteCarlo(100), dx.Lanczos(4, 2), dx.Auto(150)):
        made.update(forward=0, transposed=0)
        e = dx.log_abs_det(Counting(), method, key=KEY)
        assert e.num_transposed == made["transposed"]
        assert e.num_matvecs == made["forward"] + made["transposed"]


def test_auto_without_transpose_samples():
    operator = KINDS["scipy operator, forward only"](
        np.random.default_rng(0).standard_normal((64, 64))
    )
    e = dx.log_abs_det(operator, dx.Auto(60), key=KEY)
    assert "without a transpose" in e.reasons[-1]
    assert e.status == "unreliable"


def test_auto_probes_a_convolution_and_is_right_where_dense_factorisations_fail():
    operator = dx.operators.convolution(FILTER, (64, 64))
    e = dx.log_abs_det(operator, key=KEY)
    assert "Auto chose Probed" in e.reasons[-1]
    assert abs(float(e) - 373.570605) < 1e-5
    assert e.num_matvecs <= 9 + 8


@own_kind
class Wrapped(dx.operators.AbstractOwnOperator):
    """A kind of one's own, whose pattern is registered below."""

    matrix: jax.Array

    def mv(self, vector):
        return self.matrix @ vector

    def transpose(self):
        return Wrapped(self.matrix.T)

    def in_structure(self):
        return jax.ShapeDtypeStruct((len(self.matrix),), self.matrix.dtype)

    out_structure = in_structure


@dx.operators.pattern.register(Wrapped)
def _(operator):
    return dx.operators.banded_pattern(operator.in_size(), 1, 1)


def test_auto_probes_a_kind_of_ones_own_whose_pattern_is_known():
    matrix = np.diag(np.full(20, 3.0)) + np.eye(20, k=1) - np.eye(20, k=-1)
    e = dx.log_abs_det(Wrapped(jnp.asarray(matrix)), key=KEY, check_linear=False)
    assert "Auto chose Probed" in e.reasons[-1]
    assert e.num_matvecs == 3 + 2
    assert abs(float(e) - truth(matrix)) < 1e-10


def test_auto_factorises_a_sparse_matrix_whatever_the_budget():
    """That takes no products: the budget is one of products."""
    n, rng = 300, np.random.default_rng(0)
    diagonals = 4 + rng.normal(size=n), rng.normal(size=n - 1), rng.normal(size=n - 1)
    matrix = scipy.sparse.diags_array(diagonals, offsets=(0, -1, 1))
    for operator in (matrix.tocsr(), lx.TridiagonalLinearOperator(*map(jnp.asarray, diagonals))):
        for method in (dx.Auto(4), dx.Auto(n), dx.Auto()):
            e = dx.log_abs_det(operator, method)
            assert "Auto chose Exact: tridiagonal LU" in e.reasons[-1]
            assert e.status == "exact"
            assert e.num_matvecs == 0
            assert abs(float(e) - truth(matrix.toarray())) < 1e-10


def test_auto_probes_no_further_than_memory_goes(monkeypatch):
    operator = dx.operators.convolution(FILTER, (32, 32))
    monkeypatch.setattr(_checks, "physical_memory", lambda: 2_300_000)
    e = dx.log_abs_det(operator, dx.Auto(100), key=KEY)
    assert "Auto chose Lanczos" in e.reasons[-1]
    with pytest.raises(ValueError, match="band of 1024x67"):
        dx.log_abs_det(operator, dx.Probed(), key=KEY)
    # the FFT needs no band
    circular = dx.operators.convolution(FILTER, (32, 32), "circular")
    assert "Auto chose Probed" in dx.log_abs_det(circular, dx.Auto(100), key=KEY).reasons[-1]


def test_auto_deflates_what_is_broad_and_has_no_transpose():
    matrix = np.random.default_rng(0).normal(size=(60, 60))
    host = scipy.sparse.linalg.LinearOperator((60, 60), matvec=lambda x: matrix @ x, dtype=float)
    e = dx.log_abs_det(host, dx.Auto(50), key=KEY)
    assert "Auto chose Deflated" in e.reasons[-1]
    assert e.num_matvecs <= 50


def test_auto_deflates_where_few_directions_carry_what_is_large():
    x = np.linspace(0, 1, 300)
    kernel = np.exp(-0.5 * (x[:, None] - x) ** 2 / 0.1**2) + 0.01 * np.eye(300)
    exact = truth(kernel)
    estimate = dx.log_abs_det(kernel, dx.Auto(75), key=KEY)
    assert "chose Deflated" in estimate.reasons[-1]
    assert estimate.num_matvecs <= 75
    lanczos = dx.log_abs_det(kernel, dx.Lanczos(4, 9), key=KEY)
    assert abs(float(estimate.log_abs_det) - exact) < 0.5 * abs(float(lanczos.log_abs_det) - exact)


def test_one_product_and_no_sign_are_said_as_they_are():
    one = dx.log_abs_det(lambda x: 2 * x, dx.Auto(), example=np.zeros(1), key=KEY)
    assert "1 product gives A itself" in " ".join(one.reasons)
    # a scaling is revealed by one
    revealed = str(dx.log_abs_det(scipy.sparse.eye_array(6), dx.Probed(), key=KEY))
    assert "1 product revealed" in revealed
    few = str(dx.log_abs_det(np.eye(6), dx.MonteCarlo(1), key=KEY))
    assert "1 product;" in few
    assert "1 independent draw is too few" in few
    assert "1 probe of" in str(dx.log_abs_det(np.eye(6), dx.Lanczos(1, 3), key=KEY))
    assert "1 direction;" in dx.log_abs_det(np.eye(6), dx.Deflated(1), key=KEY).method
    assert "within 1 product." in str(dx.log_abs_det(np.eye(60), dx.Auto(max_matvecs=1), key=KEY))
    assert "1 step in" in str(dx.fit_linear(np.eye(6), key=KEY, block_size=1, max_matvecs=2))
    for said in ("1 products", "1 directions", "1 draws", "1 samples"):
        assert not re.search(rf"\b{said}", revealed + few)
    singular = dx.log_abs_det(np.ones((2, 2)), dx.Exact())
    assert "sign of the determinant: 0" in str(singular)
    assert "+0" not in str(singular)
