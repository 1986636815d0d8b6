"""A digest of what makes a run: arrays, settings and code, and whether it knows all of it exactly."""

import builtins
import dataclasses
import functools
import hashlib
import re
import types
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

# whose names mean the same code everywhere in a process
_LIBRARIES = frozenset(
    {
        *("builtins", "functools", "math", "operator", "types", "jax", "jaxlib", "numpy", "optax"),
        *("equinox", "lineax", "determinax"),
    }
)
_PLAIN = (bool, int, float, complex, str, bytes, types.NoneType, types.EllipsisType)
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


class Digest(NamedTuple):
    """A digest, and whether what differs from it has another one."""

    text: str
    is_exact: bool


def fingerprint(*values: Any) -> str:
    """A digest of all of it, the same in every process; of what is unknown it has the type's name."""
    return digested(*values).text


def digested(*values: Any) -> Digest:
    """As `fingerprint`. It is not exact for host products, traced functions and classes of the user's.

    What these compute is to be compared as well, where a run resumes.
    """
    walker = _Walker()
    for value in values:
        walker.feed(value)
    return Digest(walker.digest.hexdigest(), walker.is_exact)


def identity(value: Any) -> str | None:
    """A digest that only what computes the same can share within a process; None if that is open.

    Known exactly are numbers, texts, JAX arrays, tuples, the code of libraries with what it closes over,
    and functions of the user's that refer to nothing else: no variable of theirs, no object, no list.
    """
    walker = _Walker(is_strict=True)
    walker.feed(value)
    return walker.digest.hexdigest() if walker.is_exact else None


