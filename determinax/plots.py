"""Pictures of densities: the circle, maps and globes of S^2, pairs of coordinates of what is above."""

import html
import io
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from jaxtyping import Float
from matplotlib.patches import Circle

from determinax import _globe, _spheres, flows
from determinax._drawing.globes import globes, script
from determinax._drawing.page import page
from determinax._nearby import density_at
from determinax._outlines import grid as _grid
from determinax._outlines import law as _law
from determinax._outlines import levels_of, logarithmic, outline
from determinax._outlines import unit as _unit
from determinax._pairs import pairs as pairs
from determinax._style import COLOURS as COLOURS
from determinax._style import style as style
from determinax.densities import Density
from determinax.progress import reporting
from determinax.proposals import AbstractProposal, Proposal
from determinax.storage import write_atomically

Projection = Literal["mollweide", "orthographic"]
Source = AbstractProposal | Density | Callable
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
    log: bool = False,
    regions: Sequence[float] = (),
    colorbar: bool = True,
) -> Any:
    """Draw a density on the circle (n = 2) or on the sphere (n = 3); returns the matplotlib axes.

    **Arguments:**

    - `source`: a `Density` or another proposal, or a log-density of one point (then `n` says where it
        lives; the picture is normalised).
    - `projection`: for n = 3, `"mollweide"` (all of the sphere) or `"orthographic"` (as seen from
        `view`: elevation and azimuth in degrees).
    - `points`: samples to draw on top, one a row.
    - `vmin`, `vmax`: where the colours begin and end, so that pictures side by side can be compared;
        `colorbar=False` leaves the bar to them.
    - `log`: colours by orders of magnitude, four of them unless `vmin` says where they begin: for data,
        whose density may be a thousand times the uniform one here and nothing there.
    - `regions`: masses such as `(0.5, 0.9)`: the smallest regions that hold them are outlined (n = 3).

    !!! example

        ```python
        dx.plots.density(q, points=points, log=True, regions=(0.5, 0.9))
        ```
    """
    source = _law(source)
    n = _dimension(n, source)
    values = _relative(source, n)
    if n == 2:
        return _circle(values, points, axes, title)
    colours: dict[str, Any] = {"cmap": "viridis", "vmin": vmin, "vmax": vmax}
    levels = levels_of(source, regions)
    if log:
        values, colours = logarithmic(values, vmin, vmax, levels)
    axes, drawn = _draw(projection, values, view, axes, colours, levels)
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
    source, other = _law(source), _law(other)
    for n in {s.n for s in (source, other) if isinstance(s, AbstractProposal)} or {3}:
        if n != 3:
            raise ValueError(f"differences are drawn for n = 3, not for n = {n}")
    values, others = _relative(source, 3), _relative(other, 3)
    colours = {"cmap": "RdBu_r"}
    axes, drawn = _draw(projection, lambda p: values(p) - others(p), view, axes, colours)
    limit = float(np.nanmax(np.abs(drawn.get_array()))) if limit is None else limit
    drawn.set_clim(-limit, limit)
    return _finish(axes, drawn, title, "difference" if colorbar else None)


def sphere(
    source: Source,
    path: str | os.PathLike[str],
    *,
    beside: Source | None = None,
    points: Float[Any, "num 3"] | None = None,
    layers: bool = True,
    names: tuple[str, str] = ("density", "beside it"),
    title: str = "A density on the sphere",
) -> None:
    """Write a page with a density on the sphere (n = 3) to turn by hand: one file, no network.

    **Arguments:**

    - `source`: a density such as a `Proposal`, or a log-density of one point, which is normalised.
    - `beside`: another one, such as the target of a fit, drawn beside it on the same scale.
    - `points`: samples to draw on top, one a row; the first 2,000.
    - `layers`: of a flow that is a chain, a slider from the uniform density to the last layer.
    - `names`: what the density and the one beside it are called under their spheres.

    !!! example

        ```python
        q, names = dx.Proposal(dx.flows.projective_linear(3)), ("the flow", "the target")
        dx.plots.sphere(q, "sphere.html", beside=lambda s: 2 * s[2], names=names)
        ```
    """
    source, beside = _law(source), _law(beside)
    for found in (source, beside):
        if isinstance(found, AbstractProposal) and found.n != 3:
            raise ValueError(f"a sphere to turn has n = 3, not n = {found.n}: see plots.density")
    frames, labels = _layers(source) if layers else ([source], [""])
    maps = [_spheres.Map(names[0], [_spheres.on_sphere(f, "").frames[0] for f in frames])]
    if beside is not None:
        maps.append(_spheres.on_sphere(beside, names[1]))
    data = _spheres.as_data(maps, labels, points)
    words = "Drag to turn, or use the arrow keys. Densities are relative to the uniform one."
    body = f'<div class="centred"><h1>{html.escape(title)}</h1><p>{words}</p>{globes(data)}</div>'
    write_atomically(pathlib.Path(path), page(title, body, script()).encode())


