"""Kinds of operators that lineax lacks, and products with any of them."""

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
from jax.core import Tracer
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


class HostProducts:
    """The products of a SciPy `LinearOperator` on rows of vectors, as XLA calls them back.

    Compared by identity, so that it can be a static part of a compiled function. `failure` keeps
    the exception that a product raised, since XLA passes on only its text.
    """

    def __init__(self, host: scipy.sparse.linalg.LinearOperator, dtype: np.dtype):
        self.host, self.dtype = host, dtype
        # an integer operator still multiplies unit vectors
        self.vector_dtype = np.result_type(host.dtype, np.float32)
        self.failure: BaseException | None = None

    def forward(self, rows: Any) -> np.ndarray:
        """Products with the rows."""
        return self._call(self.host.matmat, rows, self.host.shape[0])

    def transposed(self, rows: Any) -> np.ndarray:
        """Products of the transpose with the rows."""
        # SciPy's rmatmat is the adjoint; the transpose is its conjugate
        return self._call(lambda x: self.host.rmatmat(x.conj()).conj(), rows, self.host.shape[1])

    def _call(self, product: Callable, rows: Any, size: int) -> np.ndarray:
        try:
            rows = np.asarray(rows)
            x = rows.reshape(-1, rows.shape[-1]).T.astype(self.vector_dtype)
            y = np.asarray(product(x))
            if np.iscomplexobj(y) and not np.iscomplexobj(x):
                raise OperatorError(
                    f"a product is complex, but the operator says {self.host.dtype}: "
                    "give the LinearOperator a complex dtype"
                )
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

    products: HostProducts = eqx.field(static=True)
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
        return TransposedLinearOperator(self)

    def in_structure(self):
        """The structure of a vector that it takes."""
        size = self.kernel.shape[1] * math.prod(self.image_shape)
        return jax.ShapeDtypeStruct((size,), self.kernel.dtype)

    def out_structure(self):
        """The structure of a vector that it gives."""
        size = self.kernel.shape[0] * math.prod(self.image_shape)
        return jax.ShapeDtypeStruct((size,), self.kernel.dtype)


class TransposedLinearOperator(lx.AbstractLinearOperator):
    """The transpose as JAX finds it.

    lineax makes a new function of it every time, for which everything is compiled anew.
    """

    inner: lx.AbstractLinearOperator

    def mv(self, vector):
        """The product with one vector."""
        (image,) = jax.linear_transpose(self.inner.mv, self.inner.in_structure())(vector)
        return image

    def as_matrix(self):
        """The dense matrix."""
        return self.inner.as_matrix().T

    def transpose(self):
        """What it is the transpose of."""
        return self.inner

    def in_structure(self):
        """The structure of a vector that it takes."""
        return self.inner.out_structure()

    def out_structure(self):
        """The structure of a vector that it gives."""
        return self.inner.in_structure()


class FlatLinearOperator(lx.AbstractLinearOperator):
    """An operator between pytrees, ravelled: vectors in, vectors out."""

    inner: lx.AbstractLinearOperator

    def mv(self, vector):
        """The product with one ravelled input."""
        image = self.inner.mv(_unravel(self.inner.in_structure(), vector))
        return jax.flatten_util.ravel_pytree(image)[0].astype(self.in_structure().dtype)

    def as_matrix(self):
        """The dense matrix."""
        return columns(self, jnp.eye(self.in_size(), dtype=self.in_structure().dtype))

    def transpose(self):
        """The transposed operator."""
        if isinstance(self.inner, lx.FunctionLinearOperator):
            return FlatLinearOperator(TransposedLinearOperator(self.inner))
        return FlatLinearOperator(self.inner.transpose())

    def in_structure(self):
        """The structure of a vector that it takes."""
        return _flat_structure(self.inner.in_structure())

    def out_structure(self):
        """The structure of a vector that it gives: in the dtype of what it takes."""
        flat = _flat_structure(self.inner.out_structure())
        return jax.ShapeDtypeStruct(flat.shape, self.in_structure().dtype)


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


