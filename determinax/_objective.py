r"""The divergence of a proposal from the best one, on given products, with one of three gradients.

$\mathbb{E}_q[\log q(s) + n\log\|As\|] = \log|\det A| + \mathrm{KL}(q\,\|\,q^*)$, with
$q^* \propto \|As\|^{-n}$.
"""

from collections.abc import Callable
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
from jaxtyping import Array, Float, PRNGKeyArray

from determinax import sphere
from determinax._linalg import held, log_norm
from determinax.flows import AbstractSphereMap
from determinax.flows.base import dtype_of
from determinax.flows.linear import Transpose
from determinax.operators import columns
from determinax.proposals import Proposal

GradientKind = Literal["path", "total", "forward"]


def drawn(flow: AbstractSphereMap, key: PRNGKeyArray, num: int) -> Float[Array, "n num"]:
    """Uniform points for the flow to move."""
    return sphere.uniform(key, flow.n, num, dtype_of(flow))


def objective(
    flow: AbstractSphereMap,
    z: Float[Array, "n batch"],
    product: Callable[[Array], Array],
    gradient: GradientKind,
    context: Float[Array, "c batch"] | None = None,
) -> tuple[Float[Array, ""], Float[Array, " batch"]]:
    """Minus the mean log-weight, with one of three gradients, and the log-weights.

    `z` are uniform points, see `drawn`; `product` multiplies points, a column each, with their
    operators; `context` has a column for each.
    """
    points, log_q = Proposal(flow).push(z, context=context)
    if gradient == "forward":
        points, log_q = jax.lax.stop_gradient((points, log_q))
    if gradient == "path":
        log_q = _along_path(held(flow), z, points, log_q, context)
    log_w = -flow.n * log_norm(product(points)) - log_q
    value = -jnp.mean(log_w)
    if gradient == "forward":
        likelihood = jax.nn.softmax(log_w) @ Proposal(flow).log_density_columns(points, context)
        # the value of the objective with the gradient of the weighted likelihood
        value = value - (likelihood - jax.lax.stop_gradient(likelihood))
    return value, jax.lax.stop_gradient(log_w)


def _along_path(flow: AbstractSphereMap, z: Array, points: Array, log_q: Array, context) -> Array:
    r"""$\log q$ where the points end, with the parameters held: it moves with the points alone.

    Of $s = Mz/\|Mz\|$ the slope is $-n\|Mz\|\,M^{-\top}z$: one transposed solve, where going back
    through the map is a solve, and its gradient another one.
    """
    one = context if context is None or context.ndim == 1 else context[:, 0]
    if flow.factor_at(one) is None:
        return Proposal(flow).log_density_columns(points, context)

    def slope(z, context):
        factor = flow.factor_at(context)
        size = jnp.linalg.norm(factor.multiply(z), axis=0)
        return -flow.n * size * Transpose(factor).solve(z)

    if one is not context:
        slope = jax.vmap(slope, in_axes=-1, out_axes=-1)
    moved = points - jax.lax.stop_gradient(points)
    return jax.lax.stop_gradient(log_q) + jnp.sum(held(slope(z, context)) * moved, axis=0)


def product_with(
    operator: lx.AbstractLinearOperator,
    transpose: lx.AbstractLinearOperator | None,
    images: Float[Array, "m num"] | None = None,
) -> Callable[[Array], Array]:
    """Products whose gradient is a product with the transpose: one for one, for every operator.

    Where the `images` of the points are known already, they are taken as they are.
    """
    dtype = operator.in_structure().dtype
    forth = eqx.Partial(columns, operator) if images is None else images
    back = eqx.Partial(columns, transpose)
    return lambda points: _product(points.astype(dtype), (forth, back))


def known_product(images: Float[Array, "m num"], pull: Callable) -> Callable[[Array], Array]:
    """The same for images that `jax.vjp` gave, with its pull-back: held, but for the points."""
    return lambda points: _product(points.astype(images.dtype), held((images, _First(pull))))


class _First(eqx.Module):
    """A pull-back of one argument."""

    pull: Callable

    def __call__(self, cotangents: Array) -> Array:
        return self.pull(cotangents)[0]


@eqx.filter_custom_vjp
def _product(points: Array, known: Any) -> Array:
    forth, _ = known
    return forth if eqx.is_array(forth) else forth(points)


@_product.def_fwd
def _product_forward(_, points, known):
    return _product(points, known), None


@_product.def_bwd
def _product_backward(_, cotangents, __, points, known):
    return known[1](cotangents).astype(points.dtype)
