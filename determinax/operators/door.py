"""The door: whatever a user has becomes a flat, real, checked lineax operator here.

`as_operator` accepts arrays, SciPy sparse arrays, SciPy `LinearOperator`s, lineax operators and
linear callables. Everything behind the door may rely on what it returns: `mv` maps a real vector
of length n to a real vector of length m, and `columns` multiplies a whole chunk of vectors at once.
"""

import math
import weakref
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import lineax as lx
import numpy as np
import scipy.sparse
import scipy.sparse.linalg
from jax.experimental.sparse import BCSR

from determinax.operators.kinds import (
    OWN,
    ConvolutionLinearOperator,
    FlatLinearOperator,
    HostLinearOperator,
    HostProducts,
    OperatorError,
    Products,
    RealEmbedding,
    SparseLinearOperator,
    is_traced,
    rows_columns,
)


def as_operator(
    operator: Any, example: Any = None, *, check_linear: bool = True
) -> lx.AbstractLinearOperator:
    """Turn what the user has into a flat real lineax operator, checked.

    **Arguments:**

    - `operator`: a NumPy or JAX array, a SciPy sparse array, a SciPy `LinearOperator`, a lineax
        operator, or a linear callable (which JAX must be able to trace).
    - `example`: for a callable, an input: an array or a pytree of arrays (its values don't matter).
    - `check_linear`: spend four products to see that a callable, a SciPy `LinearOperator` or a
        lineax operator of unknown kind is linear and deterministic. Skipped under tracing.

    Complex operators become real ones of twice the size (`RealEmbedding`).

    !!! example

        ```python
        operator = as_operator(lambda x: jnp.roll(x, 1) + 3 * x, jnp.zeros(10))
        ```
    """
    return admit(operator, example, check_linear=check_linear)[0]


def admit(
    operator: Any, example: Any = None, *, check_linear: bool = True
) -> tuple[lx.AbstractLinearOperator, Products]:
    """As `as_operator`, with the products that the checks spent."""
    if example is not None and not _is_plain_callable(operator):
        raise OperatorError("example= goes with a callable operator only: leave it out here")
    spent = Products()
    if isinstance(operator, OWN):
        entered = operator
    elif isinstance(operator, lx.AbstractLinearOperator):
        entered, spent = _from_lineax(operator, check_linear)
    elif isinstance(operator, scipy.sparse.linalg.LinearOperator):
        entered, spent = _from_scipy(operator, check_linear)
    elif scipy.sparse.issparse(operator):
        entered = _from_sparse(operator)
    elif _is_plain_callable(operator):
        entered, spent = _from_callable(operator, example, check_linear)
    elif hasattr(operator, "__array__") or isinstance(operator, list | tuple):
        entered = _from_array(operator)
    else:
        raise TypeError(
            f"cannot make an operator of a {type(operator).__name__}: pass a NumPy or JAX array, "
            "a SciPy sparse array or LinearOperator, a lineax operator, or a callable with example="
        )
    structure = entered.in_structure()
    if entered.in_size() == 0 or entered.out_size() == 0:
        raise OperatorError(
            f"operator is {entered.out_size()}x{entered.in_size()}: it has no entries"
        )
    if structure.dtype not in (np.float32, np.float64, np.complex64, np.complex128):
        raise TypeError(f"operator has dtype {structure.dtype}: make it float32 or float64 first")
    if jnp.issubdtype(structure.dtype, jnp.complexfloating):
        entered = RealEmbedding(entered)
    return entered, spent


def require_square(operator: lx.AbstractLinearOperator) -> None:
    """Refuse what has no determinant."""
    m, n = rows_columns(operator)
    if m != n:
        cure = "use log_volume" if m > n else "its volume is 0; pass its transpose to log_volume"
        raise OperatorError(f"operator is {m}x{n}, not square, so it has no determinant: {cure}")


def require_transpose(
    operator: lx.AbstractLinearOperator, otherwise: str
) -> lx.AbstractLinearOperator:
    """The transpose, seen to have a product; where there is none, an error that says `otherwise`."""
    try:
        transpose = operator.transpose()
        jax.eval_shape(transpose.mv, transpose.in_structure())
        return transpose
    except Exception as error:
        raise OperatorError(otherwise) from error


