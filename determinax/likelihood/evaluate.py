"""log p(x) of an encoder and a decoder, with a bound from either side; or of an encoder alone."""

import math
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy  # whose special functions load when they are used
from jax.core import Tracer
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from determinax import sphere
from determinax._checks import positive_number, require_key, whole_number
from determinax._interrupts import heeded
from determinax._keys import stream
from determinax._linalg import log_norm, lu_factor
from determinax._states import sums_of, tail_and_batch
from determinax.estimate import Bound, Bounds, Estimate
from determinax.flows import Transpose
from determinax.jacobians import require_points
from determinax.likelihood._inverse import solved, transposed_solve
from determinax.likelihood.estimate import (
    LikelihoodEstimate,
    OneSided,
    TwoSided,
    UnsolvedPointError,
)
from determinax.likelihood.loss import LogDensity, Map, require_pair, standard_normal
from determinax.methods import estimate_from
from determinax.operators import Products, Traits
from determinax.proposals import BlockProposals, Proposal
from determinax.surrogates import jacobian_surrogate, linearised

# the sign of det J_f is looked at for so many points of a batch, up to this n: n products each
_SIGNS, _SIGNS_UP_TO = 16, 1024


@heeded()
def log_likelihood(
    f: Any,
    g: Map | None,
    x: Float[Array, " n"] | Float[Array, "batch n"],
    proposal: Proposal | BlockProposals,
    *,
    key: PRNGKeyArray,
    prior: LogDensity = standard_normal,
    num_samples: int = 64,
    tolerance: float = 1e-5,
) -> LikelihoodEstimate:
    r"""$\log p(x) = \log\pi(z) - \log|\det J_g(z)|$ at $g(z) = x$, between two bounds from one proposal.

    First z is solved for, from $f(x)$: $z \leftarrow z + f(x) - f(g(z))$, and Newton steps with f as a
    preconditioner where that stalls. An x that cannot be solved for has no likelihood: alone it raises
    `UnsolvedPointError`; in a batch its value is NaN, `refused` names it, and the others keep theirs.

    Then `num_samples` directions s each give a bound: $-\log\overline{w}$ with
    $w = |\det M|\,\|J_g M s\|^{-n}$ is above $\log|\det J_g|$ in expectation, and
    $\log\overline{v} - \log|\det M|$ with $v = \|J_g^{-\top}M^{-\top}s\|^{-n}$ is below it.
    $J_g^{-\top}$ is $J_f^\top$, refined until it changes nothing.

    **Arguments:**

    - `f`, `g`: encoder and decoder. With `g=None` the density is the encoder's,
        $\pi(f(x))\,|\det J_f(x)|$, for networks that are invertible by construction: then there is one
        bound, from above, and half the variance of the log-weights is taken off the value. f may be a
        sequence of blocks, with a proposal of `block_proposals`.
    - `x`: one point `(n,)`, or one a row.
    - `proposal`: as it was trained, with x as its context where it has one. The second bound needs a
        linear one (`flows.conditional_linear`, `flows.conditional_convolution`, ...).
    - `prior`: the log-density of z, one point in.
    - `tolerance`: $|g(z) - x|$ at which z is solved for, as a share of $|x|$ (or of $\sqrt n$ if larger).

    The value is $\log\pi(z) + \log\overline{w}$, which is below $\log p(x)$ in expectation, so that its
    mean over data is. `lower_bound` and `upper_bound` are for single points: they hold with 99.5 % each.
    If g folds, so that several z give one x, the lower bound holds, and the upper one is of this z alone:
    the sign of $\det J_f$ is looked at for up to 16 points, for n products each, and `reasons` say where
    it differs. `num_matvecs` are the products of the lower bound; solves take as many as they need.
    Memory is about 8 times points x `num_samples` x n numbers: pass fewer points at a time for less.

    !!! example

        ```python
        g = lambda z: jnp.linalg.solve(jnp.asarray(A), z)  # about the inverse of f
        proposal = dx.Proposal(dx.flows.conditional_linear(10, key=key))
        estimate = dx.log_likelihood(f, g, x, proposal, key=key)
        estimate.log_likelihood, estimate.lower_bound, estimate.upper_bound
        estimate.refused  # () where every x was solved for
        ```
    """
    x = require_points(x)
    num_samples = whole_number(num_samples, "num_samples", least=2)
    key = require_key(key, "log_likelihood")
    tolerance = positive_number(tolerance, "tolerance")
    rows = x if x.ndim == 2 else x[None]
    keys = jax.vmap(lambda i: stream(key, "points", i))(jnp.arange(len(rows)))
    if g is None:
        estimate = _one_sided(f, rows, proposal, keys, prior, num_samples)
    else:
        require_pair(f, g, x, proposal, prior)
        estimate = _two_sided(f, g, rows, proposal, keys, prior, num_samples, tolerance)
    if x.ndim == 2:
        return estimate
    alone = jax.tree.map(lambda leaf: leaf[0], estimate)
    if not isinstance(alone.log_abs_det, Tracer) and np.isnan(alone.log_abs_det):
        raise UnsolvedPointError(alone.reasons[0])
    return alone


