"""Mixtures of densities: stacks, ensembles of flows, a share of the uniform law as a defence."""

from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray

from determinax import sphere
from determinax._checks import real_numbers
from determinax._keys import stream
from determinax.proposals.base import AbstractProposal, Columns, Context
from determinax.proposals.uniform import Uniform

_MOST_ROUNDS = 5000


class Mixture(AbstractProposal):
    r"""$\sum_k w_k q_k$ of any densities on one sphere; an ensemble of flows is one, too.

    **Arguments:**

    - `proposals`: the densities; those with a context get the mixture's.
    - `weights`: not negative, scaled to the sum 1; equal by default. Gradients train them, and
        `with_fitted_weights` finds the best for points that were held out.

    !!! example

        ```python
        q = dx.Mixture([dx.Uniform(3), dx.kernels(points)], [0.1, 0.9])
        q = q.with_fitted_weights(points)
        ```
    """

    proposals: tuple[AbstractProposal, ...]
    log_weights: Float[Array, " num"]

    def __init__(
        self,
        proposals: Sequence[AbstractProposal],
        weights: Float[ArrayLike, " num"] | Sequence[float] | None = None,
    ):
        if not isinstance(proposals, Iterable):
            raise TypeError(
                f"a mixture is of a list of densities, not of a {type(proposals).__name__}"
            )
        self.proposals = tuple(proposals)
        for q in self.proposals:
            if not isinstance(q, AbstractProposal):
                raise TypeError(
                    f"a mixture is of densities, such as Proposal(flow) or dx.density(...).proposal, not "
                    f"of a {type(q).__name__}"
                )
        if not self.proposals:
            raise ValueError("a mixture needs at least one density")
        if len({q.n for q in self.proposals}) > 1:
            raise ValueError(
                f"densities in different dimensions {[q.n for q in self.proposals]} do not mix"
            )
        if len({q.context_size for q in self.proposals} - {0}) > 1:
            raise ValueError("densities whose contexts have different sizes do not mix")
        self.log_weights = _log_weights(weights, len(self.proposals))

    @property
    def n(self) -> int:
        """See `AbstractProposal`."""
        return self.proposals[0].n

    @property
    def context_size(self) -> int:
        """See `AbstractProposal`."""
        return max(q.context_size for q in self.proposals)

    @property
    def weights(self) -> Float[Array, " num"]:
        """The shares, which sum to 1."""
        return jax.nn.softmax(self.log_weights)

    def given(self, context: Context) -> "Mixture":
        """The mixture for one context, which every density that has one is given."""
        if not self.context_size:
            raise ValueError("this density takes no context: ask it as it is")
        parts = [q.given(context) if q.context_size else q for q in self.proposals]
        return Mixture(parts, self.weights)

    def push(
        self,
        z: Float[Array, "n num"],
        key: PRNGKeyArray | None = None,
        context: Columns = None,
    ) -> tuple[Float[Array, "n num"], Float[Array, " num"]]:
        """See `AbstractProposal`: every point goes with one of the densities."""
        if key is None:
            raise ValueError("a mixture draws its parts from a key: pass one")
        which = jax.random.categorical(stream(key, "part"), self.log_weights, shape=z.shape[1:])
        points = z
        for k, q in enumerate(self.proposals):
            moved, _ = q.push(z, stream(key, "within", k), _for(q, context))
            points = jnp.where(which == k, moved.astype(z.dtype), points)
        return points, self.log_density_columns(points, context)

    def log_density_columns(
        self, points: Float[Array, "n *num"], context: Columns = None
    ) -> Float[Array, "*num"]:
        """See `AbstractProposal`."""
        parts = [q.log_density_columns(points, _for(q, context)) for q in self.proposals]
        parts = jnp.stack(jnp.broadcast_arrays(*parts))
        log_w = jax.nn.log_softmax(self.log_weights).astype(parts.dtype)
        return jax.nn.logsumexp(parts + log_w.reshape(-1, *[1] * (parts.ndim - 1)), axis=0)

    def with_fitted_weights(
        self, points: Float[ArrayLike, "num n"], context: Context = None
    ) -> "Mixture":
        """The mixture whose weights are the likeliest for given points, which nothing was fitted to."""
        rows = sphere.unit_matrix(points)
        parts = np.stack(
            [np.asarray(q.log_density(rows, _for(q, context)), float) for q in self.proposals]
        )
        return Mixture(self.proposals, fitted_weights(parts))


def DefensiveMixture(proposal: AbstractProposal, share: float) -> Mixture:
    r"""$(1-\alpha) q + \alpha$: a density mixed with a share of the uniform law.

    It is nowhere below $\alpha$, so that no weight is more than $1/\alpha$ times what the uniform law
    gives it.
    """
    return Mixture([proposal, Uniform(proposal.n)], [1 - share, share])


def fitted_weights(
    log_densities: Float[np.ndarray, "parts num"],
    counts: Float[np.ndarray, " num"] | None = None,
    tolerance: float = 1e-7,
) -> Float[np.ndarray, " parts"]:
    """The likeliest weights of a mixture, by expectation-maximisation.

    From log-densities of its parts at points that they were not fitted to; `counts` weigh the points.
    It ends where no weight could raise the mean log-density by more than `tolerance`: the gradient
    says so, as the likelihood of weights has one top.
    """
    parts = np.asarray(log_densities, float)
    # over the largest of each point, so that nothing overflows
    relative = np.exp(parts - parts.max(axis=0))
    shares = np.full(parts.shape[1], 1.0) if counts is None else np.asarray(counts, float)
    shares = shares / shares.sum()
    weights = np.full(len(parts), 1 / len(parts))
    for _ in range(_MOST_ROUNDS):
        gain = relative @ (shares / (weights @ relative))
        weights = weights * gain
        if gain.max() < 1 + tolerance:
            break
    return weights / weights.sum()


def _log_weights(weights: Any, num: int) -> Array:
    w = np.full(num, 1.0)
    if weights is not None:
        w = real_numbers(weights, f"weights are {num} numbers, one a density")
    if w.shape != (num,) or not np.isfinite(w).all() or (w < 0).any() or not w.sum() > 0:
        raise ValueError(f"weights are {num} numbers, one a density, none negative, not all 0")
    with np.errstate(divide="ignore"):
        return jnp.asarray(np.log(w / w.sum()), jnp.result_type(float))


def _for(q: AbstractProposal, context: Any) -> Any:
    return context if q.context_size else None
