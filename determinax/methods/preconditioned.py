r"""Monte Carlo on $AM$ for a known M near $A^{-1}$, corrected by its determinant."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import lineax as lx
from jaxtyping import Array, Float, Int, PRNGKeyArray

from determinax import flows
from determinax.estimate import Estimate
from determinax.methods._base import AbstractMethod, Plan
from determinax.operators import PreconditionedLinearOperator, Products, Traits


class Preconditioned(AbstractMethod):
    r"""$\log|\det A| = \log|\det AM| - \log|\det M|$, the first by another method.

    **Arguments:**

    - `factor`: M, one of `determinax.flows`' factors.
    - `method`: for $AM$; one that needs no transpose.
    - `error`: how far rounding in M may move the result, in nats.
    """

    factor: flows.AbstractFactor
    method: AbstractMethod
    error: Float[Array, ""]
    name: str = eqx.field(static=True, default="preconditioned")

    def plan(self, traits: Traits) -> Plan:
        """See `AbstractMethod`."""
        return self.method.plan(_plain(traits))

    def cost(self, traits: Traits) -> Products:
        """See `AbstractMethod`."""
        return self.method.cost(_plain(traits))

    def require(self, operator: lx.AbstractLinearOperator, key: PRNGKeyArray | None) -> None:
        """See `AbstractMethod`."""
        self.method.require(self._combined(operator), key)

    def _combined(self, operator: lx.AbstractLinearOperator) -> PreconditionedLinearOperator:
        return PreconditionedLinearOperator(operator, self.factor.multiply)

    def prepare(self, operator: lx.AbstractLinearOperator, key: PRNGKeyArray | None) -> Any:
        """See `AbstractMethod`."""
        return self.method.prepare(self._combined(operator), key)

    def empty(self, operator: lx.AbstractLinearOperator, prepared: Any) -> Any:
        """See `AbstractMethod`."""
        return self.method.empty(self._combined(operator), prepared)

    def chunk(
        self,
        operator: lx.AbstractLinearOperator,
        prepared: Any,
        key: PRNGKeyArray | None,
        index: Int[Array, ""],
        size: int,
    ) -> Any:
        """See `AbstractMethod`."""
        return self.method.chunk(self._combined(operator), prepared, key, index, size)

    def merge(self, state: Any, partial: Any) -> Any:
        """See `AbstractMethod`."""
        return self.method.merge(state, partial)

    def traced(self, traits: Traits) -> AbstractMethod:
        """See `AbstractMethod`."""
        return eqx.tree_at(lambda m: m.method, self, self.method.traced(_plain(traits)))

    def has_enough(self, state: Any) -> Any:
        """See `AbstractMethod`."""
        return self.method.has_enough(state)

    @property
    def can_split(self) -> bool:
        """See `AbstractMethod`."""
        return self.method.can_split

    def summarise(self, operator: lx.AbstractLinearOperator, prepared: Any, state: Any) -> Estimate:
        """See `AbstractMethod`."""
        estimate = self.method.summarise(self._combined(operator), prepared, state)
        moved = estimate.moved(-self.factor.log_abs_det(), error=jnp.asarray(self.error))
        return moved.replace(method=self.name)


def _plain(t: Traits) -> Traits:
    return t._replace(sign=0, is_dense=False, has_pattern=False, has_transpose=False)
