r"""Moebius maps of the circle, mixed.

A centre $w = \rho e^{i\alpha}$ inside the unit disc moves the angle $t$ of $z = e^{it}$ to
$f_w(t) = t + 2[g_w(t) - g_w(0)]$ with $g_w(t) = \arg(1 - w\bar z)^{-1}
= \arctan\frac{\rho\sin(t-\alpha)}{1-\rho\cos(t-\alpha)}$, and

$$f_w'(t) = \frac{1-\rho^2}{|1-w\bar z|^2}.$$

A mixture averages $f_w$ over its centres and turns the result by a phase. No angle of $z$ is
taken, as $\rho\cos(t-\alpha) = \langle w, z\rangle$ and $\rho\sin(t-\alpha) = w \times z$: there is
no branch and no seam.

Reference: Rezende et al. (2020), arXiv:2002.02428, section 2.1.1.
"""

from typing import Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .base import AbstractCircleMap, with_backward
from .splines import join, rotate

# how far out a centre may go: the density of one centre stays within a factor 199 of uniform
_MAX_RADIUS = 0.99
# bisection alone would need as many as a number has digits
_MAX_ITERATIONS = 64


class MoebiusMixture(AbstractCircleMap):
    """A mixture of `num_centres` Moebius maps with equal or learned weights, then a phase.

    Parameters: the centres' raw coordinates (all first ones, then all second ones), the logits of
    the weights if they are learned, and the phase in radians.

    !!! example

        ```python
        flow = dx.flows.Circle(dx.flows.MoebiusMixture(6), key=key)
        ```
    """

    num_centres: int = eqx.field(static=True)
    weights: Literal["equal", "learned"] = eqx.field(static=True, default="equal")

    def __check_init__(self):
        if self.num_centres < 1:
            raise ValueError(f"a Moebius mixture needs at least one centre, not {self.num_centres}")
        if self.weights not in ("equal", "learned"):
            raise ValueError(f'weights must be "equal" or "learned", not {self.weights!r}')

    @property
    def num_parameters(self) -> int:
        """How many numbers one mixture takes."""
        return (2 if self.weights == "equal" else 3) * self.num_centres + 1

    def forward(self, z: Float[Array, "2 *num"], params: Array) -> tuple[Array, Array]:
        """See `AbstractCircleMap`."""
        turn, log_slope = _mixture(self.num_centres, params, z)
        return rotate(z, turn), log_slope

    def inverse(self, z: Float[Array, "2 *num"], params: Array) -> tuple[Array, Array]:
        """See `AbstractCircleMap`."""
        k = self.num_centres
        phase = params[-1]
        z = rotate(z, -phase)
        angle = jnp.arctan2(z[1], z[0])
        # without its phase the map fixes 0, so the root lies in one turn
        angle = jnp.where(angle < 0, angle + 2 * np.pi, angle)

        def residual(t):
            return t + _plain_mixture(k, params, _point(t))[0] - phase - angle

        constant = jax.lax.stop_gradient(params)
        t = jax.lax.custom_root(
            residual,
            angle,
            lambda _, angle: _find_root(k, constant, angle),
            lambda g, y: y / g(jnp.ones_like(y)),
        )
        return _point(t), -_mixture(k, params, _point(t))[1]


def _point(t: Array) -> Array:
    return jnp.stack([jnp.cos(t), jnp.sin(t)])


class _Centres(NamedTuple):
    """Centres in the disc, as a point of the circle sees them."""

    x: Array
    y: Array
    scale: Array  # centre over raw coordinates
    spread: Array  # 1 + |raw|^2
    power: Array  # 1 - rho^2
    far: Array  # the real part of 1 - w conj(z)
    cross: Array  # and minus its imaginary part
    distance: Array  # its square


def _centres(z: Array, raw_x: Array, raw_y: Array) -> _Centres:
    square = raw_x * raw_x + raw_y * raw_y
    # |w| = 0.99 |raw| / sqrt(1 + |raw|^2): smooth at 0, where |raw| itself is not
    scale = _MAX_RADIUS * jax.lax.rsqrt(1 + square)
    x, y = scale * raw_x, scale * raw_y
    power = (1 + (1 - _MAX_RADIUS**2) * square) / (1 + square)
    far, cross = 1 - (x * z[0] + y * z[1]), x * z[1] - y * z[0]
    return _Centres(x, y, scale, 1 + square, power, far, cross, far * far + cross * cross)


def _weights(logits: Array, like: Array) -> Array:
    if not len(logits):
        return jnp.ones_like(like)
    # no gradient through the maximum: autodiff compares with it, and after XLA has rounded both
    # differently nothing may be equal to it
    return jnp.exp(logits - jax.lax.stop_gradient(jnp.max(logits, axis=0)))


@jax.custom_jvp
def _arg(x: Array, y: Array) -> Array:
    r"""$\arctan(y/x)$ for $x > 0$, by three halvings of the angle and a Taylor polynomial.

    XLA's CPU backend computes `arctan` one number at a time, and so several times slower.
    """
    t = y / (jnp.sqrt(x * x + y * y) + x)
    for _ in range(2):
        t = t / (1 + jnp.sqrt(1 + t * t))
    # now |t| <= tan(pi / 16)
    square = t * t
    terms = 4 if t.dtype == jnp.float32 else 11
    series = jnp.full_like(t, (-1) ** terms / (2 * terms + 1))
    for i in range(terms - 1, -1, -1):
        series = series * square + (-1) ** i / (2 * i + 1)
    return 8 * t * series


