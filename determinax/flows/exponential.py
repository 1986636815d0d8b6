r"""Exponential-map flows: every point moves along the geodesic that a potential's gradient points.

$f(x) = \exp_x(v) = x\cos r + v\,\frac{\sin r}r$ with $v = P_x\nabla\phi(x)$, $r = \|v\|$ and $P_x$
the projection on the tangent space. For a potential that is $c$-convex with $c = d^2/2$ the map is
one to one, and (McCann 2001)

$$\log\det = (n-2)\log\frac{\sin r}r + \log\det\big(\nabla^2\phi + r\cot r\,P_{v^\perp} + P_v\big)$$

on the tangent space, where the Riemannian Hessian is
$P_xHP_x - \langle x, \nabla\phi\rangle P_x$ for the Hessian $H$ of the space around. The same matrix
is the Hessian of $\psi(x) = \phi(x) + \frac12 d(x, y)^2$, and $f(x) = y$ where $\psi$ is least: the
inverse is Newton's method on the sphere.

References: McCann (2001), Geom. Funct. Anal. 11, on the map; Sei (2013), Ann. Inst. Statist. Math.
65, on convex combinations of $c$-convex functions; Rezende et al. (2020), arXiv:2002.02428, section 2.3.2.
"""

import abc

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, PRNGKeyArray

from .. import _linalg
from .base import AbstractSphereMap, require_dimension

_MAX_ITERATIONS = 60


class AbstractPotential(eqx.Module):
    r"""A $c$-convex function $\phi$ on the sphere, given in the space around it, at one point."""

    n: eqx.AbstractVar[int]

    @abc.abstractmethod
    def value(self, x: Float[Array, " n"]) -> Float[Array, ""]:
        r"""$\phi(x)$."""

    @abc.abstractmethod
    def derivatives(self, x: Float[Array, " n"]) -> tuple[Float[Array, " n"], Float[Array, "n n"]]:
        r"""$\nabla\phi(x)$ and $H(x)$."""


class Polynomial(AbstractPotential):
    r"""$\phi(x) = \mu^\top x + \frac12x^\top Ax$; zero parameters are the identity.

    Linear functions with $\|\mu\| \le 1$ and quadratic ones whose eigenvalues lie within 1 of each
    other are $c$-convex, and so are convex combinations: the raw parameters are divided by
    $\sqrt{1+\|\mu\|^2} + \lambda_{\max}(A) - \lambda_{\min}(A)$.
    """

    linear: Float[Array, " n"]
    quadratic: Float[Array, "n n"]
    n: int = eqx.field(static=True)

    def __init__(self, n: int, *, key: PRNGKeyArray, dtype: DTypeLike = float):
        require_dimension(n)
        # almost the identity: the gradient of a gap between equal eigenvalues is arbitrary
        self.linear = jnp.zeros(n, dtype)
        self.quadratic = 0.01 * jax.random.normal(key, (n, n), dtype)
        self.n = n

    def coefficients(self) -> tuple[Float[Array, " n"], Float[Array, "n n"]]:
        r"""$\mu$ and $A$."""
        a = (self.quadratic + self.quadratic.T) / 2
        eigenvalues, _ = _linalg.eigh(a)
        scale = jnp.sqrt(1 + jnp.sum(self.linear**2)) + eigenvalues[-1] - eigenvalues[0]
        return self.linear / scale, a / scale

    def value(self, x: Float[Array, " n"]) -> Float[Array, ""]:
        """See `AbstractPotential`."""
        mu, a = self.coefficients()
        return mu @ x + x @ a @ x / 2

    def derivatives(self, x: Float[Array, " n"]) -> tuple[Float[Array, " n"], Float[Array, "n n"]]:
        """See `AbstractPotential`."""
        mu, a = self.coefficients()
        return mu + a @ x, a


class Radial(AbstractPotential):
    r"""$\phi(x) = \sum_k \frac{\alpha_k}{\beta_k} e^{\beta_k(\langle x,\mu_k\rangle - 1)}$.

    Unit centres $\mu_k$, sharpness $\beta_k > 0$ and weights $\alpha_k > 0$ with sum below 1.
    """

    centres: Float[Array, "k n"]
    log_sharpness: Float[Array, " k"]
    logits: Float[Array, " k"]
    n: int = eqx.field(static=True)

    def __init__(self, n: int, num_centres: int, *, key: PRNGKeyArray, dtype: DTypeLike = float):
        require_dimension(n)
        if num_centres < 1:
            raise ValueError(f"a sum of radials needs at least one centre, not {num_centres}")
        self.centres = jax.random.normal(key, (num_centres, n), dtype)
        self.log_sharpness = jnp.zeros(num_centres, dtype)
        # together the weights start at 1/10
        self.logits = jnp.full(num_centres, -jnp.log(9.0 * num_centres), dtype)
        self.n = n

    def _terms(self, x):
        mu = self.centres / jnp.linalg.norm(self.centres, axis=1, keepdims=True)
        beta = jnp.exp(self.log_sharpness)
        # alpha_k = e^{a_k} / (1 + sum e^{a_j}), safe for large a
        a = jnp.concatenate([self.logits, jnp.zeros(1, self.logits.dtype)])
        return mu, beta, jax.nn.softmax(a)[:-1] * jnp.exp(beta * (mu @ x - 1))

    def value(self, x: Float[Array, " n"]) -> Float[Array, ""]:
        """See `AbstractPotential`."""
        _, beta, push = self._terms(x)
        return jnp.sum(push / beta)

    def derivatives(self, x: Float[Array, " n"]) -> tuple[Float[Array, " n"], Float[Array, "n n"]]:
        """See `AbstractPotential`."""
        mu, beta, push = self._terms(x)
        return push @ mu, (mu.T * (push * beta)) @ mu


