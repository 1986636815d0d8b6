"""The door: whatever a user has becomes a flat, real, checked lineax operator here.

`as_operator` accepts arrays, SciPy sparse arrays, SciPy `LinearOperator`s, lineax operators and
linear callables. Everything behind the door may rely on what it returns: `mv` maps a real vector
of length n to a real vector of length m, and `columns` multiplies a whole chunk of vectors at once.
"""

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.flatten_util
import jax.numpy as jnp
import jax.tree_util as jtu
import lineax as lx
import numpy as np
import scipy.sparse
import scipy.sparse.linalg
from jax.experimental.sparse import BCSR
from jaxtyping import Array, Float, Inexact


class OperatorError(ValueError):
    """What is wrong with an operator, in one sentence that names the cure."""


class Products(NamedTuple):
    """How many products with A and with its transpose were spent."""

    forward: int = 0
    transposed: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return self.forward + self.transposed

    def __add__(self, other: object) -> "Products":
        if not isinstance(other, Products):
            return NotImplemented
        return Products(self.forward + other.forward, self.transposed + other.transposed)


NO_PRODUCTS = Products()


# --- operators that lineax lacks --------------------------------------------------------------


class SparseLinearOperator(lx.AbstractLinearOperator):
    """A SciPy sparse array as two compressed-row JAX arrays, one for each direction."""

    matrix: BCSR
    transposed: BCSR

    def mv(self, vector):
        """The product with one vector."""
        return self.matrix @ vector

    def mm(self, vectors):
        """The product with a chunk of columns: 60 times faster here than `vmap` of `mv`."""
        return self.matrix @ vectors

    def as_matrix(self):
        """The dense matrix."""
        return self.matrix.todense()

    def transpose(self):
        """The transposed operator."""
        return SparseLinearOperator(self.transposed, self.matrix)

    def in_structure(self):
        """The structure of a vector that it takes."""
        return jax.ShapeDtypeStruct((self.matrix.shape[1],), self.matrix.dtype)

    def out_structure(self):
        """The structure of a vector that it gives."""
        return jax.ShapeDtypeStruct((self.matrix.shape[0],), self.matrix.dtype)


class _HostProducts:
    """The products of a SciPy `LinearOperator` on rows of vectors, as XLA calls them back.

    Compared by identity, so that it can be a static part of a compiled function. `failure` keeps
    the exception that a product raised, since XLA passes on only its text.
    """

    def __init__(self, host: scipy.sparse.linalg.LinearOperator, dtype: np.dtype):
        self.host, self.dtype = host, dtype
        self.failure: BaseException | None = None

    def forward(self, rows: Any) -> np.ndarray:
        return self._call(self.host.matmat, rows, self.host.shape[0])

    def transposed(self, rows: Any) -> np.ndarray:
        # SciPy's rmatmat is the adjoint; the transpose is its conjugate
        return self._call(lambda x: self.host.rmatmat(x.conj()).conj(), rows, self.host.shape[1])

    def _call(self, product: Callable, rows: Any, size: int) -> np.ndarray:
        try:
            rows = np.asarray(rows)
            x = rows.reshape(-1, rows.shape[-1]).T.astype(self.host.dtype)
            y = np.asarray(product(x))
            if y.shape != (size, x.shape[1]):
                raise OperatorError(
                    f"a block of products has shape {y.shape} where {(size, x.shape[1])} was due: "
                    "make the LinearOperator return as many entries as it has rows"
                )
            return y.T.reshape(*rows.shape[:-1], size).astype(self.dtype)
        except Exception as error:
            self.failure = error
            raise


