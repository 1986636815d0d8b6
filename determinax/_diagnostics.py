"""What an estimate rests on, judged by itself: one rule gives the traced code and its sentence.

`docs/verdict.md` explains the thresholds; `docs/results/calibration.md` measures what they are worth.
"""

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from determinax._checks import counted, not_finite
from determinax._states import Fault

Status = Literal["exact", "ok", "warn", "unreliable"]
STATUSES: tuple[Status, ...] = ("exact", "ok", "warn", "unreliable")
EXACT, OK, WARN, UNRELIABLE = range(4)


class Threshold(NamedTuple):
    """At which value of a figure an estimate is worth a warning, and when it is unreliable."""

    warn: float
    unreliable: float

    def level(self, value: Any) -> Any:
        """1, 2 or 3, by comparisons alone: on numbers, arrays and tracers. A NaN is unreliable."""
        rising = self.unreliable > self.warn
        fine, bearable = (
            (value <= self.warn, value <= self.unreliable)
            if rising
            else (value >= self.warn, value >= self.unreliable)
        )
        return OK + (1 - fine * 1) + (1 - bearable * 1)


THRESHOLDS = {
    "pareto_k": Threshold(0.5, 0.7),
    "effective_sample_size": Threshold(100, 25),
    "max_weight_share": Threshold(0.1, 0.3),
    "standard_error": Threshold(0.25, 1.0),
    "num_draws": Threshold(100, 25),
    # standard deviation of the log-weights; from here on more samples, not luck, must decide
    "spread": Threshold(1.65, math.inf),
    "num_probes": Threshold(20, 4),
    # Lanczos: change of the quadrature from half its depth, in standard errors
    "quadrature_change": Threshold(0.5, 2.0),
    # exact: digits that rounding may have cost, in nats
    "rounding": Threshold(1e-3, 0.1),
}

# Up to this spread every eigenvalue of the normalised A^T A lies above 1/2 (Var(log w) is at least
# half the square of its distance from 1), so the weights' variance is finite. Beyond it only the
# Pareto fit can tell, and that wants a long tail: so many independent draws.
NARROW_SPREAD, BROAD_NUM_DRAWS = 0.35, 2000
# That holds for uniform directions and for those of a linear map. A flow's weights may have any tail:
# at a spread of 0.34 the intervals of one covered 86 % of the time, at 0.07 those of another 94 %.
_NARROW_FLOW = 0.1
# there k must be below its threshold by so many of its own standard errors, (1 + k) / sqrt(tail)
_TAIL_DOUBT = 3.0
# log-weights whose range is rounding, in units of n times the dtype's epsilon
EQUAL_WEIGHTS = 16
# by which share rounding may take an effective sample size below the number of equal weights
_ROUNDED = 1e-5
# and never more than this, in nats: at n = 1e6 float32's rounding hides a singular direction
EQUAL_WEIGHTS_NATS = 1e-3
# so many weights must agree before their equality means something
MIN_EQUAL = 25

# what goes wrong with values travels as a `Fault` through compiled code; the shell raises its sentence
PRODUCT, PROBE, ASYMMETRIC, OTHER_SIGN, NEGATIVE = 1, 2, 3, 4, 10
_TAGGED = {
    ASYMMETRIC: "it is not symmetric: <u, Av> and <Au, v> differ by {size:.1g} of its size",
    OTHER_SIGN: "it has values of the other sign, {size:.1g} of its size",
}
FAULTS = {
    PRODUCT: not_finite("product {where} of the operator"),
    PROBE: not_finite("a product of probe {where}"),
} | {
    code + extra: f"the operator is tagged {sign} semidefinite, but {what}; leave the tag out"
    for code, what in _TAGGED.items()
    for extra, sign in ((0, "positive"), (NEGATIVE, "negative"))
}

_UPWARD = "log|det| is likely too large, hardly ever too small"
_CURE = "take more samples, or a proposal that fits A"


