"""One loss for an encoder, a decoder and the proposal for the decoder's Jacobian."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from determinax._checks import positive_number, require_key, whole_number
from determinax._keys import stream
from determinax._linalg import held
from determinax.jacobians import require_context, require_points, require_proposal
from determinax.proposals import Proposal
from determinax.surrogates import Surrogate, jacobian_surrogate, linearised, require_square

Map = Callable[[Float[Array, " n"]], Float[Array, " n"]]
LogDensity = Callable[[Float[Array, " n"]], Float[Array, ""]]


def standard_normal(z: Float[Array, " n"]) -> Float[Array, ""]:
    """The log-density of independent standard normal numbers: the usual prior.

    !!! example

        ```python
        dx.likelihood.standard_normal(jnp.zeros(3))  # -1.5 log(2 pi)
        ```
    """
    return -0.5 * jnp.sum(z**2) - 0.5 * z.size * jnp.log(2 * jnp.pi)


class FreeForm(eqx.Module):
    r"""What a `free_form_loss` consists of; of a batch every field has it in front.

    **Fields:**

    - `bound`: an upper bound of $-\log p(x)$ in expectation, from `num_samples` products, at a point
        that is one Newton-like step from the encoder's. It moves decoder and proposal.
    - `reconstruction`: $|g(f(x)) - x|^2$. `encoder`: the encoder's own objective; only its gradient
        means anything.
    - `point`: z, after that step.
    - `log_det`: the `Surrogate` of $\log|\det J_g(z)|$, whose `health()` says how the proposal is.
    """

    bound: Float[Array, "*batch"]
    reconstruction: Float[Array, "*batch"]
    encoder: Float[Array, "*batch"]
    point: Float[Array, "*batch n"]
    log_det: Surrogate


def free_form_loss(
    f: Map,
    g: Map,
    x: Float[Array, " n"] | Float[Array, "batch n"],
    proposal: Proposal,
    *,
    key: PRNGKeyArray,
    reconstruction: float | Float[Array, ""],
    num_samples: int = 1,
    prior: LogDensity = standard_normal,
) -> tuple[Float[Array, ""], FreeForm]:
    r"""A loss by which an encoder, a decoder and a proposal learn together; the mean over a batch.

    It takes `num_samples` + 3 products with Jacobians for each x, and no solve. Pure: use it inside of
    `jit` and `grad`. Gradients go to what f and g close over (or to f and g themselves, where they are
    modules) and to the proposal:

    - the decoder and the proposal minimise an upper bound of $-\log p(x)$, at
        $z = f(x) - J_f(x)(g(f(x)) - x)$, in whose gradient the encoder is held: at $f(x)$ itself, which
        is not $g^{-1}(x)$, the decoder would learn the density of $g(f(x))$;
    - the encoder maximises its own likelihood, by $v^\top J_f(x)\,J_g(z)v$ with a random v, in which
        the decoder is held (free-form flows);
    - both make $|g(f(x)) - x|^2$ small.

    **Arguments:**

    - `f`, `g`: encoder and decoder, one point in and one of the same size out.
    - `x`: one point `(n,)`, or one a row.
    - `proposal`: for $J_g$; one whose flow has a context gets x, such as
        `Proposal(flows.conditional_linear(n, key=key))`.
    - `reconstruction`: the weight of $|g(f(x)) - x|^2$; 25 to 100 for whitened data. Too small, and
        points cannot be solved for; too large, and training is slow.
    - `prior`: the log-density of z, one point in.

    !!! example

        ```python
        g = lambda z: jnp.linalg.solve(jnp.asarray(A), z)  # about the inverse of f
        proposal = dx.Proposal(dx.flows.conditional_linear(10, key=key))
        loss, parts = dx.free_form_loss(f, g, x, proposal, key=key, reconstruction=50.0)
        ```

    References: Draxler et al. (2023), arXiv:2310.16624, for the encoder's part.
    """
    x = require_points(x)
    num_samples = whole_number(num_samples, "num_samples")
    key = require_key(key, "free_form_loss")
    # a schedule's value is an array, which may be traced
    is_array = isinstance(reconstruction, jax.Array)
    weight = reconstruction if is_array else positive_number(reconstruction, "reconstruction")
    require_pair(f, g, x, proposal, prior)

    def one(x: Array, key: PRNGKeyArray) -> FreeForm:
        z0, push = linearised(f, x)
        image, push_back = linearised(g, z0)
        start = jax.lax.stop_gradient(z0)
        z = start - held(push)(g(start) - x)
        log_det = jacobian_surrogate(
            g,
            z,
            proposal,
            key=stream(key, "directions"),
            num_samples=num_samples,
            context=x if proposal.context_size else None,
        )
        v = jax.random.normal(stream(key, "probe"), x.shape, x.dtype)
        trace = jnp.vdot(v, push(jax.lax.stop_gradient(push_back(v))))
        return FreeForm(
            bound=log_det.bound - prior(z),
            reconstruction=jnp.sum((image - x) ** 2),
            encoder=-prior(z0) - trace,
            point=z,
            log_det=log_det,
        )

    if x.ndim == 1:
        parts = one(x, key)
    else:
        keys = jax.vmap(lambda i: stream(key, "points", i))(jnp.arange(len(x)))
        parts = jax.vmap(one)(x, keys)
    return jnp.mean(parts.bound + parts.encoder + weight * parts.reconstruction), parts


def require_pair(
    f: Map, g: Map, x: Float[Array, "*batch n"], proposal: Any, prior: LogDensity
) -> None:
    """Refuse an encoder, a decoder, a proposal or a prior that does not suit points like x."""
    for name, function in (("f", f), ("g", g), ("prior", prior)):
        if not callable(function):
            raise TypeError(
                f"{name} is a function of one point, not a {type(function).__name__}; of blocks, make one "
                "that goes through them"
            )
    require_square(f, x, "f")
    require_square(g, x, "g")
    require_proposal(proposal)
    require_context(proposal, x.shape[-1])
    shape = jnp.shape(jax.eval_shape(prior, jax.ShapeDtypeStruct(x.shape[-1:], x.dtype)))
    if shape != ():
        raise ValueError(
            f"prior gives shape {shape} for one point, not one number: sum its log-densities up"
        )
