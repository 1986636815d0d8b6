"""The one loop over steps: compiled pieces, progress between them, history, checkpoints, interrupts."""

import os
import pathlib
import time
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import PRNGKeyArray

from determinax import _checkpoint, _shell
from determinax._checks import require_writable, whole_number
from determinax._devices import line_of, spans_processes
from determinax._interrupts import before_leaving, check, heeded
from determinax._keys import stream
from determinax.operators import NO_PRODUCTS, Products
from determinax.progress import Report, reporting
from determinax.storage import StorageError
from determinax.training._base import AbstractFitter, Fit, FitInterrupted, History
from determinax.training._split import Split

# steps of a piece at most: the length of the records' buffers on the device; whether a fit has
# converged or stalled is looked at after so many
CHUNK = 100
# seconds that a piece should take: the bar moves so often, and an interrupt waits no longer
_PIECE_SECONDS = 0.5
_DTYPES = {"finite": bool}


@heeded()
def run(
    fitter: AbstractFitter,
    *,
    key: PRNGKeyArray,
    steps: int,
    spent: Products = NO_PRODUCTS,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every: int = 1000,
    resume: bool = False,
    mesh: Mesh | None = None,
    progress: bool | None = None,
) -> Fit:
    """Take up to `steps` steps of a fitter. Step `i` draws from key `i` of the stream "steps".

    With `checkpoint`, a file is written every `checkpoint_every` steps, every half minute and on an
    interrupt, and the one before it is kept; with `resume`, a run that was killed goes on from there
    and ends with the very bits of one that was not. `spent` products went before.

    With `mesh`, a step's batch is drawn in eight parts, which are dealt to the mesh's devices: the same
    bits on any number of devices, of this process and of others, though not those without a mesh.

    Ctrl-C ends it with `FitInterrupted`, whose `fit` has what was trained.
    """
    steps = whole_number(steps, "steps")
    every = whole_number(checkpoint_every, "checkpoint_every")
    if resume and checkpoint is None:
        raise ValueError("resume needs the checkpoint file to resume from: pass checkpoint=")
    path = None if checkpoint is None else pathlib.Path(checkpoint)
    if path is not None:
        require_writable(path)
    split = None
    if mesh is not None:
        line = line_of(mesh)
        split = Split(line, fitter, key)
        if path is not None and spans_processes(line):
            raise ValueError("a fit on many processes has no checkpoint: leave checkpoint= out")
    with reporting(progress) as report:
        if report:
            report.working(f"compiling: {fitter.what}")
        return _Run(fitter, key, steps, spent, path, every, resume, split).finish(report)


def paced(num_steps: int, seconds: float) -> int:
    """How many steps to take before the next look at the clock, after so many in so many seconds."""
    return max(1, min(2 * num_steps, int(num_steps * _PIECE_SECONDS / max(seconds, 1e-9))))