class Finding(NamedTuple):
    """A rule's level (an array, or a number on the host), and its sentence, asked for on the host only."""

    level: Any
    say: Callable[[], str]


class Bar(eqx.Module):
    """The standard error that the caller is content with: in nats, as a share of |value|, or neither."""

    tolerance: Float[Array, ""] | None = None
    rtol: Float[Array, ""] | None = None

    @property
    def is_set(self) -> bool:
        """Whether the caller said anything."""
        return self.tolerance is not None or self.rtol is not None

    def at(self, value: Any) -> Any:
        """In nats, for this value; None where nothing was said. Of both, the larger counts."""
        share = None if self.rtol is None else self.rtol * abs(value)
        if share is None or self.tolerance is None:
            return self.tolerance if share is None else share
        return share + (self.tolerance - share) * (self.tolerance > share)


class AbstractDiagnostics(eqx.Module):
    """A pytree of figures that judges itself.

    `findings` and `is_exact` use arithmetic and comparisons only, so that the same lines give the
    code inside of `jit`, `vmap` and `scan` and, on NumPy numbers, the sentences. A method of your
    own may bring diagnostics of its own; `Plain` looks at the standard error alone.
    """

    def findings(self, error: Any, bar: Any) -> list[Finding]:
        """What is to be said, given the standard error and the caller's bar (None: the usual one)."""
        return [error_finding(error, bar, "take more samples")]

    def is_exact(self, error: Any) -> Any:
        """Whether rounding is all that is left: 0 or 1."""
        del error
        return 0

    def moved(self, error: Any) -> "AbstractDiagnostics":
        """Of an estimate to which something was added that is known to `error`."""
        del error
        return self

    def code(self, value: Any, error: Any, bar: Any, fault: Fault) -> Any:
        """0 exact, 1 ok, 2 warn, 3 unreliable."""
        level = OK
        for finding in self.findings(error, bar):
            level = _larger(level, finding.level)
        is_exact = self.is_exact(error)
        short = 0 if bar is None else 1 - (error <= bar) * 1
        level = level * (1 - is_exact) + is_exact * WARN * short
        is_bad = ((value != value) | (abs(value) == math.inf) | (fault.code > 0)) * 1
        return level + (UNRELIABLE - level) * is_bad

    def reasons(self, value: Any, error: Any, bar: Any, fault: Fault) -> tuple[str, ...]:
        """The sentences behind the code, worst first: on the host, on NumPy numbers."""
        if fault.code > 0:
            return (fault_sentence(fault),)
        if math.isnan(value):
            return (
                "The result is NaN: a product was not finite, so nothing is known, to either side; "
                "use an operator whose products are finite.",
            )
        if math.isinf(value):
            return (
                "The operator maps a direction to zero: it is singular, and log|det| is -inf, or its "
                "products underflow, and -inf is too small; use a rescaled operator to tell.",
            )
        if self.is_exact(error):
            return () if bar is None or error <= bar else (_rounding_above(error, bar),)
        found = [f for f in self.findings(error, bar) if f.level > OK]
        return tuple(f.say() for f in sorted(found, key=lambda f: -int(f.level)))


class Plain(AbstractDiagnostics):
    """Nothing but the standard error is known."""


