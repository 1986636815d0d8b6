"""A network that is invertible by construction: scalings, and residual blocks of contractions."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

LIPSCHITZ = 0.97


class Scaling(eqx.Module):
    """Scales and shifts every pixel: it knows its own log-determinant."""

    log_scale: Array
    shift: Array

    def __init__(self, n: int):
        self.log_scale, self.shift = jnp.zeros(n), jnp.zeros(n)

    def __call__(self, x: Array) -> Array:
        """One digit through."""
        return x * jnp.exp(self.log_scale) + self.shift

    def log_abs_det(self, x: Array) -> Array:
        """The same for every digit."""
        del x
        return jnp.sum(self.log_scale)

    def inverse(self, y: Array) -> Array:
        """The other way."""
        return (y - self.shift) * jnp.exp(-self.log_scale)


class Residual(eqx.Module):
    """x + g(x), where g has three layers, each a contraction."""

    net: eqx.nn.MLP

    def __init__(self, n: int, width: int, key: PRNGKeyArray):
        net = eqx.nn.MLP(n, n, width, 2, lambda x: jax.nn.silu(x) / 1.1, key=key)
        last = lambda net: net.layers[-1].weight  # noqa: E731
        self.net = eqx.tree_at(last, net, 0.1 * last(net))

    def __call__(self, x: Array) -> Array:
        """One digit through."""
        return x + self.net(x)

    def inverse(self, y: Array) -> Array:
        """By fixed-point iteration: g is a contraction."""
        return jax.lax.fori_loop(0, 200, lambda _, x: y - self.net(x), y)


Blocks = list[Scaling | Residual]


def contracted(blocks: Blocks) -> Blocks:
    """With every weight matrix scaled down to a norm of at most 0.97."""
    return jax.tree.map(lambda a: _contracted(a) if eqx.is_array(a) and a.ndim == 2 else a, blocks)


def _contracted(w: Array) -> Array:
    def step(_, v):
        return w.T @ (w @ v) / jnp.linalg.norm(w @ v)

    v = jax.lax.stop_gradient(jax.lax.fori_loop(0, 20, step, jnp.ones(w.shape[1])))
    norm = jnp.linalg.norm(w @ v) / jnp.linalg.norm(v)
    return w / jnp.maximum(1, norm / LIPSCHITZ)


def through(blocks: Blocks, x: Array) -> Array:
    for block in blocks:
        x = block(x)
    return x


def network(n: int, width: int, num: int, key: PRNGKeyArray) -> Blocks:
    """So many residual blocks, each behind a scaling."""
    residuals = [Residual(n, width, k) for k in jax.random.split(key, num)]
    return [block for residual in residuals for block in (Scaling(n), residual)]
