"""The host's side of a run, once for all methods: pieces, progress, checkpoints, errors in sentences.

What a method computes is the engine's; what a person sees is made here.
"""

import pathlib
import time
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
from jax.core import Tracer
from jaxtyping import PRNGKeyArray

from determinax import _checkpoint, _engine
from determinax._diagnostics import Bar, fault_sentence
from determinax._interrupts import before_leaving, check
from determinax.estimate import Estimate
from determinax.methods import AbstractMethod, Selection
from determinax.operators import NO_PRODUCTS, OperatorError, Products, host_calls, traits
from determinax.progress import Report

# Ctrl-C and the progress bar wait no longer than about this, in seconds
_PIECE = 0.25


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
    report: Report | None = None,
) -> Any:
    """Run a method on an admitted operator: traced where somebody else compiles, else in pieces."""
    if is_staged(operator, method, key, bar):
        method = method.within_jit(traits(operator))
        method.require(operator, key)
        return charged(_engine.run(method, operator, key, bar), spent)
    method.require(operator, key)
    selected = guarded(operator, method.select, operator, key, spent, report)
    notes = []
    while isinstance(selected, Selection) and selected.method is not method:
        method, operator, why, found = selected
        notes += [why] if why else []
        spent += found
        method.require(operator, key)
        selected = guarded(operator, method.select, operator, key, spent, report)
    if isinstance(selected, Estimate):
        result = selected.judged(bar)
    else:
        result = _run(operator, method, key, bar, checkpoint, resume, report)
    _raise_fault(result)
    return charged(result, spent).with_notes(*notes)


def charged(result: Any, spent: Products) -> Any:
    """The result with the products that were spent on its way."""
    return result.with_products(spent.total, spent.transposed) if spent.total else result


def _run(operator, method, key, bar: Bar, checkpoint, resume: bool, report: Report | None) -> Any:
    plan = method.plan(traits(operator))
    if plan.num_chunks + bool(plan.rest) <= 1 and checkpoint is None:
        if report:
            report.working(type(method).__name__)
        return guarded(operator, _engine.compiled_run, method, operator, key, bar)
    run = method, operator, key
    prepared, state = guarded(operator, _engine.compiled_begin, *run)
    index, identity, seconds = 0, "", 0.0
    if checkpoint is not None:
        identity = _checkpoint.fingerprint(*run)
        found = _checkpoint.read(checkpoint, identity, (np.asarray(0), state)) if resume else None
        if found is not None:
            index, state, seconds = int(found.state[0]), found.state[1], found.seconds
    started = time.perf_counter() - seconds
    keeper = _checkpoint.Keeper(checkpoint, identity, started, index)
    if report:
        report.start(plan.total, type(method).__name__)
    piece, stopped, reached = 1, False, (index, state)
    with before_leaving(lambda: keeper.write(reached[0], _stored(*reached))):
        while index < plan.num_chunks and not stopped:
            check()
            stop, began = min(index + piece, plan.num_chunks), time.perf_counter()
            # traced bounds: one program serves every piece
            bounds = jnp.asarray(index), jnp.asarray(stop)
            seen, state = guarded(
                operator, _engine.compiled_advance, *run, prepared, reached[1], *bounds, bar
            )
            stopped = bar.is_set and int(seen) < stop
            index = int(seen) if bar.is_set else stop
            if index < plan.num_chunks:
                jax.block_until_ready(state)
            reached = index, state  # together: half of it is never written
            keeper.write_if_due(index, _stored(*reached))
            if report:
                report.advance(index * plan.size)
            seconds = max(time.perf_counter() - began, 1e-9)
            piece = max(1, min(8 * piece, int(_PIECE / seconds * piece)))
    keeper.write(index, _stored(*reached))
    result = guarded(
        operator, _engine.compiled_finish, *run, prepared, reached[1], jnp.asarray(index), bar
    )
    if stopped:
        done, most = index * plan.size, plan.total
        result = result.with_notes(
            f"Stopped after {done:,} of {most:,} draws: the standard error had reached what was "
            "asked for."
        )
    return result


def _stored(index: int, state: Any) -> tuple[np.ndarray, Any]:
    return np.asarray(index), state


def _raise_fault(result: Any) -> None:
    """What went wrong with values, in its sentence."""
    fault = result.fault
    if eqx.is_array(fault.code) and int(fault.code) > 0:
        raise OperatorError(fault_sentence(jax.device_get(fault)))