class HostLinearOperator(lx.AbstractLinearOperator):
    """A SciPy `LinearOperator`, called on the host: JAX compiles around it."""

    products: _HostProducts = eqx.field(static=True)
    has_transpose: bool = eqx.field(static=True)
    transposed: bool = eqx.field(static=True, default=False)

    def mv(self, vector):
        """The product with one vector; `vmap` makes it one call for the whole chunk."""
        call = self.products.transposed if self.transposed else self.products.forward
        return jax.pure_callback(call, self.out_structure(), vector, vmap_method="expand_dims")

    def as_matrix(self):
        """The dense matrix, column by column."""
        return columns(self, jnp.eye(self.in_size(), dtype=self.products.dtype))

    def transpose(self):
        """The transposed operator, where SciPy's has `rmatvec`."""
        if not self.has_transpose:
            raise OperatorError(
                "the operator has no transpose: give the SciPy LinearOperator an rmatvec, "
                "or use a method that needs forward products only, such as MonteCarlo"
            )
        return HostLinearOperator(self.products, True, not self.transposed)

    def in_structure(self):
        """The structure of a vector that it takes."""
        size = self.products.host.shape[0 if self.transposed else 1]
        return jax.ShapeDtypeStruct((size,), self.products.dtype)

    def out_structure(self):
        """The structure of a vector that it gives."""
        size = self.products.host.shape[1 if self.transposed else 0]
        return jax.ShapeDtypeStruct((size,), self.products.dtype)