class _Run:
    """A fit under way; state and history are replaced together, so that half of them is never seen."""

    def __init__(self, fitter, key, steps, spent, path, every, resume, split: Split | None):
        self.fitter, self.key, self.steps, self.spent = fitter, key, steps, spent
        self.split = split
        names = fitter.record._fields
        history = {name: np.zeros(0, _DTYPES.get(name, float)) for name in names}
        self.reached: tuple[Any, History] = fitter.init(), history
        identity, seconds = "", 0.0
        if path is not None:
            identity = _checkpoint.fingerprint(fitter, key, steps)
            found = _checkpoint.read(path, identity, self.reached[0]) if resume else None
            if found is not None:
                self._require_same_start(found.history, path)
                self.reached, seconds = (found.state, found.history), found.seconds
        self.started = time.perf_counter() - seconds
        self.keeper = _checkpoint.Keeper(path, identity, self.started, self.done, every)

    @property
    def done(self) -> int:
        """Steps that were taken, or tried."""
        return len(self.reached[1]["loss"])

    def finish(self, report: Report | None) -> Fit:
        """Take the steps that are left."""
        pace, counting = 1, False
        with before_leaving(lambda: self.keeper.write(self.done, *self.reached)):
            try:
                while not self._is_over():
                    check()
                    began, done = time.perf_counter(), self.done
                    # looked at after whole chunks, whatever the pace
                    stop = min(done + pace, done - done % CHUNK + CHUNK, self.steps)
                    self._advance(done, stop)
                    pace = paced(stop - done, time.perf_counter() - began)
                    self.fitter.require_finite(self.reached[1], self.steps)
                    is_last = self.done == self.steps
                    self.keeper.write_if_due(self.done, *self.reached, is_last=is_last)
                    if report:
                        if not counting:
                            report.start(self.steps, self.fitter.what)
                            counting = True
                        report.advance(self.done, self._note())
            except KeyboardInterrupt as interrupt:
                raise self._interrupted() from interrupt
        return self.fit()

    def fit(self) -> Fit:
        """What was fitted so far."""
        state, history = self.reached
        step = self.fitter.products()
        spent = self.spent + Products(self.done * step.forward, self.done * step.transposed)
        return Fit(
            proposal=self.fitter.proposal(state),
            history=history,
            num_skipped=int(np.sum(np.logical_not(history["finite"]))),
            seconds=time.perf_counter() - self.started,
            num_matvecs=spent.total,
            num_transposed=spent.transposed,
            converged=self.done > 0 and self.fitter.has_converged(state, history),
            to_data=self.fitter.to_data,
        )

    def _is_over(self) -> bool:
        state, history = self.reached
        if self.done >= self.steps or bool(self.fitter.is_done(state)):
            return True
        is_due = self.done > 0 and self.done % CHUNK == 0
        return is_due and (
            self.fitter.has_converged(state, history) or self.fitter.has_stalled(history)
        )

    def _advance(self, done: int, stop: int) -> None:
        state, history = self.reached
        end, state, records = self._taken(state, done, stop)
        num = int(end) - done
        self.reached = (
            state,
            {
                name: np.concatenate([history[name], np.asarray(getattr(records, name))[:num]])
                for name in history
            },
        )

    def _taken(self, state: Any, start: int, stop: int) -> tuple[Any, Any, Any]:
        """Where steps `start` to `stop` have ended, the state, and what they saw."""
        if self.split is not None:
            return _shell.guarded(self.fitter, self.split.advance, state, start, stop)
        bounds = jnp.asarray(start), jnp.asarray(stop)
        steps = _steps if self.fitter.is_compiled_loop else _one_by_one
        return _shell.guarded(self.fitter, steps, self.fitter, state, self.key, *bounds)

    def _note(self) -> str:
        return self.fitter.note(self.reached[1], self.done * self.fitter.products().total)

    def _interrupted(self) -> FitInterrupted:
        error = FitInterrupted(self.fit())
        try:
            self.keeper.write(self.done, *self.reached)
        except StorageError as failure:
            error.add_note(str(failure))
        return error

    def _require_same_start(self, history: History, path: pathlib.Path) -> None:
        """The first step's loss again: what a function computes tells more than how it is written."""
        again = float(self._taken(self.reached[0], 0, 1)[2].loss[0])
        self.spent = self.spent + self.fitter.products()
        if not np.isclose(again, history["loss"][0], rtol=1e-4, atol=1e-4, equal_nan=True):
            raise StorageError(
                f"{path}: of another run (its first loss was {history['loss'][0]:.6g}, and here it is "
                f"{again:.6g}): delete it, or give this run a file of its own"
            )


@eqx.filter_jit
def _steps(fitter: AbstractFitter, state: Any, key: PRNGKeyArray, start, stop):
    """Steps `start` to `stop`, or until the fitter is done, and their records in buffers."""
    kind = fitter.record
    buffers = kind(*(jnp.zeros(CHUNK, _DTYPES.get(name, float)) for name in kind._fields))

    def going(carry):
        i, state, _ = carry
        return (i < stop) & jnp.logical_not(fitter.is_done(state))

    def body(carry):
        i, state, buffers = carry
        state, record = fitter.step(state, stream(key, "steps", i), i)
        at = i - start
        buffers = jax.tree.map(lambda b, x: b.at[at].set(x), buffers, record)
        return i + 1, state, buffers

    return jax.lax.while_loop(going, body, (start, state, buffers))


def _one_by_one(fitter: AbstractFitter, state: Any, key: PRNGKeyArray, start, stop):
    """The same from one program a step, for a fitter whose steps do not end it."""
    records = []
    for i in range(int(start), int(stop)):
        state, record = _step(fitter, state, key, jnp.asarray(i), fitter.is_due(i))
        records.append(record)
    stacked = fitter.record(*(np.asarray([r[j] for r in records]) for j in range(len(records[0]))))
    return stop, state, stacked


@eqx.filter_jit
def _step(fitter: AbstractFitter, state: Any, key: PRNGKeyArray, index, due: bool):
    return fitter.single_step(state, stream(key, "steps", index), index, due)