def require_not_wide(operator: lx.AbstractLinearOperator) -> None:
    """Refuse operators whose volume is zero by their shape."""
    m, n = rows_columns(operator)
    if m < n:
        raise OperatorError(
            f"operator is {m}x{n}: more columns than rows, so its volume is 0; pass its transpose"
        )


def _from_array(array: Any) -> lx.AbstractLinearOperator:
    matrix = _inexact(array, "operator")
    if matrix.ndim != 2:
        raise OperatorError(
            f"operator has shape {matrix.shape}: a matrix has two axes "
            "(for a batch of matrices use jax.vmap)"
        )
    _require_finite(matrix, "operator")
    return lx.MatrixLinearOperator(matrix)


def _from_sparse(array: Any) -> lx.AbstractLinearOperator:
    if array.ndim != 2:
        raise OperatorError(f"operator has shape {array.shape}: a matrix has two axes")
    if max(array.shape) > 2**31 - 1:
        raise OperatorError(f"operator is {array.shape[0]}x{array.shape[1]}: too large to index")
    csr = scipy.sparse.csr_array(array, copy=True)
    csr.sum_duplicates()
    data = csr.data.astype(_inexact_dtype(csr.dtype, "operator"))
    _require_representable(csr.data, data.dtype, "operator")
    if not np.all(np.isfinite(data)):
        k = int(np.argmin(np.isfinite(data)))
        row = int(np.searchsorted(csr.indptr, k, side="right")) - 1
        raise OperatorError(
            f"operator has a {data[k]} at ({row}, {csr.indices[k]}): every entry must be finite"
        )
    csr = scipy.sparse.csr_array((data, csr.indices, csr.indptr), shape=csr.shape)
    return SparseLinearOperator(_to_bcsr(csr), _to_bcsr(scipy.sparse.csr_array(csr.T)))


def _to_bcsr(csr: Any) -> BCSR:
    parts = (jnp.asarray(csr.data), jnp.asarray(csr.indices), jnp.asarray(csr.indptr))
    return BCSR(parts, shape=csr.shape)


def _from_scipy(
    host: scipy.sparse.linalg.LinearOperator, check_linear: bool
) -> tuple[lx.AbstractLinearOperator, Products]:
    if len(host.shape) != 2:
        raise OperatorError(f"operator has shape {host.shape}: a matrix has two axes")
    m, n = (int(size) for size in host.shape)
    dtype = _inexact_dtype(np.dtype(host.dtype), "operator")
    if m == 0 or n == 0:
        raise OperatorError(f"operator is {m}x{n}: it has no entries")
    try:
        host.rmatvec(np.zeros(m, np.result_type(host.dtype, np.float32)))
        has_transpose = True
    except Exception:  # whatever it is: there are no products with the transpose
        has_transpose = False
    operator = HostLinearOperator(_host_products(host, dtype), has_transpose)
    spent = Products(0, int(has_transpose))
    if check_linear:
        vector = jax.ShapeDtypeStruct((n,), operator.products.vector_dtype)
        spent += _check_linear(host.matvec, vector)
    return operator, spent


# Compiled code is found again by the identity of its HostProducts, and is what keeps these alive;
# they keep their host alive, so that its id stays its own.
_HOST_PRODUCTS: weakref.WeakValueDictionary = weakref.WeakValueDictionary()


def _host_products(host: scipy.sparse.linalg.LinearOperator, dtype: np.dtype) -> HostProducts:
    """The same object for the same operator: a second call compiles nothing."""
    return _HOST_PRODUCTS.setdefault((id(host), dtype), HostProducts(host, dtype))


