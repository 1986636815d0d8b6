"""log|det J(x)| of a function's Jacobian, from Jacobian-vector products."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
from jaxtyping import Array, Float, PRNGKeyArray

from determinax._checks import require_key, whole_number
from determinax._interrupts import heeded
from determinax._keys import stream
from determinax.api import log_volume
from determinax.estimate import Estimate
from determinax.methods import Directions, MonteCarlo, Variational, default_chunk_size
from determinax.operators import Traits
from determinax.proposals import Proposal


@heeded()
def jacobian_log_abs_det(
    f: Callable[[Float[Array, " n"]], Float[Array, " m"]],
    x: Float[Array, " n"] | Float[Array, "batch n"],
    proposal: Proposal | None = None,
    *,
    key: PRNGKeyArray,
    num_samples: int,
    directions: Directions = "independent",
) -> Estimate:
    r"""Estimate $\log|\det J(x)|$ of $f: \mathbb{R}^n \to \mathbb{R}^m$, $m \ge n$, at one x or many.

    For $m > n$ it is the log-volume $\frac12\log\det J^\top J$. The primal pass is done once for each
    x; a sample costs one Jacobian-vector product, and nothing is ever transposed or solved. The
    gradient with respect to what `f` closes over is that of `log_abs_det_gradient`.

    **Arguments:**

    - `f`: one point in, one point out, in JAX.
    - `x`: one point `(n,)`, or one a row `(batch, n)`: then every field of the `Estimate` has the batch
        in front, as under `vmap`, and `estimate[i]` takes one out.
    - `proposal`: uniform directions without one. One whose flow has a context gets x as its context;
        `fit_jacobian` trains it. Any other one serves all x alike.
    - `num_samples`, `directions`: for each x, as in `Variational`. One sample has no error bar, and
        its expectation is above $\log|\det J|$ by the divergence $\mathrm{KL}(q\,\|\,q^*)$, about half the
        variance of the log-weights.

    Memory is four times the directions of all x that run at a time, up to 2^26 numbers of them, or
    one direction (with frames one frame) for each x.

    !!! example

        ```python
        estimate = dx.jacobian_log_abs_det(f, x, key=key, num_samples=4)
        estimate.log_abs_det.shape, estimate[0].standard_error
        ```
    """
    x = require_points(x)
    if proposal is not None:
        if not isinstance(proposal, Proposal):
            raise TypeError(
                "proposal is a Proposal, such as fit_jacobian(...).proposal, or None, not a "
                f"{type(proposal).__name__}"
            )
        require_context(proposal, x.shape[-1])
    num_samples = whole_number(num_samples, "num_samples")
    key = require_key(key, "jacobian_log_abs_det")
    return _estimate(f, x, proposal, key, num_samples, directions)


def require_points(x: Float[Array, " n"] | Float[Array, "batch n"]) -> Float[Array, "*batch n"]:
    """One point, or one a row, as an array; anything else is refused."""
    x = jnp.asarray(x)
    if x.ndim not in (1, 2) or not jnp.issubdtype(x.dtype, jnp.floating):
        raise ValueError(
            f"x is a point (n,) or points (batch, n) of floating-point numbers, not {x.dtype} of "
            f"shape {x.shape}"
        )
    return x


def require_proposal(proposal: Any) -> None:
    """Refuse what is no proposal by a flow."""
    if not isinstance(proposal, Proposal):
        raise TypeError(
            "proposal is a Proposal, such as Proposal(flows.conditional_linear(n, key=key)), not a "
            f"{type(proposal).__name__}"
        )


def require_context(proposal: Proposal, n: int) -> None:
    """Refuse a proposal that lives elsewhere, or whose context is not a point of R^n."""
    if proposal.n != n or proposal.flow.context_size not in (0, n):
        raise ValueError(
            f"the proposal lives in {proposal.n} dimensions with a context of "
            f"{proposal.flow.context_size} numbers, and x has {n}: build the flow with n = {n} and "
            f"context_size = {n} (or 0: one proposal for all x)"
        )


@eqx.filter_jit
def _estimate(f, x, proposal: Proposal | None, key, num_samples: int, directions):
    batch = 1 if x.ndim == 1 else len(x)

    def one(x, key):
        operator = lx.JacobianLinearOperator(lambda x, _: f(x), x)
        m, n = operator.out_size(), operator.in_size()
        chunk_size = default_chunk_size(Traits(m, n, x.dtype), batch)
        if proposal is None:
            method = MonteCarlo(num_samples, directions, chunk_size)
        else:
            known = proposal.given(x) if proposal.flow.context_size else proposal
            method = Variational(known, num_samples, directions, chunk_size)
        method.require_memory(Traits(m, n, x.dtype), batch)
        return log_volume(operator, method, key=key)

    if x.ndim == 1:
        return one(x, key)
    keys = jax.vmap(lambda i: stream(key, "points", i))(jnp.arange(batch))
    return jax.vmap(one)(x, keys)
