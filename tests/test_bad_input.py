"""One clear sentence for every bad input, and nothing silently finite."""

import math

import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import pytest
import scipy.sparse
import scipy.sparse.linalg

import determinax as dx

KEY = jax.random.key(0)
MC = dx.MonteCarlo(100)
EYE = np.eye(3)


def nan_at(value):
    matrix = np.eye(3)
    matrix[1, 2] = value
    return matrix


@pytest.mark.parametrize(
    ("operator", "sentence"),
    [
        (np.ones(3), r"shape \(3,\): a matrix has two axes"),
        (np.ones((2, 3, 3)), "jax.vmap"),
        (np.float64(3.0), r"shape \(\)"),
        (np.ones((0, 0)), "0x0: it has no entries"),
        (np.ones((3, 0)), "3x0: it has no entries"),
        (scipy.sparse.csr_array((0, 0)), "0x0"),
        ([[1, 2], [3]], "ragged"),
        (nan_at(np.nan), r"nan at \(1, 2\)"),
        (nan_at(np.inf), r"inf at \(1, 2\)"),
        (jnp.asarray(nan_at(np.nan)), r"nan at \(1, 2\)"),
        (scipy.sparse.csr_array(nan_at(np.nan)), r"nan at \(1, 2\)"),
        (lx.MatrixLinearOperator(jnp.asarray(nan_at(np.inf))), r"inf at \(1, 2\)"),
        (lx.DiagonalLinearOperator(jnp.array([1.0, jnp.nan])), r"nan at \(1,\)"),
        (np.ma.masked_less(np.eye(3), 0.5), "masked entries: fill them"),
        (np.ones((3, 5)), "3x5, not square.*its volume is 0"),
        (np.ones((5, 3)), "5x3, not square.*log_volume"),
    ],
)
def test_matrices_that_are_refused(operator, sentence):
    with pytest.raises(dx.OperatorError, match=sentence):
        dx.log_abs_det(operator, MC, key=KEY)


@pytest.mark.parametrize("method", [MC, dx.Exact(), dx.Lanczos(), dx.Auto()], ids=str)
def test_wide_operators_have_no_volume(method):
    with pytest.raises(dx.OperatorError, match=r"3x5: more columns than rows.*pass its transpose"):
        dx.log_volume(np.ones((3, 5)), method, key=KEY)


@pytest.mark.parametrize(
    "operator",
    [
        np.eye(3) > 0,
        np.array([["a"]]),
        np.eye(2).astype(object),
        np.eye(2).astype("timedelta64[s]"),
        np.eye(2).astype("datetime64[s]"),
        "matrix",
        None,
        3,
    ],
)
def test_types_that_are_no_numbers(operator):
    with pytest.raises((TypeError, dx.OperatorError), match=r"dtype|cannot make an operator|shape"):
        dx.log_abs_det(operator, MC, key=KEY)


def test_masked_arrays_without_a_masked_entry_are_fine():
    assert float(dx.log_abs_det(np.ma.masked_less(2 * EYE, -1))) == pytest.approx(3 * math.log(2))


def test_integers_are_fine():
    assert float(dx.log_abs_det([[2, 0], [0, 3]])) == pytest.approx(math.log(6))


@pytest.mark.parametrize("n", [1, 2])
def test_small_sizes_are_fine(n):
    e = dx.log_abs_det(2 * np.eye(n), dx.MonteCarlo(100), key=KEY)
    assert e.status == "exact"
    assert float(e) == pytest.approx(n * math.log(2))


# --- products ---------------------------------------------------------------------------------


class Host(scipy.sparse.linalg.LinearOperator):
    def __init__(self, product, shape=(3, 3)):
        super().__init__(np.float64, shape)
        self.product = product

    def _matmat(self, x):
        return self.product(x)

    def _matvec(self, x):
        return x  # what the check of linearity sees


def test_a_product_of_the_wrong_shape_is_never_reshaped():
    with pytest.raises(dx.OperatorError, match="raised") as caught:
        dx.log_abs_det(Host(lambda x: np.ones((2, x.shape[1]))), MC, key=KEY)
    assert "shape (2, 100) where (3, 100) was due" in str(caught.value.__cause__)
    with pytest.raises(dx.OperatorError, match=r"takes shape \(3,\) and returns shape \(3, 1\)"):
        dx.as_operator(lambda x: x[:, None], jnp.zeros(3))
    with pytest.raises(dx.OperatorError, match="not square"):
        dx.log_abs_det(lambda x: x[:2], MC, key=KEY, example=jnp.zeros(3))
    with pytest.raises(dx.OperatorError, match="not square"):
        dx.log_abs_det(lambda x: jnp.outer(x, jnp.ones(3)), MC, key=KEY, example=jnp.zeros(3))


