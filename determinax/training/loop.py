"""The one training loop: jitted chunks of steps, progress between them, history as arrays."""

import dataclasses
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
from determinax.progress import reporting
from determinax.proposals import Proposal

# a loss: flow and key -> scalar, and the batch's log-weights (target over proposal)
Loss = Callable[[Any, PRNGKeyArray], tuple[Float[Array, ""], Float[Array, " batch"]]]

# steps between two looks at the clock; also the length of the history's buffer on the device
_CHUNK = 100


@dataclasses.dataclass(frozen=True)
class Fit:
    """What training gives.

    **Fields:**

    - `proposal`: the trained density, ready to sample and to evaluate.
    - `history`: arrays with an entry a step: `loss`, `effective_sample_size` (a share of the batch),
        `finite` (False where the step was undone).
    - `num_skipped`: steps that were not finite and were undone.
    - `seconds`: how long it took.
    - `num_matvecs`: products with the operator, transposed ones included; `num_transposed` of them
        with its transpose. 0 where no operator was involved.
    """

    proposal: Proposal
    history: dict[str, np.ndarray]
    num_skipped: int
    seconds: float
    num_matvecs: int = 0
    num_transposed: int = 0

    def __repr__(self) -> str:
        loss = self.history["loss"]
        last = np.mean(loss[-max(1, len(loss) // 20) :])
        ess = np.mean(self.history["effective_sample_size"][-max(1, len(loss) // 20) :])
        skipped = f", {self.num_skipped} steps undone" if self.num_skipped else ""
        return (
            f"Fit({len(loss):,} steps in {self.seconds:.1f} s, loss {last:.4f}, "
            f"effective sample size {ess:.1%}{skipped})"
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
    what: str = "training",
    progress: bool | None = None,
) -> Fit:
    """Minimise `loss` over the flow's parameters.

    Step `i` draws from `fold_in(key, i)`. A step whose loss or gradient is not finite is undone and
    counted; if none of the first hundred is finite, training stops with an error.
    """
    if steps < 1:
        raise ValueError(f"steps must be 1 or more, not {steps}")
    transform = optimiser(learning_rate)
    parameters, static = eqx.partition(flow, trainable(flow))
    run = _compile(loss, transform, static)
    state = State(parameters, transform.init(parameters))
    records: list[tuple[np.ndarray, ...]] = []
    started, done = time.perf_counter(), 0
    with reporting(progress) as report:
        if report:
            report.start(steps, what)
        while done < steps:
            stop = min(done + _CHUNK, steps)
            state, *buffers = run(state, key, jnp.asarray(done), jnp.asarray(stop))
            record = tuple(np.asarray(b)[: stop - done] for b in buffers)
            records.append(record)
            if done == 0 and not record[2].any():
                raise FloatingPointError(
                    f"none of the first {stop} training steps was finite: check that the target "
                    "is finite on the whole sphere, or lower the learning rate"
                )
            done = stop
            if report:
                note = f"loss {record[0][-1]:.4f}, effective sample size {record[1][-1]:.0%}"
                report.advance(done, note)
    losses, sizes, finite = (np.concatenate(parts) for parts in zip(*records, strict=True))
    history = {"loss": losses, "effective_sample_size": sizes, "finite": finite}
    trained = Proposal(eqx.combine(state.parameters, static))
    seconds = time.perf_counter() - started
    return Fit(trained, history, int(np.sum(~finite)), seconds)


def effective_share(log_w: Float[Array, " num"]) -> Float[Array, ""]:
    r"""$(\sum w)^2 / (N \sum w^2)$ of log-weights: 1 where all are equal."""
    w = jnp.exp(log_w - jnp.max(log_w))
    return jnp.sum(w) ** 2 / (len(w) * jnp.sum(w**2))


def _compile(loss: Loss, transform: optax.GradientTransformation, static: Any):
    def step(state: State, key: PRNGKeyArray):
        def of_parameters(parameters):
            return loss(eqx.combine(parameters, static), key)

        (value, log_w), gradient = jax.value_and_grad(of_parameters, has_aux=True)(state.parameters)
        updates, optimiser = transform.update(gradient, state.optimiser, state.parameters)
        proposed = State(optax.apply_updates(state.parameters, updates), optimiser)
        finite = jnp.isfinite(value) & jnp.isfinite(optax.tree.norm(gradient))
        kept = jax.tree.map(lambda new, old: jnp.where(finite, new, old), proposed, state)
        return kept, value, effective_share(log_w), finite

    @jax.jit
    def run(state: State, key: PRNGKeyArray, start, stop):
        def body(i, carry):
            state, losses, sizes, finite = carry
            state, value, size, good = step(state, jax.random.fold_in(key, i))
            j = i - start
            return state, losses.at[j].set(value), sizes.at[j].set(size), finite.at[j].set(good)

        buffer = jnp.zeros(_CHUNK)
        flags = jnp.zeros(_CHUNK, bool)
        return jax.lax.fori_loop(start, stop, body, (state, buffer, buffer, flags))

    return run
