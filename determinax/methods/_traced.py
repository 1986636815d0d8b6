"""A method that keeps a trace beside its state: what `trace=True` runs."""

import abc
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
from jaxtyping import Array, Float, Int, PRNGKeyArray

from determinax._trace import NUM_POINTS, NUM_TAIL, Histogram, Points, Trace
from determinax.estimate import Estimate
from determinax.methods._base import AbstractMethod, Plan
from determinax.operators import Products, Traits, traits


class TracedState(eqx.Module):
    """The method's own state, and the trace of its draws."""

    own: Any
    points: Points
    histogram: Histogram

    def merge(self, other: "TracedState") -> "TracedState":
        """Of the draws of both."""
        return TracedState(
            self.own.merge(other.own),
            self.points.merge(other.points),
            self.histogram.merge(other.histogram),
        )


class AbstractDrawing(AbstractMethod):
    """A method whose chunks are draws: what it averages, or (with `logs`) the logarithms of that."""

    logs: ClassVar[bool]

    @abc.abstractmethod
    def chunk_and_draws(
        self,
        operator: lx.AbstractLinearOperator,
        prepared: Any,
        key: PRNGKeyArray | None,
        index: Int[Array, ""],
        size: int,
    ) -> tuple[Any, Float[Array, "groups size"]]:
        """The state of a chunk, and its draws: a row for every unit of the plan."""

    def chunk(
        self,
        operator: lx.AbstractLinearOperator,
        prepared: Any,
        key: PRNGKeyArray | None,
        index: Int[Array, ""],
        size: int,
    ) -> Any:
        """See `AbstractMethod`."""
        return self.chunk_and_draws(operator, prepared, key, index, size)[0]

    def traced(self, traits: Traits) -> AbstractMethod:
        """See `AbstractMethod`."""
        del traits
        return Traced(self)


class Traced(AbstractMethod):
    """The same run and the same result, with a `Trace`."""

    method: AbstractDrawing

    def plan(self, traits: Traits) -> Plan:
        """See `AbstractMethod`."""
        return self.method.plan(traits)

    def cost(self, traits: Traits) -> Products:
        """See `AbstractMethod`."""
        return self.method.cost(traits)

    def require(self, operator: lx.AbstractLinearOperator, key: PRNGKeyArray | None) -> None:
        """See `AbstractMethod`."""
        self.method.require(operator, key)

    def prepare(self, operator: lx.AbstractLinearOperator, key: PRNGKeyArray | None) -> Any:
        """See `AbstractMethod`."""
        return self.method.prepare(operator, key)

    def has_enough(self, state: TracedState) -> Any:
        """See `AbstractMethod`."""
        return self.method.has_enough(state.own)

    def empty(self, operator: lx.AbstractLinearOperator, prepared: Any) -> TracedState:
        """See `AbstractMethod`."""
        own, dtype = self.method.empty(operator, prepared), self._dtype(traits(operator))
        points = Points.empty(dtype, logs=self.method.logs)
        return TracedState(own, points, Histogram.empty(dtype))

    def chunk(
        self,
        operator: lx.AbstractLinearOperator,
        prepared: Any,
        key: PRNGKeyArray | None,
        index: Int[Array, ""],
        size: int,
    ) -> TracedState:
        """See `AbstractMethod`."""
        own, draws = self.method.chunk_and_draws(operator, prepared, key, index, size)
        # the barrier: the sums of the method are compiled as if nobody else read its draws
        draws = jax.lax.optimization_barrier(jax.lax.stop_gradient(draws))
        plan = self.plan(traits(operator))
        number = index * plan.size + jnp.arange(size)
        # in floating point: the product of two counts may not fit into 32 bits
        slots = (number.astype(draws.dtype) * (NUM_POINTS / plan.total)).astype(jnp.int32)
        of_unit = _mean(draws, self.method.logs)
        points = Points.of(of_unit, jnp.clip(slots, 0, NUM_POINTS - 1), logs=self.method.logs)
        return TracedState(own, points, Histogram.of(draws.reshape(-1)))

    def summarise(
        self, operator: lx.AbstractLinearOperator, prepared: Any, state: TracedState
    ) -> Estimate:
        """See `AbstractMethod`."""
        t = traits(operator)
        estimate = self.method.summarise(operator, prepared, state.own)
        tail = getattr(state.own, "tail", jnp.zeros(0, jnp.float32))
        trace = Trace(
            state.points,
            state.histogram,
            jax.lax.optimization_barrier(tail)[:NUM_TAIL],
            logs=self.method.logs,
            factor=t.log_det_factor,
            products_per_draw=self.cost(t).total / max(self.plan(t).total, 1),
        )
        return estimate.replace(trace=trace)

    def _dtype(self, t: Traits) -> Any:
        return t.dtype if self.method.logs else jnp.result_type(float)


def _mean(draws: Float[Array, "groups size"], logs: bool) -> Float[Array, " groups"]:
    """Of every row; of logarithms, that of what they are of."""
    size = draws.shape[1]
    if size == 1:
        return draws[:, 0]
    if logs:
        return jax.nn.logsumexp(draws, axis=1) - jnp.log(float(size)).astype(draws.dtype)
    return jnp.mean(draws, axis=1)
