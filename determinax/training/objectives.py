r"""Fit a flow to an operator: the variational determinant estimator's training.

The best proposal for $|\det A|$ is $q^* \propto \|As\|^{-n}$, and the paper's objective is the
divergence from it: $\mathbb{E}_q[\log q(s) + n\log\|As\|] = \log|\det A| + \mathrm{KL}(q\,\|\,q^*)$.
"""

import functools
from collections.abc import Callable
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from determinax import operators as ops
from determinax.flows import AbstractSphereMap
from determinax.operators import Products
from determinax.proposals import Proposal
from determinax.training.loop import Fit, require_batch, train
from determinax.weights import log_norm

Gradient = Literal["path", "total", "forward"]


def fit(
    operator: Any,
    flow: AbstractSphereMap,
    *,
    key: PRNGKeyArray,
    steps: int,
    batch_size: int = 1024,
    learning_rate: float | optax.Schedule | None = None,
    gradient: Gradient = "path",
    example: Any = None,
    check_linear: bool = True,
    **options: Any,
) -> Fit:
    r"""Train a flow to be a proposal for $|\det A|$, from products alone.

    **Arguments:**

    - `operator`, `example`, `check_linear`: as in `log_abs_det`.
    - `flow`: where to start; `determinax.flows.cylinder(n, key=key)` serves any operator.
    - `steps`, `batch_size`: a step takes `batch_size` products, and as many with the transpose.
    - `learning_rate`: a number or an optax schedule; by default it rises to 5e-3 over the first
        hundredth of the steps (at most 100), then falls to nothing along a cosine.
    - `gradient`: `"path"` differentiates through the points only, with the parameters inside
        $\log q$ held fixed (Roeder et al., 2017): its noise vanishes as $q$ becomes the best, at
        the price of one inverse a step. `"total"` differentiates everything, as the paper does.
        `"forward"` needs no transpose: importance-weighted maximum likelihood at fixed points.
    - `optimiser` (`optax.adam` by default), `tolerance`, `checkpoint`, `checkpoint_every`,
        `resume`, `progress`: see `determinax.training.train`.

    The loss in the history is the paper's equation 5: an upper bound of $\log|\det A|$ in
    expectation. `Fit.num_matvecs` counts what training spent.

    !!! example

        ```python
        flow = determinax.flows.cylinder(10, key=jax.random.key(0))
        trained = determinax.fit(A, flow, key=jax.random.key(1), steps=2000)
        determinax.log_abs_det(A, determinax.Variational(trained.proposal, 1000), key=key)
        ```

    References: Passenheim and Hoogeboom (2020), arXiv:2012.13311, equation 5.
    """
    if gradient not in ("path", "total", "forward"):
        raise ValueError(f'gradient is "path", "total" or "forward", not {gradient!r}')
    require_batch(batch_size)
    entered, _ = ops.admit(operator, example, check_linear=check_linear)
    ops.require_not_wide(entered)
    if flow.n != entered.in_size():
        raise ValueError(
            f"the flow lives in {flow.n} dimensions and the operator takes vectors of "
            f"{entered.in_size()}: build the flow with n = {entered.in_size()}"
        )
    transpose = None
    if gradient != "forward":
        transpose = ops.require_transpose(
            entered,
            "training by gradients needs products with the transpose, and this operator has none: "
            'pass gradient="forward", which fits from forward products alone',
        )
    return train(
        Objective(entered, transpose, gradient, batch_size),
        flow,
        key=key,
        steps=steps,
        learning_rate=default_schedule(steps) if learning_rate is None else learning_rate,
        products=Products(batch_size, 0 if gradient == "forward" else batch_size),
        **{"what": f"fitting a proposal ({gradient} gradients)", **options},
    )


@functools.cache  # one object for equal settings: what is compiled for it serves again
def default_schedule(steps: int, peak: float = 5e-3) -> optax.Schedule:
    """A short rise to `peak`, then a cosine down to nothing."""
    rise = max(1, min(100, steps // 100))
    return optax.warmup_cosine_decay_schedule(peak / 10, peak, rise, max(steps, rise + 1))


class Objective(eqx.Module):
    """The paper's objective on a batch: its value, its log-weights, and one of three gradients."""

    operator: lx.AbstractLinearOperator
    transpose: lx.AbstractLinearOperator | None
    gradient: Gradient = eqx.field(static=True)
    batch_size: int = eqx.field(static=True)

    def __call__(
        self, flow: AbstractSphereMap, key: PRNGKeyArray
    ) -> tuple[Float[Array, ""], Float[Array, " batch"]]:
        """Minus the mean log-weight, and the log-weights."""
        product = product_with(self.operator, self.transpose)
        return objective(flow, key, self.batch_size, product, self.gradient)


def objective(
    flow: AbstractSphereMap,
    key: PRNGKeyArray,
    batch_size: int,
    product: Callable[[Array], Array],
    gradient: Gradient,
    context: Float[Array, "c batch"] | None = None,
) -> tuple[Float[Array, ""], Float[Array, " batch"]]:
    """Minus the mean log-weight, with one of three gradients, and the log-weights.

    `product` multiplies points, a column each, with their operators; `context` has a column for each.
    """
    points, log_q = Proposal(flow).sample_columns(key, batch_size, context)
    if gradient == "forward":
        points, log_q = jax.lax.stop_gradient((points, log_q))
    if gradient == "path":
        log_q = Proposal(held(flow)).log_density_columns(points, context)
    log_w = -flow.n * log_norm(product(points)) - log_q
    value = -jnp.mean(log_w)
    if gradient == "forward":
        likelihood = jax.nn.softmax(log_w) @ Proposal(flow).log_density_columns(points, context)
        # the value of the objective with the gradient of the weighted likelihood
        value = value - (likelihood - jax.lax.stop_gradient(likelihood))
    return value, jax.lax.stop_gradient(log_w)


def product_with(
    operator: lx.AbstractLinearOperator,
    transpose: lx.AbstractLinearOperator | None,
    images: Float[Array, "m num"] | None = None,
) -> Callable[[Array], Array]:
    """Products whose gradient is a product with the transpose: one for one, for every operator.

    Where the `images` of the points are known already, they are taken as they are.
    """
    dtype = operator.in_structure().dtype
    return lambda points: _product(points.astype(dtype), (operator, transpose, images))


@eqx.filter_custom_vjp
def _product(points, known):
    operator, _, images = known
    return ops.columns(operator, points) if images is None else images


@_product.def_fwd
def _product_forward(_, points, known):
    return _product(points, known), None


@_product.def_bwd
def _product_backward(_, cotangents, __, points, known):
    return ops.columns(known[1], cotangents).astype(points.dtype)


def held(tree: Any) -> Any:
    """The tree with constants for arrays: no gradient passes."""
    arrays, rest = eqx.partition(tree, eqx.is_array)
    return eqx.combine(jax.lax.stop_gradient(arrays), rest)
