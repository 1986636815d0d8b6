"""What to do next about an estimate: one line, in Python and on the command line."""

import math
from typing import Any, NamedTuple

from determinax._diagnostics import BROAD_NUM_DRAWS, THRESHOLDS

_FIT = (
    "fit = dx.fit_linear(A, key=key); dx.log_abs_det(A, dx.Variational(fit.proposal, 200), key=key)"
)


class Step(NamedTuple):
    """Why, and how: code for Python, options for `determinax estimate`."""

    why: str
    python: str
    options: str


def next_step(estimate: Any) -> Step | None:
    """The cure that the verdict asks for; None where nothing is left to do, or nothing would help."""
    if estimate.status in ("exact", "ok"):
        return None
    if hasattr(estimate.diagnostics, "pareto_k"):
        return _of_weights(estimate)
    if hasattr(estimate.diagnostics, "change"):
        return _of_probes(estimate)
    return None


def _of_weights(estimate: Any) -> Step:
    found, limits = estimate.diagnostics, THRESHOLDS
    num = int(found.num_draws)
    share = float(found.max_weight_share)
    # of a few draws each has a large share
    is_heavy = (
        not float(found.spread) <= limits["spread"].warn
        or max(limits["max_weight_share"].warn, 5 / max(num, 1)) < share
    )
    few_count = float(found.effective_sample_size) < num / 5
    k = estimate.pareto_k
    if is_heavy or few_count or (k is not None and k > limits["pareto_k"].warn):
        why = "A proposal that fits A has no heavy weights, and 2n products find one:"
        return Step(why, _FIT, "--method vde")
    more = max(BROAD_NUM_DRAWS, num, _enough(estimate, num))
    more = _round_up(more if more > num else 4 * num)
    if estimate.method.endswith(" frames"):  # a frame is one draw, and n samples
        more, num = more * estimate.num_dense, num * estimate.num_dense
    why = f"More samples will tell: {more:,} in place of {num:,}."
    method, options = _with_samples(estimate.method, more)
    return Step(why, f"dx.log_abs_det(A, {method}, key=key)", options)


def _with_samples(method: str, num: int) -> tuple[str, str]:
    """The method that an estimate names, with so many samples: in Python, and as options."""
    kind = method.split(",")[0]
    frames, flag = (', "frames"', " --frames") if method.endswith(" frames") else ("", "")
    if kind == "variational":
        return f"dx.Variational(proposal, {num:_}{frames})", f"--method vde --samples {num}{flag}"
    if kind == "deflated":
        k = method.split()[1].replace(",", "")
        options = f"--method deflated --samples {num} --directions {k}"
        return f"dx.Deflated({k}, dx.MonteCarlo({num:_}))", options
    if kind == "probed":
        return f"dx.Probed({num:_})", f"--method probed --samples {num}"
    return f"dx.MonteCarlo({num:_}{frames})", f"--method mc --samples {num}{flag}"


def _of_probes(estimate: Any) -> Step:
    found = estimate.diagnostics
    num = max(int(found.num_probes), 1)
    depth = max((int(estimate.cost.forward) - 1) // num, 1)
    if float(found.change) > THRESHOLDS["quadrature_change"].warn:
        why, depth = "The quadrature wants more steps for each probe:", 2 * depth
    else:
        why, num = "More probes will tell:", _round_up(max(20, 2 * num, _enough(estimate, num)))
    return Step(
        why,
        f"dx.log_abs_det(A, dx.Lanczos({num}, {depth}), key=key)",
        f"--method lanczos --samples {num} --depth {depth}",
    )


def _enough(estimate: Any, num: int) -> int:
    """Draws that would bring the standard error to the bar, by its square."""
    bar = estimate.bar.at(estimate.log_abs_det)
    bar = THRESHOLDS["standard_error"].warn if bar is None else float(bar)
    error = float(estimate.standard_error)
    if not (math.isfinite(error) and bar > 0):
        return 0
    return math.ceil(min(num * (error / bar) ** 2 * 1.2, 1e9))


def _round_up(num: int) -> int:
    """To two digits."""
    unit = 10 ** max(len(str(num)) - 2, 0)
    return -(-num // unit) * unit
