r"""Moebius maps of the circle, mixed.

A centre $w = \rho e^{i\alpha}$ inside the unit disc moves the angle $t$ of $z = e^{it}$ to
$f_w(t) = t + 2[g_w(t) - g_w(0)]$ with $g_w(t) = \arg(1 - w\bar z)^{-1}
= \arctan\frac{\rho\sin(t-\alpha)}{1-\rho\cos(t-\alpha)}$, and

$$f_w'(t) = \frac{1-\rho^2}{|1-w\bar z|^2}.$$

A mixture averages $f_w$ over its centres and turns the result by a phase. No angle of $z$ is taken:
$\rho\cos(t-\alpha) = \langle w, z\rangle$ and $\rho\sin(t-\alpha) = w \times z$, so there is no branch
and no seam.

Reference: Rezende et al. (2020), arXiv:2002.02428, section 2.1.1.
"""

from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .base import AbstractCircleMap
from .splines import rotate

# how far out a centre may go: the density of one centre stays within a factor 199 of uniform
_MAX_RADIUS = 0.99
# bisection to 2 pi / 2^14 is well inside Newton's basin for such centres
_BISECTIONS = 14
_NEWTON_STEPS = 5


class MoebiusMixture(AbstractCircleMap):
    """A mixture of `num_centres` Moebius maps with equal or learned weights, then a phase.

    Parameters: the centres' raw coordinates (all first ones, then all second ones), the logits of
    the weights if they are learned, and the phase in radians.
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

    def forward(self, z, params):
        """See `AbstractCircleMap`."""
        shift, log_slope = _mixture(z, params[:-1], self.num_centres)
        return rotate(z, shift + params[-1]), log_slope

    def inverse(self, z, params):
        """See `AbstractCircleMap`."""
        k = self.num_centres
        z = rotate(z, -params[-1])
        angle = jnp.arctan2(z[1], z[0])
        # f fixes 0 and pi + pi = 2 pi, so the root is found in one turn, [0, 2 pi]
        angle = jnp.where(angle < 0, angle + 2 * np.pi, angle)

        def residual(t):
            return t + _mixture(_point(t), params[:-1], k)[0] - angle

        t = jax.lax.custom_root(
            residual,
            angle,
            _find_root,
            lambda g, y: y / g(jnp.ones_like(y)),
        )
        point = _point(t)
        return point, -_mixture(point, params[:-1], k)[1]


def _point(t: Array) -> Array:
    return jnp.stack([jnp.cos(t), jnp.sin(t)])


def _mixture(z: Array, params: Array, num_centres: int) -> tuple[Array, Array]:
    r"""$f(t) - t$ and $\log f'(t)$ before the phase."""
    k = num_centres
    raw_x, raw_y = params[:k], params[k : 2 * k]
    square = raw_x * raw_x + raw_y * raw_y
    # |w| = 0.99 |raw| / sqrt(1 + |raw|^2): smooth at 0, where |raw| itself is not
    scale = _MAX_RADIUS * jax.lax.rsqrt(1 + square)
    wx, wy = scale * raw_x, scale * raw_y
    power = (1 + (1 - _MAX_RADIUS**2) * square) / (1 + square)  # 1 - rho^2
    far, cross = 1 - (wx * z[0] + wy * z[1]), wx * z[1] - wy * z[0]
    turn = jnp.arctan(cross / far) + jnp.arctan(wy / (1 - wx))
    slope = power / (far * far + cross * cross)
    if params.shape[0] == 2 * k:
        return 2 * jnp.sum(turn, axis=0) / k, jnp.log(jnp.sum(slope, axis=0) / k)
    e = jnp.exp(params[2 * k :] - jnp.max(params[2 * k :], axis=0))
    total = jnp.sum(e, axis=0)
    return 2 * jnp.sum(e * turn, axis=0) / total, jnp.log(jnp.sum(e * slope, axis=0) / total)


def _find_root(f, guess: Array) -> Array:
    """Bisection, then Newton, of an increasing function on one turn."""

    def halve(_, bounds):
        low, high = bounds
        middle = (low + high) / 2
        below = f(middle) < 0
        return jnp.where(below, middle, low), jnp.where(below, high, middle)

    def newton(_, t):
        value, slope = jax.jvp(f, (t,), (jnp.ones_like(t),))
        return t - value / slope

    start = jnp.zeros_like(guess), jnp.full_like(guess, 2 * np.pi)
    low, high = jax.lax.fori_loop(0, _BISECTIONS, halve, start)
    return jax.lax.fori_loop(0, _NEWTON_STEPS, newton, (low + high) / 2)