def _from_lineax(
    operator: lx.AbstractLinearOperator, check_linear: bool
) -> tuple[lx.AbstractLinearOperator, Products]:
    structure, out_structure = operator.in_structure(), operator.out_structure()
    spent = Products()
    if isinstance(operator, lx.MatrixLinearOperator | lx.DiagonalLinearOperator):
        _require_finite(
            operator.matrix
            if isinstance(operator, lx.MatrixLinearOperator)
            else lx.diagonal(operator),
            "operator",
        )
    try:
        produced = jax.eval_shape(operator.mv, structure)
    except Exception as error:
        raise OperatorError("the operator raised while computing a product") from error
    if _shapes(produced) != _shapes(out_structure):
        raise OperatorError(
            f"a product of the operator has shape {_shapes(produced)} where its out_structure "
            f"says {_shapes(out_structure)}: make the two agree"
        )
    linear_by_type = (
        lx.MatrixLinearOperator,
        lx.DiagonalLinearOperator,
        lx.IdentityLinearOperator,
        lx.TridiagonalLinearOperator,
        lx.PyTreeLinearOperator,
        lx.JacobianLinearOperator,
    )
    if check_linear and not isinstance(operator, linear_by_type) and not is_traced(operator):
        spent = _check_linear(operator.mv, structure)
    flat = isinstance(structure, jax.ShapeDtypeStruct) and len(structure.shape) == 1
    out_flat = isinstance(out_structure, jax.ShapeDtypeStruct) and len(out_structure.shape) == 1
    # a Jacobian's primal pass is the same for every product: do it once
    if isinstance(operator, lx.JacobianLinearOperator):
        operator = lx.linearise(operator)
    return (operator if flat and out_flat else FlatLinearOperator(operator)), spent


def _from_callable(
    function: Callable, example: Any, check_linear: bool
) -> tuple[lx.AbstractLinearOperator, Products]:
    if example is None:
        raise OperatorError(
            "a callable operator needs an example input: as_operator(f, example=jnp.zeros(n))"
        )
    structure = jtu.tree_map(_example_structure, example)
    try:
        produced = jax.eval_shape(function, structure)
    except jax.errors.TracerArrayConversionError as error:
        raise OperatorError(
            "the callable turns its input into a NumPy array, which JAX cannot trace: write it "
            "with jax.numpy, or wrap it as a scipy.sparse.linalg.LinearOperator"
        ) from error
    except Exception as error:
        raise OperatorError("the operator raised while computing a product") from error
    _require_same_shape(structure, produced)
    spent = _check_linear(function, structure) if check_linear else Products()
    return FlatLinearOperator(lx.FunctionLinearOperator(function, structure)), spent


def _require_same_shape(structure: Any, produced: Any) -> None:
    kinds = {jnp.issubdtype(leaf.dtype, jnp.complexfloating) for leaf in jtu.tree_leaves(structure)}
    if len(kinds) > 1:
        raise OperatorError("the example mixes real and complex arrays: make all of them complex")
    for leaf in jtu.tree_leaves(produced):
        if not hasattr(leaf, "dtype") or not jnp.issubdtype(leaf.dtype, jnp.inexact):
            raise OperatorError(
                f"the operator returns {leaf}: a product must consist of floating-point arrays"
            )
        if jnp.issubdtype(leaf.dtype, jnp.complexfloating) not in kinds:
            raise OperatorError(
                "the operator turns a real example into complex products, or the reverse: "
                "give it an example of the dtype that it returns"
            )
    takes, returns = _layout(structure), _layout(produced)
    if _size(structure) == _size(produced) and takes != returns:
        raise OperatorError(
            f"the operator takes {takes} and returns {returns}: products are never reshaped; "
            "return the structure of the example if that is what you mean"
        )


