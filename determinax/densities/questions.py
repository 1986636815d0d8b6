"""What may be asked of a density: the smallest region of a given mass, and marginals."""

import math
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike, Bool, Float, PRNGKeyArray

from determinax import sphere
from determinax._checks import positive_number, require_key, whole_number
from determinax._interrupts import heeded
from determinax.proposals import AbstractProposal

# mass beyond the one that was asked for: more than what rounding adds to a quantile
_FLAT = 0.005


class Region(NamedTuple):
    """The smallest region of a given mass: where the log-density is at least `log_level`.

    `share` is its part of the sphere and `area` its area (steradians at n = 3), with `area_error`. `held`
    is the mass that it holds. That is more than `mass` where the density is flat at the level, as the
    uniform law is everywhere: no smaller region is then singled out.
    """

    mass: float
    log_level: float
    share: float
    area: float
    area_error: float
    proposal: AbstractProposal
    held: float

    def contains(
        self, points: Float[ArrayLike, "num n"] | Float[ArrayLike, " n"]
    ) -> Bool[np.ndarray, "*num"]:
        """Which points lie in the region."""
        return np.asarray(self.proposal.log_density(points)) >= self.log_level

    def __str__(self) -> str:
        text = (
            f"{self.held:.0%} of the mass on {self.share:.2%} of the sphere: area {self.area:.4g} +- "
            f"{self.area_error:.2g}"
        )
        if self.held < self.mass + _FLAT:
            return text
        return (
            f"{text}; the density is flat there, so that no smaller region of {self.mass:.0%} is "
            "singled out"
        )


class Marginal(NamedTuple):
    """A histogram of one coordinate: `density` integrates to 1 over `edges`, with its standard error."""

    edges: Float[np.ndarray, " bins+1"]
    density: Float[np.ndarray, " bins"]
    standard_error: Float[np.ndarray, " bins"]


@heeded()
def region(
    proposal: AbstractProposal, mass: float = 0.9, *, key: PRNGKeyArray, num_samples: int = 10_000
) -> Region:
    r"""The smallest region of a density that holds a given mass: `contains(points)`, `area`, `share`.

    By samples: the level is a quantile of $\log q$, the area $\mathbb{E}_q[1/q]$ above it. For any
    density, such as one that was loaded; a conditional one is asked by `q.given(context)`.

    !!! example

        ```python
        dx.save(q, "q.safetensors")
        print(dx.region(dx.load("q.safetensors"), 0.9, key=key))
        ```
    """
    if not isinstance(proposal, AbstractProposal):
        raise TypeError(
            f"a region is of a density, such as Proposal(flow), not of {proposal!r:.40}"
        )
    if proposal.context_size:
        raise ValueError("this density depends on a context: ask q.given(context) for its region")
    key = require_key(key, "a region")
    if not positive_number(mass, "mass, the share that a region holds,") < 1:
        raise ValueError(f"a region has a mass between 0 and 1, such as 0.9, not {mass!r}")
    num = whole_number(num_samples, "num_samples", least=100)
    _, log_q = proposal.sample_and_log_density(key, num)
    log_q = np.asarray(log_q, float)
    level = float(np.quantile(log_q, 1 - mass))
    inverse = np.where(log_q >= level, np.exp(-log_q), 0.0)
    total = math.exp(sphere.log_area(proposal.n))
    share = min(1.0, float(inverse.mean()))
    error = float(inverse.std() / num**0.5)
    held = float(np.mean(log_q >= level))
    return Region(float(mass), level, share, total * share, total * error, proposal, held)


@heeded()
def marginals(
    proposal: AbstractProposal, *, key: PRNGKeyArray, num_samples: int, num_bins: int
) -> dict[str, Marginal]:
    """Longitude and latitude at n = 3, the angle at n = 2, every coordinate above, by samples."""
    num_bins = whole_number(num_bins, "num_bins")
    points = proposal.sample(key, num_samples)
    if proposal.n == 3:
        lon, lat = sphere.to_lonlat(points)
        values = {"longitude": (lon, -180, 180), "latitude": (lat, -90, 90)}
    elif proposal.n == 2:
        values = {"angle": (jnp.rad2deg(jnp.arctan2(points[:, 1], points[:, 0])), -180, 180)}
    else:
        values = {f"x{i + 1}": (points[:, i], -1, 1) for i in range(proposal.n)}
    return {name: _histogram(*value, num_bins) for name, value in values.items()}


def _histogram(values, low: float, high: float, num_bins: int) -> Marginal:
    counts, edges = np.histogram(np.asarray(values, float), num_bins, (low, high))
    share = counts / counts.sum()
    width = np.diff(edges)
    error = np.sqrt(share * (1 - share) / counts.sum())
    return Marginal(edges, share / width, error / width)
