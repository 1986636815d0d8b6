"""Where a run was when it was killed: written atomically, two kept, verified when read.

A checkpoint holds arrays only, in safetensors, and the fingerprint of the run that wrote it: another
operator, method, flow, key, optimiser or schedule is refused, never resumed from by mistake.
"""

import os
import pathlib
import time
import warnings
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import safetensors.numpy

from determinax._digest import fingerprint
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
