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


def interval(estimate: Any, exact: float | None) -> str:
    """The estimate, its interval, its bounds and the exact value on one axis."""
    rows = _rows(estimate, exact)
    span = Span.of([x for row in rows for x in row[1:4]])

    def draw(size: tuple[int, int], narrow: bool) -> Board:
        step, head = 34, 14
        size = (size[0], head + step * len(rows) + 50)
        board = Board(span, Span(0, 1), size, bare=True)
        for i, (name, low, value, high, kind, words) in enumerate(rows):
            y = head + step * i + 24
            middle = board.px(value)
            if low != high:
                ends = f"M{board.px(low):.1f} {y}H{board.px(high):.1f}"
                board.parts.append(f'<path class="whisker {kind}" d="{ends}"/>')
            if name.startswith("certified"):
                left = max(middle - 60, board.left)
                board.parts.append(f'<path class="arrow {kind}" d="M{middle:.1f} {y}H{left:.1f}"/>')
            board.parts.append(f'<circle class="{kind}" cx="{middle:.1f}" cy="{y}" r="5"/>')
            label = name if narrow else f"{name}: {words}"
            side = "start" if middle < size[0] / 2 else "end"
            board.text(board.left if side == "start" else size[0] - 14, y - 9, label, side, kind)
        board.axis_x(f"{estimate.quantity}, nats")
        return board

    return both(draw, "The estimate, its interval and its bounds on one axis")


def _rows(estimate: Any, exact: float | None) -> list[tuple]:
    value, error = float(estimate.log_abs_det), float(estimate.standard_error)
    low, high = estimate.interval or (value, value)
    shown = f"{_text.round_to(value, error)} ± {error:.2g}"
    rows = [("estimate, 95 % interval", low, value, high, "main", shown)]
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
    shown = {
        "here": k,
        "warn": THRESHOLDS["pareto_k"].warn,
        "bad": THRESHOLDS["pareto_k"].unreliable,
    }

    def draw(size: tuple[int, int], narrow: bool) -> Board:
        # x: how rare, y: how large, both in powers of ten: a slope of k
        x = rank[-1] - rank
        board = Board(Span.of(x, 0.03), Span.of([0, above[0], 0.7 * x[0]]), size)
        board.axis_y("size above the smallest, in powers of ten")
        for kind, slope in shown.items():
            board.line(np.array([0, x[0]]), np.array([0, max(slope, 0) * x[0]]), f"slope {kind}")
        for a, b in zip(x[::-1], above[::-1], strict=True):
            board.dot(a, b, "main", 2)
        board.axis_x("rarity of a weight, in powers of ten")
        return board

    return both(draw, "The tail of the weights beside Pareto laws", 260)


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
