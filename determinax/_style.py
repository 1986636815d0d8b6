"""One style for figures: colours that the colour-blind tell apart, a quiet frame, letters of one size."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
from cycler import cycler

# Okabe and Ito (2008), darker than paper all of them; a report's page has the same blue and orange
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#4d4d4d")

_SETTINGS: dict[Any, Any] = {
    "axes.grid": True,
    "axes.labelsize": 10,
    "axes.prop_cycle": cycler(color=COLOURS),
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 10.5,
    "figure.constrained_layout.use": True,
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same picture everywhere
    "font.size": 9.5,
    "grid.alpha": 0.3,
    "grid.linewidth": 0.5,
    "image.cmap": "viridis",
    "legend.fontsize": 9,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.5,
    "savefig.bbox": "tight",
    "savefig.dpi": 120,
}


@contextmanager
def style() -> Iterator[None]:
    """The style of this project's figures, for your own beside them; it serves as a decorator, too.

    !!! example

        ```python
        with dx.plots.style():
            axes = dx.plots.density(q)
        ```
    """
    with mpl.rc_context(_SETTINGS):
        yield
