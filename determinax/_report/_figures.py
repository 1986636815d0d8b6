"""The figures of a report: each is told an estimate, and drawn for a wide page and for a phone."""

import math
from typing import Any

import numpy as np
import scipy.special

from determinax import _text
from determinax._diagnostics import THRESHOLDS
from determinax._drawing.board import Board, Span
from determinax._drawing.curves import both

# fewer draws in a batch than this do not tell its own error
_LEAST_IN_BATCH = 20
# a bound that is so many times as far as the figure is wide becomes an arrow at its edge
_FAR = 4
# log-weights that differ by less have nothing to show
_EQUAL = 1e-9


def interval(estimate: Any, exact: float | None) -> str:
    """The estimate, its interval, its bounds and the exact value on one axis."""
    rows = _rows(estimate, exact)
    span = _core(estimate, rows)

    def draw(size: tuple[int, int], narrow: bool) -> Board:
        step, head = (50 if narrow else 34), 14
        size = (size[0], head + step * len(rows) + 50)
        board = Board(span, Span(0, 1), size, bare=True)
        for i, (name, low, value, high, kind, words) in enumerate(rows):
            y = head + step * i + (40 if narrow else 24)
            middle = board.px(min(max(value, span.low), span.high))
            side = "start" if middle < size[0] / 2 else "end"
            at = board.left if side == "start" else size[0] - 14
            if narrow:
                board.text(at, y - 24, name, side, kind)
            board.text(at, y - 9, words if narrow else f"{name}: {words}", side, kind)
            if not span.low <= value <= span.high:
                way = 9 if value > span.high else -9
                tip = f"M{middle:.1f} {y}l{-way} -6v12z"
                board.parts.append(f'<path class="{kind} beyond" d="{tip}"/>')
                continue
            if low != high:
                ends = f"M{board.px(low):.1f} {y}H{board.px(high):.1f}"
                board.parts.append(f'<path class="whisker {kind}" d="{ends}"/>')
            if name.startswith("certified"):
                left = max(middle - 60, board.left)
                board.parts.append(f'<path class="arrow {kind}" d="M{middle:.1f} {y}H{left:.1f}"/>')
            board.parts.append(f'<circle class="{kind}" cx="{middle:.1f}" cy="{y}" r="5"/>')
        board.axis_x(f"{estimate.quantity}, nats")
        return board

    return both(draw, "The estimate, its interval and its bounds on one axis")


def _rows(estimate: Any, exact: float | None) -> list[tuple]:
    value, error = float(estimate.log_abs_det), float(estimate.standard_error)
    interval = estimate.interval
    low, high = interval or (value, value)
    shown = f"{_text.round_to(value, error)} ± {error:.2g}"
    about = "estimate; no interval: unreliable" if interval is None else "estimate, 95 % interval"
    rows = [(about, low, value, high, "main", shown)]
    bounds = [
        ("certified: below this with 95 %", _text.certified(estimate), "bound"),
        ("KL bound, above in the mean", _text.plain(estimate.kl_bound), "bound"),
        ("lower bound, in the mean", _text.plain(estimate.lower_bound), "bound"),
        ("exact value", exact, "truth"),
    ]
    for name, x, kind in bounds:
        if x is not None and math.isfinite(x):
            rows.append((name, x, x, x, kind, f"{x:.6g}"))
    return rows


def _core(estimate: Any, rows: list[tuple]) -> Span:
    """The estimate and the exact value, and bounds that are not so far that they would squeeze these."""
    value, error = float(estimate.log_abs_det), float(estimate.standard_error)
    near = [value - 2 * error, value + 2 * error]
    near += [x for row in rows if row[4] != "bound" for x in row[1:4]]
    near = [x for x in near if math.isfinite(x)]
    room = _FAR * (max(near) - min(near)) if near else 0.0
    bounds = [row[2] for row in rows if row[4] == "bound"]
    if not room:
        return Span.of([*near, *bounds])
    low, high = min(near) - room, max(near) + room
    return Span.of([*near, *(x for x in bounds if low <= x <= high)])


