"""Where a run was when it was killed: written atomically, two kept, verified when read.

A checkpoint holds arrays only, in safetensors, and the fingerprint of the run that wrote it: another
operator, method, flow, key, optimiser or schedule is refused, never resumed from by mistake.
"""

import dataclasses
import functools
import hashlib
import os
import pathlib
import time
import types
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import safetensors.numpy

from determinax._interrupts import writing
from determinax.storage import StorageError, read_tensors, write_atomically

FORMAT = "determinax.checkpoint"
# a run that is killed loses no more than this
_SECONDS = 30.0


class Found(NamedTuple):
    """What a checkpoint holds: a state, arrays by name that grow with the run, and its seconds so far."""

    state: Any
    history: dict[str, np.ndarray]
    seconds: float


class Keeper:
    """Writes a run's checkpoints: every so many steps, every half minute, and when it is told to.

    `started` is when the run would have, had it never been stopped; without a path nothing is written.
    """

    def __init__(
        self, path: pathlib.Path | None, run: str, started: float, saved: int, every: int = 2**31
    ):
        self._path, self._run, self._started, self._every = path, run, started, every
        self._saved, self._saved_at = saved, time.perf_counter()
        self.seconds = _SECONDS

    def write(self, done: int, state: Any, history: dict[str, np.ndarray] | None = None) -> None:
        """Write now, unless these steps are on the disk already."""
        if self._path is None or done == self._saved:
            return
        with writing():
            seconds = time.perf_counter() - self._started
            write(self._path, self._run, state, history or {}, seconds)
            self._saved, self._saved_at = done, time.perf_counter()

    def write_if_due(
        self,
        done: int,
        state: Any,
        history: dict[str, np.ndarray] | None = None,
        *,
        is_last: bool = False,
    ) -> None:
        """Write if it is time to."""
        waited = time.perf_counter() - self._saved_at
        if is_last or done - self._saved >= self._every or waited > self.seconds:
            self.write(done, state, history)


def fingerprint(*values: Any) -> str:
    """A digest of everything that makes a run: arrays, settings, classes, and code as far as it shows."""
    digest = hashlib.sha256()
    for value in values:
        _feed(digest, value)
    return digest.hexdigest()


def _feed(digest: Any, value: Any) -> None:
    """Add a value to the digest, by what it is rather than by how some library prints it."""
    # optax' cosine schedule turns its number of steps into a float when it is first used
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    digest.update(type(value).__qualname__.encode() + b"(")
    if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        _feed(digest, np.asarray(jax.random.key_data(value)))
    elif isinstance(value, np.ndarray | np.generic | jax.Array):
        array = np.asarray(value)
        digest.update(f"{array.shape} {array.dtype}".encode() + array.tobytes())
    elif value is None or isinstance(value, bool | int | float | complex | str | bytes):
        digest.update(repr(value).encode())
    elif isinstance(value, Mapping):
        for name in sorted(value, key=str):
            _feed(digest, (str(name), value[name]))
    elif isinstance(value, list | tuple | set | frozenset):
        for item in sorted(value, key=str) if isinstance(value, set | frozenset) else value:
            _feed(digest, item)
    elif isinstance(value, functools.partial):
        _feed(digest, (value.func, value.args, value.keywords))
    elif isinstance(value, types.MethodType):
        _feed(digest, (value.__self__, value.__func__))
    elif isinstance(value, types.FunctionType):
        _feed_function(digest, value)
    elif hasattr(value, "jaxpr"):
        digest.update(str(value.jaxpr).encode())
    elif hasattr(value, "__wrapped__"):
        _feed(digest, value.__wrapped__)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            _feed(digest, (field.name, getattr(value, field.name, None)))
    elif isinstance(value, type | np.dtype):
        digest.update(str(value).encode())
    # of anything else the type has to do: what it computes is compared when a run resumes
    digest.update(b")")


def _feed_function(digest: Any, function: types.FunctionType) -> None:
    cells = [cell.cell_contents for cell in function.__closure__ or () if _is_filled(cell)]
    code = function.__code__
    plain = [c for c in code.co_consts if not isinstance(c, types.CodeType)]
    _feed(digest, (function.__qualname__, code.co_code, plain, function.__defaults__, cells))


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:  # of a variable that was never set
        return False


def write(
    path: pathlib.Path, run: str, state: Any, history: dict[str, np.ndarray], seconds: float
) -> None:
    """Write the checkpoint of run `run`; the one before it is kept beside it."""
    tensors = {f"state.{i}": np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(state))}
    tensors |= {f"history.{name}": values for name, values in history.items()}
    tensors["seconds"] = np.asarray(seconds)
    header = {"format": FORMAT, "run": run, "checksum": fingerprint(tensors, run)}
    data = safetensors.numpy.save(tensors, metadata=header)
    with writing():
        if path.exists():
            os.replace(path, _previous(path))
        write_atomically(path, data)


def read(path: pathlib.Path, run: str, like: Any) -> Found | None:
    """What `write` stored, shaped `like` the state; None where there is no checkpoint yet.

    A damaged file is passed over, with a warning, for the one before it.
    """
    for stale in path.parent.glob(f".{path.name}.*"):  # half-written by a run that was killed
        stale.unlink()
    for candidate in (path, _previous(path)):
        if not candidate.exists():
            continue
        try:
            header, tensors = read_tensors(candidate)
            if header.get("format") != FORMAT:
                raise StorageError(f"{candidate}: not a determinax checkpoint")
            if header.get("checksum") != fingerprint(tensors, header.get("run")):
                raise StorageError(f"{candidate}: the checksum does not match")
        except StorageError as error:
            warnings.warn(f"passed over a damaged checkpoint: {error}", stacklevel=2)
            continue
        leaves, tree = jax.tree.flatten(like)
        stored = [tensors.get(f"state.{i}") for i in range(len(leaves))]
        fits = all(
            s is not None and s.shape == np.shape(leaf)
            for s, leaf in zip(stored, leaves, strict=True)
        )
        if header.get("run") != run or not fits:
            raise StorageError(
                f"{candidate}: of another run (operator, flow, key, steps or another setting "
                "differ): delete it, or give this run a file of its own"
            )
        state = jax.tree.unflatten(tree, [jnp.asarray(leaf) for leaf in stored])
        history = {n[8:]: t for n, t in tensors.items() if n.startswith("history.")}
        return Found(state, history, float(tensors["seconds"]))
    return None


def remove(path: pathlib.Path) -> None:
    """Delete the checkpoint of a run that has ended, and the one before it."""
    for stale in (path, _previous(path)):
        stale.unlink(missing_ok=True)


def _previous(path: pathlib.Path) -> pathlib.Path:
    return path.with_name(path.name + ".previous")
