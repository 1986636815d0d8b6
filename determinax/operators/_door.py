"""The door: whatever a user has becomes a flat, real, checked lineax operator here.

Everything behind the door may rely on what it returns: `mv` maps a real vector of length n to a real
vector of length m, and `columns` multiplies a whole chunk of vectors at once. A kind registers itself
with `enter`; a third party does so from outside, as `as_operator.register(Type)`.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import lineax as lx
import numpy as np
from jax.core import Tracer

from determinax._checks import not_finite
from determinax.operators._complex import RealEmbedding
from determinax.operators._layout import num_parts, on_auto_meshes
from determinax.operators._traits import NO_PRODUCTS, OperatorError, Products, traits


class Entered(NamedTuple):
    """What a kind makes of its input: an operator, what there is to check for being linear, or None.

    `product` is called as the user wrote it, on values of `structure`; `notes` are for the estimate.
    """

    operator: lx.AbstractLinearOperator
    product: Callable | None = None
    structure: Any = None
    spent: Products = NO_PRODUCTS
    notes: tuple[str, ...] = ()


class Admitted(NamedTuple):
    """An operator behind the door, the products that its checks spent, and what there is to say."""

    operator: lx.AbstractLinearOperator
    spent: Products = NO_PRODUCTS
    notes: tuple[str, ...] = ()


@functools.singledispatch
def enter(thing: Any, example: Any = None) -> Entered | lx.AbstractLinearOperator:
    """Make an operator of a thing, by its type."""
    del example
    raise unknown(thing)


def unknown(thing: Any) -> TypeError:
    """What to raise for a type that nobody has registered."""
    return TypeError(
        f"cannot make an operator of a {type(thing).__name__}: pass a NumPy or JAX array, a SciPy "
        "sparse array or LinearOperator, a lineax operator, or a callable with example=; or register "
        "the type with as_operator.register"
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

    Complex operators become real ones of twice the size. Types of your own come in once they are
    registered: `as_operator.register(Type)` decorates a function from a `Type` (and an example) to
    an operator of any kind that is known here.

    !!! example

        ```python
        operator = dx.as_operator(lambda x: jnp.roll(x, 1) + 3 * x, jnp.zeros(10))
        ```
    """
    return admit(operator, example, check_linear=check_linear).operator


as_operator.register = enter.register  # pyright: ignore[reportFunctionMemberAccess]


def admit(operator: Any, example: Any = None, *, check_linear: bool = True) -> Admitted:
    """As `as_operator`, with the products that the checks spent and what there is to say."""
    entered = _entered(on_auto_meshes(operator), on_auto_meshes(example))
    inner, spent = on_auto_meshes(entered.operator), entered.spent
    facts = traits(inner)
    if facts.rows == 0 or facts.cols == 0:
        raise OperatorError(f"operator is {facts.rows}x{facts.cols}: it has no entries")
    dtype = facts.dtype
    if dtype not in (np.float32, np.float64, np.complex64, np.complex128):
        raise TypeError(f"operator has dtype {dtype}: make it float32 or float64 first")
    if check_linear and entered.product is not None and not is_compiling():
        spent += _check_linear(entered.product, entered.structure)
    if jnp.issubdtype(dtype, jnp.complexfloating):
        inner = RealEmbedding(inner)
    return Admitted(inner, spent, entered.notes)


def _entered(thing: Any, example: Any) -> Entered:
    takes_example = callable(thing) and not isinstance(thing, lx.AbstractLinearOperator)
    if example is not None and not takes_example:
        raise OperatorError("example= goes with a callable operator only: leave it out here")
    found = enter(thing) if example is None else enter(thing, example)
    if isinstance(found, Entered):
        return found
    # a registered type may answer with anything that is known here
    return Entered(found) if found is thing else _entered(found, None)


def is_compiling() -> bool:
    """Whether a constant would be traced here, as inside of `jit`: then values cannot be looked at."""
    return isinstance(jnp.zeros(()), Tracer)


