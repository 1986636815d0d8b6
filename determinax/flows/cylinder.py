r"""Flows in cylinder coordinates: heights on intervals, and a circle, each moved by its own map.

With $\rho_k^2 = \sum_{i \le k} x_i^2$, a point of $S^{n-1}$ has heights $h_k = x_k/\rho_k$ for
$k = 3, \dots, n$ and a circle point $(x_1, x_2)/\rho_2$. Sums are taken forwards, as subtracting
squares from 1 loses all digits near the poles. The uniform measure has independent heights with
densities proportional to $(1-h_k^2)^{(k-3)/2}$, so that maps $g_k$ of the heights and $f$ of the
circle have

$$\log\det = \log f' + \sum_k \log g_k'(h_k) + \tfrac{k-3}2 \log\frac{1-g_k(h_k)^2}{1-h_k^2},$$

and the radii move by the same ratios, $\rho_j' = \rho_j \prod_{k>j} \sqrt{(1-g_k^2)/(1-h_k^2)}$.
The ratio is finite at the poles. Nothing is clamped: that would bias a density.

References: Rezende et al. (2020), arXiv:2002.02428, section 2.2; Passenheim and Hoogeboom (2020),
arXiv:2012.13311.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float, PRNGKeyArray

from .base import AbstractCircleMap, AbstractIntervalMap, AbstractSphereMap, as_column
from .conditioners import Conditioner


def _nets(context_size: int, dtype: DTypeLike) -> Callable[..., Conditioner]:
    """What makes the networks of one layer."""
    return functools.partial(Conditioner, context_size=context_size, dtype=dtype)


class Circle(AbstractSphereMap):
    r"""A map of the circle $S^1$, learned as it is or conditioned on a context.

    !!! example

        ```python
        q = dx.Proposal(dx.flows.Circle(dx.flows.MoebiusMixture(6), key=key))    # n = 2
        ```
    """

    circle: AbstractCircleMap
    circle_net: Conditioner
    context_size: int = eqx.field(static=True)
    n: int = eqx.field(static=True)

    def __init__(
        self,
        circle: AbstractCircleMap,
        *,
        key: PRNGKeyArray,
        hidden: tuple[int, ...] = (64, 64),
        context_size: int = 0,
        dtype: DTypeLike = float,
    ):
        self.circle = circle
        net = _nets(context_size, dtype)
        self.circle_net = net(0, 1, circle.num_parameters, key=key, hidden=hidden)
        self.context_size = context_size
        self.n = 2

    def _forward(self, s, context):
        params = self.circle_net(s[:0], context)[:, 0]
        return self.circle.forward(s / jnp.linalg.norm(s, axis=0), params)

    def _inverse(self, s, context):
        params = self.circle_net(s[:0], context)[:, 0]
        return self.circle.inverse(s / jnp.linalg.norm(s, axis=0), params)


class CylinderCoupling(AbstractSphereMap):
    """Every second height moves, conditioned on the others; the circle, conditioned on all.

    `parity` 0 moves the first, third, ... height, 1 the second, fourth, ...: alternate them.
    Needs two heights, so `n >= 4`. Both directions take one pass.

    !!! example

        ```python
        heights, circle = dx.flows.IntervalSpline(8), dx.flows.MoebiusMixture(6)
        flow = dx.flows.CylinderCoupling(5, heights, circle, parity=0, key=key)
        ```
    """

    interval: AbstractIntervalMap
    circle: AbstractCircleMap
    height_net: Conditioner
    circle_net: Conditioner
    parity: int = eqx.field(static=True)
    context_size: int = eqx.field(static=True)
    n: int = eqx.field(static=True)

    def __init__(
        self,
        n: int,
        interval: AbstractIntervalMap,
        circle: AbstractCircleMap,
        *,
        parity: int,
        key: PRNGKeyArray,
        hidden: tuple[int, ...] = (64, 64),
        circle_hidden: tuple[int, ...] | None = None,
        context_size: int = 0,
        dtype: DTypeLike = float,
    ):
        if n < 4:
            raise ValueError(f"coupling needs two heights, so n >= 4, not {n}; be autoregressive")
        if parity not in (0, 1):
            raise ValueError(f"parity is 0 or 1, not {parity}")
        k1, k2 = jax.random.split(key)
        moved = len(range(parity, n - 2, 2))
        self.interval, self.circle = interval, circle
        net = _nets(context_size, dtype)
        self.height_net = net(n - 2 - moved, moved, interval.num_parameters, key=k1, hidden=hidden)
        own = hidden if circle_hidden is None else circle_hidden
        self.circle_net = net(n - 2, 1, circle.num_parameters, key=k2, hidden=own)
        self.parity, self.context_size, self.n = parity, context_size, n

    def _forward(self, s, context):
        p, c = self.parity, unfold(s)
        x = features(c.heights)
        params = self.height_net(x[1 - p :: 2], context)
        moved, log_slope, log_ratio = self.interval.forward(c.heights[p::2], params)
        z, log_turn = self.circle.forward(c.circle, self.circle_net(x, context)[:, 0])
        heights = _replace_every_second(c.heights, moved, p)
        log_det = log_turn + height_log_det(log_slope, log_ratio, self.n, p, 2)
        return fold(heights, z, c.radii, log_ratio, p, 2), log_det

    def _inverse(self, s, context):
        p, c = self.parity, unfold(s)
        params = self.height_net(features(c.heights)[1 - p :: 2], context)
        moved, log_slope, log_ratio = self.interval.inverse(c.heights[p::2], params)
        heights = _replace_every_second(c.heights, moved, p)
        z, log_turn = self.circle.inverse(
            c.circle, self.circle_net(features(heights), context)[:, 0]
        )
        log_det = log_turn + height_log_det(log_slope, log_ratio, self.n, p, 2)
        return fold(heights, z, c.radii, log_ratio, p, 2), log_det


class CylinderAutoregressive(AbstractSphereMap):
    """Every height moves, conditioned on the heights before it; the circle, conditioned on all.

    For `n >= 3`. The forward direction takes one pass of a masked network, the inverse one pass of
    its hidden layers per height.

    !!! example

        ```python
        heights, circle = dx.flows.IntervalSpline(8), dx.flows.CircularSpline(8)
        flow = dx.flows.CylinderAutoregressive(3, heights, circle, key=key)
        ```
    """

    interval: AbstractIntervalMap
    circle: AbstractCircleMap
    height_net: Conditioner
    circle_net: Conditioner
    context_size: int = eqx.field(static=True)
    n: int = eqx.field(static=True)

    def __init__(
        self,
        n: int,
        interval: AbstractIntervalMap,
        circle: AbstractCircleMap,
        *,
        key: PRNGKeyArray,
        hidden: tuple[int, ...] = (64, 64),
        circle_hidden: tuple[int, ...] | None = None,
        context_size: int = 0,
        dtype: DTypeLike = float,
    ):
        if n < 3:
            raise ValueError(f"cylinder coordinates have heights from n = 3 on, not {n}")
        k1, k2 = jax.random.split(key)
        self.interval, self.circle = interval, circle
        net = functools.partial(_nets(context_size, dtype), n - 2)
        self.height_net = net(
            n - 2, interval.num_parameters, key=k1, hidden=hidden, autoregressive=True
        )
        own = hidden if circle_hidden is None else circle_hidden
        self.circle_net = net(1, circle.num_parameters, key=k2, hidden=own)
        self.context_size, self.n = context_size, n

    def _forward(self, s, context):
        c = unfold(s)
        x = features(c.heights)
        params = self.height_net(x, context) if self.n > 3 else self._alone(c.heights, context)
        heights, log_slope, log_ratio = self.interval.forward(c.heights, params)
        z, log_turn = self.circle.forward(c.circle, self.circle_net(x, context)[:, 0])
        log_det = log_turn + height_log_det(log_slope, log_ratio, self.n)
        return fold(heights, z, c.radii, log_ratio), log_det

    def _inverse(self, s, context):
        c = unfold(s)

        def step(heights, i):
            hidden = self.height_net.trunk(features(heights), context)
            params = self.height_net.head(hidden, i)
            h, log_slope, log_ratio = self.interval.inverse(c.heights[i], params)
            return heights.at[i].set(h), (log_slope, log_ratio)

        if self.n == 3:
            params = self._alone(c.heights, context)
            heights, log_slope, log_ratio = self.interval.inverse(c.heights, params)
        else:
            heights, (log_slope, log_ratio) = jax.lax.scan(
                step, jnp.zeros_like(c.heights), jnp.arange(self.n - 2)
            )
        z, log_turn = self.circle.inverse(
            c.circle, self.circle_net(features(heights), context)[:, 0]
        )
        log_det = log_turn + height_log_det(log_slope, log_ratio, self.n)
        return fold(heights, z, c.radii, log_ratio), log_det

    def _alone(self, heights, context):
        """The parameters of the only height, which sees nothing but the context: found once for all."""
        is_one = context is None or context.ndim == 1
        nothing = jnp.zeros(heights.shape[:1] if is_one else heights.shape, heights.dtype)
        params = self.height_net(nothing, context)
        return jnp.broadcast_to(as_column(params, heights[None]), (len(params), *heights.shape))


class Coordinates(NamedTuple):
    r"""Heights $h_3, \dots, h_n$, the circle point, and radii $\rho_2/\rho_n, \dots, 1$."""

    heights: Float[Array, "n-2 *num"]
    circle: Float[Array, "2 *num"]
    radii: Float[Array, "n-1 *num"]


def unfold(s: Float[Array, "n *num"]) -> Coordinates:
    """From the sphere to the cylinder; at a pole the lost heights are 0 and the angle is 0."""
    n = s.shape[0]
    below = np.tril(np.ones((n - 1, n)), 1)
    squares = _combine(below, s * s)
    lost = squares == 0
    radii = jnp.sqrt(jnp.where(lost, 1, squares))
    circle = jnp.where(lost[0], as_column(jnp.array([1, 0], s.dtype), s), s[:2] / radii[0])
    radii_or_zero = jnp.where(lost, 0, radii / radii[-1])
    return Coordinates(s[2:] / radii[1:], circle, radii_or_zero)


def fold(
    heights: Array, circle: Array, radii: Array, log_ratio: Array, start: int = 0, step: int = 1
) -> Float[Array, "n *num"]:
    """Back to the sphere, with radii moved by the ratios of the heights `start::step`.

    Divided by its norm, which is 1 but for the rounding of steep maps.
    """
    d = heights.shape[0]
    above = np.triu(np.ones((d + 1, d)))[:, start::step] / 2
    radii = radii * jnp.exp(_combine(above, log_ratio))
    s = jnp.concatenate([radii[0] * circle, radii[1:] * heights])
    return s / jnp.linalg.norm(s, axis=0)


def height_log_det(
    log_slope: Array, log_ratio: Array, n: int, start: int = 0, step: int = 1
) -> Array:
    r"""$\sum_k \log g_k' + \frac{k-3}2\log\frac{1-g_k^2}{1-h_k^2}$ over the heights given."""
    power = (np.arange(n - 2) / 2)[start::step].astype(log_slope.dtype)
    return jnp.sum(log_slope + as_column(power, log_slope) * log_ratio, axis=0)


def features(heights: Array) -> Array:
    r"""Heights of unit variance under the uniform measure, where $\mathbb{E}h_k^2 = 1/k$."""
    k = np.arange(3, heights.shape[0] + 3)
    return heights * as_column(np.sqrt(k).astype(heights.dtype), heights)


def _combine(matrix: np.ndarray, x: Array) -> Array:
    # a small product in place of a cumulative sum, which XLA's CPU backend runs slowly
    return jnp.tensordot(matrix.astype(x.dtype), x, 1, precision=jax.lax.Precision.HIGHEST)


def _replace_every_second(heights: Array, moved: Array, start: int) -> Array:
    d = heights.shape[0]
    # moved rows with gaps in between: an interior padding of one
    gaps = [(start, d - start - (2 * moved.shape[0] - 1), 1)] + [(0, 0, 0)] * (moved.ndim - 1)
    spaced = jax.lax.pad(moved, jnp.zeros((), moved.dtype), gaps)
    return jnp.where(as_column(np.arange(d) % 2 == start, heights), spaced, heights)
