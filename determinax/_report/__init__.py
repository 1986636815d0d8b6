"""An estimate as a page: self-contained, the same bytes for the same estimate."""

import html
import pathlib
from typing import Any

import numpy as np

from determinax import _spheres, _text
from determinax._advice import next_step
from determinax._checks import counted
from determinax._diagnostics import THRESHOLDS
from determinax._drawing import curves
from determinax._drawing.globes import globes, script
from determinax._drawing.page import COPY, page
from determinax._drawing.page import card as as_card
from determinax._report import _figures
from determinax.storage import write_atomically

__all__ = ["card", "report", "write"]

_MEANING = {
    "exact": "Exact: rounding is all that is left.",
    "ok": "You can rely on this: the interval holds as often as it says.",
    "warn": "Take this with care.",
    "unreliable": "Do not use this number.",
}
_NAMES = {
    "effective_sample_size": "effective sample size",
    "pareto_k": "Pareto k",
    "max_weight_share": "largest weight's share",
    "spread": "spread of the log-weights, nats",
    "condition": "condition number",
    "quadrature_change": "change from half the depth, standard errors",
    "standard_error": "standard error, nats",
}
_EXPLAINED = {
    "effective_sample_size": "as many equal weights would know as much",
    "pareto_k": "how heavy the tail of the weights is",
    "max_weight_share": "of the sum of all weights",
    "spread": "their standard deviation: 0 where the proposal is perfect",
    "condition": "how much rounding is amplified",
    "quadrature_change": "whether Lanczos has converged",
    "standard_error": "of the estimate: 0.01 nats are one per cent of |det A|",
}


def report(
    estimate: Any,
    *,
    exact: float | None = None,
    fit: Any = None,
    density: Any = None,
    source: str | None = None,
    command: str | None = None,
) -> str:
    """The page of an estimate; see `Estimate.report`."""
    parts = [_verdict(estimate, source, command), _axis(estimate, exact)]
    is_drawn = estimate.trace is not None and estimate.status != "exact"  # else all draws are equal
    parts += _figures_of_run(estimate, exact) if is_drawn else [_no_trace(estimate)]
    parts += [_training(fit)] if fit is not None else []
    found, data = _density(density)
    parts += [found, _table(estimate), _provenance(estimate, source)]
    scripts = [COPY] + ([script()] if data else [])
    return page(f"{estimate.quantity} {source or ''}".strip(), "".join(parts), *scripts)


def write(path: Any, text: str) -> None:
    """A page on the disk, whole or not at all."""
    write_atomically(pathlib.Path(path), text.encode())


def card(estimate: Any) -> str:
    """An estimate in a notebook: the verdict and the axis."""
    figure = _figures.interval(estimate, None)
    words = "".join(f"<p>{html.escape(reason)}</p>" for reason in estimate.reasons)
    return as_card(f"{_headline(estimate)}{words}{figure}")


def _headline(estimate: Any) -> str:
    value, error = float(estimate.log_abs_det), float(estimate.standard_error)
    shown = f"{_text.round_to(value, error)} ± {error:.2g}" if np.isfinite(value) else f"{value}"
    status = estimate.status
    return (
        f"<h1>{html.escape(estimate.quantity)} = {shown}</h1>"
        f'<p><span class="verdict {status}">{status}</span> {_MEANING[status]}</p>'
        f'<p class="soft">{html.escape(estimate.method)}; '
        f"{html.escape(_text.cost_in_words(estimate))}.</p>"
    )


def _verdict(estimate: Any, source: str | None, command: str | None) -> str:
    about = f'<p class="soft">{html.escape(source)}</p>' if source else ""
    reasons = "".join(f"<li>{html.escape(reason)}</li>" for reason in estimate.reasons)
    step = next_step(estimate)
    cure = ""
    if step is not None:
        text = step.python if command is None else f"{command} {step.options}"
        cure = (
            f'<p>{html.escape(step.why)}</p><pre id="cure">{html.escape(text)}</pre>'
            '<button data-copy="cure">copy</button>'
        )
    listed = f"<ul>{reasons}</ul>" if reasons else ""
    return about + _headline(estimate) + listed + cure


def _axis(estimate: Any, exact: float | None) -> str:
    words = "The number in nats (natural logarithms) with what is known to lie above and below."
    if exact is not None:
        off = float(estimate.log_abs_det) - exact
        words += f" It is off by {off:+.2g}."
    return _section("On one axis", words, _figures.interval(estimate, exact))