def test_a_product_has_the_structure_of_the_example():
    example = {"a": jnp.zeros((2, 2))}
    sentence = r"takes \{'a': shape \(2, 2\)\} and returns \{'a': shape \(4,\)\}: .* never reshaped"
    with pytest.raises(dx.OperatorError, match=sentence):
        dx.as_operator(lambda x: {"a": x["a"].ravel()}, example)
    with pytest.raises(dx.OperatorError, match=r"and returns \{'b'"):
        dx.as_operator(lambda x: {"b": x["a"]}, example)
    with pytest.raises(dx.OperatorError, match=r"and returns shape \(2, 2\)"):
        dx.as_operator(lambda x: x["a"], example)
    tall = dx.as_operator(lambda x: {"b": x["a"], "c": x["a"].ravel()}, example)
    assert (tall.out_size(), tall.in_size()) == (8, 4)


class Lying(lx.FunctionLinearOperator):
    def out_structure(self):
        return jax.ShapeDtypeStruct((2,), jnp.float64)


def test_a_lineax_operator_must_return_what_it_says():
    operator = Lying(lambda x: x, jax.ShapeDtypeStruct((3,), jnp.float64))
    with pytest.raises(dx.OperatorError, match="out_structure"):
        dx.log_abs_det(operator, MC, key=KEY)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_the_bad_product_is_named(bad):
    def product(x):
        y = x.copy()
        y[1, 17:] = bad
        return y

    def last_column(x):
        return np.where(x[2] != 0, bad, x)

    for method, operator, number in ((MC, Host(product), 17), (dx.Exact(), Host(last_column), 2)):
        with pytest.raises(dx.OperatorError, match="contains NaN or Inf") as caught:
            dx.log_abs_det(operator, method, key=KEY)
        assert f"product {number} " in str(caught.value)


def test_bad_products_of_callables_are_found_at_the_door_or_behind_it():
    with pytest.raises(dx.OperatorError, match="product 0 of the operator contains NaN"):
        dx.log_abs_det(lambda x: x * jnp.nan, MC, key=KEY, example=jnp.zeros(3))
    for method in (MC, dx.Exact(), dx.Lanczos(5, 2)):
        with pytest.raises(dx.OperatorError, match="contains NaN or Inf"):
            dx.log_abs_det(
                lambda x: x * jnp.nan, method, key=KEY, example=jnp.zeros(3), check_linear=False
            )


def test_an_operator_that_raises_is_chained():
    def broken(x):
        raise RuntimeError("the licence has expired")

    with pytest.raises(dx.OperatorError, match="raised while computing a product") as caught:
        dx.log_abs_det(broken, MC, key=KEY, example=jnp.zeros(3))
    assert "licence" in str(caught.value.__cause__)
    for method in (MC, dx.Exact()):
        with pytest.raises(dx.OperatorError, match="raised while computing a product") as caught:
            dx.log_abs_det(Host(broken), method, key=KEY)
        assert "licence" in str(caught.value.__cause__)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: jnp.tanh(x),
        lambda x: x + 1e-3,
        lambda x: jnp.abs(x),
        lambda x: jnp.maximum(x, 0.1 * x),
        lambda x: x * jnp.linalg.norm(x),
        lambda x: x * np.random.default_rng().uniform(0.5, 1),
    ],
    ids=["tanh", "affine", "abs", "leaky relu", "quadratic", "random"],
)
def test_what_is_not_linear_is_refused(function):
    with pytest.raises(dx.OperatorError, match="not linear"):
        dx.log_abs_det(function, MC, key=KEY, example=jnp.zeros(3))
    operator = lx.FunctionLinearOperator(jnp.tanh, jax.ShapeDtypeStruct((3,), jnp.float64))
    with pytest.raises(dx.OperatorError, match="not linear"):
        dx.log_abs_det(operator, MC, key=KEY)


