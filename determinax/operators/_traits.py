"""What a method may ask of an operator instead of its class: static facts, and questions by kind.

A new kind of operator answers by registering: `columns.register(Kind)`, `pattern.register(Kind)`, ....
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
from jaxtyping import Array, Inexact

from determinax._linalg import mm
from determinax._shapes import by_shapes


class OperatorError(ValueError):
    """What is wrong with an operator, in one sentence that names the cure.

    !!! example

        ```python
        try:
            dx.log_abs_det(np.ones((3, 5)))
        except dx.OperatorError as error:
            print(error)
        ```
    """


class Products(NamedTuple):
    """How many products with A and with its transpose were spent, or are to be."""

    forward: Any = 0
    transposed: Any = 0

    @property
    def total(self) -> Any:
        """All of them."""
        return self.forward + self.transposed

    def __add__(self, other: object) -> "Products":
        if not isinstance(other, Products):
            return NotImplemented
        return Products(self.forward + other.forward, self.transposed + other.transposed)


NO_PRODUCTS = Products()


# how often directions and products are in memory; and how often more where the host takes them
COPIES, _HOST_COPIES = 4, 3


class Traits(NamedTuple):
    """Static facts: plans and costs are arithmetic on these, before the first product.

    - `rows`, `cols`, `dtype`: of the flat real operator that products are taken with.
    - `sign`: 1 or -1 where it is tagged positive or negative semidefinite, 0 elsewhere.
    - `is_dense`: it is an array; `has_pattern`: where it may have entries is known;
        `has_transpose`: False where there are no products with it.
    - `is_host`: products run on the host; `is_complex`: it embeds a complex one of half its size.
    - `copies`: how often directions and products are in memory, in units of the directions.
    """

    rows: int
    cols: int
    dtype: Any
    sign: int = 0
    is_dense: bool = False
    has_pattern: bool = False
    has_transpose: bool = True
    is_host: bool = False
    is_complex: bool = False
    copies: int = COPIES

    @property
    def log_det_factor(self) -> float:
        r"""What the log-determinant of the real operator is multiplied with: 1/2 where embedded."""
        return 0.5 if self.is_complex else 1.0

    @property
    def num_dense(self) -> int:
        """Products that would give the user's operator itself."""
        return self.cols // 2 if self.is_complex else self.cols

    @property
    def eps(self) -> float:
        """Of the dtype."""
        return float(jnp.finfo(self.dtype).eps)


def traits(operator: lx.AbstractLinearOperator) -> Traits:
    """The static facts about an admitted operator."""
    return _facts(operator)


