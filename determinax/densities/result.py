"""What `density` gives: a law to ask, and the verdict on it."""

import dataclasses
import math
import os
from typing import Any

from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray

from determinax import storage
from determinax._keys import stream
from determinax.densities import questions
from determinax.densities.questions import Marginal, Region
from determinax.densities.verdict import Score, Verdict
from determinax.proposals import AbstractProposal
from determinax.proposals.base import Measure
from determinax.proposals.bumps import FLOOR


@dataclasses.dataclass(frozen=True)
class Density:
    """The density of data on a sphere.

    **Fields:**

    - `proposal`: the density itself, which mixes, saves and draws like any other.
    - `parts`: the weight of every model that it is stacked of, by name.
    - `models`: everything that was fitted, whether it has a weight or not.
    - `verdict`: held-out likelihoods of all models, tests and reasons; `status` is its word: "ok",
        "no structure", "overfit" or "underfit".
    - `num_points`, `num_held_out`, `seconds`: what it rests on; `flows` says how many there was time for.
    - `floor`: the least width of its kernels, in radians.

    !!! example

        ```python
        density = dx.density(points, key=key, seconds=0)    # without flows
        density.status, density.parts
        density.sample(key, 10)
        ```
    """

    proposal: AbstractProposal
    parts: dict[str, float]
    models: dict[str, AbstractProposal]
    verdict: Verdict
    num_points: int
    num_held_out: int
    seconds: float
    key: PRNGKeyArray
    flows: str = ""
    floor: float = FLOOR

    @property
    def n(self) -> int:
        """The dimension of the space around the sphere."""
        return self.proposal.n

    @property
    def status(self) -> str:
        """The verdict in a word."""
        return self.verdict.status

    @property
    def reasons(self) -> tuple[str, ...]:
        """The verdict in sentences."""
        return self.verdict.reasons

    def log_density(
        self,
        points: Float[ArrayLike, "num n"] | Float[ArrayLike, " n"],
        *,
        measure: Measure = "uniform",
    ) -> Float[Array, " num"] | Float[Array, ""]:
        """The log-density at unit vectors, one a row: over the uniform law, or per `"area"`."""
        return self.proposal.log_density(points, measure=measure)

    def sample(self, key: PRNGKeyArray, num: int) -> Float[Array, "num n"]:
        """`num` new points, one a row."""
        return self.proposal.sample(key, num)

    def region(self, mass: float = 0.9, *, num_samples: int = 10_000) -> Region:
        """The smallest region that holds a given mass: `contains(points)`, `area`, `share`.

        !!! example

            ```python
            region = dx.density(points, key=key, seconds=0).region(0.9)
            region.contains(dx.sphere.from_lonlat(13.4, 52.5)), region.area
            ```
        """
        key = stream(self.key, "region")
        return questions.region(self.proposal, mass, key=key, num_samples=num_samples)

    def marginals(self, *, num_bins: int = 36, num_samples: int = 20_000) -> dict[str, Marginal]:
        """Histograms by name: longitude and latitude at n = 3, the angle at n = 2, else coordinates.

        !!! example

            ```python
            dx.density(points, key=key, seconds=0).marginals()["latitude"].density
            ```
        """
        key = stream(self.key, "marginals")
        return questions.marginals(
            self.proposal, key=key, num_samples=num_samples, num_bins=num_bins
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the density to a file for `determinax.load`; the verdict stays behind."""
        storage.save(self.proposal, path)

    def report(self) -> str:
        """The verdict as a text of a few lines."""
        head = (
            f"density of {self.num_points:,} points on the sphere in R^{self.n} ({self.num_held_out:,} "
            f"held out), {self.seconds:.1f} s: {self.status}"
        )
        shares = ", ".join(f"{name} {share:.1%}" for name, share in self.parts.items())
        lines = (head, str(self.verdict), f"weights: {shares}", self.flows)
        return "\n".join(line for line in lines if line)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and words, for JSON."""
        v = self.verdict
        return {
            "status": v.status,
            "reasons": list(v.reasons),
            "n": self.n,
            "num_points": self.num_points,
            "num_held_out": self.num_held_out,
            "seconds": self.seconds,
            "floor": self.floor,
            "weights": self.parts,
            "num_flows": sum(name.startswith("flow ") for name in self.models),
            "held_out": {name: _numbers(value) for name, value in v.scores.items()},
            "surplus": _numbers(v.surplus),
            "p_value": v.p_value,
            "uniformity": None if v.uniformity is None else v.uniformity._asdict(),
            "duplicates": v.duplicates,
        }

    def __str__(self) -> str:
        return self.report()


def _numbers(score: Score) -> dict[str, float | None]:
    """JSON has no NaN: the error from a single point is null."""
    return {k: x if math.isfinite(x) else None for k, x in score._asdict().items()}