class Weights(AbstractDiagnostics):
    """Independent draws of importance weights."""

    num_draws: Int[Array, ""]
    effective_sample_size: Float[Array, ""]
    max_weight_share: Float[Array, ""]
    spread: Float[Array, ""]
    pareto_k: Float[Array, ""]  # NaN: unknown
    are_equal: Bool[Array, ""]
    num_tail: int = eqx.field(static=True)
    is_linear: bool = eqx.field(
        static=True
    )  # no default: of what was drawn from a flow it is False

    def is_exact(self, error: Any) -> Any:
        """See `AbstractDiagnostics`."""
        return self.are_equal * 1

    def moved(self, error: Any) -> "Weights":
        """See `AbstractDiagnostics`: equal weights are worth no more than what is added to them."""
        equal = self.are_equal & (error <= THRESHOLDS["rounding"].warn)
        return eqx.tree_at(lambda d: d.are_equal, self, equal)

    def findings(self, error: Any, bar: Any) -> list[Finding]:
        """See `AbstractDiagnostics`."""
        k, ess, share = self.pareto_k, self.effective_sample_size, self.max_weight_share
        num, spread = self.num_draws, self.spread
        # below that, none of the others means much
        enough = num >= THRESHOLDS["num_draws"].unreliable
        is_known = enough & (k == k)
        # samples that missed a heavy tail are the ones in which it looks light
        slack = _TAIL_DOUBT * (1 + k) / max(self.num_tail, 1) ** 0.5
        narrow = NARROW_SPREAD if self.is_linear else _NARROW_FLOW
        limit = THRESHOLDS["pareto_k"].warn
        in_doubt = (spread > narrow) & (k <= limit) & (k + slack > limit) & (self.num_tail > 0)
        return [
            Finding(
                _only(is_known, THRESHOLDS["pareto_k"].level(k)),
                lambda: (
                    f"The weights are heavy-tailed (Pareto k = {k:.2f}): directions that matter are "
                    f"rare in the sample, so {_UPWARD}; {_CURE}."
                ),
            ),
            Finding(
                _only(is_known & in_doubt, WARN),
                lambda: (
                    f"The weights may be heavy-tailed: Pareto k = {k:.2f} is known to {slack:.2f} "
                    f"only, so log|det| may be too large; {_CURE}."
                ),
            ),
            Finding(
                _only(enough, THRESHOLDS["spread"].level(spread)),
                lambda: (
                    f"The log-weights spread by {spread:.2g} nats, so whether the largest ones were "
                    f"met is luck, and {_UPWARD}; {_CURE}."
                ),
            ),
            Finding(
                # of few draws that agree it is said that they are few
                _only(
                    enough & (ess * (1 + _ROUNDED) < num),
                    THRESHOLDS["effective_sample_size"].level(ess * (1 + _ROUNDED)),
                ),
                lambda: (
                    f"Only {ess:.3g} of {int(num):,} samples carry the weight, so {_UPWARD}; "
                    f"{_CURE}."
                ),
            ),
            Finding(
                _only(enough, THRESHOLDS["max_weight_share"].level(share)),
                lambda: f"One sample carries {share:.0%} of the weight, so {_UPWARD}; {_CURE}.",
            ),
            *_of_draws(num, spread, error, bar),
        ]


class Pooled(AbstractDiagnostics):
    """A spread of log-weights that is pooled over many steps; so many draws of it (trackers)."""

    num_draws: Float[Array, ""]
    spread: Float[Array, ""]

    def findings(self, error: Any, bar: Any) -> list[Finding]:
        """See `AbstractDiagnostics`."""
        enough = self.num_draws >= THRESHOLDS["num_draws"].unreliable
        return [
            Finding(
                _only(enough, THRESHOLDS["spread"].level(self.spread)),
                lambda: (
                    f"The log-weights spread by {self.spread:.2g} nats, so whether the largest ones "
                    f"were met is luck, and {_UPWARD}; {_CURE}."
                ),
            ),
            *_of_draws(self.num_draws, self.spread, error, bar),
        ]


class Quadrature(AbstractDiagnostics):
    """Probes of a Lanczos quadrature, and its change from half its depth, in standard errors."""

    num_probes: Int[Array, ""]
    change: Float[Array, ""]

    def findings(self, error: Any, bar: Any) -> list[Finding]:
        """See `AbstractDiagnostics`."""
        return [
            Finding(
                THRESHOLDS["quadrature_change"].level(self.change),
                lambda: (
                    f"The quadrature has not converged (it fell by {self.change:.2g} standard errors "
                    "from half its depth), so log|det| is too large; increase depth."
                ),
            ),
            error_finding(error, bar, "take more probes"),
            Finding(
                THRESHOLDS["num_probes"].level(self.num_probes),
                lambda: (
                    f"{counted(int(self.num_probes), 'probe', be=True)} too few for an error bar, "
                    "to either side; take at least 20."
                ),
            ),
        ]


