"""Pareto's k of a tail of weights, in JAX, so that a verdict can be reached inside of `jit`."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

# fewer weights than this have no tail to fit
_LEAST = 5
# the prior of Pareto smoothed importance sampling: ten draws of k = 1/2
_PRIOR_DRAWS, _PRIOR_K = 10, 0.5


def pareto_k(tail: Float[Array, " tail"]) -> Float[Array, ""]:
    """The tail index, from the largest log-weights in descending order, the first below them last.

    NaN where it is unknown: under 5 weights in the tail, one that is not finite, or all equal.

    References: Zhang and Stephens (2009), Technometrics 51; Vehtari et al. (2024), arXiv:1507.02646,
    for the prior.
    """
    num = tail.shape[0] - 1
    if num < _LEAST:
        return jnp.full((), jnp.nan, tail.dtype)
    x = (jnp.exp(tail[:-1] - tail[0]) - jnp.exp(tail[-1] - tail[0]))[::-1]  # exceedances, ascending
    grid = 30 + int(num**0.5)
    b = 1 - jnp.sqrt(grid / (jnp.arange(1, grid + 1, dtype=x.dtype) - 0.5))
    b = b / (3 * x[int(num / 4 + 0.5) - 1]) + 1 / x[-1]
    k = jnp.mean(jnp.log1p(-b[:, None] * x), axis=1)
    weight = jax.nn.softmax(num * (jnp.log(-b / k) - k - 1))
    weight = jnp.where(weight >= 10 * jnp.finfo(x.dtype).eps, weight, 0)
    mean_b = jnp.sum(b * weight) / jnp.sum(weight)
    k = num * jnp.mean(jnp.log1p(-mean_b * x)) + _PRIOR_DRAWS * _PRIOR_K
    known = jnp.all(jnp.isfinite(tail)) & (tail[0] > tail[-2])
    return jnp.where(known, k / (num + _PRIOR_DRAWS), jnp.nan)