class ExponentialMap(AbstractSphereMap):
    """The flow of one potential. The inverse is numerical, and differentiated implicitly.

    !!! example

        ```python
        flow = dx.flows.ExponentialMap(dx.flows.Polynomial(3, key=key))
        ```
    """

    potential: AbstractPotential
    context_size: int = eqx.field(static=True)
    n: int = eqx.field(static=True)

    def __init__(self, potential: AbstractPotential):
        self.potential = potential
        self.n, self.context_size = potential.n, 0

    def _forward(self, s, context):
        return _over_columns(lambda x: _move(self.potential, x), s)

    def _inverse(self, s, context):
        def one(y):
            # of degree one off the sphere, so that the Jacobian is invertible
            def residual(x):
                norm = jnp.linalg.norm(x)
                return _move(self.potential, x / norm)[0] * norm - y

            x = jax.lax.custom_root(
                residual,
                y,
                lambda _, y: _minimise(jax.lax.stop_gradient(self.potential), y),
                lambda g, b: _linalg.solve(jax.jacobian(g)(b), b),
            )
            return x, -_move(self.potential, x)[1]

        return _over_columns(one, s)


def _move(potential: AbstractPotential, x: Array) -> tuple[Array, Array]:
    gradient, hessian = potential.derivatives(x)
    radial = x @ gradient
    v = gradient - radial * x
    moved = _exp(x, v)
    log_det = _linalg.log_abs_det(_hessian(x, v, radial, hessian))
    return moved, log_det + (x.shape[0] - 2) * jnp.log(_sinc(v @ v))


def _exp(x: Array, v: Array) -> Array:
    square = v @ v
    return _cos(square) * x + _sinc(square) * v


def _log(x: Array, y: Array) -> Array:
    """The tangent vector at `x` that `_exp` takes to `y`."""
    cos = x @ y
    v = y - cos * x
    return v / _sinc(jnp.arctan2(jnp.linalg.norm(v), cos) ** 2)


def _hessian(x: Array, v: Array, radial: Array, hessian: Array) -> Array:
    r"""The matrix of the module's docstring, with 1 in the direction of $x$."""
    square = v @ v
    project = jnp.eye(x.shape[0], dtype=x.dtype) - jnp.outer(x, x)
    cot = _cos(square) / _sinc(square)
    bent = (cot - radial) * project + _cot_rest(square) * jnp.outer(v, v)
    return project @ hessian @ project + bent + jnp.outer(x, x)


def _minimise(potential: AbstractPotential, y: Array) -> Array:
    """Newton's method for the point that moves to `y`, from `y`, with a line search."""

    def slope(x):
        gradient, hessian = potential.derivatives(x)
        radial, target = x @ gradient, _log(x, y)
        return gradient - radial * x - target, _hessian(x, target, radial, hessian)

    def value(x):
        return potential.value(x) + jnp.sum(_log(x, y) ** 2) / 2

    def step(state):
        i, x, down, hessian = state
        newton = -_linalg.solve(hessian, down)
        newton = jnp.where(newton @ down < 0, newton, -down)
        newton = newton / jnp.maximum(1, jnp.linalg.norm(newton))
        full = _unit(_exp(x, newton))
        sizes = 0.5 ** jnp.arange(1, 8, dtype=x.dtype)
        shorter = jax.vmap(lambda t: _unit(_exp(x, t * newton)))(sizes)
        best = shorter[jnp.argmin(jax.vmap(value)(shorter))]
        full_down, full_hessian = slope(full)
        best_down, best_hessian = slope(best)
        # near the root the value no longer tells steps apart, but the gradient does
        good = (2 * jnp.linalg.norm(full_down) < jnp.linalg.norm(down)) | (
            value(full) < value(best)
        )
        return (
            i + 1,
            jnp.where(good, full, best),
            jnp.where(good, full_down, best_down),
            jnp.where(good, full_hessian, best_hessian),
        )

    def unfinished(state):
        i, _, down, _ = state
        return (i < _MAX_ITERATIONS) & (jnp.linalg.norm(down) > 4 * jnp.finfo(y.dtype).eps)

    return jax.lax.while_loop(unfinished, step, (0, y, *slope(y)))[1]


def _unit(x: Array) -> Array:
    return x / jnp.linalg.norm(x)


# functions of r^2, smooth at 0 where r is not


def _safe_root(square: Array) -> tuple[Array, Array]:
    small = square < 1e-4
    return small, jnp.sqrt(jnp.where(small, 1, square))


def _cos(square: Array) -> Array:
    small, r = _safe_root(square)
    return jnp.where(small, 1 - square / 2 + square**2 / 24 - square**3 / 720, jnp.cos(r))


def _sinc(square: Array) -> Array:
    small, r = _safe_root(square)
    return jnp.where(small, 1 - square / 6 + square**2 / 120 - square**3 / 5040, jnp.sin(r) / r)


def _cot_rest(square: Array) -> Array:
    r"""$(1 - r\cot r)/r^2$."""
    # further from 0 than the others: here the exact form cancels
    small = square < 1e-2
    r = jnp.sqrt(jnp.where(small, 1, square))
    series = 1 / 3 + square / 45 + 2 * square**2 / 945 + square**3 / 4725
    series = series + 2 * square**4 / 93555 + 1382 * square**5 / 638512875
    return jnp.where(small, series, (1 - r / jnp.tan(r)) / (r * r))


def _over_columns(f, s: Array) -> tuple[Array, Array]:
    columns = s.reshape(s.shape[0], -1)
    moved, log_det = jax.vmap(f, in_axes=1, out_axes=(1, 0))(columns)
    return moved.reshape(s.shape), log_det.reshape(s.shape[1:])
