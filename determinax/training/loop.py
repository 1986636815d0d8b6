"""The one training loop: jitted chunks of steps, progress between them, history as arrays."""

import dataclasses
import functools
import os
import pathlib
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from determinax.flows import AbstractSphereMap, trainable
from determinax.operators import NO_PRODUCTS, Products
from determinax.progress import reporting
from determinax.proposals import Proposal
from determinax.storage import StorageError
from determinax.training.checkpoint import fingerprint
from determinax.training.checkpoint import read as read_checkpoint
from determinax.training.checkpoint import write as write_checkpoint

# a loss: flow and key -> scalar, and the batch's log-weights (target over proposal). Arrays of a
# loss that is an equinox module are arguments of the compiled step, not constants in it
Loss = Callable[[Any, PRNGKeyArray], tuple[Float[Array, ""], Float[Array, " batch"]]]

# steps between two looks at the clock; also the length of the history's buffer on the device
_CHUNK = 100
_HISTORY = {"loss": float, "effective_sample_size": float, "spread": float, "finite": bool}


@dataclasses.dataclass(frozen=True)
class Fit:
    """What training gives.

    **Fields:**

    - `proposal`: the trained density, ready to sample and to evaluate.
    - `history`: arrays with an entry a step: `loss`, `effective_sample_size` (a share of the
        batch), `spread` (standard deviation of the batch's log-weights), `finite` (False where the
        step was undone).
    - `num_skipped`: steps that were not finite and were undone.
    - `seconds`: how long it took, what came before a resumption included.
    - `num_matvecs`: products with the operator that training spent, transposed ones included;
        `num_transposed` of them. 0 where there is no operator.
    - `converged`: whether the spread fell below `tolerance`.
    """

    proposal: Proposal
    history: dict[str, np.ndarray]
    num_skipped: int
    seconds: float
    num_matvecs: int = 0
    num_transposed: int = 0
    converged: bool = False

    def __repr__(self) -> str:
        start = -max(1, len(self.history["loss"]) // 20)
        loss, ess, spread = (
            _mean(self.history, name, start) for name in ("loss", "effective_sample_size", "spread")
        )
        skipped = f", {self.num_skipped} steps undone" if self.num_skipped else ""
        products = f", {self.num_matvecs:,} products" if self.num_matvecs else ""
        return (
            f"Fit({len(self.history['loss']):,} steps in {self.seconds:.1f} s{products}, "
            f"loss {loss:.4f}, spread {spread:.2g}, effective sample size {ess:.1%}{skipped})"
        )


class State(NamedTuple):
    """What goes from step to step."""

    parameters: Any
    optimiser: Any


def train(
    loss: Loss,
    flow: AbstractSphereMap,
    *,
    key: PRNGKeyArray,
    steps: int,
    learning_rate: float | optax.Schedule = 1e-3,
    optimiser: Callable[..., optax.GradientTransformation] = optax.adam,
    tolerance: float = 0.0,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every: int = 1000,
    resume: bool = False,
    products: Products = NO_PRODUCTS,
    what: str = "training",
    progress: bool | None = None,
) -> Fit:
    """Minimise `loss` over the flow's parameters.

    Step `i` draws from `fold_in(key, i)`. A step whose loss or gradient is not finite is undone and
    counted; if none of the first hundred is finite, training stops with an error. It also stops
    once the spread of the log-weights, averaged over a hundred steps, is below `tolerance`.

    With `checkpoint`, a file is written every `checkpoint_every` steps (in hundreds), and the one
    before it is kept; with `resume`, a run that was killed goes on from there and ends with the
    very bits of one that was not. `products` are those of one step.
    """
    if steps < 1:
        raise ValueError(f"steps must be 1 or more, not {steps}")
    if resume and checkpoint is None:
        raise ValueError("resume needs the checkpoint file to resume from: pass checkpoint=")
    transform = _transform(optimiser, learning_rate)
    parameters, static = eqx.partition(flow, trainable(flow))
    state = State(parameters, transform.init(parameters))
    history = {name: np.zeros(0, dtype) for name, dtype in _HISTORY.items()}
    path = None if checkpoint is None else pathlib.Path(checkpoint)
    identity, seconds, checked = "", 0.0, 0
    if path is not None:
        rates = _schedule(learning_rate, steps)
        identity = fingerprint(
            flow, key, loss, rates, _probe(transform), tolerance, what, str(steps)
        )
        found = read_checkpoint(path, identity, state) if resume else None
        if found:
            state, history, seconds = found
            _require_same_loss(loss, flow, key, history, path)
            checked = products.total - products.transposed
    started = time.perf_counter() - seconds
    done, converged = len(history["loss"]), _has_converged(history, tolerance)
    saved = done
    with reporting(progress) as report:
        if report:
            report.start(steps, what)
        while done < steps and not converged:
            stop = min(done + _CHUNK, steps)
            bounds = jnp.asarray(done), jnp.asarray(stop)
            state, buffers = _run(loss, transform, static, state, key, *bounds)
            record = {
                name: np.asarray(b)[: stop - done]
                for name, b in zip(_HISTORY, buffers, strict=True)
            }
            history = {name: np.concatenate([history[name], record[name]]) for name in _HISTORY}
            if done == 0 and not record["finite"].any():
                raise FloatingPointError(
                    f"none of the first {stop} training steps was finite: check that the target "
                    "is finite on the whole sphere, or lower the learning rate"
                )
            done = stop
            converged = _has_converged(history, tolerance)
            if path is not None and (done - saved >= checkpoint_every or done == steps):
                write_checkpoint(path, identity, state, history, time.perf_counter() - started)
                saved = done
            if report:
                report.advance(done, _note(history, done * products.total))
    trained = Proposal(eqx.combine(state.parameters, static))
    return Fit(
        trained,
        history,
        int(np.sum(np.logical_not(history["finite"]))),
        time.perf_counter() - started,
        num_matvecs=checked + done * products.total,
        num_transposed=done * products.transposed,
        converged=converged,
    )


def require_batch(batch_size: int) -> None:
    """One sample has no spread."""
    if batch_size < 2:
        raise ValueError(f"batch_size must be 2 or more, not {batch_size}")


def _note(history, products: int) -> str:
    chunk = -_CHUNK
    # the divergence that is left, were the log-weights Gaussian: half their variance
    parts = [
        f"loss {_mean(history, 'loss', chunk):.4f}",
        f"KL gap about {_mean(history, 'spread', chunk) ** 2 / 2:.2g}",
        f"effective sample size {_mean(history, 'effective_sample_size', chunk):.0%}",
    ]
    skipped = int(np.sum(np.logical_not(history["finite"])))
    parts += [f"{products:,} products"] if products else []
    parts += [f"{skipped} steps undone"] if skipped else []
    return ", ".join(parts)


def _mean(history: dict[str, np.ndarray], name: str, start: int) -> float:
    """Over the steps from `start` on that were taken; NaN where none was."""
    taken = history["finite"][start:]
    return float(np.mean(history[name][start:], where=taken)) if taken.any() else float("nan")


def _has_converged(history: dict[str, np.ndarray], tolerance: float) -> bool:
    """Whether the spread is below the tolerance in the mean over the last chunk of steps."""
    done = len(history["spread"])
    return done > 0 and _mean(history, "spread", (done - 1) // _CHUNK * _CHUNK) < tolerance


def _schedule(learning_rate: float | optax.Schedule, steps: int) -> Any:
    """A schedule by its values, which tell it apart from another."""
    if callable(learning_rate):
        return [learning_rate(i) for i in np.linspace(0, steps, 33).astype(int)]
    return learning_rate


def _probe(transform: optax.GradientTransformation) -> Any:
    """An optimiser by what it does with one gradient, which tells it apart from another."""
    parameters = jnp.arange(1.0, 4.0)
    return transform.update(parameters**2, transform.init(parameters), parameters)[0]


def _require_same_loss(loss: Loss, flow, key, history, path: pathlib.Path) -> None:
    """The first step's loss again: functions have no fingerprint, what they return does."""
    again = np.asarray(eqx.filter_jit(loss)(flow, jax.random.fold_in(key, 0))[0])
    if not np.isclose(again, history["loss"][0], rtol=1e-4, atol=1e-4, equal_nan=True):
        raise StorageError(
            f"{path}: of another run (its first loss was {history['loss'][0]:.6g}, and here it is "
            f"{again:.6g}): delete it, or give this run a file of its own"
        )


def effective_share(log_w: Float[Array, " num"]) -> Float[Array, ""]:
    r"""$(\sum w)^2 / (N \sum w^2)$ of log-weights: 1 where all are equal."""
    w = jnp.exp(log_w - jnp.max(log_w))
    return jnp.sum(w) ** 2 / (len(w) * jnp.sum(w**2))


# one object for equal settings, so that what is compiled for it serves again
@functools.lru_cache(maxsize=32)
def _transform(optimiser: Callable, learning_rate: Any) -> optax.GradientTransformation:
    return optimiser(learning_rate)


class Step(NamedTuple):
    """What one step saw: the loss and log-weights before it, and whether it was taken."""

    loss: Float[Array, ""]
    log_w: Float[Array, " batch"]
    finite: Array


def take_step(loss: Loss, transform, static, state: State, key: PRNGKeyArray) -> tuple[State, Step]:
    """One step of the optimiser; undone where the loss or its gradient is not finite."""

    def of_parameters(parameters):
        return loss(eqx.combine(parameters, static), key)

    (value, log_w), gradient = jax.value_and_grad(of_parameters, has_aux=True)(state.parameters)
    updates, optimiser = transform.update(gradient, state.optimiser, state.parameters)
    proposed = State(optax.apply_updates(state.parameters, updates), optimiser)
    finite = jnp.isfinite(value) & jnp.isfinite(optax.tree.norm(gradient))
    kept = jax.tree.map(lambda new, old: jnp.where(finite, new, old), proposed, state)
    return kept, Step(value, log_w, finite)


@eqx.filter_jit
def _run(loss: Loss, transform, static, state: State, key: PRNGKeyArray, start, stop):
    """Steps `start` to `stop`, and their records at the beginning of buffers."""

    def body(i, carry):
        state, buffers = carry
        state, step = take_step(loss, transform, static, state, jax.random.fold_in(key, i))
        log_w = step.log_w
        record = (step.loss, effective_share(log_w), jnp.std(log_w), step.finite)
        j = i - start
        return state, tuple(b.at[j].set(x) for b, x in zip(buffers, record, strict=True))

    buffers = tuple(jnp.zeros(_CHUNK, dtype) for dtype in _HISTORY.values())
    return jax.lax.fori_loop(start, stop, body, (state, buffers))
