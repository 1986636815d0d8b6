"""Pairs of coordinates and angles to the modes: what can be seen of a density above three dimensions."""

from typing import Any

import jax
import matplotlib.pyplot as plt
import numpy as np
from jaxtyping import Float
from matplotlib.lines import Line2D

from determinax._outlines import law
from determinax.densities import Density
from determinax.proposals import AbstractProposal


def pairs(
    source: AbstractProposal | Density,
    *,
    points: Float[Any, "num n"] | None = None,
    num_coordinates: int = 4,
    num_modes: int = 3,
    num_samples: int = 4000,
) -> Any:
    """Samples of a density in any dimension, in pairs of coordinates, and their angles to its modes.

    Points of data, if given, are drawn in the same panels; returns the matplotlib figure. Modes are the
    likeliest samples that are more than 30 degrees apart.

    !!! example

        ```python
        dx.plots.pairs(q, points=points)
        ```
    """
    q = law(source)
    drawn, log_q = q.sample_and_log_density(jax.random.key(0), num_samples)
    drawn, order = np.asarray(drawn, float), np.argsort(-np.asarray(log_q))
    data = None if points is None else np.asarray(points, float)
    modes = _apart(drawn[order], num_modes)
    d = min(num_coordinates, q.n)
    figure, grid = plt.subplots(d, d, figsize=(2 * d + 1, 2 * d + 1), squeeze=False)
    for i in range(d):
        for j in range(d):
            axes = grid[i, j]
            if i == j:
                _histograms(axes, drawn[:, i], None if data is None else data[:, i], (-1, 1))
                axes.set_xlim(-1.02, 1.02)
            elif i > j:
                axes.plot(drawn[:, j], drawn[:, i], ".", ms=1, alpha=0.3, color="C0")
                if data is not None:
                    axes.plot(data[:, j], data[:, i], ".", ms=1, alpha=0.3, color="C1")
                axes.set(xlim=(-1.02, 1.02), ylim=(-1.02, 1.02), aspect="equal")
            else:
                axes.set_axis_off()
            if i == d - 1:
                axes.set_xlabel(f"x{j + 1}")
            if j == 0 and i:
                axes.set_ylabel(f"x{i + 1}")
    # above the diagonal there is room for the angles
    for k, mode in enumerate(modes[: d - 1]):
        axes = grid[0, k + 1]
        axes.set_axis_on()
        _histograms(axes, _angles(drawn, mode), None if data is None else _angles(data, mode), None)
        axes.set_title(f"degrees from mode {k + 1}", fontsize=9)
    labels = [("density", "C0")] + ([("data", "C1")] if data is not None else [])
    handles = [Line2D([], [], color=c, label=name) for name, c in labels]
    figure.legend(handles=handles, loc="center right", frameon=False)
    figure.tight_layout()
    return figure


def _apart(points: np.ndarray, num: int) -> list[np.ndarray]:
    """The first points of a list that are 30 degrees from each other."""
    found: list[np.ndarray] = []
    for point in points:
        if all(point @ other < np.cos(np.pi / 6) for other in found):
            found.append(point)
        if len(found) == num:
            break
    return found


def _angles(points: np.ndarray, mode: np.ndarray) -> np.ndarray:
    return np.rad2deg(np.arccos(np.clip(points @ mode, -1, 1)))


def _histograms(axes, drawn: np.ndarray, data: np.ndarray | None, bounds: Any) -> None:
    low, high = bounds or (0, max(a.max() for a in (drawn, data) if a is not None))
    for values, colour in ((drawn, "C0"), (data, "C1")):
        if values is not None:
            axes.hist(values, 40, range=(low, high), density=True, histtype="step", color=colour)
    axes.set_yticks([])
