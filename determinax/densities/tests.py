r"""Do points follow a law? Rayleigh's test and energy tests, their p-values by simulation.

The energy distance of two laws is $2\mathbb{E}|X-Y| - \mathbb{E}|X-X'| - \mathbb{E}|Y-Y'| \ge 0$, and 0
for equal ones only. From the uniform law $\mathbb{E}|x-U|$ is the same for every x, so that the test of
uniformity needs distances between the points alone; it sees what Rayleigh's mean direction cannot, such
as two opposite bumps.

References: Mardia and Jupp (2000), section 10.4; Szekely and Rizzo (2013).
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray

from determinax import sphere
from determinax._checks import real_numbers, require_key, whole_number
from determinax._interrupts import heeded
from determinax._keys import stream
from determinax.proposals import AbstractProposal

# points of a test at most: pairs grow as its square
MOST_POINTS = 600


class Uniformity(NamedTuple):
    """P-values of two tests: small where the points are not uniform."""

    rayleigh: float
    energy: float


@heeded()
def uniformity(
    points: Float[ArrayLike, "num n"], *, key: PRNGKeyArray, num_simulations: int = 499
) -> Uniformity:
    """Are points uniform on the sphere? By Rayleigh's test and an energy test.

    Of a flow that fits, points that it has not seen are uniform when they are pulled back through it.
    Of more than 600 points a random 600 are taken.

    !!! example

        ```python
        fit = dx.fit_samples(points, key=key, steps=100)
        back, _ = fit.proposal.flow.inverse(points[fit.held_out].T)
        dx.uniformity(back.T, key=key)
        ```
    """
    rows, key = _some(points, key)
    num = whole_number(num_simulations, "num_simulations")
    found = _uniformity_p(rows, stream(key, "simulated"), num)
    return Uniformity(*(float(p) for p in found))


@heeded()
def goodness_of_fit(
    proposal: AbstractProposal,
    points: Float[ArrayLike, "num n"],
    *,
    key: PRNGKeyArray,
    context: Float[ArrayLike, "num c"] | Float[ArrayLike, " num"] | None = None,
    num_simulations: int = 199,
) -> float:
    """Do points that it has not seen follow a density? The p-value of an energy test, for any density.

    As many samples of the density, again and again, show what to expect if they do. With `context`, one
    row a point, they are drawn given the same contexts. Distances are then between points and contexts
    together, both over their spread.

    !!! example

        ```python
        dx.goodness_of_fit(q, points, key=key)
        ```
    """
    if not hasattr(proposal, "sample"):
        raise TypeError(f"a test is of a density, such as Proposal(flow), not of {proposal!r:.40}")
    rows, key = _some(sphere.unit_rows(points, proposal.n), key)
    num = whole_number(num_simulations, "num_simulations")
    size, given = len(rows), None
    if context is not None:
        given = _some_contexts(context, len(np.asarray(points)), key)
    many = None if given is None else jnp.tile(given, (num + 3, 1))
    drawn = proposal.sample(stream(key, "simulated"), (num + 3) * size, many)
    if given is not None and many is not None:
        scale = _spread(rows) / given.shape[1] ** 0.5
        beside = scale * (many - jnp.mean(given, 0)) / jnp.maximum(jnp.std(given, 0), 1e-12)
        rows = jnp.concatenate([rows, beside[:size].astype(rows.dtype)], 1)
        drawn = jnp.concatenate([drawn, beside.astype(drawn.dtype)], 1)
    reference, others = drawn[: 3 * size], drawn[3 * size :].reshape(num, size, -1)
    return float(_goodness_p(rows, reference, others))


def _some(points: ArrayLike, key: PRNGKeyArray) -> tuple[Array, PRNGKeyArray]:
    key = require_key(key, "a test by simulation")
    return _fewer(jnp.asarray(sphere.unit_matrix(points)), key), key


def _some_contexts(context: ArrayLike, num: int, key: PRNGKeyArray) -> Array:
    """Those of the points that `_some` takes."""
    given = real_numbers(context, "a context is numbers, one row a point")
    given = given[:, None] if given.ndim == 1 else given
    if given.ndim != 2 or len(given) != num:
        raise ValueError(
            f"a context of shape {given.shape} is not one row of numbers for each of {num} points"
        )
    return _fewer(jnp.asarray(given), key)


def _fewer(rows: Array, key: PRNGKeyArray) -> Array:
    if len(rows) <= MOST_POINTS:
        return rows
    order = jax.random.permutation(stream(key, "chosen"), len(rows))
    return rows[order[:MOST_POINTS]]


def _spread(rows: Array) -> Array:
    """The root of the mean squared distance from the mean."""
    return jnp.sqrt(jnp.sum(jnp.var(rows, axis=0)))


@eqx.filter_jit
def _uniformity_p(rows, key, num):
    def statistics(x):
        return jnp.linalg.norm(jnp.mean(x, axis=0)), -_mean_distance(x, x)

    def simulated(key):
        return statistics(sphere.uniform(key, rows.shape[1], len(rows), rows.dtype).T)

    others = jax.lax.map(simulated, jax.random.split(key, num))
    return [_p(mine, theirs) for mine, theirs in zip(statistics(rows), others, strict=True)]


@jax.jit
def _goodness_p(rows, reference, others):
    def statistic(x):
        return 2 * _mean_distance(x, reference) - _mean_distance(x, x)

    return _p(statistic(rows), jax.lax.map(statistic, others))


def _mean_distance(x: Float[Array, "num n"], y: Float[Array, "other n"]) -> Float[Array, ""]:
    inner = jnp.matmul(x, y.T, precision=jax.lax.Precision.HIGHEST)
    square = jnp.sum(x * x, 1)[:, None] + jnp.sum(y * y, 1) - 2 * inner
    return jnp.mean(jnp.sqrt(jnp.maximum(square, 0)))


def _p(mine: Array, theirs: Array) -> Array:
    return (1 + jnp.sum(theirs >= mine)) / (1 + theirs.size)
