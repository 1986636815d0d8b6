"""An estimate laid out for a terminal: aligned, the verdict coloured, words explained where they stand."""

import math
import os
import textwrap
from typing import Any

from determinax import _text
from determinax._advice import next_step

_COLOURS = {"exact": "32", "ok": "32", "warn": "33", "unreliable": "31"}
_WIDTH, _LABEL = 78, 12


def lines(estimate: Any, command: str) -> list[str]:
    """An estimate for the eye; `command` is what the next step is an addition to."""
    value, error = float(estimate.log_abs_det), float(estimate.standard_error)
    status = estimate.status
    head = _text.round_to(value, error) + (f" ± {error:.2g}" if math.isfinite(value) else "")
    made = [f"{_label(estimate.quantity)}{_bold(head)}   {_coloured(status)}   {estimate.method}"]
    if estimate.sign is not None:
        made += _row("sign", f"{_text.sign_of(estimate)}, of the determinant")
    if estimate.interval is not None and status != "exact":
        low, high = (_text.round_to(end, error) for end in estimate.interval)
        made += _row("interval", f"{low} to {high}, with 95 % confidence")
    made += _of_weights(estimate)
    made += _row("cost", _text.cost_in_words(estimate))
    made += _why(estimate.reasons)
    step = next_step(estimate)
    if step is not None:
        made += [*_row("next", step.why), " " * _LABEL + _bold(f"{command} {step.options}")]
    return made


def _why(reasons: tuple[str, ...]) -> list[str]:
    """The worst reason; `--json` has them all."""
    if len(reasons) == 0:
        return []
    more = f" (--json has {len(reasons) - 1} more)" if len(reasons) > 1 else ""
    return _row("why", reasons[0] + more)


def _of_weights(estimate: Any) -> list[str]:
    bound = _text.certified(estimate)
    if estimate.status == "exact" or bound is None or not math.isfinite(bound):
        return []
    made = _row("certified", f"below {bound:.6g}: holds with 95 %, whatever the weights are")
    size, k = estimate.effective_sample_size, estimate.pareto_k
    if size is not None:
        words = f"{float(size):,.0f} effective samples: as many equal weights would know as much"
        made += _row("weights", words)
    if k is not None:
        made += _row("tail", f"Pareto k = {k:.2f}: fine below 0.5, hopeless above 0.7")
    return made


def _row(label: str, words: str) -> list[str]:
    return textwrap.wrap(
        words,
        _WIDTH,
        initial_indent=_label(label),
        subsequent_indent=" " * _LABEL,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _label(words: str) -> str:
    return f"{words:<{_LABEL - 1}} "


def _coloured(status: str) -> str:
    return _styled(f"[{status}]", f"1;{_COLOURS[status]}")


def _bold(words: str) -> str:
    return _styled(words, "1")


def _styled(words: str, code: str) -> str:
    plain = "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb"
    return words if plain else f"\x1b[{code}m{words}\x1b[0m"
