"""Fit a flow to a density on the sphere that can be evaluated."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh
from jaxtyping import Array, Float, PRNGKeyArray

from determinax._checks import whole_number
from determinax.flows import AbstractSphereMap
from determinax.proposals import Proposal
from determinax.training._base import Fit, effective_share
from determinax.training._split import part_size
from determinax.training.gradients import train

LogDensity = Callable[[Float[Array, " n"]], Float[Array, ""]]


def fit_density(
    log_density: LogDensity,
    flow: AbstractSphereMap,
    *,
    key: PRNGKeyArray,
    steps: int,
    batch_size: int = 256,
    learning_rate: float | optax.Schedule | None = None,
    mesh: Mesh | None = None,
    **options: Any,
) -> Fit:
    r"""Fit a flow to an unnormalised density by the reverse divergence $\mathrm{KL}(q\,\|\,p)$.

    **Arguments:**

    - `log_density`: the log-density at one point `(n,)` of the sphere, up to a constant, in JAX.
    - `flow`: where to start; see `determinax.flows` for recipes.
    - `steps`, `batch_size`, `learning_rate` (of Adam, 1e-3 by default; a number or an optax
        schedule), `optimiser` (an `optax.GradientTransformation` instead), `mesh`, `progress`: as
        in `fit`.

    The loss in the history is $\mathbb{E}_q[\log q - \log p]$, which is the divergence minus the log
    of p's normaliser (relative to the uniform measure).

    !!! example

        ```python
        flow = dx.flows.exponential_radial(3, key=key, num_flows=1, num_centres=2)
        fit = dx.fit_density(lambda s: 4 * s[2], flow, key=key, steps=20)
        fit.proposal.sample(key, 10)
        ```
    """
    batch_size = whole_number(batch_size, "batch_size", least=2)
    _require_scalar(log_density, flow)
    loss = _ReverseDivergence(log_density, part_size(batch_size, mesh))
    return train(
        loss,
        flow,
        key=key,
        steps=steps,
        learning_rate=learning_rate,
        what="fitting a density",
        mesh=mesh,
        **options,
    )


class _ReverseDivergence(eqx.Module):
    """Of a flow from a density, up to a constant, on a batch of the flow's own points."""

    log_density: LogDensity
    batch_size: int = eqx.field(static=True)

    def __call__(self, flow: AbstractSphereMap, key: PRNGKeyArray) -> tuple[Array, Array]:
        points, log_q = Proposal(flow).sample_columns(key, self.batch_size)
        log_w = jax.vmap(self.log_density, in_axes=-1)(points) - log_q
        return -jnp.mean(log_w), jax.lax.stop_gradient(log_w)


class Divergence(NamedTuple):
    r"""How far a proposal is from a target, from samples of the proposal.

    `log_normaliser` estimates $\log \mathbb{E}_U[p]$, `kl` is $\mathrm{KL}(q\,\|\,p)$ by it, and
    `effective_sample_size` is a share of the samples.
    """

    kl: float
    log_normaliser: float
    effective_sample_size: float


def divergence(
    proposal: Proposal, log_density: LogDensity, *, key: PRNGKeyArray, num_samples: int = 20_000
) -> Divergence:
    r"""$\mathrm{KL}(q\,\|\,p)$, p's normaliser and the effective sample size, by importance sampling."""

    @jax.jit
    def log_weights(proposal):
        points, log_q = proposal.sample_columns(key, num_samples)
        return jax.vmap(log_density, in_axes=-1)(points) - log_q

    log_w = np.asarray(log_weights(proposal), dtype=float)
    top = log_w.max()
    w = np.exp(log_w - top)
    log_normaliser = top + float(np.log(w.mean()))
    return Divergence(
        kl=log_normaliser - float(log_w.mean()),
        log_normaliser=log_normaliser,
        effective_sample_size=float(effective_share(jnp.asarray(log_w))),
    )


def _require_scalar(log_density: LogDensity, flow: AbstractSphereMap) -> None:
    shape = jax.eval_shape(log_density, jax.ShapeDtypeStruct((flow.n,), jnp.result_type(float)))
    if not hasattr(shape, "shape") or shape.shape != ():
        raise ValueError(
            f"log_density takes one point ({flow.n},) and returns one number, not {shape}"
        )