class ConvolutionLinearOperator(lx.AbstractLinearOperator):
    """A convolution layer (cross-correlation, stride 1) on flattened images; see `convolution`."""

    kernel: Inexact[Array, "out in *window"]
    image_shape: tuple[int, ...] = eqx.field(static=True)
    padding: Literal["zero", "circular"] = eqx.field(static=True)

    def mv(self, vector):
        """The product with one flattened image, channels first."""
        window = self.kernel.shape[2:]
        image = vector.reshape(1, self.kernel.shape[1], *self.image_shape)
        # even windows reach one further to the right, as "SAME" does
        reach = [((k - 1) // 2, k // 2) for k in window]
        if self.padding == "circular":
            image = jnp.pad(image, [(0, 0), (0, 0), *reach], mode="wrap")
            reach = [(0, 0)] * len(window)
        return jax.lax.conv_general_dilated(
            image, self.kernel, (1,) * len(window), reach, precision=jax.lax.Precision.HIGHEST
        ).reshape(-1)

    def as_matrix(self):
        """The dense matrix, column by column."""
        return columns(self, jnp.eye(self.in_size(), dtype=self.kernel.dtype))

    def transpose(self):
        """The transposed convolution."""
        return lx.FunctionLinearOperator(self.mv, self.in_structure()).transpose()

    def in_structure(self):
        """The structure of a vector that it takes."""
        size = self.kernel.shape[1] * math.prod(self.image_shape)
        return jax.ShapeDtypeStruct((size,), self.kernel.dtype)

    def out_structure(self):
        """The structure of a vector that it gives."""
        size = self.kernel.shape[0] * math.prod(self.image_shape)
        return jax.ShapeDtypeStruct((size,), self.kernel.dtype)


class FlatLinearOperator(lx.AbstractLinearOperator):
    """An operator between pytrees, ravelled: vectors in, vectors out."""

    inner: lx.AbstractLinearOperator

    def mv(self, vector):
        """The product with one ravelled input."""
        image = self.inner.mv(_unravel(self.inner.in_structure(), vector))
        return jax.flatten_util.ravel_pytree(image)[0]

    def as_matrix(self):
        """The dense matrix."""
        return columns(self, jnp.eye(self.in_size(), dtype=self.in_structure().dtype))

    def transpose(self):
        """The transposed operator."""
        return FlatLinearOperator(self.inner.transpose())

    def in_structure(self):
        """The structure of a vector that it takes."""
        return _flat_structure(self.inner.in_structure())

    def out_structure(self):
        """The structure of a vector that it gives."""
        return _flat_structure(self.inner.out_structure())


class RealEmbedding(lx.AbstractLinearOperator):
    r"""A complex operator on $\mathbb{C}^n$ as a real one on $\mathbb{R}^{2n}$, parts stacked.

    Its determinant is $|\det A|^2$: log-determinants behind the door are halved. A product with the
    embedding is one product with the complex operator.
    """

    inner: lx.AbstractLinearOperator

    def mv(self, vector):
        """The product with one stacked vector."""
        real, imaginary = jnp.split(vector, 2)
        image = self.inner.mv(jax.lax.complex(real, imaginary))
        return jnp.concatenate([image.real, image.imag])

    def mm(self, vectors):
        """The product with a chunk of stacked columns."""
        real, imaginary = jnp.split(vectors, 2)
        image = columns(self.inner, jax.lax.complex(real, imaginary))
        return jnp.concatenate([image.real, image.imag])

    def as_matrix(self):
        """The dense real matrix of twice the size."""
        a = self.inner.as_matrix()
        return jnp.block([[a.real, -a.imag], [a.imag, a.real]])

    def transpose(self):
        """The transpose of the embedding is the embedding of the adjoint."""
        return RealEmbedding(_Conjugate(self.inner.transpose()))

    def in_structure(self):
        """The structure of a vector that it takes."""
        return _double_real(self.inner.in_structure())

    def out_structure(self):
        """The structure of a vector that it gives."""
        return _double_real(self.inner.out_structure())


class _Conjugate(lx.AbstractLinearOperator):
    """The complex conjugate of an operator, for any operator that has products."""

    inner: lx.AbstractLinearOperator

    def mv(self, vector):
        return self.inner.mv(vector.conj()).conj()

    def mm(self, vectors):
        return columns(self.inner, vectors.conj()).conj()

    def as_matrix(self):
        return self.inner.as_matrix().conj()

    def transpose(self):
        return _Conjugate(self.inner.transpose())

    def in_structure(self):
        return self.inner.in_structure()

    def out_structure(self):
        return self.inner.out_structure()


_OWN = (
    SparseLinearOperator,
    HostLinearOperator,
    ConvolutionLinearOperator,
    FlatLinearOperator,
    RealEmbedding,
    _Conjugate,
)

for _cls in _OWN:
    # lineax asks these of every operator; "don't know" is its False
    for _question in (
        lx.is_symmetric,
        lx.is_diagonal,
        lx.is_tridiagonal,
        lx.has_unit_diagonal,
        lx.is_lower_triangular,
        lx.is_upper_triangular,
        lx.is_positive_semidefinite,
        lx.is_negative_semidefinite,
    ):
        _question.register(_cls)(lambda operator: False)
    lx.linearise.register(_cls)(lambda operator: operator)
    lx.materialise.register(_cls)(lambda operator: lx.MatrixLinearOperator(operator.as_matrix()))
    lx.conj.register(_cls)(_Conjugate)


# --- products ---------------------------------------------------------------------------------


def columns(
    operator: lx.AbstractLinearOperator, vectors: Inexact[Array, "n num"]
) -> Inexact[Array, "m num"]:
    """A whole chunk of products, one a column: one matrix-matrix product where that exists."""
    if isinstance(operator, lx.MatrixLinearOperator):
        return jnp.matmul(operator.matrix, vectors, precision=jax.lax.Precision.HIGHEST)
    if isinstance(operator, SparseLinearOperator | RealEmbedding | _Conjugate):
        return operator.mm(vectors)
    return jax.vmap(operator.mv, in_axes=-1, out_axes=-1)(vectors)


def rows_columns(operator: lx.AbstractLinearOperator) -> tuple[int, int]:
    """The operator's shape (m, n) as the user counts it: a complex one by its complex size."""
    inner = operator.inner if isinstance(operator, RealEmbedding) else operator
    return inner.out_size(), inner.in_size()


def log_det_factor(operator: lx.AbstractLinearOperator) -> float:
    r"""What the log-determinant of the real operator is multiplied with: 1/2 where embedded."""
    return 0.5 if isinstance(operator, RealEmbedding) else 1.0


def is_traced(tree: Any) -> bool:
    """Whether any array in the tree is a tracer: then values cannot be looked at."""
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jtu.tree_leaves(tree))


def host_operators(tree: Any) -> list[HostLinearOperator]:
    """The operators in the tree whose products run on the host."""
    leaves = jtu.tree_leaves(tree, is_leaf=lambda x: isinstance(x, HostLinearOperator))
    return [leaf for leaf in leaves if isinstance(leaf, HostLinearOperator)]


# --- the door ---------------------------------------------------------------------------------


def as_operator(
    operator: Any, example: Any = None, *, check_linear: bool = True
) -> lx.AbstractLinearOperator:
    """Turn what the user has into a flat real lineax operator, checked.

    **Arguments:**

    - `operator`: a NumPy or JAX array, a SciPy sparse array, a SciPy `LinearOperator`, a lineax
        operator, or a linear callable (which JAX must be able to trace).
    - `example`: for a callable, an input: an array or a pytree of arrays (its values don't matter).
    - `check_linear`: spend three products to see that a callable, a SciPy `LinearOperator` or a
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
    if isinstance(operator, _OWN):
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
    if jnp.issubdtype(structure.dtype, jnp.complexfloating):
        entered = RealEmbedding(entered)
    return entered, spent


def require_square(operator: lx.AbstractLinearOperator) -> None:
    """Refuse what has no determinant."""
    m, n = rows_columns(operator)
    if m != n:
        cure = "use log_volume" if m > n else "its volume is 0; pass its transpose to log_volume"
        raise OperatorError(f"operator is {m}x{n}, not square, so it has no determinant: {cure}")


def require_not_wide(operator: lx.AbstractLinearOperator) -> None:
    """Refuse operators whose volume is zero by their shape."""
    m, n = rows_columns(operator)
    if m < n:
        raise OperatorError(
            f"operator is {m}x{n}: more columns than rows, so its volume is 0; pass its transpose"
        )


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
    shape = tuple(_positive(size, "image_shape") for size in np.atleast_1d(np.asarray(image_shape)))
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
    csr = scipy.sparse.csr_array(array)
    csr.sum_duplicates()
    data = _inexact(csr.data, "operator")
    if not np.all(np.isfinite(data)):
        k = int(np.argmin(np.isfinite(data)))
        row = int(np.searchsorted(csr.indptr, k, side="right")) - 1
        raise OperatorError(
            f"operator has a {data[k]} at ({row}, {csr.indices[k]}): every entry must be finite"
        )
    csr = scipy.sparse.csr_array((np.asarray(data), csr.indices, csr.indptr), shape=csr.shape)
    return SparseLinearOperator(_to_bcsr(csr), _to_bcsr(scipy.sparse.csr_array(csr.T)))


def _to_bcsr(csr: scipy.sparse.csr_array) -> BCSR:
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
        host.rmatvec(np.zeros(m, host.dtype))
        has_transpose = True
    except NotImplementedError:
        has_transpose = False
    except Exception as error:
        raise OperatorError("the operator raised while computing a transposed product") from error
    operator = HostLinearOperator(_HostProducts(host, dtype), has_transpose)
    spent = Products(0, int(has_transpose))
    if check_linear:
        spent += _check_linear(host.matvec, jax.ShapeDtypeStruct((n,), host.dtype))
    return operator, spent


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
    for leaf in jtu.tree_leaves(produced):
        if not hasattr(leaf, "dtype") or not jnp.issubdtype(leaf.dtype, jnp.inexact):
            raise OperatorError(
                f"the operator returns {leaf}: a product must consist of floating-point arrays"
            )
    arrays = isinstance(structure, jax.ShapeDtypeStruct) and isinstance(
        produced, jax.ShapeDtypeStruct
    )
    if arrays and structure.size == produced.size and structure.shape != produced.shape:
        raise OperatorError(
            f"the operator takes shape {structure.shape} and returns {produced.shape}: products "
            "are never reshaped; reshape inside the callable if that is what you mean"
        )


def _check_linear(function: Callable, structure: Any) -> Products:
    """Three products: f(ax + by) = a f(x) + b f(y) fails for non-linear, affine and random f."""
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
    except Exception as error:
        raise OperatorError("the operator raised while computing a product") from error
    if is_traced(images):  # a callable that closes over traced values
        return Products(3)
    for j, image in enumerate(images):
        if not all(np.all(np.isfinite(leaf)) for leaf in jtu.tree_leaves(image)):
            raise OperatorError(
                f"product {j} of the operator contains NaN or Inf: "
                "every product with a finite vector must be finite"
            )
    fx, fy, fmixed = (np.concatenate([np.ravel(v) for v in jtu.tree_leaves(i)]) for i in images)
    # scaled by hand: an operator of scale 1e200 must not overflow in its own check
    scale = max(np.max(np.abs(v), initial=0.0) for v in (fx, fy, fmixed)) or 1.0
    defect = np.linalg.norm(fmixed / scale - a * (fx / scale) - b * (fy / scale))
    size = abs(a) * np.linalg.norm(fx / scale) + abs(b) * np.linalg.norm(fy / scale)
    tolerance = math.sqrt(jnp.finfo(fx.dtype).eps)
    if not defect <= tolerance * max(size, np.linalg.norm(fmixed / scale)):
        raise OperatorError(
            f"the operator is not linear: f(ax + by) differs from a f(x) + b f(y) by "
            f"{defect / max(size, 1e-300):.1e} of its size, so it is non-linear, affine or random; "
            "for the Jacobian of a function use lineax.JacobianLinearOperator, and "
            "check_linear=False if this is rounding"
        )
    return Products(3)


def is_host_function(function: Callable) -> bool:
    """Whether a product runs on the host (SciPy) rather than in JAX."""
    return isinstance(getattr(function, "__self__", None), scipy.sparse.linalg.LinearOperator)


def _inexact(array: Any, name: str) -> Any:
    """A JAX array of a floating-point dtype that JAX is set up for, without losing its scale."""
    if isinstance(array, jax.Array):
        return array.astype(_inexact_dtype(array.dtype, name))
    try:
        array = np.asarray(array)
    except ValueError as error:
        raise OperatorError(f"{name} is ragged: its rows differ in length") from error
    dtype = _inexact_dtype(array.dtype, name)
    if array.size and np.issubdtype(array.dtype, np.inexact):
        largest = np.max(np.abs(array))
        limits = jnp.finfo(dtype)
        if np.isfinite(largest) and not (
            largest == 0 or float(limits.tiny) <= largest <= float(limits.max)
        ):
            raise OperatorError(
                f"{name} has entries of size {largest:.1e}, which {dtype.name} cannot hold: "
                'enable 64-bit with jax.config.update("jax_enable_x64", True)'
            )
    return jnp.asarray(array.astype(dtype))


def _inexact_dtype(dtype: Any, name: str) -> np.dtype:
    if jnp.issubdtype(dtype, jnp.complexfloating):
        wide = np.complex64 if dtype == np.complex64 else np.complex128
        return jax.dtypes.canonicalize_dtype(wide)
    if jnp.issubdtype(dtype, jnp.floating):
        return jax.dtypes.canonicalize_dtype(np.float32 if dtype.itemsize <= 4 else np.float64)
    if jnp.issubdtype(dtype, jnp.integer):
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
    if isinstance(value, bool | np.bool_) or not float(value).is_integer() or value < 1:
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


def _shapes(structure: Any) -> Any:
    shapes = [tuple(leaf.shape) for leaf in jtu.tree_leaves(structure)]
    return shapes[0] if len(shapes) == 1 else shapes


def _flat_structure(structure: Any) -> jax.ShapeDtypeStruct:
    leaves = jtu.tree_leaves(structure)
    dtype = jnp.result_type(*(leaf.dtype for leaf in leaves))
    return jax.ShapeDtypeStruct((sum(math.prod(leaf.shape) for leaf in leaves),), dtype)


def _unravel(structure: Any, vector: Float[Array, " n"]) -> Any:
    leaves, treedef = jtu.tree_flatten(structure)
    ends = np.cumsum([math.prod(leaf.shape) for leaf in leaves])
    parts = jnp.split(vector, ends[:-1])
    return treedef.unflatten(
        [p.reshape(leaf.shape).astype(leaf.dtype) for p, leaf in zip(parts, leaves, strict=True)]
    )


def _double_real(structure: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((2 * structure.size,), jnp.finfo(structure.dtype).dtype)
