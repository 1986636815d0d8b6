"""The one engine: chunks in the order of their numbers. Pure; nothing here asks who is tracing.

A method says how many chunks there are, what one gives, and how two are merged; the engine loops.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
from jaxtyping import Array, Int, PRNGKeyArray

from determinax._diagnostics import Bar
from determinax.methods._base import AbstractMethod
from determinax.operators import traits

NO_BAR = Bar()


def begin(
    method: AbstractMethod, operator: lx.AbstractLinearOperator, key: PRNGKeyArray | None
) -> tuple[Any, Any]:
    """What is done once, and the state of no chunks."""
    prepared = method.prepare(operator, key)
    return prepared, method.empty(operator, prepared)


def advance(
    method: AbstractMethod,
    operator: lx.AbstractLinearOperator,
    key: PRNGKeyArray | None,
    prepared: Any,
    state: Any,
    index: Int[Array, ""] | int,
    stop: Int[Array, ""] | int,
    bar: Bar = NO_BAR,
) -> tuple[Int[Array, ""] | int, Any]:
    """Chunks `index` to `stop`, or until the standard error is within the bar.

    Bounds that are Python numbers make a scan, which has a reverse mode; traced ones a while loop.
    """
    plan = method.plan(traits(operator))
    if plan.num_chunks == 0:  # a loop traces its body even for no trips
        return index, state

    @jax.checkpoint  # backwards, a chunk is drawn anew instead of being kept
    def step(i, state):
        return merge(method, state, method.chunk(operator, prepared, key, i, plan.size), i < stop)

    if not bar.is_set:
        return stop, jax.lax.fori_loop(index, stop, step, state)

    def going(carry):
        i, state = carry
        return (i < stop) & ~is_reached(method, operator, prepared, state, i, bar)

    start = jnp.asarray(index), state
    return jax.lax.while_loop(going, lambda carry: (carry[0] + 1, step(*carry)), start)


def finish(
    method: AbstractMethod,
    operator: lx.AbstractLinearOperator,
    key: PRNGKeyArray | None,
    prepared: Any,
    state: Any,
    index: Int[Array, ""] | int,
    bar: Bar = NO_BAR,
) -> Any:
    """The last chunk, where it has a size of its own, then the estimate and its code."""
    plan = method.plan(traits(operator))

    def last(state):
        partial = method.chunk(operator, prepared, key, jnp.asarray(plan.num_chunks), plan.rest)
        return method.merge(state, partial)

    drawn = jnp.asarray(index, jnp.int32) * plan.size
    if plan.rest and bar.is_set:
        done = is_reached(method, operator, prepared, state, jnp.asarray(index), bar)
        state = jax.lax.cond(done, lambda state: state, last, state)
        drawn += jnp.where(done, 0, plan.rest)
    elif plan.rest:
        state = last(state)
    result = method.summarise(operator, prepared, state).judged(bar)
    return result.replace(drawn=drawn, num_planned=plan.total) if bar.is_set else result


def run(
    method: AbstractMethod,
    operator: lx.AbstractLinearOperator,
    key: PRNGKeyArray | None,
    bar: Bar = NO_BAR,
) -> Any:
    """All of it in one pure function: what jit, vmap, scan and grad of a user see."""
    prepared, state = begin(method, operator, key)
    num = method.plan(traits(operator)).num_chunks
    index, state = advance(method, operator, key, prepared, state, 0, num, bar)
    return finish(method, operator, key, prepared, state, index, bar)


def merge(method: AbstractMethod, state: Any, partial: Any, going: Any) -> Any:
    """A branch is a computation of its own: XLA fuses nothing across it.

    So the bits do not depend on the program around a merge: in pieces, resumed, on many devices. An
    optimisation barrier was not enough.
    """
    return jax.lax.cond(
        going, lambda state, partial: method.merge(state, partial), lambda s, _: s, state, partial
    )


def is_reached(
    method: AbstractMethod,
    operator: lx.AbstractLinearOperator,
    prepared: Any,
    state: Any,
    index: Int[Array, ""],
    bar: Bar,
) -> Array:
    """Whether the standard error is within the bar, and can be believed."""
    estimate = method.summarise(operator, prepared, state)
    value, error = jax.lax.stop_gradient((estimate.log_abs_det, estimate.standard_error))
    return (index > 0) & method.has_enough(state) & (error <= bar.at(value))


# compiled once, at module level: methods, operators and keys are arguments, never closures
compiled_begin, compiled_advance = eqx.filter_jit(begin), eqx.filter_jit(advance)
compiled_finish, compiled_run = eqx.filter_jit(finish), eqx.filter_jit(run)
