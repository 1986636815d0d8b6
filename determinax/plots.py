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


def density(
    source: Proposal | Callable,
    *,
    n: int | None = None,
    projection: Projection = "mollweide",
    points: Float[Any, "num n"] | None = None,
    view: tuple[float, float] = (20.0, -60.0),
    axes: Any = None,
    title: str | None = None,
) -> Any:
    """Draw a density on the circle (n = 2) or on the sphere (n = 3); returns the matplotlib axes.

    **Arguments:**

    - `source`: a `Proposal`, or a log-density of one point (then `n` says where it lives; the
        picture is normalised).
    - `projection`: for n = 3, `"mollweide"` (all of the sphere) or `"orthographic"` (as seen from
        `view`: elevation and azimuth in degrees).
    - `points`: samples to draw on top, one a row.
    """
    n = source.n if isinstance(source, Proposal) else n
    if n == 2:
        return _circle(source, points, axes, title)
    if n == 3 and projection in ("mollweide", "orthographic"):
        draw = _mollweide if projection == "mollweide" else _orthographic
        return draw(source, points, view, axes, title)
    if n == 3:
        raise ValueError(f'projection is "mollweide" or "orthographic", not {projection!r}')
    raise ValueError(
        f"pictures exist for n = 2 and n = 3, not for n = {n}; pass n= with a function"
    )


def evaluate(source: Proposal | Callable, points: Float[np.ndarray, "n num"]) -> np.ndarray:
    """The density at columns of points: relative to uniform for a proposal.

    A bare log-density is not normalised: its density is over the largest of these values.
    """
    if isinstance(source, Proposal):
        columns = jnp.asarray(points, dtype_of(source.flow))
        return np.exp(np.asarray(eqx.filter_jit(Proposal.log_density_columns)(source, columns)))
    log_p = np.asarray(jax.jit(jax.vmap(source, in_axes=-1))(jnp.asarray(points)))
    return np.exp(log_p - log_p.max())


def _circle(source, points, axes, title):
    angles = np.linspace(-np.pi, np.pi, 721)
    values = evaluate(source, np.stack([np.cos(angles), np.sin(angles)]))
    values = values / np.mean(values[:-1]) if not isinstance(source, Proposal) else values
    if axes is None:
        _, axes = plt.subplots(subplot_kw={"projection": "polar"}, figsize=(4, 4))
    axes.plot(angles, np.ones_like(angles), color="0.7", linewidth=1)
    axes.plot(angles, values, color="C0")
    axes.fill(angles, values, color="C0", alpha=0.25)
    if points is not None:
        axes.plot(
            np.arctan2(points[:, 1], points[:, 0]), np.ones(len(points)), ".", color="C1", ms=2
        )
    axes.set_yticklabels([])
    _finish(axes, title)
    return axes


def _mollweide(source, points, view, axes, title):
    del view
    longitude = np.linspace(-np.pi, np.pi, 361)
    latitude = np.linspace(-np.pi / 2, np.pi / 2, 181)
    grid_lon, grid_lat = np.meshgrid(longitude, latitude)
    values = evaluate(source, _unit(grid_lon, grid_lat).reshape(3, -1)).reshape(grid_lon.shape)
    if not isinstance(source, Proposal):
        values = values / np.average(values, weights=np.cos(grid_lat))
    if axes is None:
        _, axes = plt.subplots(subplot_kw={"projection": "mollweide"}, figsize=(6, 3.2))
    mesh = axes.pcolormesh(
        grid_lon, grid_lat, values, cmap="viridis", shading="gouraud", rasterized=True
    )
    if points is not None:
        points = np.asarray(points)
        lat = np.arcsin(np.clip(points[:, 2], -1, 1))
        axes.plot(
            np.arctan2(points[:, 1], points[:, 0]), lat, ".", color="white", ms=1.5, alpha=0.6
        )
    axes.set_xticklabels([])
    axes.set_yticklabels([])
    axes.grid(color="white", alpha=0.15, linewidth=0.5)
    plt.colorbar(mesh, ax=axes, shrink=0.7, label="density / uniform")
    _finish(axes, title)
    return axes


def _orthographic(source, points, view, axes, title):
    elevation, azimuth = np.deg2rad(view)
    ahead = _unit(azimuth, elevation)
    right = _unit(azimuth + np.pi / 2, 0.0)
    up = np.cross(ahead, right)
    side = np.linspace(-1, 1, 401)
    x, y = np.meshgrid(side, side)
    inside = x**2 + y**2 < 1
    depth = np.sqrt(np.where(inside, 1 - x**2 - y**2, 0))
    seen = x[..., None] * right + y[..., None] * up + depth[..., None] * ahead
    if isinstance(source, Proposal):
        values = evaluate(source, seen.reshape(-1, 3).T).reshape(x.shape)
    else:
        cover = np.random.default_rng(0).standard_normal((3, 20_000))
        cover /= np.linalg.norm(cover, axis=0)
        both = evaluate(source, np.concatenate([seen.reshape(-1, 3).T, cover], axis=1))
        values = (both[: x.size] / both[x.size :].mean()).reshape(x.shape)
    if axes is None:
        _, axes = plt.subplots(figsize=(4, 4))
    mesh = axes.imshow(
        np.where(inside, values, np.nan), extent=(-1, 1, -1, 1), origin="lower", cmap="viridis"
    )
    if points is not None:
        points = np.asarray(points)
        front = points[points @ ahead > 0]
        axes.plot(front @ right, front @ up, ".", color="white", ms=1.5, alpha=0.6)
    axes.add_patch(Circle((0, 0), 1, fill=False, color="0.3", linewidth=0.8))
    axes.set_axis_off()
    # room for the circle's own width
    axes.set(aspect="equal", xlim=(-1.01, 1.01), ylim=(-1.01, 1.01))
    plt.colorbar(mesh, ax=axes, shrink=0.7, label="density / uniform")
    _finish(axes, title)
    return axes


def _unit(longitude: Any, latitude: Any) -> np.ndarray:
    flat = np.cos(latitude)
    return np.stack(
        [flat * np.cos(longitude), flat * np.sin(longitude), np.sin(latitude) + 0 * flat]
    )


def _finish(axes, title: str | None) -> None:
    if title:
        axes.set_title(title)
