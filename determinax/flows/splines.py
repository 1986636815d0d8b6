r"""Monotone rational-quadratic splines of the interval and of the circle.

On a bin of width $w$ and height $h$, with $\xi \in [0, 1]$ across it, $u = 1 - \xi$, mean slope
$s = h/w$ and slopes $d_0, d_1$ at its ends,

$$y = y_0 + h\,\frac{\xi(s\xi + d_0u)}{D}, \quad D = s + (d_0 + d_1 - 2s)\xi u, \quad
  y' = s^2\,\frac{d_1\xi^2 + 2s\xi u + d_0u^2}{D^2}.$$

Everything is written as a displacement from the identity, so that zero parameters are the identity
to the last bit, and with positive terms only, so that nothing cancels: the inverse's discriminant
is $(d_0(1-\zeta) - d_1\zeta)^2 + 4s^2\zeta(1-\zeta)$ at the height $\zeta$ within the bin.

Own code, as flowjax (19.1) has no spline on the circle, none exactly the identity and clips at the
ends, distreqx (0.0.3) has no splines, and autodiff through the choice of a bin is slow.

References: Durkan et al. (2019), arXiv:1906.04032; Rezende et al. (2020), arXiv:2002.02428.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .base import AbstractCircleMap, AbstractIntervalMap, with_backward

# the least slope, and the least bin size in units of the even one
_MIN_SLOPE = 1e-3
_MIN_SIZE = 1 / 64


class IntervalSpline(AbstractIntervalMap):
    """A spline of [-1, 1] with `num_bins` bins and free slopes at both ends.

    Parameters: `num_bins` logits of widths, as many of heights, `num_bins + 1` slopes.
    """

    num_bins: int = eqx.field(static=True)

    def __check_init__(self):
        _check_bins(self.num_bins)

    @property
    def num_parameters(self) -> int:
        """How many numbers one spline takes."""
        return 3 * self.num_bins + 1

    def forward(self, h: Array, params: Array) -> tuple[Array, Array, Array]:
        """See `AbstractIntervalMap`."""
        shift, log_slope, log_ratio = _spline(False, params, (1 + h) / 2)
        return h + 2 * shift, log_slope, log_ratio

    def inverse(self, h: Array, params: Array) -> tuple[Array, Array, Array]:
        """See `AbstractIntervalMap`."""
        shift, log_slope, log_ratio = _spline_inverse(False, params, (1 + h) / 2)
        return h + 2 * shift, log_slope, log_ratio


class CircularSpline(AbstractCircleMap):
    r"""A spline of the angle in $[0, 2\pi)$, equal slopes where it closes, then a phase.

    Parameters: `num_bins` logits of widths, of heights, `num_bins` slopes, the phase in radians.
    """

    num_bins: int = eqx.field(static=True)

    def __check_init__(self):
        _check_bins(self.num_bins)

    @property
    def num_parameters(self) -> int:
        """How many numbers one spline takes."""
        return 3 * self.num_bins + 1

    def forward(self, z: Float[Array, "2 *num"], params: Array) -> tuple[Array, Array]:
        """See `AbstractCircleMap`."""
        shift, log_slope, _ = _spline(True, params[:-1], _angle(z))
        return rotate(z, 2 * np.pi * shift + params[-1]), log_slope

    def inverse(self, z: Float[Array, "2 *num"], params: Array) -> tuple[Array, Array]:
        """See `AbstractCircleMap`."""
        z = rotate(z, -params[-1])
        shift, log_slope, _ = _spline_inverse(True, params[:-1], _angle(z))
        return rotate(z, 2 * np.pi * shift), log_slope


def rotate(z: Float[Array, "2 *num"], angle: Float[Array, "*num"]) -> Float[Array, "2 *num"]:
    """The planar point `z`, turned by `angle`."""
    c, s = jnp.cos(angle), jnp.sin(angle)
    return jnp.stack([c * z[0] - s * z[1], s * z[0] + c * z[1]])


def _check_bins(num_bins: int) -> None:
    if num_bins < 1:
        raise ValueError(f"a spline needs at least one bin, not {num_bins}")


def _angle(z: Array) -> Array:
    """The angle as a share of the full turn, in [0, 1)."""
    turn = jnp.arctan2(z[1], z[0]) / (2 * np.pi)
    return jnp.where(turn < 0, turn + 1, turn)


# --- one bin ------------------------------------------------------------------------------------


class _Bin(NamedTuple):
    """The bin a point falls in: shares of the softmaxes below it and in it, and raw slopes."""

    number: Array  # a float, without gradient
    width_below: Array
    width: Array
    height_below: Array
    height: Array
    slope_left: Array
    slope_right: Array


class _Shape(NamedTuple):
    """A bin in the unit square."""

    x: Array
    width: Array
    lift: Array  # y - x at the bin's lower left corner
    height: Array
    slope: Array
    left: Array
    right: Array
    first: Array
    last: Array


def _slope(t: Array) -> Array:
    """Positive, and exactly 1 at 0."""
    d = (t + jnp.sqrt(t * t + 4)) / 2
    return d + _MIN_SLOPE * (1 - d)


def _slope_transposed(t: Array, cotangent: Array) -> Array:
    root = jnp.sqrt(t * t + 4)
    return (1 - _MIN_SLOPE) / 2 * (t + root) * cotangent / root


def _shape(b: _Bin, num_bins: int) -> _Shape:
    least, rest = _MIN_SIZE / num_bins, 1 - _MIN_SIZE
    w, h = least + rest * b.width, least + rest * b.height
    return _Shape(
        x=least * b.number + rest * b.width_below,
        width=w,
        lift=rest * (b.height_below - b.width_below),
        height=h,
        slope=h / w,
        left=_slope(b.slope_left),
        right=_slope(b.slope_right),
        first=b.number == 0,
        last=b.number == num_bins - 1,
    )


def _evaluate(b: _Bin, num_bins: int, x: Array) -> tuple[Array, Array, Array]:
    r"""$y - x$, $\log y'$ and $\log\frac{y(1-y)}{x(1-x)}$ at $x \in [0, 1]$.

    In the first bin $y/x$ and in the last $(1-y)/(1-x)$ are functions of $\xi$ without a pole,
    so that the ratio keeps its relative precision however close to an end $x$ is.
    """
    r = _shape(b, num_bins)
    xi = (x - r.x) / r.width
    u = 1 - xi
    s, d0, d1 = r.slope, r.left, r.right
    D = s + (d0 + d1 - 2 * s) * xi * u
    shift = r.lift + (s - 1) * (x - r.x) + r.height * xi * u * ((d0 - s) * u - (d1 - s) * xi) / D
    # as xi + u = 1, any number can be taken out of all coefficients: the least leaves no minus sign
    m = jax.lax.stop_gradient(jnp.minimum(s, jnp.minimum(d0, d1)))
    V = m + (d1 - m) * xi * xi + 2 * (s - m) * xi * u + (d0 - m) * u * u
    y_over_x = jnp.where(
        r.first, s * (m + (s - m) * xi + (d0 - m) * u) / D, 1 + shift / jnp.where(r.first, 1, x)
    )
    rests = jnp.where(
        r.last, s * (m + (s - m) * u + (d1 - m) * xi) / D, 1 - shift / jnp.where(r.last, 1, 1 - x)
    )
    return shift, jnp.log(s * s * V / (D * D)), jnp.log(y_over_x * rests)


def _evaluate_transposed(
    b: _Bin, num_bins: int, x: Array, cotangents: tuple[Array, Array, Array]
) -> tuple[_Bin, Array]:
    """The gradients that `_evaluate` sends back, by hand.

    What is used twice ends in a division, which XLA's CPU keeps: it would repeat products in every loop.
    """
    at_shift, at_log, at_ratio = cotangents
    r = _shape(b, num_bins)
    s, d0, d1 = r.slope, r.left, r.right
    xi = (x - r.x) / r.width
    u, bend = 1 - xi, d0 + d1 - 2 * s
    both = xi * u
    D = s + bend * both
    low, high = s * xi + d0 * u, s * u + d1 * xi
    share = xi * low / D
    y = r.x + r.lift + r.height * share
    # the ratio: y/x is a function of xi alone in the first bin, (1-y)/(1-x) in the last
    at_first, at_last = jnp.where(r.first, at_ratio, 0), jnp.where(r.last, at_ratio, 0)
    at_y_over_x = at_ratio - at_first
    at_rests = at_ratio - at_last
    at_y = at_y_over_x / jnp.where(r.first, 1, y) - at_rests / jnp.where(r.last, 1, 1 - y)
    at_y = at_shift + at_y
    at_x = (
        at_rests / jnp.where(r.last, 1, 1 - x) - at_y_over_x / jnp.where(r.first, 1, x) - at_shift
    )
    at_low, at_high = at_first / low, at_last / high
    # log y' = 2 log s + log V - 2 log D
    at_V = at_log / (d1 * xi * xi + 2 * s * both + d0 * u * u)
    at_D = -(2 * at_log + at_first + at_last) / D
    # y = y_0 + h share
    at_share = at_y * r.height / (D * D)
    slope_x = s * (d1 * xi * xi + 2 * s * both + d0 * u * u)
    at_xi = (
        at_share * slope_x
        + 2 * at_V * (d1 * xi + s * (u - xi) - d0 * u)
        + at_D * bend * (u - xi)
        + at_low * (s - d0)
        + at_high * (d1 - s)
    ) / r.width
    at_s = (
        at_share * both * (d1 * xi * xi - d0 * u * u)
        + 2 * at_V * both
        + at_D * (1 - 2 * both)
        + at_low * xi
        + at_high * u
        + (2 * at_log + at_first + at_last) / s
    ) / r.width
    at_left = at_share * both * u * high + at_V * u * u + at_D * both + at_low * u
    at_right = at_V * xi * xi + at_D * both + at_high * xi - at_share * both * xi * low
    scale = 1 - _MIN_SIZE
    return _Bin(
        number=jnp.zeros_like(x),
        width_below=-scale * at_xi,
        width=-scale * (at_xi * xi + at_s * s),
        height_below=scale * at_y,
        height=scale * (at_y * share + at_s),
        slope_left=_slope_transposed(b.slope_left, at_left),
        slope_right=_slope_transposed(b.slope_right, at_right),
    ), at_x + at_xi


def _solve(b: _Bin, num_bins: int, y: Array) -> Array:
    """The `x` of a given `y`."""
    r = _shape(b, num_bins)
    # rounding may put y an ulp outside its bin, where the discriminant could be negative
    zeta = jnp.clip((y - (r.x + r.lift)) / r.height, 0, 1)
    v = 1 - zeta
    s, gap = r.slope, r.left * v - r.right * zeta
    root = jnp.abs(gap) + jnp.sqrt(gap * gap + 4 * s * s * zeta * v)
    low, high = 2 * s * zeta, 2 * s * v
    return r.x + r.width * jnp.where(gap > 0, low / (low + root), root / (high + root))


# --- all bins: bins first, batch last, so that sums over bins are sums of rows --------------------


class _Softmax(NamedTuple):
    """What turns logits into shares: exp(logits - top) / total."""

    top: Array
    total: Array


def _exps(logits: Array) -> tuple[Array, _Softmax]:
    top = jax.lax.stop_gradient(jnp.max(logits, axis=0))
    e = jnp.exp(logits - top)
    return e, _Softmax(top, jnp.sum(e, axis=0))


def _locate(e: Array, total: Array, x: Array) -> Array:
    """The number of inner knots at or below `x`."""
    k = e.shape[0]
    least, rest = _MIN_SIZE / k, 1 - _MIN_SIZE
    sums = jnp.tensordot(np.tril(np.ones((k - 1, k))).astype(e.dtype), e, 1)
    inner = (least * np.arange(1, k)).astype(e.dtype).reshape((k - 1,) + (1,) * x.ndim)
    return jnp.sum(rest * sums <= (x - inner) * total, axis=0)


def _rows(k: int, index: Array) -> Array:
    return jax.lax.broadcasted_iota(index.dtype, (k, *index.shape), 0)


def _next(index: Array, k: int, closed: bool) -> Array:
    return jnp.where(index == k - 1, 0, index + 1) if closed else index + 1


class _Choice(NamedTuple):
    """The bin of every point, and what it takes to carry its gradient back to all parameters."""

    bin: _Bin
    widths: _Softmax
    heights: _Softmax


def _choose(params: Array, x: Array, closed: bool, by_height: bool = False) -> _Choice:
    k = params.shape[0] // 3
    (w, w_softmax), (h, h_softmax) = _exps(params[:k]), _exps(params[k : 2 * k])
    slopes = params[2 * k :]
    index = _locate(h, h_softmax.total, x) if by_height else _locate(w, w_softmax.total, x)
    row, knot = _rows(k, index), _rows(len(slopes), index)

    def pick(mask, rows):
        return jnp.sum(jnp.where(mask, rows, 0), axis=0)

    b = _Bin(
        index.astype(x.dtype),
        pick(row < index, w) / w_softmax.total,
        pick(row == index, w) / w_softmax.total,
        pick(row < index, h) / h_softmax.total,
        pick(row == index, h) / h_softmax.total,
        pick(knot == index, slopes),
        pick(knot == _next(index, k, closed), slopes),
    )
    return _Choice(b, w_softmax, h_softmax)


def _spread(grad: _Bin, c: _Choice, params: Array, closed: bool) -> Array:
    """The transpose of `_choose`: the gradient of a bin, back to all parameters.

    The gradient of the logits is `share * (gradient of the share - its mean)`. The divisions come
    last but for one product: XLA keeps what a division gives, but would compute products of numbers
    that are the same for all bins over again for each.
    """
    k, index = params.shape[0] // 3, c.bin.number.astype(int)
    row = _rows(k, index)

    def logits(rows, softmax, at_below, at_here, below, here):
        mean = (at_below * below + at_here * here) / softmax.total
        at_below, at_here = at_below / softmax.total, at_here / softmax.total
        at = jnp.where(row < index, at_below, jnp.where(row == index, at_here, 0))
        return jnp.exp(rows - softmax.top) * (at - mean)

    knot = _rows(params.shape[0] - 2 * k, index)
    slope = jnp.where(knot == index, grad.slope_left, 0)
    slope = slope + jnp.where(knot == _next(index, k, closed), grad.slope_right, 0)
    b = c.bin
    w = logits(params[:k], c.widths, grad.width_below, grad.width, b.width_below, b.width)
    h = logits(
        params[k : 2 * k], c.heights, grad.height_below, grad.height, b.height_below, b.height
    )
    return join(w, h, slope)


def join(*parts: Array) -> Array:
    """Concatenated rows, by updates in place: XLA fuses a concatenation into one slow loop."""
    rows = sum(len(part) for part in parts)
    out, start = jnp.zeros((rows, *parts[0].shape[1:]), parts[0].dtype), 0
    for part in parts:
        out = jax.lax.dynamic_update_slice_in_dim(out, part, start, 0)
        start += len(part)
    return out


def _forward(closed, params, x):
    c = _choose(params, x, closed)
    return _evaluate(c.bin, params.shape[0] // 3, x), (params, x, c)


def _forward_transposed(closed, residuals, cotangents):
    params, x, c = residuals
    grad, at_x = _evaluate_transposed(c.bin, params.shape[0] // 3, x, cotangents)
    return _spread(grad, c, params, closed), at_x


def _inverse(closed, params, y):
    c, k = _choose(params, y, closed, by_height=True), params.shape[0] // 3
    x = _solve(c.bin, k, y)
    shift, log_slope, log_ratio = _evaluate(c.bin, k, x)
    return (-shift, -log_slope, -log_ratio), (params, x, c, log_slope)


def _inverse_transposed(closed, residuals, cotangents):
    r"""The implicit function theorem: $dx = (dy - \partial_\theta y\,d\theta)/y'$."""
    params, x, c, log_slope = residuals
    at_shift, at_slope, at_ratio = cotangents
    k, zero = params.shape[0] // 3, jnp.zeros_like(x)
    _, at_x = _evaluate_transposed(c.bin, k, x, (zero, -at_slope, -at_ratio))
    at_y = (at_shift + at_x) / jnp.exp(log_slope)
    grad, _ = _evaluate_transposed(c.bin, k, x, (-at_y, -at_slope, -at_ratio))
    return _spread(grad, c, params, closed), at_y - at_shift


def _spline_value(closed: bool, params: Array, x: Array) -> tuple[Array, Array, Array]:
    r"""$y - x$, $\log y'$ and $\log\frac{y(1-y)}{x(1-x)}$ of the unit interval."""
    return _forward(closed, params, x)[0]


def _spline_inverse_value(closed: bool, params: Array, y: Array) -> tuple[Array, Array, Array]:
    """The same three of the inverse."""
    return _inverse(closed, params, y)[0]


_spline = with_backward(_spline_value, _forward, _forward_transposed)
_spline_inverse = with_backward(_spline_inverse_value, _inverse, _inverse_transposed)
