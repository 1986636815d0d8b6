"""Steps of maximum likelihood: a running average of the weights, and the best of it on held-out points."""

import time
from typing import Any, ClassVar, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from determinax.flows import AbstractSphereMap, trainable
from determinax.operators import NO_PRODUCTS, Products
from determinax.proposals import Proposal
from determinax.training._base import AbstractFitter, History

# the average reaches back so many steps; the held-out likelihood is looked at so often
_MEMORY, EVERY = 200, 100


class Data(NamedTuple):
    """Points as columns, with what belongs to them: fitted to, and held out."""

    points: Float[Array, "n num"]
    context: Float[Array, "c num"] | None
    shares: Float[Array, " num"]
    noise: Float[Array, " num"]
    held_points: Float[Array, "n held"]
    held_context: Float[Array, "c held"] | None
    held_shares: Float[Array, " held"]

    def mean(
        self, proposal: Proposal, part: Literal["train", "held_out"]
    ) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """The mean log-density of one part and its standard error."""
        if part == "train":
            return _mean_and_error(proposal, self.points, self.context, self.shares)
        return _mean_and_error(proposal, self.held_points, self.held_context, self.held_shares)


@eqx.filter_jit
def _mean_and_error(proposal, points, context, shares):
    log_q = proposal.log_density_columns(points, context)
    shares = shares / jnp.sum(shares)
    mean = shares @ log_q
    return mean, jnp.sqrt(jnp.sum((shares * (log_q - mean)) ** 2))


class LikelihoodRecord(NamedTuple):
    """What a step saw: minus the mean log-density of its batch, and now and then of held-out points."""

    loss: Float[Array, ""]
    held_out: Float[Array, ""]
    standard_error: Float[Array, ""]
    finite: Bool[Array, ""]


class LikelihoodState(NamedTuple):
    """What goes from step to step."""

    parameters: Any
    optimiser: Any
    average: Any
    best: Any
    best_value: Float[Array, ""]


class LikelihoodFitter(AbstractFitter):
    """Adam on minus the mean log-density of random batches of data."""

    data: Data
    start: AbstractSphereMap
    optimiser: optax.GradientTransformation = eqx.field(static=True)
    batch_size: int = eqx.field(static=True)
    patience: int | None = eqx.field(static=True)
    # of the clock, as an array: what is static is compiled in
    deadline: np.ndarray
    what: str = eqx.field(static=True, default="fitting data")
    record: ClassVar[Any] = LikelihoodRecord

    def init(self) -> LikelihoodState:
        """See `AbstractFitter`."""
        parameters = eqx.filter(self.start, trainable(self.start))
        lowest = jnp.full((), -jnp.inf, self.data.points.dtype)
        return LikelihoodState(
            parameters, self.optimiser.init(parameters), parameters, parameters, lowest
        )

    def flow(self, parameters: Any) -> AbstractSphereMap:
        """The flow with given parameters."""
        _, fixed = eqx.partition(self.start, trainable(self.start))
        return eqx.combine(parameters, fixed)

    def step(
        self, state: LikelihoodState, key: PRNGKeyArray, index: Int[Array, ""]
    ) -> tuple[LikelihoodState, LikelihoodRecord]:
        """See `AbstractFitter`: undone where the loss or its gradient is not finite."""
        loss, gradient = jax.value_and_grad(self._loss)(state.parameters, key)
        updates, optimiser = self.optimiser.update(gradient, state.optimiser, state.parameters)
        parameters = optax.apply_updates(state.parameters, updates)
        # a short memory at first, else the average would begin with the start
        rate = jnp.maximum(1 / _MEMORY, 1 / (1 + index / 2)).astype(loss.dtype)
        average = jax.tree.map(lambda a, p: a + rate * (p - a), state.average, parameters)
        finite = jnp.isfinite(loss) & jnp.isfinite(optax.tree.norm(gradient))
        proposed = state._replace(parameters=parameters, optimiser=optimiser, average=average)
        kept = jax.tree.map(lambda new, old: jnp.where(finite, new, old), proposed, state)
        kept, held_out, error = self._look(kept, index)
        return kept, LikelihoodRecord(loss, held_out, error, finite)

    def _loss(self, parameters: Any, key: PRNGKeyArray) -> Float[Array, ""]:
        data = self.data
        first, second = jax.random.split(key)
        chosen = jax.random.randint(first, (self.batch_size,), 0, data.points.shape[1])
        points = data.points[:, chosen]
        moved = points + data.noise[chosen] * jax.random.normal(second, points.shape, points.dtype)
        moved = moved / jnp.linalg.norm(moved, axis=0)
        context = None if data.context is None else data.context[:, chosen]
        log_q = Proposal(self.flow(parameters)).log_density_columns(moved, context)
        return -jnp.mean(data.shares[chosen] * log_q) / jnp.mean(data.shares)

    def _look(self, state: LikelihoodState, index: Int[Array, ""]):
        """Now and then, the average on held-out points: the best one yet is kept."""
        nan = jnp.full((), jnp.nan, state.best_value.dtype)
        if self.data.held_points.shape[1] == 0:
            return state._replace(best=state.average), nan, nan

        def look(state):
            value, error = self.data.mean(Proposal(self.flow(state.average)), "held_out")
            better = value > state.best_value
            best = jax.tree.map(lambda a, b: jnp.where(better, a, b), state.average, state.best)
            top = jnp.maximum(value, state.best_value)
            return state._replace(best=best, best_value=top), value, error

        return jax.lax.cond(
            index % EVERY == EVERY - 1, look, lambda state: (state, nan, nan), state
        )

    def proposal(self, state: LikelihoodState) -> Proposal:
        """See `AbstractFitter`: the best average, or the last where there was no look yet."""
        is_seen = bool(jnp.isfinite(state.best_value)) or self.data.held_points.shape[1] == 0
        return Proposal(self.flow(state.best if is_seen else state.average))

    def products(self) -> Products:
        """See `AbstractFitter`."""
        return NO_PRODUCTS

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
