"""The host's side of a run, once for all methods: pieces, progress, checkpoints, errors in sentences.

What a method computes is the engine's; what a person sees is made here.
"""

import functools
import pathlib
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
from jax.core import Tracer
from jax.sharding import Mesh
from jaxtyping import PRNGKeyArray

from determinax import _checkpoint, _devices, _engine
from determinax._checks import physical_memory, require_writable
from determinax._diagnostics import Bar, fault_sentence
from determinax._digest import digested, fingerprint
from determinax._interrupts import before_leaving, check
from determinax._keys import stream
from determinax._shapes import by_shapes
from determinax.estimate import Estimate
from determinax.methods import AbstractMethod, AbstractSelector, Plan, Selection
from determinax.operators import (
    NO_PRODUCTS,
    OperatorError,
    Products,
    compiled_columns,
    host_calls,
    neutral,
    traits,
)
from determinax.progress import Report, reporting
from determinax.storage import StorageError

# Ctrl-C and the progress bar wait no longer than about this, in seconds
_PIECE = 0.25
# multiplications in the products of a dense operator that take a tenth of that, with all around them
_SHORT = 2**22
# what two ways of summing may differ by: rounding grows with the square root of n
_ROUNDINGS = 1000
# where any of many processes may die, checkpoints come more often, in seconds
_SHARED = 5.0


def is_staged(*trees: Any) -> bool:
    """Whether somebody else is compiling: an input is traced, or even a constant would be."""
    leaves = jax.tree.leaves((trees, jnp.zeros(())))
    return any(isinstance(leaf, Tracer) for leaf in leaves)


def guarded(operator: Any, run: Callable, *args: Any) -> Any:
    """Run compiled code whose products may be the host's: what these raised is chained to a sentence."""
    calls = host_calls(operator)
    for call in calls:
        call.failure = None  # that of an earlier run is nobody's here
    try:
        return jax.block_until_ready(run(*args)) if calls else run(*args)
    except (
        Exception
    ):  # a JaxRuntimeError or a ValueError, as JAX dispatched: what a call kept tells
        for call in calls:
            if call.failure is not None:
                cause, call.failure = call.failure, None
                raise OperatorError("the operator raised while computing a product") from cause
        raise


def estimate(
    operator: lx.AbstractLinearOperator,
    method: AbstractMethod,
    key: PRNGKeyArray | None,
    *,
    bar: Bar = _engine.NO_BAR,
    spent: Products = NO_PRODUCTS,
    checkpoint: pathlib.Path | None = None,
    resume: bool = False,
    mesh: Mesh | None = None,
    trace: bool = False,
    progress: bool | None = None,
) -> Any:
    """Run a method on an admitted operator: traced where somebody else compiles, else in pieces."""
    if is_staged(operator, method, key, bar):
        method = method.within_jit(traits(operator))
        method.require(operator, key)
        method = method.traced(traits(operator)) if trace else method
        return charged(neutral(_engine.run)(method, operator, key, bar), spent)
    if checkpoint is not None and jax.process_index() == 0:
        require_writable(checkpoint)
    with reporting(progress) as report:
        result = _watched(
            operator, method, key, bar, spent, checkpoint, resume, mesh, trace, report
        )
        # the spinner turns until the last factor is there
        return jax.block_until_ready(result) if report else result


def _watched(
    operator: lx.AbstractLinearOperator,
    method: AbstractMethod,
    key: PRNGKeyArray | None,
    bar: Bar,
    spent: Products,
    checkpoint: pathlib.Path | None,
    resume: bool,
    mesh: Mesh | None,
    trace: bool,
    report: Report | None,
) -> Any:
    """Select what is to be run, run it, raise what went wrong, and charge what was spent."""
    if mesh is not None:
        _devices.require_whole(operator)
        settings = bar, trace, resume, checkpoint is not None
        _devices.require_agreement(mesh, operator, method, key, *settings)
    planned = _planned(method, operator, key, physical_memory())
    selected = guarded(operator, method.select, operator, key, spent, report)
    notes = []
    while isinstance(selected, Selection) and selected.method is not method:
        method, operator, why, found = selected
        notes += [why] if why else []
        spent += found
        planned = _planned(method, operator, key, physical_memory())
        selected = guarded(operator, method.select, operator, key, spent, report)
    if isinstance(selected, Estimate):
        result = selected.judged(bar)
    else:
        if mesh is not None and not method.can_split:
            mesh = None
            notes.append(f"{type(method).__name__} cannot be split over devices: it ran on one.")
        if trace:
            method = method.traced(traits(operator))
            planned = _planned(method, operator, key, physical_memory())
        said = " ".join(notes)  # such as what Auto reckons that this takes
        result = _in_pieces(
            operator, method, key, planned, bar, checkpoint, resume, mesh, said, report
        )
    _raise_fault(result)
    return charged(result, spent).with_notes(*notes)


class _Planned(NamedTuple):
    plan: Plan
    is_short: bool  # it ends before a person could ask how far it is


def _holds_on(trees: Any) -> bool:
    """To the host's products; or, as a selector's settings may, to arrays that do not compare."""
    method, operator, *_ = trees
    return isinstance(method, AbstractSelector) or bool(host_calls(operator))


@functools.partial(by_shapes, unless=_holds_on)
def _planned(method: AbstractMethod, operator: Any, key: Any, memory: int) -> _Planned | None:
    """What a method requires and plans are types and shapes, and room for them: asked once of each."""
    del memory
    method.require(operator, key)
    if isinstance(method, AbstractSelector):
        return None
    t = traits(operator)
    plan = method.plan(t)
    is_short = t.is_dense and method.cost(t).total * t.rows * t.cols <= _SHORT
    return _Planned(plan, is_short)