def _work_out(operator: lx.AbstractLinearOperator) -> Traits:
    sign = int(lx.is_positive_semidefinite(operator)) - int(lx.is_negative_semidefinite(operator))
    dtype, calls = operator.in_structure().dtype, host_calls(operator)
    # of the dtype that the host takes, which may be a wider one
    wider = max((-(-call.taken.itemsize // dtype.itemsize) for call in calls), default=0)
    return Traits(
        rows=operator.out_size(),
        cols=operator.in_size(),
        dtype=dtype,
        sign=sign,
        is_dense=isinstance(untagged(operator), lx.MatrixLinearOperator),
        has_pattern=_answers(pattern, operator),
        has_transpose=has_transpose(operator),
        is_host=bool(calls),
        is_complex=is_complex(operator),
        copies=COPIES + _HOST_COPIES * wider,
    )


def untagged(operator: lx.AbstractLinearOperator) -> lx.AbstractLinearOperator:
    """What lineax' tags are about."""
    while isinstance(operator, lx.TaggedLinearOperator):
        operator = operator.operator
    return operator


def _answers(question: Any, operator: lx.AbstractLinearOperator) -> bool:
    """Whether the operator's kind has an answer of its own."""
    kind = type(untagged(operator))
    return question.dispatch(kind) is not question.dispatch(object)


@functools.singledispatch
def columns(operator: Any, vectors: Inexact[Array, "n num"]) -> Inexact[Array, "m num"]:
    """A whole chunk of products, one a column: one matrix-matrix product where the kind has it."""
    return jax.vmap(operator.mv, in_axes=-1, out_axes=-1)(vectors)


@columns.register(lx.MatrixLinearOperator)
def _(operator: lx.MatrixLinearOperator, vectors: Array) -> Array:
    return mm(operator.matrix, vectors)


@columns.register(lx.TaggedLinearOperator)
def _(operator: lx.TaggedLinearOperator, vectors: Array) -> Array:
    return columns(operator.operator, vectors)


compiled_columns = eqx.filter_jit(columns)


@functools.singledispatch
def pattern(operator: Any) -> Any:
    """Where the operator may have entries, as a SciPy sparse array; None where that is not known."""
    del operator


@functools.singledispatch
def has_transpose(operator: Any) -> bool:
    """Whether there are products with the transpose, as far as the kind tells."""
    inner = untagged(operator)
    return True if inner is operator else has_transpose(inner)


@functools.singledispatch
def is_complex(operator: Any) -> bool:
    """Whether it is the real embedding of a complex operator."""
    del operator
    return False


@functools.singledispatch
def is_linear_by_kind(operator: Any) -> bool:
    """Whether its kind alone says that it is linear, so that nothing has to be checked."""
    del operator
    return False


for _kind in (
    lx.MatrixLinearOperator,
    lx.DiagonalLinearOperator,
    lx.IdentityLinearOperator,
    lx.TridiagonalLinearOperator,
    lx.PyTreeLinearOperator,
    lx.JacobianLinearOperator,
):
    is_linear_by_kind.register(_kind)(lambda operator: True)


@is_linear_by_kind.register(lx.TaggedLinearOperator)
def _(operator: lx.TaggedLinearOperator) -> bool:
    return is_linear_by_kind(operator.operator)


class HostCalls:
    """`matmat` and `rmatmat` of a host, as XLA calls them back; rows of vectors in, rows out.

    Compared by identity, so that it can be a static part of a compiled function. `failure` keeps the
    exception that a product raised, since XLA passes on only its text; `num` counts the products.
    """

    def __init__(
        self,
        matmat: Callable[[np.ndarray], Any],
        rmatmat: Callable[[np.ndarray], Any] | None,
        shape: tuple[int, int],
        dtype: Any,
        taken: Any = None,
    ):
        self.matmat, self.rmatmat, self.shape = matmat, rmatmat, shape
        # an integer operator still multiplies unit vectors
        self.dtype = np.dtype(dtype)
        self.taken = np.result_type(self.dtype, np.float32) if taken is None else np.dtype(taken)
        self.failure: BaseException | None = None
        self.num = 0

    def __call__(self, transposed: bool, rows: Any) -> np.ndarray:
        """Products with the rows, or of the transpose with them."""
        product: Any = self.rmatmat if transposed else self.matmat
        size = self.shape[1 if transposed else 0]
        try:
            rows = np.asarray(rows)
            x = rows.reshape(-1, rows.shape[-1]).T.astype(self.taken)
            y = np.asarray(product(x))
            num, was_complex = x.shape[1], np.iscomplexobj(x)
            del x  # before there is one more array of this size
            self.num += num
            if np.iscomplexobj(y) and not was_complex:
                raise OperatorError(
                    f"a product is complex, but the operator says {self.dtype}: give it a complex dtype"
                )
            if y.shape != (size, num):
                raise OperatorError(
                    f"a block of products has shape {y.shape} where {(size, num)} was due: "
                    "make the operator return as many entries as it has rows"
                )
            return y.T.reshape(*rows.shape[:-1], size).astype(self.dtype, copy=False)
        except Exception as error:
            self.failure = error
            raise


def host_calls(tree: Any) -> tuple[HostCalls, ...]:
    """The `HostCalls` that products with anything in the tree run through: a kind keeps them as `calls`."""

    def runs_there(leaf: Any) -> bool:
        return isinstance(getattr(leaf, "calls", None), HostCalls)

    found = jax.tree.leaves(tree, is_leaf=runs_there)
    return tuple(leaf.calls for leaf in found if runs_there(leaf))


_facts = by_shapes(_work_out, unless=host_calls)


def require_square(operator: lx.AbstractLinearOperator) -> None:
    """Refuse what has no determinant."""
    m, n = user_shape(operator)
    if m != n:
        cure = "use log_volume" if m > n else "its volume is 0; pass its transpose to log_volume"
        raise OperatorError(f"operator is {m}x{n}, not square, so it has no determinant: {cure}")


def require_not_wide(operator: lx.AbstractLinearOperator) -> None:
    """Refuse operators whose volume is zero by their shape."""
    m, n = user_shape(operator)
    if m < n:
        raise OperatorError(
            f"operator is {m}x{n}: more columns than rows, so its volume is 0; pass its transpose"
        )


def user_shape(operator: lx.AbstractLinearOperator) -> tuple[int, int]:
    """The operator's shape (m, n) as the user counts it: a complex one by its complex size."""
    t = traits(operator)
    return (t.rows // 2 if t.is_complex else t.rows), t.num_dense


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


def own_kind(kind: type) -> type:
    """Answer what lineax asks of every operator: "don't know" is its False."""
    for question in (
        lx.is_symmetric,
        lx.is_diagonal,
        lx.is_tridiagonal,
        lx.has_unit_diagonal,
        lx.is_lower_triangular,
        lx.is_upper_triangular,
        lx.is_positive_semidefinite,
        lx.is_negative_semidefinite,
    ):
        question.register(kind)(lambda operator: False)
    lx.linearise.register(kind)(lambda operator: operator)
    lx.conj.register(kind)(_conjugate)
    lx.materialise.register(kind)(lambda operator: lx.MatrixLinearOperator(operator.as_matrix()))
    is_linear_by_kind.register(kind)(lambda operator: True)
    return kind


def _conjugate(operator: lx.AbstractLinearOperator) -> lx.AbstractLinearOperator:
    from determinax.operators._complex import Conjugate  # which is a kind of our own itself

    return Conjugate(operator)


class AbstractOwnOperator(lx.AbstractLinearOperator):
    """What kinds of our own share: a dense matrix from products with the unit vectors."""

    def as_matrix(self) -> Array:
        """The dense matrix, column by column."""
        return columns(self, jnp.eye(self.in_size(), dtype=self.in_structure().dtype))
