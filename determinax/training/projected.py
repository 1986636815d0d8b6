r"""The secant update projected on a structured family of M, such as diagonal or circulant ones.

Of the family's tangent vectors the update takes the one with $M^{-1}dM$ nearest to the block BFGS
step's $Z(S^{-1/2}Z^\top - S^{-1}Y^\top)$ in the Frobenius norm.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
from jax.flatten_util import ravel_pytree
from jax.scipy.sparse.linalg import cg
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from determinax import flows, sphere
from determinax._linalg import mm
from determinax.operators import Products, columns
from determinax.proposals import Proposal
from determinax.training._base import AbstractFitter, History, Record
from determinax.training.secant import (
    agree,
    change_of,
    images_of,
    no_fresh,
    products_of,
    require_finite_updates,
)

# steps of conjugate gradients for one projection
_MAX_PROJECTION = 64
# after so many updates without progress, in units of n/k, their size falls: noise of what the family
# misses averages out; and progress is a spread that falls by a tenth. n/k updates see as many directions
# as there are, and four times that leaves room for chance. Both are chosen, not measured
_FULL_STEPS, _PROGRESS = 4, 0.9


class ProjectedState(NamedTuple):
    """What goes from step to step: the family's parameters, the last log-weights, and the progress."""

    parameters: Any
    fresh: Float[Array, " fresh"]
    least: Float[Array, ""]  # spread of the fresh log-weights so far
    idle: Int[Array, ""]  # updates that did not lower it
    is_over: Bool[Array, ""]


class ProjectedFitter(AbstractFitter):
    """Projected updates until fresh log-weights agree."""

    operator: lx.AbstractLinearOperator
    transpose: lx.AbstractLinearOperator | None
    start: flows.AbstractFactor
    block_size: int = eqx.field(static=True)
    tolerance: float = eqx.field(static=True)
    what: str = eqx.field(static=True, default="projected updates")

    def init(self) -> ProjectedState:
        """See `AbstractFitter`."""
        dtype = self.operator.in_structure().dtype
        return ProjectedState(
            parameters=eqx.filter(self.start, flows.trainable(self.start)),
            fresh=no_fresh(self.block_size, dtype),
            least=jnp.full((), jnp.inf, dtype),
            idle=jnp.zeros((), jnp.int32),
            is_over=jnp.asarray(False),
        )

    def factor(self, state: ProjectedState) -> flows.AbstractFactor:
        """The factor with the parameters of a state."""
        _, fixed = eqx.partition(self.start, flows.trainable(self.start))
        return eqx.combine(state.parameters, fixed)

    def step(
        self, state: ProjectedState, key: PRNGKeyArray, index: Int[Array, ""]
    ) -> tuple[ProjectedState, Record]:
        """See `AbstractFitter`."""
        del index
        n, k = self.operator.in_size(), self.block_size
        rate = jnp.minimum(1.0, _FULL_STEPS * n / k / (state.idle + 1))
        change, log_w = self._direction(self.factor(state), key)
        theta, unravel = ravel_pytree(state.parameters)
        parameters = unravel(theta + rate.astype(theta.dtype) * change)
        fresh = jnp.concatenate([log_w, state.fresh])[: len(state.fresh)]
        spread = jnp.std(fresh)  # NaN before enough of them have come
        record = Record.of(log_w, finite=jnp.all(jnp.isfinite(change)))
        return ProjectedState(
            parameters,
            fresh,
            least=jnp.where(spread < state.least, spread, state.least),
            idle=state.idle + (spread > _PROGRESS * state.least),
            is_over=agree(fresh, self.tolerance) | ~record.finite,
        ), record

    def _direction(
        self, factor: flows.AbstractFactor, key: PRNGKeyArray
    ) -> tuple[Float[Array, " size"], Float[Array, " k"]]:
        """The projected step in the family's parameters, and the log-weights before it."""
        n, dtype = self.operator.in_size(), self.operator.in_structure().dtype
        z = sphere.frame(key, n, self.block_size, dtype)
        images = images_of(self.operator, factor.multiply(z))
        log_w = factor.log_abs_det() - n * images.log_norms
        y = None
        if self.transpose is not None:
            back = columns(self.transpose, images.scaled) / images.scale
            (y,) = jax.linear_transpose(factor.multiply, z)(back)
        parameters, fixed = eqx.partition(factor, flows.trainable(factor))
        theta, unravel = ravel_pytree(parameters)

        def relative(theta):
            moved = eqx.combine(unravel(theta), fixed)
            return factor.solve(moved.multiply(jnp.eye(n, dtype=dtype)))

        _, push = jax.linearize(relative, theta)
        pull = jax.linear_transpose(push, theta)
        (wanted,) = pull(mm(z, change_of(images, z, y)))
        step, _ = cg(lambda d: pull(push(d))[0], wanted, tol=1e-6, maxiter=_MAX_PROJECTION)
        return step, log_w

    def proposal(self, state: ProjectedState) -> Proposal:
        """See `AbstractFitter`."""
        return Proposal(flows.ProjectiveLinear(self.factor(state)))

    def products(self) -> Products:
        """See `AbstractFitter`."""
        return products_of(self.block_size, self.transpose)

    def is_done(self, state: ProjectedState) -> Bool[Array, ""]:
        """See `AbstractFitter`."""
        return state.is_over

    def has_converged(self, state: ProjectedState, history: History) -> bool:
        """See `AbstractFitter`."""
        return bool(agree(state.fresh, self.tolerance))

    def require_finite(self, history: History, steps: int) -> None:
        """See `AbstractFitter`."""
        require_finite_updates(history)
