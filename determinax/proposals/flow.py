"""Densities by change of variables: a uniform base, moved by a flow."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from determinax.flows.base import AbstractSphereMap, dtype_of
from determinax.flows.conditional import Given
from determinax.proposals.base import AbstractProposal, Columns, Context


class Proposal(AbstractProposal):
    r"""The law $q$ of $f(z)$ for uniform $z$, relative to the uniform measure.

    $\log q(f(z)) = -\log|\det Df(z)|$, so the uniform density is 1 and $\mathbb{E}_U[q] = 1$.

    !!! example

        ```python
        proposal = dx.Proposal(dx.flows.projective_linear(3))
        points, log_density = proposal.sample_and_log_density(key, 100)
        ```
    """

    flow: AbstractSphereMap

    def __init__(self, flow: AbstractSphereMap):
        self.flow = flow

    @property
    def n(self) -> int:
        """See `AbstractProposal`."""
        return self.flow.n

    @property
    def context_size(self) -> int:
        """See `AbstractProposal`."""
        return self.flow.context_size

    def given(self, context: Context) -> "Proposal":
        """The proposal of a conditional flow for one context."""
        return Proposal(Given(self.flow, jnp.atleast_1d(jnp.asarray(context))))

    def factor(self, context: Float[Array, " c"] | None = None) -> Any:
        r"""M, where the flow is a projective linear map $s = Mz/\|Mz\|$; None where it is not."""
        return self.flow.factor_at(context)

    def push(
        self,
        z: Float[Array, "n num"],
        key: PRNGKeyArray | None = None,
        context: Columns = None,
    ) -> tuple[Float[Array, "n num"], Float[Array, " num"]]:
        """Uniform points, moved, and the log-densities where they end. Needs no key."""
        points, log_det = self.flow.forward(*self._in_own_dtype(z, context))
        return points, -log_det

    def log_density_columns(
        self,
        points: Float[Array, "n *num"],
        context: Columns = None,
    ) -> Float[Array, "*num"]:
        """The log-density at given unit vectors, one a column."""
        return self.pull(points, context)[1]

    def pull(
        self, points: Float[Array, "n *num"], context: Columns = None
    ) -> tuple[Float[Array, "n *num"], Float[Array, "*num"]]:
        """Back through the flow: uniform points, if these follow the law, and the log-densities."""
        return self.flow.inverse(*self._in_own_dtype(points, context))

    def _in_own_dtype(self, points: Array, context: Array | None) -> tuple[Array, Array | None]:
        dtype = dtype_of(self.flow)
        return points.astype(dtype), None if context is None else context.astype(dtype)
