"""Plain Monte Carlo: Sohl-Dickstein's estimator."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from determinax import estimate as es
from determinax import moments as mo
from determinax import operators as ops
from determinax import sphere, weights
from determinax.methods.base import AbstractMethod, require_key, whole_number
from determinax.operators import NO_PRODUCTS, OperatorError, Products
from determinax.progress import Report
from determinax.proposals import DefensiveMixture, Proposal


@dataclasses.dataclass(frozen=True)
class MonteCarlo(AbstractMethod):
    r"""Uniform directions: $1/|\det A| = \mathbb{E}\,\|As\|^{-n}$.

    Use it for operators near a multiple of an isometry (singular values within a factor of 1.4 of
    each other), or as the baseline that it is in the paper. Forward products only. Its error is
    honest but large for anything else: the weights' variance is infinite in all but name once a
    singular value falls below 0.7 of the typical one.

    **Arguments:**

    - `num_samples`: directions, as many products. Memory does not depend on it, but for one frame.
    - `directions`: `"independent"`, or `"frames"`: whole orthonormal frames of n directions, which
        cancel the first-order noise (`num_samples` is rounded down to whole frames). With fewer
        than n samples it is one frame, which cancels its share of the first-order noise and nearly
        all of the second-order noise. Its error bar is that of independent directions, too large by
        $1/\sqrt{1-k/n}$ or more; its certificate rests on a single batch, so where `certified_upper`
        matters take independent ones; and all its products are in memory at a time.
    - `chunk_size`: directions in memory at a time; by default as many as the caches like. Another
        chunk size draws other directions from the same key.

    References: Sohl-Dickstein (2020), arXiv:2005.06553.
    """

    num_samples: int
    directions: weights.Directions = "independent"
    chunk_size: int | None = None

    def __post_init__(self):
        check_sampling(self)

    def estimate(
        self,
        operator: lx.AbstractLinearOperator,
        key: PRNGKeyArray | None,
        *,
        spent: Products = NO_PRODUCTS,
        progress: Report | None = None,
    ) -> es.Estimate:
        """Stream the weights and sum them up."""
        key = require_key(key, "MonteCarlo")
        return sample(operator, key, self, name="Monte Carlo", spent=spent, progress=progress)


def check_sampling(method: Any) -> None:
    """Check, and tidy, the settings that every sampling method has."""
    object.__setattr__(method, "num_samples", whole_number(method.num_samples, "num_samples"))
    if method.directions not in ("independent", "frames"):
        raise ValueError(f'directions is "independent" or "frames", not {method.directions!r}')
    if method.chunk_size is not None:
        object.__setattr__(method, "chunk_size", whole_number(method.chunk_size, "chunk_size"))


def sample(
    operator: lx.AbstractLinearOperator,
    key: PRNGKeyArray,
    method: Any,
    *,
    name: str,
    proposal: Proposal | DefensiveMixture | None = None,
    spent: Products = NO_PRODUCTS,
    progress: Report | None = None,
) -> es.Estimate:
    """The estimate by streamed weights of a proposal (uniform: None), as `method` is set."""
    n, m = operator.in_size(), operator.out_size()
    plan = weights.make_plan(n, m, method.num_samples, method.directions, method.chunk_size)
    if progress:
        progress.start(plan.num_samples, name)
    advance = progress.advance if progress else None
    spent += Products(plan.num_samples)
    if proposal is None and 1 < plan.group_size < n:
        run = _one_frame if ops.is_traced((operator, key)) else _compiled_one_frame
        alone = weights.make_plan(n, m, method.num_samples, "independent", method.chunk_size)
        moments, noise = weights.guarded(run, operator, key, alone)
        require_finite_products(moments)
        if advance:
            advance(plan.num_samples)
        plan = weights.Plan(plan.num_samples, 1, plan.num_samples)  # judged as independent
        estimate = summarise(operator, moments, plan, name, "directions of a frame", spent)
        return dataclasses.replace(
            estimate,
            log_abs_det=estimate.log_abs_det + ops.log_det_factor(operator) * noise,
            # the certificate multiplies independent batches: a frame is one
            importance_bound=estimate.log_abs_det,
            importance_bound_standard_error=estimate.standard_error,
            num_batches=1,
        )
    dtype = operator.in_structure().dtype
    moments = mo.empty(plan.num_groups, plan.groups_per_chunk, dtype)
    moments = weights.fold(operator, key, plan, mo.update, moments, advance, proposal)
    require_finite_products(moments)
    return summarise(operator, moments, plan, name, method.directions, spent)


def _one_frame(
    operator: lx.AbstractLinearOperator, key: PRNGKeyArray, plan: weights.Plan
) -> tuple[mo.Moments, Float[Array, ""]]:
    r"""Moments of the weights of k < n orthonormal directions V, and their mean's second-order noise.

    With $S = (AV)^\top AV$ over its mean diagonal, $w_i \propto S_{ii}^{-n/2}$ has the second-order
    term $\frac{n^2}8 (S_{ii} - 1)^2$, and over all frames
    $\mathbb{E}[S_{ii}^2 - S_{ii}S_{jj} - 2S_{ij}^2] = 0$ (moments of the orthogonal group). The k
    squares on the diagonal are noisy, the k^2 beside it are not, and cost no products.
    """
    n, num, dtype = operator.in_size(), plan.num_samples, operator.in_structure().dtype
    images = _in_chunks(operator, sphere.frame(key, n, num, dtype), plan.groups_per_chunk)
    log_norms = weights.log_norm(images)
    moments = mo.update(mo.empty(num, num, dtype), -n * log_norms[:, None])
    images = images / jnp.exp(jnp.mean(log_norms))
    gram = jnp.matmul(images.T, images, precision=jax.lax.Precision.HIGHEST)
    diagonal = jnp.diagonal(gram)
    mean = jnp.mean(diagonal)
    beside = jnp.sum((gram - jnp.diag(diagonal)) ** 2)
    # over num - 1 it would be all of the noise; so it is what leaves least, as `beside` is noisy too
    odd = (jnp.sum((diagonal - mean) ** 2) - 2 * beside / num) / (num + 1)
    noise = n**2 / 8 * odd / mean**2
    # not finite where A takes a direction to zero, which the weights tell
    return moments, jnp.where(jnp.isfinite(noise), noise, 0)


def _in_chunks(operator, points: Float[Array, "n num"], size: int) -> Float[Array, "m num"]:
    """Products with columns, so many at a time."""
    n, num = points.shape
    full = num - num % size
    rest = ops.columns(operator, points[:, full:])
    if not full:
        return rest
    chunks = jnp.moveaxis(points[:, :full].reshape(n, -1, size), 1, 0)
    images = jnp.moveaxis(jax.lax.map(lambda x: ops.columns(operator, x), chunks), 0, 1)
    return jnp.concatenate([images.reshape(-1, full), rest], axis=1)


_compiled_one_frame = eqx.filter_jit(_one_frame)


def summarise(
    operator: lx.AbstractLinearOperator,
    moments: mo.Moments,
    plan: weights.Plan,
    name: str,
    directions: str,
    spent: Products,
) -> es.Estimate:
    """The estimate from the moments of all weights."""
    return es.from_moments(
        moments,
        num_groups=plan.num_groups,
        groups_per_chunk=plan.groups_per_chunk,
        n=operator.in_size(),
        factor=ops.log_det_factor(operator),
        group_size=plan.group_size,
        method=f"{name}, {plan.num_samples:,} {directions}",
        num_matvecs=spent.total,
        num_transposed=spent.transposed,
        num_matvecs_dense=ops.rows_columns(operator)[1],
    )


def require_finite_products(moments: mo.Moments) -> None:
    """Name the first product that was not finite; NaN itself passes through where traced."""
    if not ops.is_traced(moments) and int(np.max(moments.first_bad)) >= 0:
        raise OperatorError(
            f"product {int(moments.first_bad)} of the operator contains NaN or Inf: every product "
            "with a unit vector must be finite"
        )