def _check_linear(function: Callable, structure: Any) -> Products:
    """Four products: f(ax + by) = a f(x) + b f(y) fails for non-linear, affine and random f.

    f(0) = 0 must hold to the last bit: an offset in a small row would hide behind a large one.
    """
    rng = np.random.default_rng(0)
    a, b = -1.5, 0.75

    def draw(leaf):
        z = rng.standard_normal(leaf.shape)
        if jnp.issubdtype(leaf.dtype, jnp.complexfloating):
            z = z + 1j * rng.standard_normal(leaf.shape)
        return z.astype(leaf.dtype)

    x, y = jtu.tree_map(draw, structure), jtu.tree_map(draw, structure)
    if not is_host_function(function):
        x, y = jtu.tree_map(jnp.asarray, (x, y))
    mixed = jtu.tree_map(lambda u, v: (a * u + b * v).astype(u.dtype), x, y)
    try:
        images = [function(x), function(y), function(mixed)]
        origin = function(jtu.tree_map(lambda u: 0 * u, x))
    except Exception as error:
        raise OperatorError("the operator raised while computing a product") from error
    if is_traced(images):  # a callable that closes over traced values
        return Products(4)
    for j, image in enumerate(images):
        if not all(np.all(np.isfinite(leaf)) for leaf in jtu.tree_leaves(image)):
            raise OperatorError(
                f"product {j} of the operator contains NaN or Inf: "
                "every product with a finite vector must be finite"
            )
    if any(np.any(np.asarray(leaf) != 0) for leaf in jtu.tree_leaves(origin)):
        raise OperatorError(
            "the operator is not linear: it maps 0 to something else, so it is affine or random; "
            "for the Jacobian of a function use lineax.JacobianLinearOperator"
        )
    fx, fy, fmixed = (np.concatenate([np.ravel(v) for v in jtu.tree_leaves(i)]) for i in images)
    # scaled by hand: an operator of scale 1e200 must not overflow in its own check
    scale = max(np.max(np.abs(v), initial=0.0) for v in (fx, fy, fmixed)) or 1.0
    defect = np.linalg.norm(fmixed / scale - a * (fx / scale) - b * (fy / scale))
    size = abs(a) * np.linalg.norm(fx / scale) + abs(b) * np.linalg.norm(fy / scale)
    taken = [leaf.dtype for leaf in jtu.tree_leaves(structure)]
    tolerance = math.sqrt(max(float(jnp.finfo(dtype).eps) for dtype in (fx.dtype, *taken)))
    if not defect <= tolerance * max(size, np.linalg.norm(fmixed / scale)):
        raise OperatorError(
            f"the operator is not linear: f(ax + by) differs from a f(x) + b f(y) by "
            f"{defect / max(size, 1e-300):.1e} of its size, so it is non-linear, affine or random; "
            "for the Jacobian of a function use lineax.JacobianLinearOperator, and "
            "check_linear=False if this is rounding"
        )
    return Products(4)


def is_host_function(function: Callable) -> bool:
    """Whether a product runs on the host (SciPy) rather than in JAX."""
    return isinstance(getattr(function, "__self__", None), scipy.sparse.linalg.LinearOperator)


def _inexact(array: Any, name: str) -> Any:
    """A JAX array of a floating-point dtype that JAX is set up for, without losing its scale."""
    if isinstance(array, jax.Array):
        return array.astype(_inexact_dtype(array.dtype, name))
    masked = np.ma.is_masked(array)
    try:
        array = np.asarray(array)
    except ValueError as error:
        raise OperatorError(f"{name} is ragged: its rows differ in length") from error
    if masked:
        raise OperatorError(f"{name} has masked entries: fill them first, as array.filled(0)")
    dtype = _inexact_dtype(array.dtype, name)
    _require_representable(array, dtype, name)
    array = array.astype(dtype)
    _require_finite(array, name)
    return jnp.asarray(array)


def _require_representable(array: np.ndarray, dtype: np.dtype, name: str) -> None:
    if array.size and np.issubdtype(array.dtype, np.inexact):
        largest = np.max(np.abs(array))
        limits = jnp.finfo(dtype)
        if np.isfinite(largest) and not (
            largest == 0 or float(limits.tiny) <= largest <= float(limits.max)
        ):
            raise OperatorError(
                f"{name} has entries of size {largest:.1e}, which {dtype.name} cannot hold: rescale "
                'it, or enable 64-bit with jax.config.update("jax_enable_x64", True)'
            )


