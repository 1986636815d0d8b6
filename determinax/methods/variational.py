"""The variational determinant estimator: weights from a trained proposal."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import lineax as lx
from jaxtyping import Array, Float, PRNGKeyArray

from determinax import flows, sphere, weights
from determinax import operators as ops
from determinax.estimate import Estimate
from determinax.methods.base import AbstractMethod, require_key
from determinax.methods.monte_carlo import check_sampling, sample
from determinax.operators import NO_PRODUCTS, Products
from determinax.progress import Report
from determinax.proposals import DefensiveMixture, Proposal

# a dense operator up to this size is factorised for a lower bound without being asked
_FACTORISE = 512
_LOWER_SAMPLES = 1000


@dataclasses.dataclass(frozen=True, eq=False)
class Variational(AbstractMethod):
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
        n = 512, by itself) the estimate has a `lower_bound`, from samples of $q^*$ itself.

    References: Passenheim and Hoogeboom (2020), arXiv:2012.13311.
    """

    proposal: Proposal
    num_samples: int
    directions: weights.Directions = "independent"
    chunk_size: int | None = None
    defensive: float = 0.0
    solve: Callable | None = None

    def __post_init__(self):
        if not isinstance(self.proposal, Proposal):
            raise TypeError(
                "proposal is a Proposal, such as fit(...).proposal, "
                f"not a {type(self.proposal).__name__}"
            )
        if not 0 <= self.defensive < 1:
            raise ValueError(f"defensive is a share from 0 to below 1, not {self.defensive!r}")
        check_sampling(self)

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

    def estimate(
        self,
        operator: lx.AbstractLinearOperator,
        key: PRNGKeyArray | None,
        *,
        spent: Products = NO_PRODUCTS,
        progress: Report | None = None,
    ) -> Estimate:
        """Stream the weights of the proposal and sum them up."""
        proposal = self.sampled(operator)
        main_key, lower_key = self.keys(key)
        solve = self.solve or (_dense_solve(operator) if _has_density(self.proposal) else None)
        lower = {}
        if solve is not None:
            num = min(self.num_samples, _LOWER_SAMPLES)
            log_w = _optimal_log_weights(operator, proposal, solve, lower_key, num)
            spent += Products(num)
            factor = ops.log_det_factor(operator)
            lower = {
                "lower_bound": -factor * jnp.mean(log_w),
                # of one sample there is none
                "lower_bound_standard_error": factor * jnp.std(log_w) / (num - 1) ** 0.5
                if num > 1
                else jnp.full((), jnp.nan, log_w.dtype),
            }
        estimate = sample(
            operator,
            main_key,
            self,
            name="variational",
            proposal=proposal,
            spent=spent,
            progress=progress,
        )
        is_linear = isinstance(getattr(self.proposal, "flow", None), flows.ProjectiveLinear)
        return dataclasses.replace(estimate, is_linear=is_linear, **lower)

    def sampled(self, operator: lx.AbstractLinearOperator) -> Proposal | DefensiveMixture:
        """What directions are drawn from, seen to be of the operator's dimension."""
        if self.proposal.n != operator.in_size():
            raise ValueError(
                f"the proposal lives in {self.proposal.n} dimensions and the operator takes "
                f"vectors of {operator.in_size()}: fit a proposal to this operator"
            )
        return DefensiveMixture(self.proposal, self.defensive) if self.defensive else self.proposal

    @staticmethod
    def keys(key: PRNGKeyArray | None) -> tuple[PRNGKeyArray, PRNGKeyArray]:
        """The key of the weights, and that of the lower bound."""
        first, second = jax.random.split(require_key(key, "Variational"))
        return first, second


def _has_density(proposal: Proposal) -> bool:
    """Whether the density can be evaluated at given points: not with half a preconditioner."""
    factor = getattr(proposal.flow, "factor", None)
    return not (isinstance(factor, flows.Preconditioner) and factor.inverse is None)


def _dense_solve(operator: lx.AbstractLinearOperator) -> Callable | None:
    """Solves with a small dense square operator, by LU; None for any other."""
    small = isinstance(operator, lx.MatrixLinearOperator) and operator.in_size() <= _FACTORISE
    if not small or operator.in_size() != operator.out_size():
        return None
    factors = jax.scipy.linalg.lu_factor(operator.as_matrix())
    return lambda v: jax.scipy.linalg.lu_solve(factors, v)


def _optimal_log_weights(
    operator: lx.AbstractLinearOperator,
    proposal: Proposal | DefensiveMixture,
    solve: Callable,
    key: PRNGKeyArray,
    num: int,
) -> Float[Array, " num"]:
    r"""Log-weights at samples $A^{-1}z/\|A^{-1}z\|$ of $q^*$: there the mean of $-\log w$ is below."""
    n, dtype = operator.in_size(), operator.in_structure().dtype
    z = jax.vmap(solve, in_axes=-1, out_axes=-1)(sphere.uniform(key, n, num, dtype))
    points = z / jnp.exp(weights.log_norm(z))
    return weights.log_weights(operator, points, proposal.log_density_columns(points))
