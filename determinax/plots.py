"""Pictures of densities on the circle and on S^2, for a proposal or for any log-density."""

from collections.abc import Callable
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from jaxtyping import Float
from matplotlib.patches import Circle

from determinax.flows.base import dtype_of
from determinax.proposals import Proposal

Projection = Literal["mollweide", "orthographic"]
Source = Proposal | Callable
Values = Callable[[np.ndarray], np.ndarray]


def density(
    source: Source,
    *,
    n: int | None = None,
    projection: Projection = "mollweide",
    points: Float[Any, "num n"] | None = None,
    view: tuple[float, float] = (20.0, -60.0),
    axes: Any = None,
    title: str | None = None,
    vmin: float | None = None,
    vmax: float | None = None,
    colorbar: bool = True,
) -> Any:
    """Draw a density on the circle (n = 2) or on the sphere (n = 3); returns the matplotlib axes.

    **Arguments:**

    - `source`: a `Proposal`, or a log-density of one point (then `n` says where it lives; the
        picture is normalised).
    - `projection`: for n = 3, `"mollweide"` (all of the sphere) or `"orthographic"` (as seen from
        `view`: elevation and azimuth in degrees).
    - `points`: samples to draw on top, one a row.
    - `vmin`, `vmax`: where the colours begin and end, so that pictures side by side can be compared;
        `colorbar=False` leaves the bar to them.
    """
    n = _dimension(n, source)
    values = _relative(source, n)
    if n == 2:
        return _circle(values, points, axes, title)
    colours = {"cmap": "viridis", "vmin": vmin, "vmax": vmax}
    axes, drawn = _draw(projection, values, view, axes, colours)
    if points is not None:
        _scatter(axes, np.asarray(points), projection, view)
    return _finish(axes, drawn, title, "density / uniform" if colorbar else None)


def difference(
    source: Source,
    other: Source,
    *,
    projection: Projection = "mollweide",
    view: tuple[float, float] = (20.0, -60.0),
    axes: Any = None,
    title: str | None = None,
    limit: float | None = None,
    colorbar: bool = True,
) -> Any:
    """Draw one density minus another on the sphere (n = 3), white where they agree.

    Red is too much and blue is too little, up to `limit`, by default the largest difference.
    """
    for n in {s.n for s in (source, other) if isinstance(s, Proposal)} or {3}:
        if n != 3:
            raise ValueError(f"differences are drawn for n = 3, not for n = {n}")
    values, others = _relative(source, 3), _relative(other, 3)
    colours = {"cmap": "RdBu_r"}
    axes, drawn = _draw(projection, lambda p: values(p) - others(p), view, axes, colours)
    limit = float(np.nanmax(np.abs(drawn.get_array()))) if limit is None else limit
    drawn.set_clim(-limit, limit)
    return _finish(axes, drawn, title, "difference" if colorbar else None)


def evaluate(source: Source, points: Float[np.ndarray, "n num"]) -> np.ndarray:
    """The density at columns of points: relative to uniform for a proposal.

    A bare log-density is not normalised: its density is over the largest of these values.
    """
    log_p = _log_density(source)(points)
    return np.exp(log_p if isinstance(source, Proposal) else log_p - log_p.max())


def _dimension(n: int | None, source: Source) -> int:
    own = source.n if isinstance(source, Proposal) else None
    if own is None and n is None:
        raise ValueError("a function does not say where it lives: pass n=2 or n=3 with it")
    if own is not None and n not in (None, own):
        raise ValueError(f"n = {n} contradicts the proposal, which has n = {own}: leave n out")
    found = n if own is None else own
    if found not in (2, 3):
        raise ValueError(
            f"pictures exist for the circle (n = 2) and the sphere (n = 3), not for n = {found}"
        )
    return found


def _log_density(source: Source) -> Values:
    if isinstance(source, Proposal):
        compiled = eqx.filter_jit(Proposal.log_density_columns)
        dtype = dtype_of(source.flow)
        return lambda points: np.asarray(compiled(source, jnp.asarray(points, dtype)), float)
    mapped = jax.jit(jax.vmap(source, in_axes=-1))
    return lambda points: np.asarray(mapped(jnp.asarray(points)), float)


def _relative(source: Source, n: int) -> Values:
    """Columns of points to densities relative to uniform; a bare log-density is normalised."""
    log_density = _log_density(source)
    if isinstance(source, Proposal):
        return lambda points: np.exp(log_density(points))
    if n == 2:
        angles = 2 * np.pi * np.arange(720) / 720
        points, weights = np.stack([np.cos(angles), np.sin(angles)]), np.full(720, 1 / 720)
    else:
        height, weight = np.polynomial.legendre.leggauss(200)
        grid = np.meshgrid(2 * np.pi * np.arange(400) / 400, np.arcsin(height))
        points, weights = _unit(*grid).reshape(3, -1), np.repeat(weight, 400) / 800
    log_p = log_density(points)
    total = log_p.max() + np.log(weights @ np.exp(log_p - log_p.max()))
    return lambda points: np.exp(log_density(points) - total)


