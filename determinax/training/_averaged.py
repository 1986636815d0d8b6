"""Steps of an optimiser on any model: a running average of its weights, the best of it on held-out data."""

import abc
import time
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from determinax.flows import trainable
from determinax.training._base import AbstractFitter, History

# the average reaches back so many steps; held-out data are looked at so often
_MEMORY, EVERY = 200, 100


class AveragedRecord(NamedTuple):
    """What a step saw: the batch before its update, held-out data after it (NaN: not looked)."""

    loss: Float[Array, ""]
    held_out: Float[Array, ""]
    standard_error: Float[Array, ""]
    finite: Bool[Array, ""]


class Slope(NamedTuple):
    """What a batch says."""

    loss: Float[Array, ""]
    gradient: Any


class AveragedState(NamedTuple):
    """What goes from step to step."""

    parameters: Any
    optimiser: Any
    average: Any
    best: Any
    best_value: Float[Array, ""]


class AbstractAveragedFitter(AbstractFitter):
    """Minimises a loss; `score` on held-out data, where there are any, says which average is kept."""

    start: eqx.AbstractVar[Any]  # the model: any pytree
    optimiser: eqx.AbstractVar[optax.GradientTransformation]
    patience: eqx.AbstractVar[int | None]
    # of the clock, as an array: what is static is compiled in
    deadline: eqx.AbstractVar[np.ndarray]
    record: ClassVar[Any] = AveragedRecord

    @property
    @abc.abstractmethod
    def has_held_out(self) -> bool:
        """Whether there is anything to look at."""

    @abc.abstractmethod
    def loss(self, model: Any, key: PRNGKeyArray) -> Float[Array, ""]:
        """Of a random batch."""

    @abc.abstractmethod
    def score(self, model: Any) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """The log-likelihood of the held-out data, and its standard error."""

    def init(self) -> AveragedState:
        """See `AbstractFitter`."""
        parameters = eqx.filter(self.start, trainable(self.start))
        lowest = jnp.full((), -jnp.inf)
        return AveragedState(
            parameters, self.optimiser.init(parameters), parameters, parameters, lowest
        )

    def model(self, parameters: Any) -> Any:
        """The model with given parameters."""
        _, fixed = eqx.partition(self.start, trainable(self.start))
        return eqx.combine(parameters, fixed)

    def is_due(self, index: Any) -> Any:
        """See `AbstractFitter`: held-out data are looked at now and then."""
        return index % EVERY == EVERY - 1

    def step(
        self, state: AveragedState, key: PRNGKeyArray, index: Int[Array, ""]
    ) -> tuple[AveragedState, AveragedRecord]:
        """See `AbstractFitter`."""
        return self.single_step(state, key, index, self.is_due(index))

    def single_step(
        self,
        state: AveragedState,
        key: PRNGKeyArray,
        index: Int[Array, ""],
        due: bool | Bool[Array, ""],
    ) -> tuple[AveragedState, AveragedRecord]:
        """See `AbstractFitter`."""
        return self.moved(state, self.slope(state, key), index, due)

    def slope(self, state: AveragedState, key: PRNGKeyArray) -> Slope:
        """The loss of a random batch, and its gradient."""
        return Slope(*jax.value_and_grad(lambda p: self.loss(self.model(p), key))(state.parameters))

    def moved(
        self,
        state: AveragedState,
        slope: Slope,
        index: Int[Array, ""],
        due: bool | Bool[Array, ""],
    ) -> tuple[AveragedState, AveragedRecord]:
        """The next state; that of before where the loss or its gradient is not finite."""
        loss, gradient = slope
        updates, optimiser = self.optimiser.update(gradient, state.optimiser, state.parameters)
        parameters = optax.apply_updates(state.parameters, updates)
        # a short memory at first, else the average would begin with the start
        rate = jnp.maximum(1 / _MEMORY, 1 / (1 + index / 2)).astype(loss.dtype)
        average = jax.tree.map(lambda a, p: a + rate * (p - a), state.average, parameters)
        finite = jnp.isfinite(loss) & jnp.isfinite(optax.tree.norm(gradient))
        proposed = state._replace(parameters=parameters, optimiser=optimiser, average=average)
        kept = jax.tree.map(lambda new, old: jnp.where(finite, new, old), proposed, state)
        kept, held_out, error = self._look(kept, due)
        return kept, AveragedRecord(loss, held_out, error, finite)

    def _look(self, state: AveragedState, due: bool | Bool[Array, ""]):
        """Now and then, the average on held-out data: the best one yet is kept."""
        nan = jnp.full_like(state.best_value, jnp.nan)
        if not self.has_held_out:
            return state._replace(best=state.average), nan, nan

        def look(state):
            value, error = (a.astype(nan.dtype) for a in self.score(self.model(state.average)))
            better = value > state.best_value
            best = jax.tree.map(lambda a, b: jnp.where(better, a, b), state.average, state.best)
            top = jnp.maximum(value, state.best_value)
            return state._replace(best=best, best_value=top), value, error

        if isinstance(due, bool):
            return look(state) if due else (state, nan, nan)
        return jax.lax.cond(due, look, lambda state: (state, nan, nan), state)

    def best(self, state: AveragedState) -> Any:
        """The model of the best average, or of the last where there was no look yet."""
        is_seen = bool(jnp.isfinite(state.best_value)) or not self.has_held_out
        return self.model(state.best if is_seen else state.average)

    def has_stalled(self, history: History) -> bool:
        """See `AbstractFitter`: no new best for as long as patience lasts, or the time is up."""
        if time.perf_counter() > self.deadline:
            return True
        seen = history["held_out"]
        if self.patience is None or not np.isfinite(seen).any():
            return False
        return len(seen) - 1 - int(np.nanargmax(seen)) >= self.patience

    def require_finite(self, history: History, steps: int) -> None:
        """See `AbstractFitter`."""
        first = history["finite"][:EVERY]
        if len(first) == min(EVERY, steps) and not first.any():
            raise FloatingPointError(
                f"none of the first {len(first)} training steps was finite: lower the learning rate"
            )

    def note(self, history: History, products: int) -> str:
        """See `AbstractFitter`."""
        said = f"log-likelihood {-np.mean(history['loss'][-EVERY:]):.3f} nats"
        looks = np.flatnonzero(np.isfinite(history["held_out"]))
        if looks.size:
            value, error = (history[k][looks[-1]] for k in ("held_out", "standard_error"))
            said += f", held out {value:.3f} +- {error:.3f}"
        return said

    @property
    def to_data(self) -> bool:
        """See `AbstractFitter`."""
        return True