class Rounding(AbstractDiagnostics):
    """A factorisation: nothing but rounding is left, as much as the condition number allows."""

    condition: Float[Array, ""]

    def is_exact(self, error: Any) -> Any:
        """See `AbstractDiagnostics`."""
        return (error <= THRESHOLDS["rounding"].warn) * 1

    def findings(self, error: Any, bar: Any) -> list[Finding]:
        """See `AbstractDiagnostics`."""
        del bar  # a bar excuses no rounding: its size is known by order of magnitude only
        limits = THRESHOLDS["rounding"]

        def say() -> str:
            gone = limits.level(error) >= UNRELIABLE
            kind = "numerically singular" if gone else "ill-conditioned"
            size = f"{error:.1g} nats" if error < 1 else "all digits"
            return (
                f"The operator is {kind}: rounding may have cost {size}, to either side; use float64, "
                "or a formulation with a smaller condition number."
            )

        return [Finding(limits.level(error), say)]


def error_finding(error: Any, bar: Any, cure: str) -> Finding:
    """Judge the standard error by the caller's bar; without one, by the usual 0.25 nats."""
    usual = THRESHOLDS["standard_error"]
    # as far above the caller's bar as 1 nat is above 0.25, an estimate is of no use to them
    ratio = usual.unreliable / usual.warn
    limits = usual if bar is None else Threshold(bar, bar * ratio)
    level = OK + (1 - (error <= limits.warn) * 1) + (1 - (error <= limits.unreliable) * 1)

    def say() -> str:
        asked = "" if bar is None else f", above the {bar:.2g} asked for"
        return f"The standard error is {error:.2g} nats{asked}, to either side; {cure}."

    return Finding(level, say)


def rounding_finding(rounding: Any) -> Finding:
    """Of what was taken out of a determinant before the rest was estimated."""

    def say() -> str:
        return (
            f"Rounding in what was taken out exactly may have cost {rounding:.1g} nats, to either side; "
            "use float64, or a formulation with a smaller condition number."
        )

    return Finding(THRESHOLDS["rounding"].level(rounding), say)


def fault_sentence(fault: Fault) -> str:
    """What went wrong, in words; on the host."""
    sentence = FAULTS[int(fault.code)]
    return sentence.format(where=int(fault.where), size=float(fault.size))


def _of_draws(num: Any, spread: Any, error: Any, bar: Any) -> list[Finding]:
    """What is said of any number of independent draws."""
    limits = THRESHOLDS["num_draws"]
    finding = error_finding(error, bar, _CURE)
    few = (num >= limits.warn) & (num < BROAD_NUM_DRAWS) & (spread > NARROW_SPREAD)
    return [
        Finding(_only(num >= limits.unreliable, finding.level), finding.say),
        Finding(
            _only(few, WARN),
            lambda: (
                f"{int(num):,} independent draws are few for log-weights that spread by {spread:.2g} "
                f"nats: a tail may hide, so log|det| may be too large; take {BROAD_NUM_DRAWS:,}."
            ),
        ),
        Finding(
            limits.level(num),
            lambda: (
                f"{counted(int(num), 'independent draw', be=True)} too few to judge the weights' tail, "
                "so the error is unknown, to either side; take at least 100."
            ),
        ),
    ]


def _rounding_above(rounding: float, bar: float) -> str:
    return (
        f"Rounding may have cost {rounding:.1g} nats, above the {bar:.2g} asked for, to either side; "
        "use float64, or ask for less."
    )


def _only(condition: Any, level: Any) -> Any:
    """The level where the condition holds, and nothing to say elsewhere."""
    return OK + (level - OK) * (condition * 1)


def _larger(a: Any, b: Any) -> Any:
    return a + (b - a) * ((b > a) * 1)


def as_code(code: Any) -> Int[Array, ""]:
    """A code as an array."""
    return jnp.asarray(code, jnp.int32)
