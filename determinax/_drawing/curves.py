"""Pictures that need no estimate: a quantity along a training, densities on the circle and on a map."""

import html
from collections.abc import Callable
from typing import Any

import numpy as np

from determinax._drawing.board import SIZES, Board, Span

# fewer steps than this make no line
_LEAST_STEPS = 3


def both(draw: Callable[[tuple[int, int], bool], Board], title: str, height: int = 0) -> str:
    """A figure in both sizes; the page shows one of them."""
    made = []
    for kind, (width, usual) in SIZES.items():
        board = draw((width, height or usual), kind == "narrow")
        made.append(board.svg(kind, title))
    return "".join(made)


def curve(values: Any, label: str, finite: Any) -> str:
    """One quantity along a training; in words where there are too few steps for a line."""
    values = np.where(np.asarray(finite), np.asarray(values, float), np.nan)
    step = max(1, -(-len(values) // 400))
    x = np.arange(0, len(values), step)
    shown = np.array([np.nanmean(values[i : i + step]) for i in x])
    late = shown[np.isfinite(shown)]
    if len(late) < _LEAST_STEPS:
        last = f"{late[-1]:.4g}" if len(late) else "not finite"
        return f'<p class="soft">{html.escape(label)}: {last}.</p>'
    limits = np.quantile(late, [0.0, 0.98])

    def draw(size: tuple[int, int], narrow: bool) -> Board:
        span = Span.of([limits[0], limits[1], late[-1]])
        board = Board(Span(0, max(len(values), 2)), span, size)
        board.axis_y(label)
        board.axis_x("training step")
        board.line(x, np.where(shown <= span.high, shown, np.nan), "main line")
        return board

    return both(draw, label, 220)


def circles(drawn: dict[str, np.ndarray]) -> str:
    """Densities around the circle: the farther out, the larger."""
    kinds = ("main line", "bound line", "truth line")
    top = max(float(values.max()) for values in drawn.values())

    def draw(size: tuple[int, int], narrow: bool) -> Board:
        ratio = (size[0] - 28) / (size[1] - 64)
        board = Board(Span(-2 * ratio, 2 * ratio), Span(-2, 2), size, bare=True)
        angle = np.linspace(0, 2 * np.pi, 721)
        board.line(np.cos(angle), np.sin(angle), "grid")
        for i, (name, values) in enumerate(drawn.items()):
            radius = 1 + 0.9 * np.append(values, values[0]) / top
            kind = kinds[i % len(kinds)]
            board.line(radius * np.cos(angle), radius * np.sin(angle), kind)
            board.text(20, 24 + 18 * i, name, "start", kind.split()[0])
        return board

    return both(draw, "Densities on the circle", 320)


def world(values: np.ndarray) -> str:
    """A density on the sphere's grid as a flat map, by longitude and latitude, in a few hundred cells."""
    rows, cols = values.shape[0] // 5, values.shape[1] // 5
    cells = values.reshape(rows, 5, cols, 5).mean(axis=(1, 3))
    cells = cells / cells.max()
    shapes = "".join(
        f'<rect x="{15 * j}" y="{15 * i}" width="15" height="15" opacity="{share:.2f}"/>'
        for i, row in enumerate(cells)
        for j, share in enumerate(row)
        if share > 0.01
    )
    box = f'viewBox="0 0 {15 * cols} {15 * rows}" style="max-width:30rem"'
    frame = f'<rect class="grid" width="{15 * cols}" height="{15 * rows}" fill="none"/>'
    words = "the density by longitude and latitude"
    return f'<svg {box} role="img" aria-label="{words}">{frame}<g class="cells">{shapes}</g></svg>'