def _circle(values: Values, points, axes, title):
    angles = np.linspace(-np.pi, np.pi, 721)
    drawn = values(np.stack([np.cos(angles), np.sin(angles)]))
    if axes is None:
        _, axes = plt.subplots(subplot_kw={"projection": "polar"}, figsize=(4, 4))
    axes.plot(angles, np.ones_like(angles), color="0.7", linewidth=1)
    axes.plot(angles, drawn, color="C0")
    axes.fill(angles, drawn, color="C0", alpha=0.25)
    if points is not None:
        points = np.asarray(points)
        axes.plot(
            np.arctan2(points[:, 1], points[:, 0]), np.ones(len(points)), ".", color="C1", ms=2
        )
    axes.set_yticklabels([])
    return _finish(axes, None, title, None)


def _draw(projection: str, values: Values, view, axes, colours: dict) -> tuple[Any, Any]:
    """Axes and what the colours belong to."""
    if projection == "mollweide":
        return _mollweide(values, axes, colours)
    if projection == "orthographic":
        return _orthographic(values, view, axes, colours)
    raise ValueError(f'projection is "mollweide" or "orthographic", not {projection!r}')


def _mollweide(values: Values, axes, colours: dict) -> tuple[Any, Any]:
    longitude = np.linspace(-np.pi, np.pi, 361)
    latitude = np.linspace(-np.pi / 2, np.pi / 2, 181)
    grid_lon, grid_lat = np.meshgrid(longitude, latitude)
    drawn = values(_unit(grid_lon, grid_lat).reshape(3, -1)).reshape(grid_lon.shape)
    if axes is None:
        _, axes = plt.subplots(subplot_kw={"projection": "mollweide"}, figsize=(6, 3.2))
    mesh = axes.pcolormesh(grid_lon, grid_lat, drawn, shading="gouraud", rasterized=True, **colours)
    axes.set_xticks(np.deg2rad(np.arange(-150, 180, 30)), [])
    axes.set_yticks(np.deg2rad(np.arange(-60, 90, 30)), [])
    axes.grid(color="0.6", alpha=0.4, linewidth=0.5)
    return axes, mesh


def _orthographic(values: Values, view, axes, colours: dict) -> tuple[Any, Any]:
    ahead, right, up = _camera(view)
    side = np.linspace(-1, 1, 401)
    x, y = np.meshgrid(side, side)
    inside = x**2 + y**2 < 1
    depth = np.sqrt(np.where(inside, 1 - x**2 - y**2, 0))
    seen = x[..., None] * right + y[..., None] * up + depth[..., None] * ahead
    # what lies outside of the disc is looked up somewhere, and not drawn
    seen = np.where(inside[..., None], seen, ahead).reshape(-1, 3)
    drawn = np.where(inside, values(seen.T).reshape(x.shape), np.nan)
    if axes is None:
        _, axes = plt.subplots(figsize=(4, 4))
    image = axes.imshow(drawn, extent=(-1, 1, -1, 1), origin="lower", **colours)
    turn, rise = np.linspace(-np.pi, np.pi, 361), np.linspace(-np.pi / 2, np.pi / 2, 181)
    for degrees in range(-180, 180, 30):
        meridian, parallel = np.deg2rad(degrees), np.deg2rad(degrees / 2)
        for line in (_unit(meridian, rise), _unit(turn, parallel)):
            line = np.where(ahead @ line > 0, line, np.nan)
            axes.plot(right @ line, up @ line, color="0.6", alpha=0.4, linewidth=0.5)
    axes.add_patch(Circle((0, 0), 1, fill=False, color="0.3", linewidth=0.8))
    axes.set_axis_off()
    # room for the circle's own width
    axes.set(aspect="equal", xlim=(-1.01, 1.01), ylim=(-1.01, 1.01))
    return axes, image


def _camera(view: tuple[float, float]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The directions towards the eye, to the right and up."""
    elevation, azimuth = np.deg2rad(view)
    ahead, right = _unit(azimuth, elevation), _unit(azimuth + np.pi / 2, 0.0)
    return ahead, right, np.cross(ahead, right)


def _scatter(axes, points: np.ndarray, projection: str, view) -> None:
    style = {"color": "white", "ms": 1.5, "alpha": 0.6}
    if projection == "mollweide":
        lat = np.arcsin(np.clip(points[:, 2], -1, 1))
        axes.plot(np.arctan2(points[:, 1], points[:, 0]), lat, ".", **style)
    else:
        ahead, right, up = _camera(view)
        front = points[points @ ahead > 0]
        axes.plot(front @ right, front @ up, ".", **style)


def _unit(longitude: Any, latitude: Any) -> np.ndarray:
    flat = np.cos(latitude)
    return np.stack(
        np.broadcast_arrays(
            flat * np.cos(longitude), flat * np.sin(longitude), np.sin(latitude) + 0 * flat
        )
    )


def _finish(axes, drawn, title: str | None, bar: str | None):
    if bar is not None:
        plt.colorbar(drawn, ax=axes, shrink=0.7, label=bar)
    if title:
        axes.set_title(title)
    return axes