def require_finite(array: Any, name: str) -> None:
    """Name the first entry that is not finite; what is traced cannot be looked at."""
    if isinstance(array, Tracer):
        return
    if num_parts(array) > 1 and bool(_all_finite(array)):
        return  # and nobody has gathered it
    finite = np.isfinite(np.asarray(array))
    if not finite.all():
        index = tuple(int(i) for i in np.argwhere(~finite)[0])
        raise OperatorError(
            f"{name} has a {np.asarray(array)[index]} at {index}: every entry must be finite"
        )


@jax.jit
def _all_finite(array: Any) -> Any:
    return jnp.all(jnp.isfinite(array))


def inexact(array: Any, name: str) -> Any:
    """A JAX array of a floating-point dtype that JAX is set up for, finite and without losing its scale."""
    if isinstance(array, jax.Array):
        array = array.astype(inexact_dtype(array.dtype, name))
        require_finite(array, name)
        return array
    masked = np.ma.is_masked(array)
    try:
        array = np.asarray(array)
    except ValueError as error:
        raise OperatorError(f"{name} is ragged: its rows differ in length") from error
    if masked:
        raise OperatorError(f"{name} has masked entries: fill them first, as array.filled(0)")
    dtype = inexact_dtype(array.dtype, name)
    require_representable(array, dtype, name)
    array = array.astype(dtype, copy=False)
    require_finite(array, name)
    return jnp.array(array)  # a copy: its owner may write over it


def inexact_dtype(dtype: Any, name: str) -> np.dtype:
    """The floating-point dtype in which numbers of this dtype are computed with."""
    if jnp.issubdtype(dtype, jnp.complexfloating):
        wide = np.complex64 if dtype == np.complex64 else np.complex128
        return jax.dtypes.canonicalize_dtype(wide)
    if jnp.issubdtype(dtype, jnp.floating):
        return jax.dtypes.canonicalize_dtype(np.float32 if dtype.itemsize <= 4 else np.float64)
    if jnp.issubdtype(dtype, jnp.integer) and dtype.kind != "m":  # NumPy's timedelta64 is one too
        return jax.dtypes.canonicalize_dtype(np.float64)
    raise TypeError(f"{name} has dtype {dtype}: convert it to a real or complex number type first")


def require_representable(array: np.ndarray, dtype: np.dtype, name: str) -> None:
    """Refuse entries that over- or underflow in the dtype that JAX is set up for."""
    if array.size and np.issubdtype(array.dtype, np.inexact):
        is_real = np.isrealobj(array)  # then without another array of that size
        largest = max(np.max(array), -np.min(array)) if is_real else np.max(np.abs(array))
        limits = jnp.finfo(dtype)
        if np.isfinite(largest) and not (
            largest == 0 or float(limits.tiny) <= largest <= float(limits.max)
        ):
            raise OperatorError(
                f"{name} has entries of size {largest:.1e}, which {dtype.name} cannot hold: rescale "
                'it, or enable 64-bit with jax.config.update("jax_enable_x64", True)'
            )


def narrowing_note(given: Any, dtype: Any) -> tuple[str, ...]:
    """What to say where float64 comes in and JAX is set up for float32."""
    given, dtype = np.dtype(given), np.dtype(dtype)
    if given.kind not in "fc" or given.itemsize <= dtype.itemsize:
        return ()
    return (
        f"The operator is {given.name}, and was computed with in {dtype.name}, as JAX is set up: "
        'jax.config.update("jax_enable_x64", True) keeps all digits.',
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
    mixed = jtu.tree_map(lambda u, v: (a * u + b * v).astype(u.dtype), x, y)
    try:
        images = [function(x), function(y), function(mixed)]
        origin = function(jtu.tree_map(lambda u: 0 * u, x))
    except Exception as error:
        raise OperatorError("the operator raised while computing a product") from error
    if any(isinstance(leaf, Tracer) for leaf in jtu.tree_leaves(images)):
        return Products(4)  # of a callable that closes over traced values
    for j, image in enumerate(images):
        if not all(np.all(np.isfinite(leaf)) for leaf in jtu.tree_leaves(image)):
            raise OperatorError(not_finite(f"product {j} of the operator"))
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