class PreconditionedLinearOperator(lx.AbstractLinearOperator):
    r"""$AM$ for an operator A and any function that multiplies columns with M. No transpose."""

    inner: lx.AbstractLinearOperator
    multiply: Callable[[Array], Array]

    def mv(self, vector):
        """The product with one vector."""
        return self.mm(vector[:, None])[:, 0]

    def mm(self, vectors):
        """The product with a chunk of columns."""
        return columns(self.inner, self.multiply(vectors))

    def as_matrix(self):
        """The dense matrix."""
        return self.mm(jnp.eye(self.in_size(), dtype=self.in_structure().dtype))

    def transpose(self):
        """There is none: M is a function."""
        raise OperatorError("a preconditioned operator has no transpose: use sampling methods")

    def in_structure(self):
        """The structure of a vector that it takes."""
        return self.inner.in_structure()

    def out_structure(self):
        """The structure of a vector that it gives."""
        return self.inner.out_structure()


class Reflector(eqx.Module):
    r"""An orthogonal matrix $P = I - UXU^\top$; see `deflate`."""

    u: Float[Array, "n k"]
    x: Float[Array, "k k"]

    def complement(self, vectors: Float[Array, "rest num"]) -> Float[Array, "n num"]:
        """The vectors' images under all columns of P but the first k."""
        k = self.u.shape[1]
        padded = jnp.pad(vectors, [(k, 0), (0, 0)])
        return padded - _mm(self.u, _mm(self.x, _mm(self.u.T, padded)))

    def coordinates(self, vectors: Float[Array, "n num"]) -> Float[Array, "rest num"]:
        """The transpose of `complement`."""
        moved = vectors - _mm(self.u, _mm(self.x.T, _mm(self.u.T, vectors)))
        return moved[self.u.shape[1] :]


class CompressedLinearOperator(lx.AbstractLinearOperator):
    r"""$Q_\perp^\top A V_\perp$: an operator between orthogonal complements; see `deflate`."""

    inner: lx.AbstractLinearOperator
    right: Reflector
    left: Reflector

    def mv(self, vector):
        """The product with one vector."""
        return self.mm(vector[:, None])[:, 0]

    def mm(self, vectors):
        """The product with a chunk of columns."""
        return self.left.coordinates(columns(self.inner, self.right.complement(vectors)))

    def as_matrix(self):
        """The dense matrix."""
        return self.mm(jnp.eye(self.in_size(), dtype=self.in_structure().dtype))

    def transpose(self):
        """The transposed operator, compressed the other way round."""
        return CompressedLinearOperator(self.inner.transpose(), self.left, self.right)

    def in_structure(self):
        """The structure of a vector that it takes."""
        inner, k = self.inner.in_structure(), self.right.u.shape[1]
        return jax.ShapeDtypeStruct((inner.shape[0] - k,), inner.dtype)

    def out_structure(self):
        """The structure of a vector that it gives."""
        inner, k = self.inner.out_structure(), self.left.u.shape[1]
        return jax.ShapeDtypeStruct((inner.shape[0] - k,), inner.dtype)


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


OWN = (
    SparseLinearOperator,
    HostLinearOperator,
    ConvolutionLinearOperator,
    TransposedLinearOperator,
    FlatLinearOperator,
    RealEmbedding,
    PreconditionedLinearOperator,
    CompressedLinearOperator,
    _Conjugate,
)

for _cls in OWN:
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


def columns(
    operator: lx.AbstractLinearOperator, vectors: Inexact[Array, "n num"]
) -> Inexact[Array, "m num"]:
    """A whole chunk of products, one a column: one matrix-matrix product where that exists."""
    if isinstance(operator, lx.MatrixLinearOperator):
        return jnp.matmul(operator.matrix, vectors, precision=jax.lax.Precision.HIGHEST)
    if hasattr(operator, "mm"):
        return operator.mm(vectors)  # pyright: ignore[reportAttributeAccessIssue]
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
    return any(isinstance(leaf, Tracer) for leaf in jtu.tree_leaves(tree))


def host_operators(tree: Any) -> list[HostLinearOperator]:
    """The operators in the tree whose products run on the host."""
    leaves = jtu.tree_leaves(tree, is_leaf=lambda x: isinstance(x, HostLinearOperator))
    return [leaf for leaf in leaves if isinstance(leaf, HostLinearOperator)]


def _mm(a: Array, b: Array) -> Array:
    return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)


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
