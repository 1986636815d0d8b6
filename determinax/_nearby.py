"""Densities of many bumps at many points of S^2: sums over those nearby, for pictures.

A map asks a density of 30,000 bumps at 260,000 points. A bump is 0 to the eye beyond five times its
width, and a wide one is smooth: it is summed on a coarse grid, and a cubic spline gives the points.
"""

from collections.abc import Iterator

import jax.numpy as jnp
import numpy as np
import scipy  # whose trees load when they are used
from jaxtyping import Float

from determinax.proposals import AbstractProposal, Mixture, VonMisesFisher, cast

# pairs of a point and a bump: below, all of them are summed; in memory at a time
_MANY, _AT_ONCE = 100_000_000, 4_000_000
# where a bump ends, in widths
_REACH = 5.0
# degrees between points of a grid, for bumps from twice as wide on
_STEPS = (1.0, 2.0, 4.0)


def density_at(
    q: AbstractProposal, points: Float[np.ndarray, "n num"]
) -> Float[np.ndarray, " num"]:
    """The density relative to uniform at columns of points: to the digits of colours."""
    if isinstance(q, Mixture):
        parts = np.stack([density_at(part, points) for part in q.proposals])
        return np.asarray(q.weights, float) @ parts
    many = points.shape[1] > _MANY / max(1, _num_bumps(q))
    if isinstance(q, VonMisesFisher) and q.n == 3 and many:
        return _summed(_Bumps(q), np.asarray(points, float))
    # colours need few digits, and sums over many kernels take half of the time
    quick = cast(q, jnp.float32)
    return np.exp(np.asarray(quick.log_density(points.T.astype(np.float32)), float))


def _num_bumps(q: AbstractProposal) -> int:
    return q.concentrations().size if isinstance(q, VonMisesFisher) else 1


class _Bumps:
    """Centres as rows, widths and peaks, from narrow to wide."""

    def __init__(self, q: VonMisesFisher):
        widths = 1 / np.sqrt(np.maximum(np.asarray(q.concentrations(), float), 1e-6))
        order = np.argsort(widths)
        self.widths = widths[order]
        self.centres = np.asarray(q.centres(), float).T[order]
        self.log_peaks = np.asarray(q.log_peaks(), float)[order]


def _summed(bumps: _Bumps, points: np.ndarray) -> np.ndarray:
    edges = [0, *np.searchsorted(bumps.widths, np.deg2rad(2 * np.array(_STEPS))), len(bumps.widths)]
    total = _near(bumps, slice(0, edges[1]), points)
    lon, lat = np.arctan2(points[1], points[0]), np.arcsin(np.clip(points[2], -1, 1))
    for step, first, last in zip(_STEPS, edges[1:], edges[2:], strict=False):
        if last > first:
            total += _smooth(bumps, slice(first, last), step, lon, lat)
    return total


def _smooth(bumps: _Bumps, chosen: slice, step: float, lon: np.ndarray, lat: np.ndarray):
    """By a spline through the sums on a grid."""
    columns, rows = (
        np.linspace(-half, half, round(2 * np.rad2deg(half) / step) + 1)
        for half in (np.pi, np.pi / 2)
    )
    turn, rise = np.meshgrid(columns, rows)
    flat = np.cos(rise)
    grid = np.stack([flat * np.cos(turn), flat * np.sin(turn), np.sin(rise)]).reshape(3, -1)
    values = _near(bumps, chosen, grid).reshape(turn.shape)
    spline = scipy.interpolate.RectBivariateSpline(rows, columns, values)
    return np.maximum(spline.ev(lat, lon), 0)


def _near(bumps: _Bumps, chosen: slice, points: np.ndarray) -> np.ndarray:
    """Sums over pairs of a point and a bump that is not too far."""
    tree = scipy.spatial.KDTree(points.T)
    total = np.zeros(points.shape[1])
    for part in _parts(bumps.widths[chosen], points.shape[1]):
        own = slice(chosen.start + part.start, chosen.start + part.stop)
        widths, peaks = bumps.widths[own], bumps.log_peaks[own]
        reach = min(2.0, _REACH * widths[-1])
        pairs = tree.sparse_distance_matrix(
            scipy.spatial.KDTree(bumps.centres[own]), reach, output_type="ndarray"
        )
        heights = np.exp(peaks[pairs["j"]] - (pairs["v"] / widths[pairs["j"]]) ** 2 / 2)
        total += np.bincount(pairs["i"], heights, points.shape[1])
    return total


def _parts(widths: np.ndarray, num_points: int) -> Iterator[slice]:
    """Bumps of about one width, few enough at a time for memory; points are taken to be everywhere."""
    start = 0
    while start < len(widths):
        shares = np.minimum(1.0, (_REACH * widths[start:]) ** 2 / 4)
        cost = np.arange(1, len(shares) + 1) * shares * num_points
        count = np.searchsorted(cost, _AT_ONCE)
        like = np.searchsorted(widths[start:], 1.5 * widths[start], side="right")
        stop = start + max(1, min(count, like))
        yield slice(start, stop)
        start = stop