def test_an_offset_in_a_small_row_is_found():
    scale, offset = jnp.array([1e10, 1.0]), jnp.array([0.0, 1.0])
    with pytest.raises(dx.OperatorError, match="maps 0 to something else"):
        dx.log_abs_det(lambda x: scale * x + offset, dx.Exact(), example=jnp.zeros(2))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_wrong_tags_are_found(dtype):
    rng = np.random.default_rng(0)
    q = np.linalg.qr(rng.standard_normal((20, 20)))[0]
    positive, negative = lx.positive_semidefinite_tag, lx.negative_semidefinite_tag

    def run(spectrum, tag, skew=0.0):
        matrix = (q * spectrum) @ q.T + skew * np.triu(np.ones((20, 20)), 1)
        operator = lx.MatrixLinearOperator(jnp.asarray(matrix, dtype), tag)
        return dx.log_abs_det(operator, dx.Lanczos(10, 15), key=KEY)

    spread = np.linspace(1, 2, 20)
    for right in (spread, np.ones(20), np.repeat([1.0, 3.0], 10), np.geomspace(1e-6, 1, 20)):
        run(right, positive)
        run(-right, negative)
    with pytest.raises(dx.OperatorError, match=r"tagged positive.*other sign.*leave the tag out"):
        run(np.linspace(-1, 2, 20), positive)
    with pytest.raises(dx.OperatorError, match=r"tagged negative.*other sign"):
        run(np.ones(20), negative)
    with pytest.raises(dx.OperatorError, match=r"tagged positive.*not symmetric"):
        run(spread, positive, skew=0.1)


def test_real_and_complex_do_not_mix():
    with pytest.raises(dx.OperatorError, match="real example into complex"):
        dx.as_operator(lambda x: (1 + 1j) * x, jnp.zeros(3))
    with pytest.raises(dx.OperatorError, match="mixes real and complex"):
        dx.as_operator(lambda x: x, {"a": jnp.zeros(2), "b": jnp.zeros(2, complex)})
    operator = scipy.sparse.linalg.LinearOperator(
        (3, 3), matvec=lambda x: (1 + 1j) * x, dtype=float
    )
    with pytest.raises(dx.OperatorError) as caught:
        dx.log_abs_det(operator, MC, key=KEY)
    assert "complex dtype" in str(caught.value.__cause__)


def test_integer_host_operators_multiply_unit_vectors():
    operator = scipy.sparse.linalg.aslinearoperator(np.array([[2, 1], [1, 3]]))
    e = dx.log_abs_det(operator, dx.MonteCarlo(20_000), key=KEY)
    assert abs(float(e) - math.log(5)) < 4 * e.standard_error
    assert e.num_matvecs == 20_005


def test_half_precision_is_refused():
    operator = lx.MatrixLinearOperator(jnp.eye(3, dtype=jnp.float16))
    with pytest.raises(TypeError, match="float16"):
        dx.log_abs_det(operator, dx.Exact())


def test_float32_examples_of_float64_callables_are_linear():
    a = jnp.asarray(np.eye(3) * 2)
    e = dx.log_abs_det(lambda x: a @ x, MC, key=KEY, example=jnp.zeros(3, jnp.float32))
    assert float(e) == pytest.approx(3 * math.log(2), rel=1e-6)


def test_host_operators_are_checked_too():
    class Affine(Host):
        def _matvec(self, x):
            return x + 1

    with pytest.raises(dx.OperatorError, match="not linear"):
        dx.log_abs_det(Affine(lambda x: x + 1), MC, key=KEY)


def test_the_check_can_be_skipped_and_is_counted():
    e = dx.log_abs_det(lambda x: 2 * x, MC, key=KEY, example=jnp.zeros(3))
    assert e.num_matvecs == 104
    e = dx.log_abs_det(lambda x: 2 * x, MC, key=KEY, example=jnp.zeros(3), check_linear=False)
    assert e.num_matvecs == 100


def test_linear_callables_pass_the_check_in_float32_and_at_any_scale():
    matrix = np.random.default_rng(0).standard_normal((300, 300))
    for scale, dtype in ((1, np.float32), (1e200, np.float64), (1e-200, np.float64)):
        a = jnp.asarray(scale * matrix, dtype)
        dx.as_operator(lambda x, a=a: a @ x, jnp.zeros(300, dtype))


