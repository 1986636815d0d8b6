"""What the examples compare with: exact determinants, power series, free-form flows."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

import determinax as dx
from determinax.likelihood import standard_normal


def log_det(jacobian: Array) -> Array:
    """By elimination, of a whole Jacobian."""
    return dx.log_abs_det(jacobian, dx.Exact()).log_abs_det


@eqx.filter_jit
def exact_log_p(g: Callable, z: Array) -> Array:
    """log p by the whole Jacobian of the decoder, at solved points."""
    return jax.lax.map(lambda z: standard_normal(z) - log_det(jax.jacfwd(g)(z)), z)


class FreeFormFlow(eqx.Module):
    """Free-form flows (arXiv:2310.16624): the encoder's own likelihood, and the reconstruction."""

    reconstruction: float = eqx.field(static=True)

    def __call__(self, models: Any, x: Array, key: PRNGKeyArray) -> Array:
        """The mean over a batch."""
        f, g, _ = models

        def one(x, key):
            z, push = jax.linearize(f, x)
            image, back = jax.linearize(g, z)
            v = jax.random.normal(key, x.shape)
            v = v * (x.size**0.5 / jnp.linalg.norm(v))
            trace = v @ push(jax.lax.stop_gradient(back(v)))
            return -standard_normal(z) - trace + self.reconstruction * jnp.sum((image - x) ** 2)

        return jnp.mean(jax.vmap(one)(x, jax.random.split(key, len(x))))


def power_series_terms(f: Callable, x: Array, num: int = 16) -> list[float]:
    """tr (J - I)^k / k at one point, k = 1, 2, ...: what residual flows sum up, if it converges."""
    difference = np.asarray(jax.jacfwd(f)(x), float) - np.eye(x.size)
    power, found = np.eye(x.size), []
    for k in range(1, num + 1):
        power = power @ difference
        found.append(float((-1) ** (k + 1) * np.trace(power) / k))
    return found


def power_series(blocks: Any, _: Any, x: Array, key: PRNGKeyArray) -> Array:
    """Residual flows (Chen et al. 2019): log|det J| of blocks a + g(a) and scalings, at every x.

    Three terms, and each more with probability 1/2 and twice the weight: four in the mean.
    """
    more = jnp.minimum(jax.random.geometric(key, 0.5) - 1, 8)
    return jax.lax.switch(more, [lambda k=k: series(blocks, x, key, 3 + k) for k in range(9)])


def series(blocks: Any, x: Array, key: PRNGKeyArray, terms: int) -> Array:
    """So many of its terms, for every x."""

    def one(x, v):
        total = jnp.zeros(())
        for block in blocks:
            if hasattr(block, "log_abs_det"):
                x, total = block(x), total + block.log_abs_det(x)
                continue
            moved, pull = jax.vjp(block.net, x)
            row = v
            for k in range(1, terms + 1):
                (row,) = pull(row)
                total += (-1) ** (k + 1) / k * 2.0 ** max(0, k - 3) * (row @ v)
            x = x + moved
        return total

    return jax.vmap(one)(x, jax.random.normal(key, x.shape))
