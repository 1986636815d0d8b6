"""Outlines of regions, and colours by orders of magnitude: what maps of data need."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from matplotlib.colors import LogNorm

from determinax._nearby import density_at
from determinax.densities import Density
from determinax.proposals import AbstractProposal

# red, green, blue of the widest and of the smallest region's line; events are white
_OUTER, _INNER = np.array([1.0, 0.33, 0.2]), np.array([1.0, 0.6, 1.0])
Values = Callable[[np.ndarray], np.ndarray]


def law(source: Any) -> Any:
    """The proposal of a `Density`; anything else as it is."""
    return source.proposal if isinstance(source, Density) else source


def levels_of(source: Any, regions: Sequence[float]) -> list[float]:
    """The densities at the edges of regions, from low to high."""
    if regions and not isinstance(source, AbstractProposal):
        raise ValueError("regions are of a Density or another proposal, which can be sampled")
    if not regions:
        return []
    if not all(0 < p < 1 for p in regions):
        raise ValueError(f"regions have masses between 0 and 1, such as 0.9, not {regions!r}")
    # one sample for all of them
    found = density_at(source, np.asarray(source.sample(jax.random.key(0), 10_000), float).T)
    return sorted({float(np.quantile(found, 1 - p)) for p in regions})


def grid(columns: int, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Longitudes and latitudes in radians, all around."""
    longitude = np.linspace(-np.pi, np.pi, columns)
    latitude = np.linspace(-np.pi / 2, np.pi / 2, rows)
    lon, lat = np.meshgrid(longitude, latitude)
    return lon, lat


def unit(longitude: Any, latitude: Any) -> np.ndarray:
    """Unit vectors, one a column."""
    flat = np.cos(latitude)
    return np.stack(
        np.broadcast_arrays(
            flat * np.cos(longitude), flat * np.sin(longitude), np.sin(latitude) + 0 * flat
        )
    )


def logarithmic(
    values: Values, vmin: float | None, vmax: float | None, levels: list[float]
) -> tuple[Values, dict[str, Any]]:
    """Colours by orders of magnitude: below the lowest, the lowest."""
    if vmax is None:
        # a kernel at a single event may be a million times the uniform law: no need for a colour of its own
        vmax = max(100.0, 10 * max(levels, default=0.0))
    vmin = vmax / 1e4 if vmin is None else vmin
    colours = {"cmap": "viridis", "norm": LogNorm(vmin, vmax)}
    return (lambda p: np.clip(values(p), vmin, vmax)), colours


def outline(
    axes: Any, x: np.ndarray, y: np.ndarray, drawn: np.ndarray, levels: list[float]
) -> None:
    """Draw the lines where a density is at given levels: the higher, the lighter."""
    if levels:
        tints = np.linspace(0, 1, len(levels)) if len(levels) > 1 else [0.0]
        axes.contour(
            x,
            y,
            np.log(np.maximum(drawn, 1e-300)),
            np.log(levels),
            colors=[(1 - t) * _OUTER + t * _INNER for t in tints],
            linewidths=1.0,
        )