def charged(result: Any, spent: Products) -> Any:
    """The result with the products that were spent on its way."""
    return result.with_products(spent.total, spent.transposed) if spent.total else result


def _in_pieces(
    operator,
    method,
    key,
    planned,
    bar: Bar,
    checkpoint,
    resume,
    mesh,
    said: str,
    report: Report | None,
) -> Any:
    plan, is_short = planned
    if checkpoint is None and (plan.is_single or (is_short and mesh is None and not bar.is_set)):
        if report:
            report.working(said or type(method).__name__)
        return guarded(operator, _engine.compiled_run, method, operator, key, bar)
    run = method, operator, key
    prepared, state = guarded(operator, _engine.compiled_begin, *run)
    told = _NOBODY if checkpoint is None else _told(*run)
    index, seconds, spans = 0, 0.0, _devices.spans_processes(mesh)
    if spans and jax.process_index() > 0:
        checkpoint = None  # the first process writes for all, and reads for all
    if resume:
        index, state, seconds, asked = _resumed(checkpoint, told, state)
        if spans:
            index, state, seconds, asked = _devices.from_first((index, state, seconds, asked))
        index, told = int(index), told._replace(asked=int(asked))
    started = time.perf_counter() - seconds
    keeper = _checkpoint.Keeper(checkpoint, told.digest, started, index)
    if spans:
        keeper.seconds = _SHARED
    if report:
        report.start(plan.total, type(method).__name__, said)
    rounds = None if mesh is None else _devices.Rounds(mesh, *run, prepared)
    piece, stopped, reached = 1, False, (index, state)
    with before_leaving(lambda: keeper.write(reached[0], _stored(*reached), told.history)):
        while index < plan.num_chunks and not stopped:
            check()
            piece = rounds.size if rounds else piece
            stop, began = min(index + piece, plan.num_chunks), time.perf_counter()
            # traced bounds: one program serves every piece
            bounds = np.asarray(index, np.int32), np.asarray(stop, np.int32)
            if rounds:
                seen, state = guarded(operator, rounds.advance, reached[1], index, stop, bar)
            else:
                seen, state = guarded(
                    operator, _engine.compiled_advance, *run, prepared, reached[1], *bounds, bar
                )
            stopped = bar.is_set and int(seen) < stop
            index = int(seen) if bar.is_set else stop
            if index < plan.num_chunks and not rounds:
                jax.block_until_ready(state)
            reached = index, state  # together: half of it is never written
            keeper.write_if_due(index, _stored(*reached), told.history)
            if report:
                report.advance(index * plan.size, said)
            seconds = max(time.perf_counter() - began, 1e-9)
            piece = max(1, min(8 * piece, int(_PIECE / seconds * piece)))
    keeper.write(index, _stored(*reached), told.history)
    result = guarded(
        operator, _engine.compiled_finish, *run, prepared, reached[1], jnp.asarray(index), bar
    )
    return charged(result, Products(told.asked))


class _Told(NamedTuple):
    """What tells a run from others: its digest, a product where that cannot tell, how many were asked."""

    digest: str
    image: np.ndarray
    asked: int

    @property
    def history(self) -> dict[str, np.ndarray]:
        """As a checkpoint has it."""
        return {"image": self.image, "asked": np.asarray(self.asked)}


_NOBODY = _Told("", np.zeros(0), 0)


def _told(method: AbstractMethod, operator: Any, key: PRNGKeyArray | None) -> _Told:
    """Host products and functions are told apart by what they compute: a product with one vector."""
    known = digested(operator)
    digest = fingerprint(known.text, method, key)
    if known.is_exact:
        return _Told(digest, np.zeros(0), 0)
    takes = operator.in_structure()
    vector = jax.random.normal(stream(jax.random.key(0), "resume"), (*takes.shape, 1), takes.dtype)
    image = guarded(operator, compiled_columns, operator, vector)
    return _Told(digest, np.asarray(image), 1)


def _resumed(
    checkpoint: pathlib.Path | None, told: _Told, state: Any
) -> tuple[Any, Any, Any, np.ndarray]:
    """The next chunk, the state, the seconds and the products asked so far, as the checkpoint has them."""
    found = None
    if checkpoint is not None:
        found = _checkpoint.read(checkpoint, told.digest, _stored(0, state))
    if found is None:
        return np.asarray(0), state, np.asarray(0.0), np.asarray(told.asked)
    _require_same_product(told.image, found.history["image"], checkpoint)
    asked = found.history["asked"] + told.asked
    return np.asarray(found.state[0]), found.state[1], np.asarray(found.seconds), asked


def _require_same_product(now: np.ndarray, then: np.ndarray, path: pathlib.Path | None) -> None:
    """Refuse to go on with an operator whose product differs by more than threads and rounding do."""
    allowed = _ROUNDINGS * np.finfo(now.dtype).eps * np.linalg.norm(then)
    if not np.linalg.norm(now - then) <= allowed:
        raise StorageError(
            f"{path}: of another run (the operator's product with a fixed vector differs): delete it, "
            "or give this run a file of its own"
        )


def _stored(index: int, state: Any) -> tuple[np.ndarray, Any]:
    return np.asarray(index), state


def _raise_fault(result: Any) -> None:
    """What went wrong with values, in its sentence."""
    fault = result.fault
    if eqx.is_array(fault.code) and int(fault.code) > 0:
        raise OperatorError(fault_sentence(jax.device_get(fault)))
