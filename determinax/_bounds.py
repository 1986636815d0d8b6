"""Bounds in expectation, each with its own standard error. Numbers only."""

from typing import Any

import equinox as eqx
from jaxtyping import Array, Float


class Bound(eqx.Module):
    """A bound in expectation, and its own standard error."""

    value: Float[Array, ""]
    error: Float[Array, ""]

    def moved(self, shift: Any, factor: float) -> "Bound":
        """`factor` times this, plus `shift`."""
        return Bound(factor * self.value + shift, factor * self.error)


class Bounds(eqx.Module):
    r"""Bounds of $\log|\det A|$ in expectation; None where a method has none.

    - `kl`, `importance`: upper bounds, by the mean log-weight and by the log mean weight of batches.
    - `lower`: a lower bound, from samples of the best proposal itself.
    - `upper`: an upper bound of what has one from elsewhere, such as a likelihood.
    - `slack`: what the certificate adds to `importance` for each nat of $\log(1/\delta)$.
    """

    kl: Bound | None = None
    importance: Bound | None = None
    lower: Bound | None = None
    slack: Float[Array, ""] | None = None
    upper: Bound | None = None

    def moved(self, shift: Any, factor: float) -> "Bounds":
        """Of `factor` times what they bound, plus `shift`."""
        kl, importance, lower, upper = (
            None if bound is None else bound.moved(shift, factor)
            for bound in (self.kl, self.importance, self.lower, self.upper)
        )
        slack = None if self.slack is None else factor * self.slack
        return Bounds(kl, importance, lower, slack, upper)
