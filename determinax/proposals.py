"""Densities on the sphere: a uniform base, moved by a flow."""

from typing import TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, DTypeLike, Float, PRNGKeyArray

from . import sphere
from .flows.base import AbstractSphereMap, dtype_of
from .flows.conditional import Given

T = TypeVar("T")


class Proposal(eqx.Module):
    r"""The law $q$ of $f(z)$ for uniform $z$, relative to the uniform measure.

    $\log q(f(z)) = -\log|\det Df(z)|$, so the uniform density is 1 and $\mathbb{E}_U[q] = 1$.
    """

    flow: AbstractSphereMap

    @property
    def n(self) -> int:
        """The dimension of the space around the sphere."""
        return self.flow.n

    def given(self, context: Float[Array, " c"]) -> "Proposal":
        """The proposal of a conditional flow for one context."""
        return Proposal(Given(self.flow, context))

    def sample_and_log_density(
        self,
        key: PRNGKeyArray,
        num: int,
        context: Float[ArrayLike, " c"] | Float[ArrayLike, "num c"] | None = None,
    ) -> tuple[Float[Array, "num n"], Float[Array, " num"]]:
        """`num` points, one a row, and their log-densities; `context` for all, or one a row."""
        points, log_density = _sample_columns(self, key, num, self._as_columns(context, num))
        return points.T, log_density

    def log_density(
        self,
        points: Float[ArrayLike, "num n"] | Float[ArrayLike, " n"],
        context: Float[ArrayLike, " c"] | Float[ArrayLike, "num c"] | None = None,
    ) -> Float[Array, " num"] | Float[Array, ""]:
        """The log-density at given unit vectors, one a row, or at one; `context` likewise.

        Lists will do. What is off the sphere by more than 1e-3 is refused, but inside of `jit`, where
        values cannot be seen.
        """
        rows = sphere.unit_rows(points, self.n)
        num = len(rows) if rows.ndim == 2 else None
        return _log_density_columns(self, rows.T, self._as_columns(context, num))

    def sample_columns(
        self,
        key: PRNGKeyArray,
        num: int,
        context: Float[Array, " c"] | Float[Array, "c num"] | None = None,
    ) -> tuple[Float[Array, "n num"], Float[Array, " num"]]:
        """Points as columns, the layout in which matrices multiply them and flows are fast."""
        z = sphere.uniform(key, self.n, num, dtype_of(self.flow))
        return self.push(z, context=context)

    def push(
        self,
        z: Float[Array, "n num"],
        key: PRNGKeyArray | None = None,
        context: Float[Array, " c"] | Float[Array, "c num"] | None = None,
    ) -> tuple[Float[Array, "n num"], Float[Array, " num"]]:
        """Uniform points, moved, and the log-densities where they end. Needs no key."""
        points, log_det = self.flow.forward(z.astype(dtype_of(self.flow)), context)
        return points, -log_det

    def log_density_columns(
        self,
        points: Float[Array, "n *num"],
        context: Float[Array, " c"] | Float[Array, "c num"] | None = None,
    ) -> Float[Array, "*num"]:
        """The log-density at given unit vectors, one a column."""
        return self.flow.inverse(points.astype(dtype_of(self.flow)), context)[1]

    def _as_columns(self, context: ArrayLike | None, num: int | None) -> Array | None:
        size = self.flow.context_size
        if context is None or size == 0:
            return None if context is None else jnp.asarray(context)
        context = jnp.asarray(context)
        if context.shape not in ((size,), (num, size)):
            many = "" if num is None else f", nor {num} of them, one a row"
            raise ValueError(
                f"a context of shape {context.shape} is not one of {size} numbers{many}"
            )
        return context.T


# compiled once for a flow and a number of points: else every call compiles the flow's layers anew
_sample_columns = eqx.filter_jit(Proposal.sample_columns)
_log_density_columns = eqx.filter_jit(Proposal.log_density_columns)


class DefensiveMixture(eqx.Module):
    r"""$(1-\alpha) q + \alpha$: a proposal mixed with a share of the uniform law.

    It is nowhere below $\alpha$, so that no weight is more than $1/\alpha$ times what the uniform law
    gives it.
    """

    proposal: Proposal
    share: float = eqx.field(static=True)

    def push(
        self, z: Float[Array, "n num"], key: PRNGKeyArray
    ) -> tuple[Float[Array, "n num"], Float[Array, " num"]]:
        """Uniform points, each moved with probability 1 - share, and their log-densities."""
        stays = jax.random.bernoulli(key, self.share, z.shape[1:])
        moved, log_q = self.proposal.push(z)
        at_rest = self.proposal.log_density_columns(z)
        points = jnp.where(stays, z.astype(moved.dtype), moved)
        return points, self._mix(jnp.where(stays, at_rest, log_q))

    def log_density_columns(self, points: Float[Array, "n *num"]) -> Float[Array, "*num"]:
        """The log-density at given unit vectors, one a column."""
        return self._mix(self.proposal.log_density_columns(points))

    def _mix(self, log_q: Array) -> Array:
        return jnp.logaddexp(jnp.log1p(-self.share) + log_q, jnp.log(self.share))


def cast(tree: T, dtype: DTypeLike) -> T:
    """A proposal, or a part of one, with its floating-point arrays in another dtype."""
    return jax.tree.map(lambda x: x.astype(dtype) if eqx.is_inexact_array(x) else x, tree)