def running(estimate: Any, exact: float | None) -> str:
    """The estimate along the run, with its band, against products."""
    trace = estimate.trace
    num, value, error = trace.running()
    value = value - value[-1] + float(estimate.log_abs_det)
    products = float(estimate.num_matvecs) - (num[-1] - num) * trace.products_per_draw
    x = np.log10(np.maximum(products, 1))
    late = max(len(x) // 8, 1)
    known = [value[late:] - 2 * error[late:], value[late:] + 2 * error[late:]]
    finite = np.concatenate([*known, value[late:], [value[-1]]])
    span_y = Span.of([*finite, *([] if exact is None else [exact])])
    dense = math.log10(max(estimate.num_dense, 1))
    span_x = Span(min(x[0], dense), max(x[-1], dense) + 1e-3)
    span_x = Span(span_x.low - 0.02, span_x.high + 0.03 * (span_x.high - span_x.low))

    def draw(size: tuple[int, int], narrow: bool) -> Board:
        board = Board(span_x, span_y, size)
        board.axis_y("nats")
        board.axis_x("products with A", log=True)
        board.band(x, value - 1.96 * error, value + 1.96 * error, "band")
        inside = np.where((value >= span_y.low) & (value <= span_y.high), value, np.nan)
        board.line(x, inside, "main line")
        board.upright(dense, "dense", f"n = {estimate.num_dense:,}: A itself")
        if exact is not None:
            board.level(exact, "truth dashed")
            if span_y.low <= exact <= span_y.high:
                board.text(size[0] - 16, board.py(exact) - 5, "exact", "end", "truth")
        return board

    return both(draw, "The running estimate against products")


def histogram(estimate: Any) -> str:
    """Of the log-weights, or of the probes' values."""
    trace = estimate.trace
    counts, edges = np.asarray(trace.histogram.counts), trace.histogram.edges()
    used = np.flatnonzero(counts)
    counts, edges = counts[used[0] : used[-1] + 1], edges[used[0] : used[-1] + 2]
    group = max(1, -(-len(counts) // 96))
    room = -len(counts) % group
    counts = np.pad(counts, (0, room)).reshape(-1, group).sum(axis=1)
    width = edges[1] - edges[0]
    edges = edges[0] + width * group * np.arange(len(counts) + 1)
    label = "log-weight, nats" if trace.logs else "value of a probe, nats"
    logs = counts.max() > 200
    heights = np.log10(np.maximum(counts, 0.5)) if logs else counts
    span_y = Span(-0.3 if logs else 0, float(heights.max()) * 1.08 + 1e-9)

    def draw(size: tuple[int, int], narrow: bool) -> Board:
        board = Board(Span.of(edges, 0.02), span_y, size)
        if logs:
            for p in range(math.floor(span_y.high) + 1):
                board.level(p, "grid")
                board.text(board.left - 6, board.py(p) + 4, f"{10**p:,}", "end")
            board.text(board.left - 50, board.top - 12, "draws in a bin", "start", "label")
        else:
            board.axis_y("draws in a bin")
        board.bars(edges, heights, "fill")
        board.axis_x(label)
        return board

    return both(draw, "Histogram of the draws", 240)


def equal_weights(estimate: Any) -> str | None:
    """A sentence in place of figures of log-weights that are all the same."""
    found = estimate.trace.histogram
    width = float(found.high) - float(found.low)
    if not estimate.trace.logs or not width < _EQUAL:
        return None
    return f"All log-weights are equal to {max(width, 1e-16):.0e}."


def tail(estimate: Any) -> str:
    """The largest weights against their rank, and the Pareto law that fits them."""
    logs = np.asarray(estimate.trace.tail, float)
    logs = logs[np.isfinite(logs)]
    k = estimate.pareto_k
    if len(logs) < 10 or k is None:
        return ""
    num = estimate.diagnostics.num_tail
    rank = np.log10(np.arange(1, len(logs) + 1) / num)
    above = (logs - logs[-1]) / math.log(10)
    # x: how rare, y: how large, both in powers of ten
    x = rank[-1] - rank
    limits = THRESHOLDS["pareto_k"]
    laws = {
        "here": (k, f"fitted: k = {k:.2f}"),
        "warn": (limits.warn, f"k = {limits.warn}: warn above"),
        "bad": (limits.unreliable, f"k = {limits.unreliable}: unreliable above"),
    }
    along = np.linspace(0, x[0], 60)
    drawn = {kind: pareto(along, k, law, above) for kind, (law, _) in laws.items()}
    top = max(above[0], *(float(y[-1]) for y in drawn.values()))

    def draw(size: tuple[int, int], narrow: bool) -> Board:
        board = Board(Span.of(x, 0.03), Span.of([0, top]), size)
        board.axis_y("size above the smallest, in powers of ten")
        for i, (kind, y) in enumerate(drawn.items()):
            board.line(along, y, f"slope {kind}")
            board.text(board.left + 12, board.top + 14 + 17 * i, laws[kind][1], "start", kind)
        for a, b in zip(x[::-1], above[::-1], strict=True):
            board.dot(a, b, "main", 2)
        board.axis_x("rarity of a weight, in powers of ten")
        return board

    return both(draw, "The tail of the weights beside Pareto laws", 260)


def pareto(rarity: Any, fitted: float, k: float, above: Any) -> Any:
    """Quantiles of a generalised Pareto law, in powers of ten above its threshold.

    Its scale is that with which the law of the `fitted` k has the median of the weights `above` it.
    """
    scale = (10 ** float(np.median(above[:-1])) - 1) / _excess(math.log(2), fitted)
    return np.log10(1 + scale * _excess(np.asarray(rarity) * math.log(10), k))


def _excess(log_rarity: Any, k: float) -> Any:
    """Of a law of scale 1, beyond its threshold."""
    return np.expm1(k * log_rarity) / k if abs(k) > 1e-9 else log_rarity


def agreement(estimate: Any) -> tuple[float, int, float] | None:
    """Chi-square, its degrees of freedom and p: do batches differ by no more than their own errors say?

    None where there are too few draws to tell.
    """
    num, value, error = estimate.trace.batches()
    fine = np.isfinite(error) & (error > 0)
    if fine.sum() < 3 or num.min() < _LEAST_IN_BATCH:
        return None
    value, weight = value[fine], error[fine] ** -2.0
    mean = np.sum(weight * value) / np.sum(weight)
    statistic, freedom = float(np.sum(weight * (value - mean) ** 2)), int(fine.sum()) - 1
    return statistic, freedom, float(scipy.special.chdtrc(freedom, statistic))


def batches(estimate: Any) -> str:
    """Each sixteenth of the run alone, with its own error."""
    _, value, error = estimate.trace.batches()
    _, whole, _ = estimate.trace.running()
    shift = float(estimate.log_abs_det) - whole[-1]
    value, error = value + shift, np.where(np.isfinite(error), error, 0)
    span_y = Span.of([*(value - 2 * error), *(value + 2 * error)])

    def draw(size: tuple[int, int], narrow: bool) -> Board:
        board = Board(Span(0.3, len(value) + 0.7), span_y, size)
        board.axis_y("nats")
        board.axis_x("part of the run")
        board.level(float(estimate.log_abs_det), "main dashed")
        for i, (v, e) in enumerate(zip(value, error, strict=True), 1):
            board.line(np.array([i, i]), np.array([v - 1.96 * e, v + 1.96 * e]), "whisker main")
            board.dot(i, v, "main", 3.5)
        return board

    return both(draw, "The estimate of each part of the run", 240)