def _figures_of_run(estimate: Any, exact: float | None) -> list[str]:
    trace = estimate.trace
    equal = _figures.equal_weights(estimate)
    if equal is not None:
        return [f"<h2>What was drawn</h2><p>{html.escape(equal)}</p>"]
    parts = [
        _section(
            "Along the run",
            "The estimate after so many products, with its 95 % band. The dotted line is where products "
            "with the unit vectors would have given A itself.",
            _figures.running(estimate, exact),
        ),
        _section(
            "What was drawn",
            "Log-weights: the narrower, the better the proposal; all equal where it is perfect."
            if trace.logs
            else "The value of every probe.",
            _figures.histogram(estimate),
        ),
    ]
    tail = _figures.tail(estimate)
    if tail:
        limits = THRESHOLDS["pareto_k"]
        parts.append(
            _section(
                "The tail of the weights",
                "The largest weights, by how rare they are, beside three generalised Pareto laws of one "
                f"scale. That with k = {estimate.pareto_k:.2f} fits them. Above k = {limits.warn} their "
                f"variance is infinite, above {limits.unreliable} their mean is not to be trusted.",
                tail,
            )
        )
    return [*parts, _section("Part by part", _agreement(estimate), _figures.batches(estimate))]


def _agreement(estimate: Any) -> str:
    found = _figures.agreement(estimate)
    words = "The run in up to 16 parts, each with an error of its own."
    if found is None:
        return f"{words} There are too few draws in a part to test whether they agree."
    statistic, freedom, p = found
    says = (
        "they agree"
        if p > 0.01
        else "they do not agree: some saw what others missed, and the error is larger than it looks"
    )
    return (
        f"{words} Do they differ by no more than these say? Chi-square {statistic:.1f} with {freedom} "
        f"degrees of freedom, p = {p:.2g}: {says}."
    )


def _no_trace(estimate: Any) -> str:
    if estimate.status == "exact" or estimate.effective_sample_size is None:
        return ""
    return (
        '<p class="soft">How the estimate came about was not kept: '
        "log_abs_det(..., trace=True) keeps it, with the same result.</p>"
    )


def _training(fit: Any) -> str:
    history = fit.history
    steps = len(history["loss"])
    words = f"{counted(steps, 'step')}, {counted(fit.num_matvecs, 'product')}."
    figures = curves.curve(history["loss"], "loss, nats", history["finite"])
    if not fit.to_data and np.isfinite(history["spread"]).any():
        figures += curves.curve(history["spread"], "spread, nats", history["finite"])
    return _section("The training of the proposal", words, figures)


def _density(density: Any) -> tuple[str, dict | None]:
    """Circles as pictures, spheres to turn; of more dimensions there is none."""
    if density is None:
        return "", None
    named = density if isinstance(density, dict) else {"proposal": density}
    n = {getattr(source, "n", None) for source in named.values()} - {None}
    if n == {2}:
        drawn = {name: _spheres.relative(s, _spheres.circle()) for name, s in named.items()}
        return _section(
            "Densities on the circle", "Relative to uniform.", curves.circles(drawn)
        ), None
    if n != {3}:
        return "", None
    maps = [_spheres.on_sphere(source, name) for name, source in named.items()]
    data = _spheres.as_data(maps, [""])
    return _section(
        "Densities on the sphere", "Drag to turn, or use the arrow keys.", globes(data)
    ), data


def _table(estimate: Any) -> str:
    rows = []
    for name, words in _NAMES.items():
        value = _text.plain(getattr(estimate, name))
        if value is not None:
            rows.append(_row(name, words, value))
    head = "<tr><th>figure</th><th>here</th><th>warn</th><th>unreliable</th></tr>"
    return f"<h2>What the verdict looked at</h2><table>{head}{''.join(rows)}</table>"


def _row(name: str, words: str, value: float) -> str:
    limits = THRESHOLDS.get(name)
    sign = "<" if name == "effective_sample_size" else ">"
    cells = [
        "" if limits is None or not np.isfinite(limit) else f"{sign} {limit:g}"
        for limit in (() if limits is None else (limits.warn, limits.unreliable))
    ] or ["", ""]
    bounds = "".join(f'<td class="number">{html.escape(cell)}</td>' for cell in cells)
    about = f'{html.escape(words)}<br><span class="soft">{html.escape(_EXPLAINED[name])}</span>'
    return f'<tr><td>{about}</td><td class="number">{value:.4g}</td>{bounds}</tr>'


def _provenance(estimate: Any, source: str | None) -> str:
    rows = [("source", source)] if source else []
    rows += [("method", estimate.method), *estimate.provenance]
    listed = "".join(
        f"<tr><td>{html.escape(name)}</td><td>{html.escape(str(value))}</td></tr>"
        for name, value in rows
    )
    return f"<h2>Where it comes from</h2><table>{listed}</table>"


def _section(title: str, words: str, figure: str) -> str:
    return f"<h2>{html.escape(title)}</h2><p>{html.escape(words)}</p>{figure}"