def _layers(source: Source) -> tuple[list[Source], list[str]]:
    """The density after every layer of a chain: rotations change no density's shape, and are skipped."""
    chain = getattr(source, "flow", None)
    if not isinstance(chain, flows.Chain):
        return [source], [""]
    maps = chain.maps
    ends = [i for i, f in enumerate(maps, 1) if not isinstance(f, flows.Rotation)]
    ends = sorted({*ends[:: -(-len(ends) // 8)], len(maps)} - {0})
    start = Proposal(flows.projective_linear(3))
    made: list[Source] = [start, *(Proposal(flows.Chain(maps[:end])) for end in ends)]
    return made, ["uniform", *(f"after {end} of {len(maps)} maps" for end in ends)]


def evaluate(source: Source, points: Float[np.ndarray, "n num"]) -> np.ndarray:
    """The density at columns of points: relative to uniform for a proposal.

    A bare log-density is not normalised: its density is over the largest of these values.
    """
    source = _law(source)
    log_p = _log_density(source)(points)
    return np.exp(log_p if isinstance(source, AbstractProposal) else log_p - log_p.max())


def save_map(
    source: AbstractProposal | Density,
    path: str | os.PathLike[str],
    *,
    points: Float[Any, "num 3"] | None = None,
    regions: Sequence[float] = (0.5, 0.9),
    title: str | None = None,
) -> None:
    """Write a map of a density on S^2 with points and regions: .png, .svg, .pdf, or .html.

    The last is a page with a globe to turn, all in one file.

    !!! example

        ```python
        dx.plots.save_map(q, "map.png", points=points)
        dx.plots.save_map(q, "globe.html", points=points)
        ```
    """
    path, law = pathlib.Path(path), _law(source)
    if _dimension(None, law) != 3:
        raise ValueError(f"maps are for n = 3, not n = {law.n}: see plots.density")
    with reporting() as report:
        if report:
            report.working("drawing a map")
        _save_map(law, path, points, regions, title)


def _save_map(law, path: pathlib.Path, points, regions, title: str | None) -> None:
    outlined = " and ".join(f"{p:.0%}" for p in sorted(regions, reverse=True))
    caption = f"Lines: smallest regions that hold {outlined} of the mass" if regions else ""
    caption += " (the smaller, the lighter)." if len(regions) > 1 else "." if regions else ""
    if path.suffix.lower() == ".html":
        text = _turning(law, points, regions, title or _named(points), caption)
        write_atomically(path, text.encode())
        return
    figure, axes = plt.subplots(subplot_kw={"projection": "mollweide"}, figsize=(9, 5))
    density(law, points=points, log=True, regions=regions, axes=axes, title=title)
    if caption:
        axes.text(
            0.5, -0.07, caption, ha="center", color="0.3", fontsize=9, transform=axes.transAxes
        )
    figure.savefig(path, dpi=200, bbox_inches="tight")
    plt.close(figure)


def _named(points) -> str:
    return "A density on the sphere" + (
        f", of {len(points):,} points" if points is not None else ""
    )


def _turning(law, points, regions, title: str, caption: str) -> str:
    """The page around a plain map of longitudes by latitudes."""
    lon, lat = _grid(721, 361)
    values, colours = logarithmic(_relative(law, 3), None, None, levels := levels_of(law, regions))
    drawn = values(_unit(lon, lat).reshape(3, -1)).reshape(lon.shape)
    figure = plt.figure(figsize=(14.4, 7.2), dpi=100)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.pcolormesh(lon, lat, drawn, shading="gouraud", **colours)
    outline(axes, lon, lat, drawn, levels)
    if points is not None:
        _scatter(axes, np.asarray(points), "mollweide", None)
    for degrees in range(-150, 180, 30):
        axes.axvline(np.deg2rad(degrees), color="0.6", alpha=0.3, linewidth=0.5)
        axes.axhline(np.deg2rad(degrees / 2), color="0.6", alpha=0.3, linewidth=0.5)
    axes.set(xlim=(-np.pi, np.pi), ylim=(-np.pi / 2, np.pi / 2))
    axes.set_axis_off()
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    plt.close(figure)
    # first seen is the side with most of the mass; colours end somewhere, so the top of them is no place
    x, y, z = (_unit(lon, lat) * drawn * np.cos(lat)).sum(axis=(1, 2))
    centre = float(np.arctan2(y, x)), float(np.clip(np.arctan2(z, np.hypot(x, y)), -1, 1))
    ends = colours["norm"].vmin, colours["norm"].vmax
    return _globe.page(buffer.getvalue(), title=title, caption=caption, centre=centre, ends=ends)


def _dimension(n: int | None, source: Any) -> int:
    own = source.n if isinstance(source, AbstractProposal) else None
    if own is None and n is None:
        raise ValueError("a function does not say where it lives: pass n=2 or n=3 with it")
    if own is not None and n not in (None, own):
        raise ValueError(f"n = {n} contradicts the proposal, which has n = {own}: leave n out")
    found = n if own is None else own
    if found not in (2, 3):
        raise ValueError(
            f"pictures exist for the circle (n = 2) and the sphere (n = 3), not for n = {found}: above, "
            "see plots.pairs"
        )
    return found


def _log_density(source: Any) -> Values:
    if isinstance(source, AbstractProposal):
        return lambda points: np.log(np.maximum(density_at(source, points), 1e-300))
    mapped = jax.jit(jax.vmap(source, in_axes=-1))
    return lambda points: np.asarray(mapped(jnp.asarray(points)), float)


def _relative(source: Any, n: int) -> Values:
    """Columns of points to densities relative to uniform; a bare log-density is normalised."""
    if isinstance(source, AbstractProposal):
        return lambda points: density_at(source, points)
    log_density = _log_density(source)
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


def _draw(
    projection: str, values: Values, view, axes, colours: dict, levels: list[float] | None = None
) -> tuple[Any, Any]:
    """Axes and what the colours belong to."""
    if projection == "mollweide":
        return _mollweide(values, axes, colours, levels or [])
    if projection == "orthographic":
        return _orthographic(values, view, axes, colours, levels or [])
    raise ValueError(f'projection is "mollweide" or "orthographic", not {projection!r}')


def _mollweide(values: Values, axes, colours: dict, levels: list[float]) -> tuple[Any, Any]:
    grid_lon, grid_lat = _grid(361, 181)
    drawn = values(_unit(grid_lon, grid_lat).reshape(3, -1)).reshape(grid_lon.shape)
    if axes is None:
        _, axes = plt.subplots(subplot_kw={"projection": "mollweide"}, figsize=(6, 3.2))
    mesh = axes.pcolormesh(grid_lon, grid_lat, drawn, shading="gouraud", rasterized=True, **colours)
    outline(axes, grid_lon, grid_lat, drawn, levels)
    turns, rises = np.arange(-150, 180, 30), np.arange(-60, 90, 30)
    axes.set_xticks(np.deg2rad(turns), [f"{d}°" if d % 60 == 0 else "" for d in turns])
    axes.set_yticks(np.deg2rad(rises), [f"{d}°" for d in rises])
    axes.tick_params(labelsize=7, labelcolor="0.3")
    for label in axes.get_xticklabels():  # these stand on the map
        label.set(color="white", alpha=0.8)
    axes.grid(color="0.6", alpha=0.4, linewidth=0.5)
    return axes, mesh


def _orthographic(
    values: Values, view, axes, colours: dict, levels: list[float]
) -> tuple[Any, Any]:
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
    outline(axes, x, y, drawn, levels)
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
    # many points are small ones, else they hide what is drawn below
    size = float(np.clip(40 / max(1, len(points)) ** 0.5, 0.4, 1.5))
    style = {"color": "white", "ms": size, "alpha": 0.6, "markeredgewidth": 0}
    if projection == "mollweide":
        lat = np.arcsin(np.clip(points[:, 2], -1, 1))
        axes.plot(np.arctan2(points[:, 1], points[:, 0]), lat, ".", **style)
    else:
        ahead, right, up = _camera(view)
        front = points[points @ ahead > 0]
        axes.plot(front @ right, front @ up, ".", **style)


def _finish(axes, drawn, title: str | None, bar: str | None):
    if bar is not None:
        plt.colorbar(drawn, ax=axes, shrink=0.7, label=bar)
    if title:
        axes.set_title(title)
    return axes
