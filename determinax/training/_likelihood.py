"""Maximum likelihood of data on the sphere: what the loss and the held-out likelihood are."""

from typing import Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from determinax.flows import AbstractSphereMap
from determinax.operators import NO_PRODUCTS, Products
from determinax.proposals import Proposal
from determinax.training._averaged import (
    AbstractAveragedFitter,
    AveragedRecord,
    AveragedState,
    Slope,
)
from determinax.training._base import AbstractBatchFitter


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


class LikelihoodFitter(AbstractAveragedFitter, AbstractBatchFitter):
    """Adam on minus the mean log-density of random batches of data."""

    data: Data
    start: AbstractSphereMap
    optimiser: optax.GradientTransformation = eqx.field(static=True)
    batch_size: int = eqx.field(static=True)
    patience: int | None = eqx.field(static=True)
    deadline: np.ndarray
    what: str = eqx.field(static=True, default="fitting data")

    @property
    def has_held_out(self) -> bool:
        """See `AbstractAveragedFitter`."""
        return self.data.held_points.shape[1] > 0

    def loss(self, model: AbstractSphereMap, key: PRNGKeyArray) -> Float[Array, ""]:
        """See `AbstractAveragedFitter`."""
        data = self.data
        first, second = jax.random.split(key)
        chosen = jax.random.randint(first, (self.batch_size,), 0, data.points.shape[1])
        points = data.points[:, chosen]
        moved = points + data.noise[chosen] * jax.random.normal(second, points.shape, points.dtype)
        moved = moved / jnp.linalg.norm(moved, axis=0)
        context = None if data.context is None else data.context[:, chosen]
        log_q = Proposal(model).log_density_columns(moved, context)
        return -jnp.mean(data.shares[chosen] * log_q) / jnp.mean(data.shares)

    def part(self, state: AveragedState, key: PRNGKeyArray) -> Slope:
        """See `AbstractBatchFitter`."""
        return self.slope(state, key)

    def merged(self, parts: Slope) -> Slope:
        """See `AbstractBatchFitter`: means, since shares are over their mean in all of the data."""
        return jax.tree.map(lambda x: jnp.mean(x, axis=0), parts)

    def updated(
        self, state: AveragedState, part: Slope, index: Int[Array, ""]
    ) -> tuple[AveragedState, AveragedRecord]:
        """See `AbstractBatchFitter`."""
        return self.moved(state, part, index, self.is_due(index))

    def score(self, model: AbstractSphereMap) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """See `AbstractAveragedFitter`."""
        return self.data.mean(Proposal(model), "held_out")

    def proposal(self, state: AveragedState) -> Proposal:
        """See `AbstractFitter`."""
        return Proposal(self.best(state))

    def products(self) -> Products:
        """See `AbstractFitter`."""
        return NO_PRODUCTS