@_arg.defjvp
def _arg_jvp(primals, tangents):
    (x, y), (dx, dy) = primals, tangents
    return _arg(x, y), (x * dy - y * dx) / (x * x + y * y)


def _plain_mixture(k: int, params: Array, z: Array) -> tuple[Array, Array]:
    r"""$f(t) - t$ and $\log f'(t)$."""
    c = _centres(z, params[:k], params[k : 2 * k])
    e = _weights(params[2 * k : -1], c.x)
    turn = _arg(c.far, c.cross) + _arg(1 - c.x, c.y)
    # quotients of sums, not sums of shares: exactly the identity at zero
    total = jnp.sum(e, axis=0)
    log_slope = jnp.log(jnp.sum(e * c.power / c.distance, axis=0) / total)
    return 2 * jnp.sum(e * turn, axis=0) / total + params[-1], log_slope


def _mixture_forward(k, params, z):
    # nothing but the inputs is kept for the way back
    return _plain_mixture(k, params, z), (params, z)


def _mixture_transposed(k, residuals, cotangents):
    """By hand, and with rows put in place where autodiff of slices would pad and add them."""
    (params, z), (at_turn, at_log) = residuals, cotangents
    raw_x, raw_y, logits = params[:k], params[k : 2 * k], params[2 * k : -1]
    c = _centres(z, raw_x, raw_y)
    e = _weights(logits, c.x)
    slope, total = c.power / c.distance, jnp.sum(e, axis=0)
    mean_slope = jnp.sum(e * slope, axis=0)
    at_angle = 2 * e * (at_turn / total)
    at_power = e * (at_log / mean_slope) / c.distance
    pull, swing = 2 * at_power * slope, at_angle / c.distance
    at_far, at_cross = -(swing * c.cross + pull * c.far), swing * c.far - pull * c.cross
    anchor = at_angle / ((1 - c.x) ** 2 + c.y**2)
    at_x = z[1] * at_cross - z[0] * at_far + anchor * c.y - 2 * at_power * c.x
    at_y = anchor * (1 - c.x) - z[1] * at_far - z[0] * at_cross - 2 * at_power * c.y
    along = (at_x * raw_x + at_y * raw_y) / c.spread
    at_z = jnp.stack(
        [
            -jnp.sum(c.x * at_far + c.y * at_cross, axis=0),
            jnp.sum(c.x * at_cross - c.y * at_far, axis=0),
        ]
    )
    rows = [c.scale * (at_x - along * raw_x), c.scale * (at_y - along * raw_y)]
    if len(logits):
        turn = _arg(c.far, c.cross) + _arg(1 - c.x, c.y)
        mean_turn = jnp.sum(e * turn, axis=0) / total
        at_slope = e * (slope * (at_log / mean_slope) - at_log / total)
        rows.append(at_angle * (turn - mean_turn) + at_slope)
    return join(*rows, at_turn[None]), at_z


_mixture = with_backward(_plain_mixture, _mixture_forward, _mixture_transposed)


def _find_root(k: int, params: Array, angle: Array) -> Array:
    """Where the mixture without its phase takes an angle of one turn from: bisection and Newton.

    A step is Newton's as long as it stays within the bounds and the last one paid, and else halves them.
    """
    c = _centres(jnp.ones((2, 1), angle.dtype), params[:k], params[k : 2 * k])
    e = _weights(params[2 * k : -1], c.x)
    share = 2 * e / jnp.sum(e, axis=0)
    power = share * c.power / 2
    start = jnp.sum(share * _arg(1 - c.x, c.y), axis=0) - angle

    def look(t):
        z = _point(t)
        far, cross = 1 - (c.x * z[0] + c.y * z[1]), c.x * z[1] - c.y * z[0]
        value = t + jnp.sum(share * _arg(far, cross), axis=0) + start
        return value, jnp.sum(power / (far * far + cross * cross), axis=0)

    def is_open(value, slope):
        # where the map is steep, a rounding of t moves its value by more
        return jnp.abs(value) > 32 * jnp.finfo(angle.dtype).eps * jnp.maximum(1, slope)

    def step(state):
        i, t, low, high, (value, slope), before = state
        low, high = jnp.where(value < 0, t, low), jnp.where(value < 0, high, t)
        newton = t - value / slope
        good = (newton >= low) & (newton <= high) & (2 * jnp.abs(value) < before)
        new = jnp.where(good, newton, (low + high) / 2)
        t = jnp.where(is_open(value, slope), new, t)
        return i + 1, t, low, high, look(t), jnp.abs(value)

    def going(state):
        i, *_, last, _ = state
        return (i < _MAX_ITERATIONS) & jnp.any(is_open(*last))

    first = look(angle)
    bounds = jnp.zeros_like(angle), jnp.full_like(angle, 2 * np.pi)
    state = jax.lax.while_loop(
        going, step, (0, angle, *bounds, first, jnp.full_like(angle, np.inf))
    )
    _, t, _, _, (value, slope), _ = state
    return t - value / slope
