"""An estimate in words: for a terminal, and its numbers for JSON."""

import math
from typing import Any

from determinax._checks import counted

NUMBERS = (
    "log_abs_det",
    "abs_det",
    "standard_error",
    "kl_bound",
    "kl_bound_standard_error",
    "importance_bound",
    "importance_bound_standard_error",
    "lower_bound",
    "lower_bound_standard_error",
    "effective_sample_size",
    "pareto_k",
    "max_weight_share",
    "spread",
    "condition",
    "quadrature_change",
    "sign",
)


def cost_in_words(estimate: Any) -> str:
    """The products spent, beside those that would give A itself."""
    transposed = estimate.num_transposed
    also = f" ({transposed:,} transposed)" if transposed else ""
    dense = counted(estimate.num_dense, "product")
    return f"{counted(int(estimate.num_matvecs), 'product')}{also}; {dense} would give A itself"


def lines(estimate: Any) -> list[str]:
    """An estimate as text."""
    status = estimate.status
    value, error = float(estimate.log_abs_det), float(estimate.standard_error)
    shown = f" ± {error:.2g}" if math.isfinite(value) else ""
    # "exact" once is enough
    label = f"{status}, {estimate.method.removeprefix('exact, ')}"
    lines = [f"{estimate.quantity} = {round_to(value, error)}{shown}   [{label}]"]
    if estimate.sign is not None:
        lines.append(f"  sign of the determinant: {sign_of(estimate)}")
    interval = estimate.interval
    if interval is not None and status != "exact":
        low, high = (round_to(end, error) for end in interval)
        lines.append(f"  95 % interval {low} .. {high}")
    bound = certified(estimate)
    if estimate.kl_bound is not None and status != "exact" and math.isfinite(bound or math.nan):
        lines.append(_bounds_line(estimate, bound))
    if estimate.bounds.upper is not None and math.isfinite(value):
        ends = {"above": estimate.lower_bound, "below": estimate.upper_bound}
        said = [f"{w} {float(b):.6g}" for w, b in ends.items() if b is not None and b == b]
        lines.append(f"  surely {' and '.join(said)} (99.5 % each)")
    lines.append(f"  {cost_in_words(estimate)}")
    return lines + [f"  - {reason}" for reason in estimate.reasons]


def _bounds_line(estimate: Any, bound: Any) -> str:
    kl: Any = estimate.kl_bound
    figures = f"  certified < {bound:.6g} (95 %), KL bound {float(kl):.6g}"
    if estimate.lower_bound is not None:
        figures += f", lower bound {float(estimate.lower_bound):.6g}"
    if estimate.effective_sample_size is not None:
        k, size = estimate.pareto_k, float(estimate.effective_sample_size)
        figures += f"; effective sample size {size:.3g}, Pareto k "
        figures += "-" if k is None else f"{k:.2f}"
    return figures


def certified(estimate: Any) -> Any:
    """The certificate at 95 %, where there is one."""
    return None if estimate.bounds.slack is None else estimate.certified_upper()


def plain(x: Any) -> float | None:
    """A number for JSON; None where it is not finite."""
    return float(x) if x is not None and math.isfinite(float(x)) else None


def round_to(value: float, error: float) -> str:
    """The value with one digit more than its error has."""
    if not (math.isfinite(value) and math.isfinite(error)):
        return f"{value:.6g}"
    digits = 12 if error <= 0 else max(0, min(12, 1 - math.floor(math.log10(error))))
    return f"{value:.{digits}f}"


def sign_of(estimate: Any) -> str:
    """+1, -1, or 0 where the determinant is."""
    sign = float(estimate.sign)
    return f"{sign:+.0f}" if sign else "0"