@eqx.filter_jit
def _two_sided(f, g, rows, proposal, keys, prior, num: int, tolerance: float):
    folded = _is_folded(f, rows)

    def one(x, key):
        found = solved(f, g, x, tolerance)
        z = jax.lax.stop_gradient(found.point)
        context = x if proposal.context_size else None
        above = _log_det(g, z, proposal, context, stream(key, "above"), num)
        below = _lower(f, g, x, z, proposal, context, stream(key, "below"), num)
        known = jnp.where(found.is_solved, prior(z), jnp.nan)
        highest = _sure(above, num)
        gap = (highest.value - below.value) / (x.size * math.log(2))
        return LikelihoodEstimate(
            log_abs_det=known - above.log_abs_det,
            standard_error=above.standard_error,
            diagnostics=TwoSided(
                found.residual,
                found.is_solved,
                gap,
                folded,
                is_linear=proposal.factor(context) is not None,
                tolerance=tolerance,
            ),
            cost=Products(jnp.asarray(num)),
            bounds=Bounds(
                lower=Bound(known - highest.value, highest.error),
                upper=Bound(known - below.value, below.error),
            ),
            fault=above.fault,
            method=f"decoder at the solved point, {num} samples",
            num_dense=x.size,
            quantity="log-likelihood",
            point=z,
            residual=found.residual,
        ).judged()

    return jax.vmap(one)(rows, keys)


def _log_det(g, z, proposal: Proposal, context, key, num: int) -> Estimate:
    r"""$\log|\det J_g(z)|$ from above."""
    points, log_q = proposal.sample_columns(key, num, context)
    images = jax.vmap(linearised(g, z)[1], in_axes=-1, out_axes=-1)(points.astype(z.dtype))
    return _estimate(-z.size * log_norm(images) - log_q.astype(z.dtype), proposal, z)


def _lower(f, g, x, z, proposal: Proposal, context, key, num: int) -> Bound:
    r"""$\log|\det J_g(z)|$ from below, by the dual: NaN where its solves did not converge."""
    nothing = jnp.full((), jnp.nan, x.dtype)
    factor = proposal.factor(context)
    if factor is None:
        return Bound(nothing, nothing)
    s = sphere.uniform(key, x.size, num, x.dtype)
    y, change = transposed_solve(f, g, x, z, Transpose(factor).solve(s))
    dual = _sure(_estimate(-x.size * log_norm(y), proposal, x), num)
    value = -dual.value - factor.log_abs_det()
    # what one more refinement would change, in nats
    value = jnp.where(x.size * change <= 0.1, value, jnp.nan)
    return Bound(value, dual.error)


def _sure(estimate: Estimate, num: int) -> Bound:
    """The bound in expectation from batches of draws, and so much above it that 99.5 % are bounds."""
    bound: Any = estimate.bounds.importance
    return Bound(bound.value + _margin(num // tail_and_batch(num)[1]) * bound.error, bound.error)


def _margin(num: int) -> float:
    """Standard errors of a mean of so many that 99.5 % are within, to one side."""
    return float(scipy.special.stdtrit(max(1, num - 1), 0.995))


def _estimate(log_w: Float[Array, " num"], proposal: Proposal, x: Array) -> Estimate:
    num_tail, batch = tail_and_batch(len(log_w))
    return estimate_from(
        sums_of(log_w[:, None], num_tail, batch),
        Traits(x.size, x.size, x.dtype),
        group_size=1,
        num_tail=num_tail,
        is_linear=proposal.flow.is_linear,
        name="",
        cost=Products(len(log_w)),
    )


def _is_folded(f: Map, rows: Float[Array, "batch n"]) -> Bool[Array, ""]:
    """Whether det J_f has both signs among some of the points."""
    if rows.shape[1] > _SIGNS_UP_TO:
        return jnp.zeros((), bool)
    some = rows[:: max(1, len(rows) // _SIGNS)][:_SIGNS]
    signs = jax.lax.map(lambda x: _sign(jax.jacfwd(f)(x)), some)
    return (signs > 0).any() & (signs < 0).any()


def _sign(matrix: Float[Array, "n n"]) -> Float[Array, ""]:
    """Of the determinant, by its LU factors and the rows that they exchanged."""
    factors = lu_factor(matrix)
    exchanged = jnp.sum(factors.pivots != jnp.arange(len(matrix)))
    return jnp.prod(jnp.sign(jnp.diagonal(factors.lu))) * (1 - 2 * (exchanged % 2))


@eqx.filter_jit
def _one_sided(f, rows, proposal, keys, prior, num: int) -> LikelihoodEstimate:
    def one(x, key):
        s = jacobian_surrogate(f, x, proposal, key=key, num_samples=num)
        z = _through(f, x)
        known = prior(z)
        variance = 2 * s.correction
        doubt = jnp.sqrt(variance / num)
        # of a mean less half a variance, of normal log-weights
        error = jnp.hypot(doubt, variance / math.sqrt(2 * (num - 1)))
        value = known + s.corrected
        return LikelihoodEstimate(
            log_abs_det=value,
            standard_error=error,
            diagnostics=OneSided(s.spread, s.correction),
            cost=Products(jnp.asarray(s.num_matvecs)),
            bounds=Bounds(upper=Bound(known + s.loss + _margin(num) * doubt, doubt)),
            method=f"encoder, {num} samples, corrected",
            num_dense=x.size,
            quantity="log-likelihood",
            notes=(
                "One-sided: the bound is from above, in the model's favour, and the value is a likelihood "
                "only where f is invertible by construction.",
            ),
            point=z,
            residual=jnp.zeros_like(value),
        ).judged()

    return jax.vmap(one)(rows, keys)


def _through(f: Any, x: Array) -> Array:
    """A point through a function, or through blocks one after the other."""
    for block in f if isinstance(f, Sequence) else (f,):
        x = block(x)
    return x