def _inexact_dtype(dtype: Any, name: str) -> np.dtype:
    if jnp.issubdtype(dtype, jnp.complexfloating):
        wide = np.complex64 if dtype == np.complex64 else np.complex128
        return jax.dtypes.canonicalize_dtype(wide)
    if jnp.issubdtype(dtype, jnp.floating):
        return jax.dtypes.canonicalize_dtype(np.float32 if dtype.itemsize <= 4 else np.float64)
    if jnp.issubdtype(dtype, jnp.integer) and dtype.kind != "m":  # NumPy's timedelta64 is one too
        return jax.dtypes.canonicalize_dtype(np.float64)
    raise TypeError(f"{name} has dtype {dtype}: convert it to a real or complex number type first")


def _require_finite(array: Any, name: str) -> None:
    if is_traced(array):
        return
    finite = np.isfinite(np.asarray(array))
    if not finite.all():
        index = tuple(int(i) for i in np.argwhere(~finite)[0])
        raise OperatorError(
            f"{name} has a {np.asarray(array)[index]} at {index}: every entry must be finite"
        )


def _positive(value: Any, name: str) -> int:
    number = isinstance(value, int | float | np.integer | np.floating)
    valid = number and not isinstance(value, bool) and math.isfinite(value)
    if not (valid and float(value).is_integer() and value >= 1):
        raise OperatorError(f"{name} holds positive whole numbers, not {value}")
    return int(value)


def _example_structure(leaf: Any) -> jax.ShapeDtypeStruct:
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct(leaf.shape, _inexact_dtype(leaf.dtype, "example"))
    leaf = leaf if isinstance(leaf, jax.Array) else np.asarray(leaf)
    return jax.ShapeDtypeStruct(leaf.shape, _inexact_dtype(leaf.dtype, "example"))


def _is_plain_callable(operator: Any) -> bool:
    known = lx.AbstractLinearOperator | scipy.sparse.linalg.LinearOperator
    return callable(operator) and not isinstance(operator, known)


def _layout(structure: Any) -> str:
    """A pytree as text, e.g. "{'a': shape (2, 2)}": equal where structure and shapes are."""

    class Shape(tuple):
        def __repr__(self):
            return f"shape {tuple(self)}"

    return repr(jtu.tree_map(lambda leaf: Shape(leaf.shape), structure))


def _size(structure: Any) -> int:
    return sum(math.prod(leaf.shape) for leaf in jtu.tree_leaves(structure))


def _shapes(structure: Any) -> Any:
    shapes = [tuple(leaf.shape) for leaf in jtu.tree_leaves(structure)]
    return shapes[0] if len(shapes) == 1 else shapes


def convolution(
    kernel: Any,
    image_shape: tuple[int, ...],
    padding: Literal["zero", "circular"] = "zero",
) -> ConvolutionLinearOperator:
    """A convolution layer of stride 1 that keeps the image's size, as an operator.

    **Arguments:**

    - `kernel`: one channel: the window itself, e.g. `(3, 3)`; many channels: `(out, in, 3, 3)`.
    - `image_shape`: the image without channels, e.g. `(32, 32)`; one and three dimensions work too.
    - `padding`: `"zero"` or `"circular"`.

    As in deep learning this is a cross-correlation: the kernel is not flipped (the flipped one is
    the transpose for zero padding and has the same determinant).
    """
    kernel = _inexact(kernel, "convolution kernel")
    sizes = image_shape if isinstance(image_shape, tuple | list | np.ndarray) else (image_shape,)
    shape = tuple(_positive(size, "image_shape") for size in sizes)
    if padding not in ("zero", "circular"):
        raise OperatorError(f'padding is "zero" or "circular", not {padding!r}')
    if kernel.ndim == len(shape):
        kernel = kernel[None, None]
    if kernel.ndim != len(shape) + 2:
        raise OperatorError(
            f"a kernel of shape {kernel.shape} does not fit an image of shape {shape}: give the "
            f"window alone ({len(shape)} axes) or (out, in, *window) ({len(shape) + 2} axes)"
        )
    _require_finite(kernel, "convolution kernel")
    if padding == "circular" and any(k > s for k, s in zip(kernel.shape[2:], shape, strict=True)):
        raise OperatorError(
            f"a circular window of {kernel.shape[2:]} is larger than the image {shape}"
        )
    return ConvolutionLinearOperator(kernel, shape, padding)
