"""The variational determinant estimator: weights from a trained proposal."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
from jaxtyping import Array, Float, PRNGKeyArray

from determinax import _linalg, flows, sphere
from determinax._keys import stream
from determinax._linalg import log_norm
from determinax._states import WeightSums
from determinax.estimate import Bound, Estimate
from determinax.methods._base import registered
from determinax.methods._sampling import (
    MOST_ENTRIES,
    AbstractSampling,
    Directions,
    check_sampling,
    estimate_from,
    log_weights,
    spent_on,
)
from determinax.operators import Products, Traits, traits
from determinax.proposals import AbstractProposal, DefensiveMixture, Proposal, cast

# a dense operator up to this size is factorised for a lower bound without being asked
_FACTORISE = 512
_LOWER_SAMPLES = 1000


@registered("vde")
class Variational(AbstractSampling):
    r"""A frozen proposal $q$: $1/|\det A| = \mathbb{E}_q[\|As\|^{-n}/q(s)]$.

    The closer $q$ is to $q^* \propto \|As\|^{-n}$ the fewer samples are needed: one, if they are
    equal. Train $q$ with `determinax.fit`, then estimate with a fresh key. Directions that $q$
    misses make the estimate too large, and the verdict watches for them.

    **Arguments:**

    - `proposal`: a `Proposal` on the sphere of the operator's dimension.
    - `num_samples`, `directions`, `chunk_size`: as in `MonteCarlo`; frames are taken in the
        proposal's base.
    - `defensive`: the share of uniform directions mixed into $q$, which bounds the weights by
        $\max_s \|As\|^{-n}$ over it; costs one inverse of the flow a sample.
    - `solve`: $v \mapsto A^{-1}v$ of one vector, in JAX. With it (or with a dense operator up to
        n = 512, by itself) the estimate has a `lower_bound`, from up to 1000 samples of $q^*$ itself.

    Memory is that of `MonteCarlo`, and what the flow keeps for as many directions.

    !!! example

        ```python
        fit = dx.fit_linear(A, key=key)
        dx.log_abs_det(A, dx.Variational(fit.proposal, num_samples=1), key=key)
        ```

    References: Passenheim and Hoogeboom (2020), arXiv:2012.13311.
    """

    proposal: Proposal
    num_samples: int = eqx.field(static=True)
    directions: Directions = eqx.field(static=True)
    chunk_size: int | None = eqx.field(static=True)
    defensive: float = eqx.field(static=True)
    solve: Callable | None

    def __init__(
        self,
        proposal: Proposal,
        num_samples: int,
        directions: Directions = "independent",
        chunk_size: int | None = None,
        defensive: float = 0.0,
        solve: Callable | None = None,
    ):
        if not isinstance(proposal, Proposal):
            raise TypeError(
                "proposal is a Proposal, such as fit(...).proposal, "
                f"not a {type(proposal).__name__}"
            )
        if not 0 <= defensive < 1:
            raise ValueError(f"defensive is a share from 0 to below 1, not {defensive!r}")
        self.num_samples, self.directions, self.chunk_size = check_sampling(
            num_samples, directions, chunk_size
        )
        self.proposal, self.defensive, self.solve = proposal, float(defensive), solve

    @classmethod
    def from_preconditioner(
        cls,
        matvec: Callable[[Array], Array],
        log_abs_det: Any,
        *,
        n: int,
        num_samples: int = 100,
        inverse: Callable[[Array], Array] | None = None,
        **options: Any,
    ) -> "Variational":
        r"""With $M \approx A^{-1}$ that you already have: Monte Carlo on $AM$, corrected by $|\det M|$.

        **Arguments:**

        - `matvec`: $v \mapsto Mv$ of one vector of length n, in JAX.
        - `log_abs_det`: $\log|\det M|$, exactly: an error of it is an error of the estimate.
        - `inverse`: $v \mapsto M^{-1}v$, for a lower bound and for `defensive`; None: none of these.
        - `num_samples`, `options`: as above.
        """
        factor = flows.Preconditioner(matvec, log_abs_det, n, inverse)
        return cls(Proposal(flows.ProjectiveLinear(factor)), num_samples, **options)

    def require(self, operator: lx.AbstractLinearOperator, key: PRNGKeyArray | None) -> None:
        """See `AbstractMethod`."""
        super().require(operator, key)
        if self.proposal.n != operator.in_size():
            raise ValueError(
                f"the proposal lives in {self.proposal.n} dimensions and the operator takes "
                f"vectors of {operator.in_size()}: fit a proposal to this operator"
            )

    def cost(self, traits: Traits) -> Products:
        """See `AbstractMethod`."""
        lower = self._num_lower(traits) if self._has_solve(traits) else 0
        return super().cost(traits) + Products(lower)

    def prepare(
        self, operator: lx.AbstractLinearOperator, key: PRNGKeyArray | None
    ) -> Bound | None:
        """The lower bound, where solves give one."""
        t = traits(operator)
        if not self._has_solve(t):
            return None
        solve, num = self.solve or _dense_solve(operator), self._num_lower(t)
        own = stream(key, "lower bound")
        log_w = _optimal_log_weights(operator, self._sampled(t), solve, own, num)
        f = t.log_det_factor
        # of one sample there is no error
        error = (
            f * jnp.std(log_w) / (num - 1) ** 0.5 if num > 1 else jnp.full_like(log_w[0], jnp.nan)
        )
        return Bound(-f * jnp.mean(log_w), error)

    def propose(
        self, z: Float[Array, "n num"], key: PRNGKeyArray
    ) -> tuple[Float[Array, "n num"], Float[Array, " num"]]:
        """See `AbstractSampling`."""
        return self._mixed(cast(self.proposal, z.dtype)).push(z, key)

    def summarise(
        self, operator: lx.AbstractLinearOperator, prepared: Bound | None, state: WeightSums
    ) -> Estimate:
        """See `AbstractMethod`."""
        t = traits(operator)
        groups = self.groups(t)
        estimate = estimate_from(
            state,
            t,
            group_size=groups.size,
            num_tail=len(state.tail) - 1,
            is_linear=self.proposal.flow.is_linear,
            name=f"variational, {groups.num_samples:,} {self.directions}",
            cost=spent_on(state, groups.size),
        )
        if prepared is None:
            return estimate
        bounds = eqx.tree_at(
            lambda b: b.lower, estimate.bounds, prepared, is_leaf=lambda x: x is None
        )
        return estimate.replace(bounds=bounds, cost=estimate.cost + Products(self._num_lower(t)))

    def _num_lower(self, t: Traits) -> int:
        """Samples of the lower bound, all in memory at a time."""
        return min(self.num_samples, _LOWER_SAMPLES, max(2, MOST_ENTRIES // t.cols))

    def _has_solve(self, t: Traits) -> bool:
        small = t.is_dense and t.rows == t.cols <= _FACTORISE and not t.is_complex
        return self.solve is not None or (small and _has_density(self.proposal))

    def _sampled(self, t: Traits) -> AbstractProposal:
        return self._mixed(cast(self.proposal, t.dtype))

    def _mixed(self, proposal: Proposal) -> AbstractProposal:
        return DefensiveMixture(proposal, self.defensive) if self.defensive else proposal


def _has_density(proposal: Proposal) -> bool:
    """Whether the density can be evaluated at given points: not with half a preconditioner."""
    factor = getattr(proposal.flow, "factor", None)
    return not (isinstance(factor, flows.Preconditioner) and factor.inverse is None)


def _dense_solve(operator: lx.AbstractLinearOperator) -> Callable[[Array], Array]:
    """Solves with a small dense square operator, by LU."""
    matrix = operator.as_matrix()
    factors = _linalg.lu_factor(matrix)
    return lambda v: _linalg.solve(matrix, v, factors)


def _optimal_log_weights(
    operator: lx.AbstractLinearOperator,
    proposal: AbstractProposal,
    solve: Callable,
    key: PRNGKeyArray,
    num: int,
) -> Float[Array, " num"]:
    r"""Log-weights at samples $A^{-1}z/\|A^{-1}z\|$ of $q^*$: there the mean of $-\log w$ is below."""
    t = traits(operator)
    z = jax.vmap(solve, in_axes=-1, out_axes=-1)(sphere.uniform(key, t.cols, num, t.dtype))
    points = z / jnp.exp(log_norm(z))
    return log_weights(operator, points, proposal.log_density_columns(points))
