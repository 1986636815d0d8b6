"""A small drawing board: scales, ticks and shapes as SVG, in the colours of the page."""

import html
import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

# a figure is drawn twice, for wide pages and for phones: type keeps its size in both
SIZES = {"wide": (880, 300), "narrow": (350, 270)}
_MARGINS = (58, 14, 26, 46)  # left, right, top, bottom


class Span(NamedTuple):
    """From where to where an axis goes."""

    low: float
    high: float

    @staticmethod
    def of(values: Iterable[float], pad: float = 0.06) -> "Span":
        """Around the finite ones of these values."""
        finite = [float(v) for v in values if v is not None and math.isfinite(v)] or [0.0, 1.0]
        low, high = min(finite), max(finite)
        size = max(abs(low), abs(high), 1e-6)
        # what differs by rounding is not spread over the picture
        room = max((high - low) * pad, 1e-13 * size) if high > low else 1e-3 * size
        return Span(low - room, high + room)

    def less(self, base: float) -> "Span":
        """The same, as numbers beyond a base."""
        return Span(self.low - base, self.high - base)


class Board:
    """One picture: shapes go in by data coordinates, text comes out."""

    def __init__(self, x: Span, y: Span, size: tuple[int, int], *, bare: bool = False):
        self.x, self.y, (self.width, self.height) = x, y, size
        left, self.right, self.top, self.bottom = _MARGINS
        self.left = 14 if bare else left
        self.parts: list[str] = []

    def px(self, x: Any) -> Any:
        """Data to pixels, across."""
        room = self.width - self.left - self.right
        return self.left + (x - self.x.low) / (self.x.high - self.x.low) * room

    def py(self, y: Any) -> Any:
        """Data to pixels, down."""
        room = self.height - self.top - self.bottom
        return self.top + (self.y.high - y) / (self.y.high - self.y.low) * room

    def line(self, x: Any, y: Any, kind: str) -> None:
        """A line through points."""
        self.parts.append(f'<path class="{kind}" d="{_path(self.px(x), self.py(y))}"/>')

    def band(self, x: Any, low: Any, high: Any, kind: str) -> None:
        """What lies between two lines."""
        x, low, high = (np.asarray(v, float) for v in (x, low, high))
        low, high = (np.clip(v, self.y.low, self.y.high) for v in (low, high))
        around = np.concatenate([x, x[::-1]]), np.concatenate([high, low[::-1]])
        self.parts.append(
            f'<path class="{kind}" d="{_path(self.px(around[0]), self.py(around[1]))}Z"/>'
        )

    def bars(self, edges: Any, heights: Any, kind: str) -> None:
        """Columns from the floor up, as one shape."""
        steps_x, steps_y = np.repeat(edges, 2), np.concatenate([[0], np.repeat(heights, 2), [0]])
        self.band(steps_x, np.full(len(steps_x), self.y.low), steps_y, kind)

    def dot(self, x: float, y: float, kind: str, radius: float = 4) -> None:
        """A point."""
        self.parts.append(
            f'<circle class="{kind}" cx="{self.px(x):.1f}" cy="{self.py(y):.1f}" r="{radius}"/>'
        )

    def upright(self, x: float, kind: str, label: str = "", *, row: int = 0) -> None:
        """A line from floor to ceiling, where it is within the picture."""
        if self.x.low <= x <= self.x.high:
            at = self.px(x)
            self.parts.append(
                f'<path class="{kind}" d="M{at:.1f} {self.top}V{self.height - self.bottom}"/>'
            )
            if label:
                side = "end" if at > self.width * 0.6 else "start"
                shift = -5 if side == "end" else 5
                self.text(at + shift, self.top + 12 + 15 * row, label, side, kind)

    def level(self, y: float, kind: str) -> None:
        """A line from wall to wall, where it is within the picture."""
        if self.y.low <= y <= self.y.high:
            right = self.width - self.right
            self.parts.append(f'<path class="{kind}" d="M{self.left} {self.py(y):.1f}H{right}"/>')

    def text(self, x: float, y: float, words: str, side: str = "middle", kind: str = "") -> None:
        """Words at pixels."""
        place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{side}"'
        self.parts.append(f'<text class="{kind}" {place}>{html.escape(words)}</text>')

    def axis_x(self, label: str, *, log: bool = False) -> None:
        """Ticks, their numbers and what they count, below."""
        floor, room = self.height - self.bottom, self.width - self.left - self.right
        self.parts.append(
            f'<path class="axis" d="M{self.left} {floor}H{self.width - self.right}"/>'
        )
        base = 0.0 if log else offset(self.x)
        for at, words in ticks(self.x.less(base), max(2, room // 95), log=log):
            self.parts.append(f'<path class="axis" d="M{self.px(at + base):.1f} {floor}v4"/>')
            self.text(self.px(at + base), floor + 17, words)
        label += _beyond(base)
        self.text(self.left + room / 2, self.height - 8, label, kind="label")

    def axis_y(self, label: str) -> None:
        """The same, on the left, with lines across."""
        base = offset(self.y)
        for at, words in ticks(self.y.less(base), max(2, (self.height - 60) // 48)):
            self.level(at + base, "grid")
            self.text(self.left - 6, self.py(at + base) + 4, words, "end")
        self.text(self.left - 50, self.top - 12, label + _beyond(base), "start", "label")

    def svg(self, kind: str, title: str) -> str:
        """The picture."""
        box = f'viewBox="0 0 {self.width} {self.height}"'
        inside = "".join(self.parts)
        name = html.escape(title)
        return f'<svg class="{kind}" {box} role="img" aria-label="{name}">{inside}</svg>'


def ticks(span: Span, most: int, *, log: bool = False) -> list[tuple[float, str]]:
    """Round numbers within a span; of a logarithmic one, powers of ten."""
    if log:
        whole = range(math.ceil(span.low - 1e-9), math.floor(span.high + 1e-9) + 1)
        step = max(1, -(-len(whole) // most))
        return [(float(p), _power(p)) for p in whole[::step]]
    rough = (span.high - span.low) / most
    base = 10.0 ** math.floor(math.log10(rough))
    step = next(base * m for m in (1, 2, 5, 10) if base * m >= rough * 0.999)
    first = math.ceil(span.low / step)
    last = math.floor(span.high / step)
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    if last <= first and most < 40:  # one number is no scale
        return ticks(span, most + 1)
    return [(i * step, _short(i * step, digits)) for i in range(first, last + 1)]


def _beyond(base: float) -> str:
    return f", beyond {base:.12g}" if base else ""


def _power(p: int) -> str:
    return f"{10**p:,}" if 0 <= p <= 5 else f"1e{p}"


def offset(span: Span) -> float:
    """A round number that labels are relative to, where the span is too short for theirs; else 0."""
    size, length = max(abs(span.low), abs(span.high)), span.high - span.low
    if size < (10 if size >= 1e6 else 1e4) * length or (length > 1e-3 and size < 1e6):
        return 0.0
    unit = 10.0 ** math.ceil(math.log10(length) + 1)
    return round(span.low / unit) * unit


def _short(value: float, digits: int) -> str:
    if abs(value) >= 1e6 or (digits > 6 and abs(value) < 1e-3):
        return f"{value:.3g}"
    return f"{value + 0.0:,.{digits}f}"


def _path(x: Any, y: Any) -> str:
    """Only where both are finite: a gap begins anew."""
    parts, pen = [], "M"
    for a, b in zip(np.asarray(x, float), np.asarray(y, float), strict=True):
        if math.isfinite(a) and math.isfinite(b):
            parts.append(f"{pen}{a:.1f} {b:.1f}")
            pen = "L"
        else:
            pen = "M"
    return "".join(parts)