def test_callables_need_an_example_and_matrices_have_none():
    with pytest.raises(dx.OperatorError, match="needs an example"):
        dx.log_abs_det(lambda x: x, MC, key=KEY)
    with pytest.raises(dx.OperatorError, match="leave it out"):
        dx.log_abs_det(EYE, MC, key=KEY, example=jnp.zeros(3))


def test_numpy_callables_are_told_about_scipy():
    with pytest.raises(dx.OperatorError, match="LinearOperator"):
        dx.as_operator(lambda x: np.asarray(x) * 2, jnp.zeros(3))


def test_callables_return_floating_point_arrays():
    with pytest.raises(dx.OperatorError, match="floating-point"):
        dx.as_operator(lambda x: x > 0, jnp.zeros(3))


def test_entries_that_float32_cannot_hold_are_not_cast_away():
    with jax.enable_x64(False):
        for scale in (1e200, 1e-200):
            with pytest.raises(dx.OperatorError, match="jax_enable_x64"):
                dx.log_abs_det(scale * EYE, MC, key=KEY)


# --- options ----------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [0, -1, 1.5, math.nan, math.inf, "10", None, True, 2**31])
@pytest.mark.parametrize(
    "make",
    [
        dx.MonteCarlo,
        lambda v: dx.Lanczos(num_probes=v),
        lambda v: dx.Lanczos(depth=v),
        lambda v: dx.Auto(v if v is not None else 0),
        lambda v: dx.MonteCarlo(10, chunk_size=v if v is not None else 0),
    ],
    ids=["num_samples", "num_probes", "depth", "max_matvecs", "chunk_size"],
)
def test_counts_are_whole_positive_numbers(make, value):
    with pytest.raises(ValueError, match="whole number"):
        make(value)


def test_whole_floats_and_numpy_integers_count():
    assert dx.MonteCarlo(1e4).num_samples == 10_000
    assert dx.MonteCarlo(np.int64(7)).num_samples == 7


def test_other_options():
    with pytest.raises(ValueError, match="independent"):
        dx.MonteCarlo(10, directions="antipodal")
    with pytest.raises(TypeError, match="method is"):
        dx.log_abs_det(EYE, "exact")
    for method in (MC, dx.Lanczos()):
        with pytest.raises(ValueError, match="pass key="):
            dx.log_abs_det(EYE, method)
    with pytest.raises(TypeError, match="key is a JAX key"):
        dx.log_abs_det(EYE, MC, key=0)
    with pytest.raises(ValueError, match="GiB"):
        dx.log_abs_det(
            lambda x: 2 * x,
            dx.Exact(),
            example=jax.ShapeDtypeStruct((10**6,), float),
            check_linear=False,
        )


@pytest.mark.parametrize(
    ("kernel", "shape", "options", "sentence"),
    [
        (np.ones((3, 3)), (4,), {}, "does not fit"),
        (np.ones((3, 3)), (4, 0), {}, "positive whole numbers"),
        (np.ones((3, 3)), (4, 2.5), {}, "positive whole numbers"),
        (np.ones((3, 3)), (4, "4"), {}, "positive whole numbers, not 4"),
        (np.ones((3, 3)), ("a", "b"), {}, "positive whole numbers, not a"),
        (np.ones((3, 3)), "44", {}, "positive whole numbers, not 44"),
        (np.ones((3, 3)), None, {}, "positive whole numbers, not None"),
        (np.ones((3, 3)), (4, (4, 4)), {}, "positive whole numbers"),
        (np.ones((3, 3)), (4, np.nan), {}, "positive whole numbers, not nan"),
        (np.ones((3, 3)), (4, True), {}, "positive whole numbers, not True"),
        (np.ones((3, 3)), (4, 4), {"padding": "same"}, '"zero" or "circular"'),
        (nan_at(np.nan), (4, 4), {}, r"nan at \("),
        (np.ones((5, 5)), (4, 4), {"padding": "circular"}, "larger than the image"),
    ],
)
def test_convolutions_that_are_refused(kernel, shape, options, sentence):
    with pytest.raises(dx.OperatorError, match=sentence):
        dx.operators.convolution(kernel, shape, **options)


@pytest.mark.parametrize("kernel", ["abc", None, [["a", "b"]], {"a": 1}, jnp.ones((3, 3)) > 0])
def test_kernels_are_numbers(kernel):
    with pytest.raises(TypeError, match=r"convolution kernel has dtype .*: convert it to a real"):
        dx.operators.convolution(kernel, (4, 4))
