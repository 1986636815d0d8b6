"""What `log_likelihood` gives: an `Estimate` of log p(x) with the point that it was evaluated at."""

import math
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from determinax._diagnostics import (
    OK,
    THRESHOLDS,
    UNRELIABLE,
    WARN,
    AbstractDiagnostics,
    Finding,
    Threshold,
    error_finding,
)
from determinax.estimate import Estimate

# of the distance between the bounds, in bits per dimension
_GAP = Threshold(0.05, 0.5)


class UnsolvedPointError(ValueError):
    """No z was found with g(z) = x, so there is no likelihood to tell.

    !!! example

        ```python
        q = dx.Proposal(dx.flows.projective_linear(10))
        try:  # tanh never gives 3
            dx.log_likelihood(jnp.arctanh, jnp.tanh, jnp.full(10, 3.0), q, key=key)
        except dx.UnsolvedPointError as error:
            print(error)
        ```
    """


class TwoSided(AbstractDiagnostics):
    """A likelihood between two bounds, at a point that was solved for, or not."""

    residual: Float[Array, ""]
    is_solved: Bool[Array, ""]
    gap: Float[Array, ""]  # between the bounds, in bits per dimension; NaN: there is no upper one
    is_folded: Bool[Array, ""]  # somewhere in the batch
    is_linear: bool = eqx.field(static=True)  # the proposal, which the upper bound needs
    tolerance: float = eqx.field(static=True)

    def findings(self, error: Any, bar: Any) -> list[Finding]:
        """See `AbstractDiagnostics`."""
        known = self.gap == self.gap
        return [
            Finding(OK + (UNRELIABLE - OK) * (1 - self.is_solved * 1), self._unsolved),
            Finding(
                OK + (WARN - OK) * (1 - known * 1),
                self._one_bound,
            ),
            Finding(
                OK + (_GAP.level(self.gap) - OK) * known,
                lambda: (
                    f"The bounds are {self.gap:.2g} bits per dimension apart; take more samples, or "
                    "train the proposal longer."
                ),
            ),
            Finding(
                OK + (WARN - OK) * (self.is_folded * 1),
                lambda: (
                    "The encoder folds: det J_f has both signs among the points, so that several z may "
                    "give one x. The lower bound holds all the same; the upper one is of this z alone."
                ),
            ),
            error_finding(error, bar, "take more samples"),
        ]

    def reasons(self, value: Any, error: Any, bar: Any, fault: Any) -> tuple[str, ...]:
        """See `AbstractDiagnostics`: an unsolved point has no other news."""
        if not self.is_solved:
            return (self._unsolved(),)
        return super().reasons(value, error, bar, fault)

    def _one_bound(self) -> str:
        if not self.is_linear:
            return (
                "There is no upper bound, so log p may be larger than it looks: it needs a linear "
                "proposal, such as flows.conditional_linear."
            )
        return (
            "There is no upper bound: its transposed solves by the encoder did not converge, so "
            "log p may be larger than it looks; train the encoder longer."
        )

    def _unsolved(self) -> str:
        if math.isnan(self.residual) or math.isinf(self.residual):
            return "f or g is not finite at this x: look at them there."
        return (
            f"No z was found with g(z) = x: |g(z) - x| is {self.residual:.2g} of |x|, where "
            f"{self.tolerance:.0e} was asked; the decoder does not invert there: train longer, or with a "
            "larger weight of the reconstruction."
        )


class OneSided(AbstractDiagnostics):
    """A likelihood by the encoder's own Jacobian, which is one only where f is invertible."""

    spread: Float[Array, ""]
    correction: Float[Array, ""]

    def findings(self, error: Any, bar: Any) -> list[Finding]:
        """See `AbstractDiagnostics`."""
        return [
            Finding(
                THRESHOLDS["spread"].level(self.spread),
                lambda: (
                    f"The log-weights spread by {self.spread:.2g} nats: their correction, "
                    f"{self.correction:.2g} nats, is right to second order only, and log p is likely too "
                    "large; train the proposal longer."
                ),
            ),
            error_finding(error, bar, "take more samples"),
        ]


class LikelihoodEstimate(Estimate):
    r"""$\log p(x)$ with its bounds, and where it was evaluated; of a batch every field has it in front.

    As of every `Estimate`, `log_abs_det` has the value, here `log_likelihood`, which is below in
    expectation. `lower_bound` and `upper_bound` hold for a single x with 99.5 % each.

    **Fields:**

    - `point`: the solved z, or $f(x)$ for networks that are invertible by construction.
    - `residual`: $|g(z) - x|$ as a share of $|x|$, or of $\sqrt n$ if that is larger.

    !!! example

        ```python
        q = dx.Proposal(dx.flows.ProjectiveLinear(dx.flows.Dense(jnp.eye(10))))
        estimate = dx.log_likelihood(lambda x: x, lambda z: z, x, q, key=key)
        estimate[0].status, estimate.bits_per_dimension().mean()
        ```
    """

    point: Any = None
    residual: Any = None

    @property
    def log_likelihood(self) -> Float[Array, "*batch"]:
        """The estimate, in nats: NaN where g(z) = x was not solved."""
        return self.log_abs_det

    def bits_per_dimension(
        self, added: Float[Array, "*batch"] | float = 0.0
    ) -> Float[Array, "*batch"]:
        r"""$-\log_2 p(x)/n$; `added` is the log-density that the way from data to x adds."""
        return -(self.log_abs_det + added) / (self.point.shape[-1] * math.log(2))

    @property
    def refused(self) -> tuple[str, ...]:
        """A sentence for every x of the batch that has no likelihood: outside of `jit`."""
        values = np.atleast_1d(np.asarray(self.log_abs_det))
        bad = np.flatnonzero(np.isnan(values))
        single = np.ndim(self.log_abs_det) == 0
        return tuple(
            self.reasons[0] if single else f"x number {i} of the batch: {self[i].reasons[0]}"
            for i in bad
        )

    def __str__(self) -> str:
        if not self._is_batch_or_traced():
            return super().__str__()
        value = jnp.asarray(self.log_abs_det)
        return f"LikelihoodEstimate(method={self.method}, log_likelihood={value})"
