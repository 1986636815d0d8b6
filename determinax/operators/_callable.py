"""The kinds "function" and "Jacobian", and operators between pytrees: traced once, flat afterwards."""

import math
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import equinox as eqx
import jax
import jax.flatten_util
import jax.numpy as jnp
import jax.tree_util as jtu
import lineax as lx
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, jaxpr_as_fun
from jaxtyping import Array, Float, PyTree

from determinax.operators._dense import enter_array
from determinax.operators._door import Entered, enter, inexact_dtype, require_finite, unknown
from determinax.operators._traits import (
    AbstractOwnOperator,
    OperatorError,
    has_transpose,
    is_linear_by_kind,
    own_kind,
    untagged,
)

# programs that are kept, so that a function that is traced again is not compiled again
_KEPT = 256


class Program:
    """A traced function: what it computes, without the arrays that it closes over.

    Compared by identity, and the same object for functions that trace to the same: a static part of
    a compiled function, for which a second call finds what the first has compiled.
    """

    def __init__(self, jaxpr: Jaxpr, takes: Any, gives: Any, kept: Any):
        self.jaxpr, self.takes, self.gives, self._kept = jaxpr, takes, gives, kept
        self._transposes: bool | None = None

    def is_transposable(self, operator: lx.AbstractLinearOperator) -> bool:
        """Whether JAX finds the transpose; asked once."""
        if self._transposes is None:
            try:
                transpose = operator.transpose()
                jax.eval_shape(transpose.mv, transpose.in_structure())
                self._transposes = True
            except Exception:  # whatever it is: there are no products with the transpose
                self._transposes = False
        return self._transposes

    def __call__(self, consts: list[Array], leaves: list[Array]) -> list[Array]:
        """What the function gives, as leaves."""
        return jaxpr_as_fun(ClosedJaxpr(self.jaxpr, consts))(*leaves)


_programs: OrderedDict[Any, Program] = OrderedDict()


def traced(function: Callable, structure: Any) -> tuple[Program, list[Array]]:
    """The program of a function on inputs of this structure, and the arrays that it closes over."""
    closed, gives = jax.make_jaxpr(function, return_shape=True)(structure)
    parts = list(_parts(closed.jaxpr))
    shapes = tuple((leaf.shape, leaf.dtype) for leaf in jtu.tree_leaves(structure))
    trees = jtu.tree_structure(structure), jtu.tree_structure(gives), shapes
    key = (str(closed.jaxpr), trees, tuple(_name(part) for part in parts))
    program = _programs.pop(key, None)
    if program is None:
        program = Program(closed.jaxpr, structure, gives, parts)
    _programs[key] = program
    while len(_programs) > _KEPT:
        _programs.popitem(last=False)
    return program, list(closed.consts)


def _parts(jaxpr: Jaxpr) -> Iterator[Any]:
    """What the text of a program does not tell apart: inner constants, functions, settings."""
    for equation in jaxpr.eqns:
        for value in equation.params.values():
            for item in value if isinstance(value, list | tuple) else (value,):
                if isinstance(item, ClosedJaxpr):
                    yield from item.consts
                    yield from _parts(item.jaxpr)
                elif isinstance(item, Jaxpr):
                    yield from _parts(item)
                else:
                    yield item


def _name(part: Any) -> Any:
    """The part itself where it can be compared, else its identity, which the program keeps alive."""
    try:
        hash(part)
    except TypeError:
        return id(part)
    return part


@own_kind
class TracedLinearOperator(AbstractOwnOperator):
    """A linear function between pytrees, ravelled: vectors in, vectors out.

    What it closes over are leaves, so that gradients with respect to them pass.
    """

    consts: list[Array]
    program: Program = eqx.field(static=True)
    dtype: Any = eqx.field(static=True)

    def mv(self, vector: Array) -> Array:
        """The product with one ravelled input."""
        leaves = jtu.tree_leaves(_unravel(self.program.takes, vector))
        images = self.program(self.consts, leaves)
        return jnp.concatenate([jnp.ravel(image).astype(self.dtype) for image in images])

    def transpose(self) -> lx.AbstractLinearOperator:
        """The transposed operator, as JAX finds it."""
        return TransposedLinearOperator(self)

    def in_structure(self) -> jax.ShapeDtypeStruct:
        """The structure of a vector that it takes."""
        return jax.ShapeDtypeStruct((_size(self.program.takes),), self.dtype)

    def out_structure(self) -> jax.ShapeDtypeStruct:
        """The structure of a vector that it gives."""
        return jax.ShapeDtypeStruct((_size(self.program.gives),), self.dtype)


def traced_operator(function: Callable, structure: Any) -> TracedLinearOperator:
    """A linear function on inputs of this structure, as an operator."""
    program, consts = traced(function, structure)
    # the widest of what it takes and gives: nothing is narrowed on the way
    dtypes = [leaf.dtype for leaf in jtu.tree_leaves((program.takes, program.gives))]
    return TracedLinearOperator(consts, program, jnp.result_type(*dtypes))


@has_transpose.register(TracedLinearOperator)
def _(operator: TracedLinearOperator) -> bool:
    return operator.program.is_transposable(operator)


