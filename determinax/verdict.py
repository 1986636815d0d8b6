"""When to trust an estimate: thresholds in one table, and sentences that name the cure.

`docs/verdict.md` explains the table; `docs/results/calibration.md` measures what it is worth.
"""

import math
from typing import Any, Literal, NamedTuple

import numpy as np
from arviz_stats.base.array import array_stats

Status = Literal["exact", "ok", "warn", "unreliable"]


class Threshold(NamedTuple):
    """At which value of a figure an estimate is worth a warning, and when it is unreliable."""

    warn: float
    unreliable: float


THRESHOLDS = {
    "pareto_k": Threshold(0.5, 0.7),
    "effective_sample_size": Threshold(100, 25),
    "max_weight_share": Threshold(0.1, 0.3),
    "standard_error": Threshold(0.25, 1.0),
    "num_groups": Threshold(100, 25),
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
NARROW_SPREAD, BROAD_NUM_GROUPS = 0.35, 2000
# That holds for uniform directions and for those of a linear map. A flow's weights may have any tail:
# at a spread of 0.34 the intervals of one covered 86 % of the time, at 0.07 those of another 94 %.
_NARROW_FLOW = 0.1
# there k must be below its threshold by so many of its own standard errors, (1 + k) / sqrt(tail)
_TAIL_DOUBT = 3.0
# log-weights whose range is rounding, in units of n times the dtype's epsilon
EQUAL_WEIGHTS = 16
# and never more than this, in nats: at n = 1e6 float32's rounding hides a singular direction
EQUAL_WEIGHTS_NATS = 1e-3
# so many weights must agree before their equality means something
MIN_EQUAL = 25


class Figures(NamedTuple):
    """What the verdict looks at; None is "does not apply"."""

    log_abs_det: float
    standard_error: float
    num_groups: int = 0
    equal_weights: bool = False
    effective_sample_size: float | None = None
    max_weight_share: float | None = None
    spread: float | None = None
    pareto_k: float | None = None
    num_tail: int = 0
    is_linear: bool = True
    rounding: float | None = None
    quadrature_change: float | None = None
    bar: float | None = None


def judge(figures: Figures) -> tuple[Status, tuple[str, ...]]:
    """Status and reasons, worst first."""
    if math.isnan(figures.log_abs_det):
        return "unreliable", (
            "The result is NaN: a product was not finite, so nothing is known, to either side; "
            "use an operator whose products are finite.",
        )
    if figures.log_abs_det == -math.inf:
        return "unreliable", (
            "The operator maps a direction to zero: it is singular, and log|det| is -inf, or its "
            "products underflow, and -inf is too small; use a rescaled operator to tell.",
        )
    if figures.rounding is not None:
        return _judge_exact(figures.rounding, figures.bar)
    if figures.equal_weights:
        return _within_bar(figures.standard_error, figures.bar) or ("exact", ())
    if figures.quadrature_change is not None:
        findings = _lanczos_findings(figures)
    else:
        findings = _sampling_findings(figures)
    worst = [text for level, text in findings if level == "unreliable"]
    mild = [text for level, text in findings if level == "warn"]
    status: Status = "unreliable" if worst else "warn" if mild else "ok"
    return status, (*worst, *mild)


def pareto_k(tail: np.ndarray) -> float | None:
    """Tail index of weights from the largest log-weights, the first below the tail included.

    By arviz-stats (Zhang and Stephens' fit with its prior). None for under 5 tail draws, or where
    all are equal.
    """
    tail = np.sort(np.asarray(tail, dtype=float))
    cutoff, draws = tail[0], tail[1:]
    if len(draws) < 5 or not np.all(np.isfinite(tail)) or draws[-1] == draws[0]:
        return None
    weights = np.exp(draws - draws[-1])
    below = np.exp(cutoff - draws[-1])
    # arviz takes a fifth of what it is given as the tail where r_eff says that draws are few:
    # fill up with the cutoff, and its fifth is exactly our tail
    padded = np.concatenate([np.full(4 * len(draws), below), weights])
    with np.errstate(all="ignore"):
        fit = array_stats.pareto_khat(padded[None], r_eff=200 / len(padded), tail="right")
    k = float(np.asarray(fit))
    return k if math.isfinite(k) else None


def _level(value: float, threshold: Threshold) -> Literal["warn", "unreliable"] | None:
    rising = threshold.unreliable > threshold.warn
    beyond = (lambda limit: value > limit) if rising else (lambda limit: value < limit)
    if beyond(threshold.unreliable) or math.isnan(value):
        return "unreliable"
    return "warn" if beyond(threshold.warn) else None


_UPWARD = "log|det| is likely too large, hardly ever too small"
_CURE = "take more samples, or a proposal that fits A"


def _sampling_findings(figures: Figures) -> list[tuple[str, str]]:
    findings: list[tuple[str, str]] = []

    def look(name: str, value: Any, sentence: str):
        level = None if value is None else _level(value, THRESHOLDS[name])
        if level:
            findings.append((level, sentence))

    k, ess, share = figures.pareto_k, figures.effective_sample_size, figures.max_weight_share
    spread = figures.spread
    groups, error = figures.num_groups, figures.standard_error
    if groups >= THRESHOLDS["num_groups"].unreliable:  # below that, none of the others means much
        look(
            "pareto_k",
            k,
            f"The weights are heavy-tailed (Pareto k = {k or 0:.2f}): directions that matter are "
            f"rare in the sample, so {_UPWARD}; {_CURE}.",
        )
        narrow = NARROW_SPREAD if figures.is_linear else _NARROW_FLOW
        if k is not None and figures.num_tail and (spread or 0) > narrow:
            # samples that missed a heavy tail are the ones in which it looks light
            slack = _TAIL_DOUBT * (1 + k) / math.sqrt(figures.num_tail)
            if k <= THRESHOLDS["pareto_k"].warn < k + slack:
                sentence = (
                    f"The weights may be heavy-tailed: Pareto k = {k:.2f} is known to {slack:.2f} "
                    f"only, so log|det| may be too large; {_CURE}."
                )
                findings.append(("warn", sentence))
        look(
            "spread",
            spread,
            f"The log-weights spread by {spread or 0:.2g} nats, so whether the largest ones were "
            f"met is luck, and {_UPWARD}; {_CURE}.",
        )
        look(
            "effective_sample_size",
            ess,
            f"Only {ess or 0:.3g} of {groups:,} samples carry the weight, so {_UPWARD}; {_CURE}.",
        )
        look(
            "max_weight_share",
            share,
            f"One sample carries {share or 0:.0%} of the weight, so {_UPWARD}; {_CURE}.",
        )
        findings += _error_finding(error, figures.bar, _CURE)
    if THRESHOLDS["num_groups"].warn <= groups < BROAD_NUM_GROUPS and (spread or 0) > NARROW_SPREAD:
        findings.append(
            (
                "warn",
                f"{groups:,} independent draws are few for log-weights that spread by {spread:.2g} "
                f"nats: a tail may hide, so log|det| may be too large; take {BROAD_NUM_GROUPS:,}.",
            )
        )
    look(
        "num_groups",
        groups,
        f"{groups} independent draws are too few to judge the weights' tail, so the error is "
        "unknown, to either side; take at least 100.",
    )
    return findings


def _lanczos_findings(figures: Figures) -> list[tuple[str, str]]:
    findings: list[tuple[str, str]] = []
    change, error = figures.quadrature_change or 0.0, figures.standard_error
    level = _level(change, THRESHOLDS["quadrature_change"])
    if level:
        findings.append(
            (
                level,
                f"The quadrature has not converged (it fell by {change:.2g} standard errors from "
                "half its depth), so log|det| is too large; increase depth.",
            )
        )
    findings += _error_finding(error, figures.bar, "take more probes")
    level = _level(figures.num_groups, THRESHOLDS["num_probes"])
    if level:
        findings.append(
            (
                level,
                f"{figures.num_groups} probes are too few for an error bar, to either side; "
                "take at least 20.",
            )
        )
    return findings


def _error_finding(error: float, bar: float | None, cure: str) -> list[tuple[str, str]]:
    """Judge the standard error by the caller's bar; without one, by the default of 0.25 nats."""
    usual = THRESHOLDS["standard_error"]
    # as far above the caller's bar as 1 nat is above 0.25, an estimate is of no use to them
    limits = usual if bar is None else Threshold(bar, bar * usual.unreliable / usual.warn)
    level = _level(error, limits)
    asked = "" if bar is None else f", above the {bar:.2g} asked for"
    sentence = f"The standard error is {error:.2g} nats{asked}, to either side; {cure}."
    return [(level, sentence)] if level else []


def _within_bar(rounding: float, bar: float | None) -> tuple[Status, tuple[str, ...]] | None:
    """A warning where rounding alone is above the caller's bar; None where it is not."""
    if bar is None or rounding <= bar:
        return None
    return "warn", (
        f"Rounding may have cost {rounding:.1g} nats, above the {bar:.2g} asked for, to either side; "
        "use float64, or ask for less.",
    )


def _judge_exact(rounding: float, bar: float | None) -> tuple[Status, tuple[str, ...]]:
    level = _level(rounding, THRESHOLDS["rounding"])
    if level is None:
        return _within_bar(rounding, bar) or ("exact", ())
    kind = "numerically singular" if level == "unreliable" else "ill-conditioned"
    size = f"{rounding:.1g} nats" if rounding < 1 else "all digits"
    return level, (
        f"The operator is {kind}: rounding may have cost {size}, to either side; use float64, or "
        "a formulation with a smaller condition number.",
    )