class _Walker:
    """Feeds values to a digest by what they are, rather than by how some library prints them."""

    def __init__(self, *, is_strict: bool = False):
        self.digest, self.is_exact, self._is_strict = hashlib.sha256(), True, is_strict
        # what is being fed, against cycles; and functions, to do so once
        self._open: list[Any] = []

    def feed(self, value: Any) -> None:
        """Add a value."""
        # optax' cosine schedule turns its number of steps into a float when it is first used
        if isinstance(value, float) and value.is_integer() and not self._is_strict:
            value = int(value)
        self._say(f"{type(value).__module__}.{type(value).__qualname__}(")
        self.is_exact &= _is_library(type(value).__module__)
        seen = [known is value for known in self._open]
        if any(seen):
            self._say(f"again {seen.index(True)}")
        else:
            self._open.append(value)
            self._feed_new(value)
            self._open = [v for v in self._open if v is not value or _is_function(v)]
        self._say(")")

    def _say(self, text: str) -> None:
        self.digest.update(text.encode())

    def _feed_all(self, *values: Any) -> None:
        for value in values:
            self.feed(value)

    def _feed_new(self, value: Any) -> None:
        if isinstance(value, _PLAIN):
            self._say(repr(value))
        elif isinstance(value, np.ndarray | np.generic | jax.Array):
            self._feed_array(value)
        elif isinstance(value, Mapping):
            self.is_exact = False  # it may have changed when it is used
            self._feed_items(value)
        elif isinstance(value, list | tuple | set | frozenset):
            self.is_exact &= isinstance(value, tuple | frozenset)
            self._feed_all(
                *(sorted(value, key=str) if isinstance(value, set | frozenset) else value)
            )
        elif isinstance(value, functools.partial):
            self._feed_all(value.func, *value.args)
            self._feed_items(value.keywords)
        elif isinstance(value, types.MethodType):
            self._feed_all(value.__self__, value.__func__)
        elif isinstance(value, types.FunctionType):
            self._feed_function(value)
        elif isinstance(value, types.CodeType):
            self._feed_code(value)
        elif isinstance(value, types.BuiltinFunctionType | types.ModuleType | type):
            self._feed_name(value)
        elif isinstance(value, np.dtype):
            self._say(str(value))
        else:
            self._feed_object(value)

    def _feed_array(self, value: Any) -> None:
        self.is_exact &= not isinstance(value, np.ndarray)
        if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
            value = jax.random.key_data(value)
        array = np.asarray(value)
        self._say(f"{array.shape} {array.dtype}")
        self.digest.update(array.tobytes())

    def _feed_items(self, items: Mapping[Any, Any]) -> None:
        for name in sorted(items, key=str):
            self._feed_all(str(name), items[name])

    def _feed_name(self, value: Any) -> None:
        """Of what a name of a library stands for."""
        module = value.__name__ if isinstance(value, types.ModuleType) else value.__module__
        self.is_exact &= _is_library(module)
        self._say(f"{module}.{getattr(value, '__qualname__', '')}")

    def _feed_function(self, function: types.FunctionType) -> None:
        self._feed_all(function.__qualname__, function.__code__, function.__defaults__)
        self._feed_items(function.__kwdefaults__ or {})
        self._feed_items(vars(function))
        is_library = _is_library(function.__globals__.get("__name__"))
        cells = [_content(cell) for cell in function.__closure__ or ()]
        self.is_exact &= is_library or not cells  # which may be set again until it is used
        self._feed_all(*cells)
        if not is_library:
            self._feed_globals(function)

    def _feed_code(self, code: types.CodeType) -> None:
        counts = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags
        self._feed_all(code.co_code, code.co_names, code.co_consts, counts)

    def _feed_globals(self, function: types.FunctionType) -> None:
        """What the names in its code stand for, as far as it is a module, a function or a plain value."""
        known = function.__globals__
        for name in sorted({name for code in _codes(function.__code__) for name in code.co_names}):
            value = known.get(name, getattr(builtins, name, None))
            if name in known and isinstance(value, _PLAIN):
                self.is_exact = False  # it may be set again until it is used
            if name in known or hasattr(builtins, name):
                self._feed_known(name, value)

    def _feed_known(self, name: str, value: Any) -> None:
        """A value behind a name; what may hold anything, and change with every call, by its type only."""
        self._say(name)
        kinds = types.FunctionType | types.BuiltinFunctionType | types.ModuleType | type
        if isinstance(value, (*_PLAIN, np.ndarray, np.generic, jax.Array, kinds)):
            self.feed(value)
        else:
            self.is_exact = False
            self._say(type(value).__qualname__)

    def _feed_object(self, value: Any) -> None:
        if hasattr(value, "jaxpr"):
            self.is_exact = False
            self._feed_program(value)
        elif hasattr(value, "__wrapped__"):
            self.is_exact = False  # what is around it is not seen
            self.feed(value.__wrapped__)
        elif dataclasses.is_dataclass(value):
            for field in dataclasses.fields(value):
                self._feed_all(field.name, getattr(value, field.name, None))
        elif not jax.tree_util.all_leaves([value]):  # such as JAX' sparse arrays
            leaves, tree = jax.tree.flatten(value)
            self._say(_ADDRESS.sub("", str(tree)))
            self._feed_all(*leaves)
        elif type(value).__module__ == "lineax._tags":
            self._say(str(value))
        elif not _is_library(type(value).__module__):
            for name, held in sorted(getattr(value, "__dict__", {}).items()):
                self._feed_known(name, held)
        else:  # of anything else the type has to do
            self.is_exact = False

    def _feed_program(self, program: Any) -> None:
        """A traced function: its text, and the arrays inside of it, which the text leaves out."""
        self._say(_ADDRESS.sub("", str(program.jaxpr)))
        self._feed_all(*getattr(program, "consts", ()), *inner_arrays(program.jaxpr))


def inner_arrays(jaxpr: Any) -> Iterator[Any]:
    """The constants of the programs within a program, such as those of a jitted function."""
    jaxpr = getattr(jaxpr, "jaxpr", jaxpr)
    for equation in jaxpr.eqns:
        for value in equation.params.values():
            for item in value if isinstance(value, list | tuple) else (value,):
                if hasattr(item, "jaxpr") or hasattr(item, "eqns"):
                    yield from getattr(item, "consts", ())
                    yield from inner_arrays(item)


def _is_library(module: Any) -> bool:
    return isinstance(module, str) and module.partition(".")[0] in _LIBRARIES


def _is_function(value: Any) -> bool:
    return isinstance(value, types.FunctionType)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # of a variable that was never set
        return ...


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """The code of a function, and of those within it."""
    yield code
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _codes(inner)