@own_kind
class TransposedLinearOperator(AbstractOwnOperator):
    """The transpose as JAX finds it.

    lineax makes a new function of it every time, for which everything is compiled anew.
    """

    inner: lx.AbstractLinearOperator

    def mv(self, vector: Array) -> Array:
        """The product with one vector."""
        (image,) = jax.linear_transpose(self.inner.mv, self.inner.in_structure())(vector)
        return image

    def as_matrix(self) -> Array:
        """The dense matrix."""
        return self.inner.as_matrix().T

    def transpose(self) -> lx.AbstractLinearOperator:
        """What it is the transpose of."""
        return self.inner

    def in_structure(self) -> jax.ShapeDtypeStruct:
        """The structure of a vector that it takes."""
        return self.inner.out_structure()

    def out_structure(self) -> jax.ShapeDtypeStruct:
        """The structure of a vector that it gives."""
        return self.inner.in_structure()


@own_kind
class FlatLinearOperator(AbstractOwnOperator):
    """A lineax operator between pytrees, ravelled: vectors in, vectors out."""

    inner: lx.AbstractLinearOperator

    def mv(self, vector: Array) -> Array:
        """The product with one ravelled input."""
        image = self.inner.mv(_unravel(self.inner.in_structure(), vector))
        return jax.flatten_util.ravel_pytree(image)[0].astype(self._dtype)

    def transpose(self) -> "FlatLinearOperator":
        """The transposed operator."""
        return FlatLinearOperator(self.inner.transpose())

    @property
    def _dtype(self) -> Any:
        leaves = jtu.tree_leaves((self.inner.in_structure(), self.inner.out_structure()))
        return jnp.result_type(*(leaf.dtype for leaf in leaves))

    def in_structure(self) -> jax.ShapeDtypeStruct:
        """The structure of a vector that it takes."""
        return jax.ShapeDtypeStruct((_size(self.inner.in_structure()),), self._dtype)

    def out_structure(self) -> jax.ShapeDtypeStruct:
        """The structure of a vector that it gives."""
        return jax.ShapeDtypeStruct((_size(self.inner.out_structure()),), self._dtype)


@has_transpose.register(FlatLinearOperator)
def _(operator: FlatLinearOperator) -> bool:
    return has_transpose(operator.inner)


@enter.register(object)
def _(thing: Any, example: Any = None) -> Entered:
    """Callables, and whatever NumPy can make an array of."""
    if callable(thing):
        return _enter_callable(thing, example)
    if hasattr(thing, "__array__"):
        found: Any = enter_array(np.asarray(thing))
        return found
    raise unknown(thing)


@enter.register(lx.AbstractLinearOperator)
def _(operator: lx.AbstractLinearOperator, example: Any = None) -> Entered:
    del example
    inner = untagged(operator)
    if isinstance(inner, AbstractOwnOperator):
        return Entered(operator)
    structure, out_structure = operator.in_structure(), operator.out_structure()
    if isinstance(inner, lx.MatrixLinearOperator):
        require_finite(inner.matrix, "operator")
    elif isinstance(inner, lx.DiagonalLinearOperator):
        require_finite(lx.diagonal(inner), "operator")
    try:
        produced = jax.eval_shape(operator.mv, structure)
    except Exception as error:
        raise OperatorError("the operator raised while computing a product") from error
    if _shapes(produced) != _shapes(out_structure):
        raise OperatorError(
            f"a product of the operator has shape {_shapes(produced)} where its out_structure "
            f"says {_shapes(out_structure)}: make the two agree"
        )
    check = {} if is_linear_by_kind(operator) else {"product": operator.mv, "structure": structure}
    if type(inner) in (lx.FunctionLinearOperator, lx.JacobianLinearOperator):
        entered = traced_operator(inner.mv, structure)
        tags = getattr(inner, "tags", frozenset())
        tags = tags | getattr(operator, "tags", frozenset())
        return Entered(lx.TaggedLinearOperator(entered, tags) if tags else entered, **check)
    is_flat = _is_vector(structure) and _is_vector(out_structure)
    return Entered(operator if is_flat else FlatLinearOperator(operator), **check)


def _enter_callable(function: Callable, example: Any) -> Entered:
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
    return Entered(traced_operator(function, structure), _on_arrays(function), structure)


def _on_arrays(function: Callable) -> Callable:
    """The function as the check of linearity calls it: on JAX arrays."""
    return lambda x: function(jtu.tree_map(jnp.asarray, x))


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


def _example_structure(leaf: Any) -> jax.ShapeDtypeStruct:
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct(leaf.shape, inexact_dtype(leaf.dtype, "example"))
    leaf = leaf if isinstance(leaf, jax.Array) else np.asarray(leaf)
    return jax.ShapeDtypeStruct(leaf.shape, inexact_dtype(leaf.dtype, "example"))


def _is_vector(structure: Any) -> bool:
    return isinstance(structure, jax.ShapeDtypeStruct) and len(structure.shape) == 1


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


def _unravel(structure: PyTree, vector: Float[Array, " n"]) -> Any:
    leaves, treedef = jtu.tree_flatten(structure)
    ends = np.cumsum([math.prod(leaf.shape) for leaf in leaves])
    parts = jnp.split(vector, ends[:-1])
    return treedef.unflatten(
        [p.reshape(leaf.shape).astype(leaf.dtype) for p, leaf in zip(parts, leaves, strict=True)]
    )
