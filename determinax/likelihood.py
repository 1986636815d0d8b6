r"""Likelihoods of free-form networks: an encoder and a decoder of any architecture, without a bound on either.

The density is the decoder's, $p(x) = \pi(z)\,/\,|\det J_g(z)|$ at $g(z) = x$. The variational estimate of
$\log|\det J_g|$ errs upward, so that minus the likelihood has an upper bound which model and proposal
minimise together: there is nothing to exploit.
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from determinax._checks import require_key, whole_number
from determinax._keys import stream
from determinax._linalg import held
from determinax.proposals import Proposal
from determinax.surrogates import Surrogate, jacobian_surrogate, linearised, require_square

Map = Callable[[Float[Array, " n"]], Float[Array, " n"]]
LogDensity = Callable[[Float[Array, " n"]], Float[Array, ""]]


def standard_normal(z: Float[Array, " n"]) -> Float[Array, ""]:
    """The log-density of independent standard normal coordinates: the usual prior."""
    return -0.5 * jnp.sum(z**2) - 0.5 * z.size * jnp.log(2 * jnp.pi)


class FreeForm(eqx.Module):
    bound: Float[Array, "*batch"]
    reconstruction: Float[Array, "*batch"]
    encoder: Float[Array, "*batch"]
    point: Float[Array, "*batch n"]
    log_det: Surrogate


def free_form_loss(f, g, x, proposal, *, key, reconstruction, num_samples=1, prior=standard_normal):
    x = jnp.asarray(x)
    num_samples = whole_number(num_samples, "num_samples")
    key = require_key(key, "free_form_loss")

    def one(x, key):
        z0, push = linearised(f, x)
        back, push_back = linearised(g, z0)
        start = jax.lax.stop_gradient(z0)
        z = start - held(push)(g(start) - x)
        s = jacobian_surrogate(
            g, z, proposal, key=stream(key, "directions"), num_samples=num_samples, context=x
        )
        v = jax.random.normal(stream(key, "probe"), x.shape, x.dtype)
        trace = jnp.vdot(v, push(jax.lax.stop_gradient(push_back(v))))
        return FreeForm(
            bound=s.bound - prior(z),
            reconstruction=jnp.sum((back - x) ** 2),
            encoder=-prior(z0) - trace,
            point=z,
            log_det=s,
        )

    keys = jax.vmap(lambda i: stream(key, "points", i))(jnp.arange(len(x)))
    aux = jax.vmap(one)(x, keys)
    loss = jnp.mean(aux.bound + aux.encoder + reconstruction * aux.reconstruction)
    return loss, aux
