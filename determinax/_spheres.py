"""Densities on a grid of the circle or the sphere, as numbers for a picture."""

import base64
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

ROWS, COLS = 120, 240
_MOST_POINTS = 2000


class Map(NamedTuple):
    """A density relative to uniform on the grid, or several of them in an order: `frames`."""

    name: str
    frames: list[np.ndarray]


def grid() -> np.ndarray:
    """Unit vectors as columns: latitudes from north to south, longitudes from -180 degrees on."""
    latitude = np.pi * (0.5 - (np.arange(ROWS) + 0.5) / ROWS)
    longitude = 2 * np.pi * ((np.arange(COLS) + 0.5) / COLS) - np.pi
    lon, lat = np.meshgrid(longitude, latitude)
    points = np.stack([np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat)])
    return points.reshape(3, -1)


def circle(num: int = 720) -> np.ndarray:
    """Unit vectors as columns, once around."""
    angle = 2 * np.pi * np.arange(num) / num
    return np.stack([np.cos(angle), np.sin(angle)])


def log_density_of(source: Any) -> Callable[[np.ndarray], np.ndarray]:
    """The log-density at columns of points: of a proposal, or of a function of one point."""
    if hasattr(source, "log_density_columns"):
        return lambda points: np.asarray(source.log_density_columns(jnp.asarray(points)), float)
    mapped = jax.jit(jax.vmap(source, in_axes=-1))
    return lambda points: np.asarray(mapped(jnp.asarray(points)), float)


def relative(source: Any, points: np.ndarray) -> np.ndarray:
    """The density at a whole grid of points, relative to uniform; a bare log-density is normalised."""
    log_p = log_density_of(source)(points)
    if hasattr(source, "log_density_columns"):
        return np.exp(log_p)
    # the area of a cell, of the circle or of the sphere's grid
    area = np.ones(len(log_p)) if len(points) == 2 else np.sqrt(points[0] ** 2 + points[1] ** 2)
    top = log_p.max()
    mean = np.sum(area * np.exp(log_p - top)) / area.sum()
    return np.exp(log_p - top) / mean


def on_sphere(source: Any, name: str) -> Map:
    """The density of a source on the sphere's grid."""
    return Map(name, [relative(source, grid()).reshape(ROWS, COLS)])


def as_data(maps: list[Map], labels: list[str], points: Any = None) -> dict[str, Any]:
    """What the page's script reads: bytes for every frame, on one scale."""
    top = max(float(np.max(m.frames[-1])) for m in maps)
    return {
        **_towards(maps[0].frames[-1]),
        "rows": ROWS,
        "cols": COLS,
        "top": float(f"{top:.4g}"),
        "labels": labels,
        "maps": [{"name": m.name, "frames": [_packed(f / top) for f in m.frames]} for m in maps],
        "points": [] if points is None else _whole(points),
    }


def _towards(density: np.ndarray) -> dict[str, float]:
    """From where most of the mass is seen; a density without a side has a view of its own."""
    points = grid()
    mass = np.sqrt(points[0] ** 2 + points[1] ** 2) * np.nan_to_num(density.ravel())
    x, y, z = (points * mass).sum(axis=1) / max(mass.sum(), 1e-300)
    if not np.hypot(np.hypot(x, y), z) > 0.05:
        return {"yaw": -1.0, "pitch": 0.35}
    yaw, pitch = np.arctan2(y, x), np.clip(np.arctan2(z, np.hypot(x, y)), -1.2, 1.2)
    return {"yaw": round(float(yaw), 3), "pitch": round(float(pitch), 3)}


def _packed(shares: np.ndarray) -> str:
    shares = np.nan_to_num(np.clip(shares, 0, 1))
    return base64.b64encode(np.round(255 * shares).astype(np.uint8).tobytes()).decode()


def _whole(points: Any) -> list[int]:
    """Unit vectors in thousandths: at most 2,000 of them."""
    rows = np.asarray(points, float).reshape(-1, 3)[:_MOST_POINTS]
    return np.round(1000 * rows).astype(int).reshape(-1).tolist()
