"""Sums of von Mises-Fisher bumps, fitted to data by expectation-maximisation."""

import warnings

import jax
import numpy as np
import scipy  # whose clusters load when they are used
from jaxtyping import ArrayLike, Float, PRNGKeyArray

from determinax import sphere
from determinax._checks import positive_number, require_key, whole_number
from determinax._keys import stream
from determinax.proposals._bessel import log_mean_exp_height, mean_height
from determinax.proposals.bumps import FLOOR, VonMisesFisher

_MOST_ROUNDS, _STARTS = 200, 3


def fitted_bumps(
    points: Float[ArrayLike, "num n"],
    num_bumps: int,
    *,
    key: PRNGKeyArray,
    floor: float = FLOOR,
) -> VonMisesFisher:
    r"""The likeliest sum of `num_bumps` von Mises-Fisher laws, of three random starts.

    Each round gives every point to the bumps by their shares of its density, and every bump the mean
    of its points: a direction, and a length that $I_{n/2}(\kappa)/I_{n/2-1}(\kappa)$ has to match. No
    bump is narrower than `floor` radians.

    !!! example

        ```python
        q = dx.fitted_bumps(points, 4, key=jax.random.key(0))
        q.concentrations()
        ```

    References: Banerjee et al. (2005), Clustering on the unit hypersphere using von Mises-Fisher
    distributions.
    """
    rows = sphere.unit_matrix(points)
    num = min(whole_number(num_bumps, "num_bumps"), len(rows))
    floor = positive_number(floor, "floor, a width in radians,")
    key = require_key(key, "fitting bumps")
    seed = int(jax.random.randint(stream(key, "bumps"), (), 0, 2**31 - 1))
    rng = np.random.default_rng(seed)
    starts = _STARTS if num > 1 else 1
    found = [_climb(rows, _shared_out(rows, num, rng), floor) for _ in range(starts)]
    _, centres, kappa, shares = max(found, key=lambda f: f[0])
    return VonMisesFisher(centres, kappa, shares)


def _shared_out(rows: np.ndarray, num: int, rng: np.random.Generator) -> np.ndarray:
    """Every point to the nearest of centres by k-means, as rows of zeros and ones."""
    if num == 1:
        return np.ones((len(rows), 1))
    with (
        warnings.catch_warnings()
    ):  # of empty clusters, where points stand twice: such bumps are flat
        warnings.simplefilter("ignore")
        _, labels = scipy.cluster.vq.kmeans2(rows, num, minit="++", rng=rng)
    return np.eye(num)[labels]


def _climb(rows: np.ndarray, given: np.ndarray, floor: float):
    """Rounds from who belongs to whom until the mean log-density stops rising."""
    value = -np.inf
    centres, kappa, shares = _maximise(rows, given, floor)
    for _ in range(_MOST_ROUNDS):
        with np.errstate(divide="ignore"):
            parts = np.log(shares) - log_mean_exp_height(rows.shape[1], kappa)
        parts = parts + kappa * (rows @ centres.T)
        top = parts.max(axis=1, keepdims=True)
        given = np.exp(parts - top)
        total = given.sum(axis=1, keepdims=True)
        before, value = value, float(np.mean(np.log(total) + top))
        if value - before < 1e-6:
            break
        centres, kappa, shares = _maximise(rows, given / total, floor)
    return value, centres, kappa, shares


def _maximise(rows: np.ndarray, given: np.ndarray, floor: float):
    mass = given.sum(axis=0)
    sums = given.T @ rows
    length = np.linalg.norm(sums, axis=1)
    centres = np.where(length[:, None] > 0, sums, np.eye(rows.shape[1])[0])
    centres = centres / np.linalg.norm(centres, axis=1, keepdims=True)
    # a bump that lost its points is flat and has no share
    mean = np.where(mass > 0, length / np.maximum(mass, 1e-300), 0.0)
    return centres, _concentration(rows.shape[1], mean, floor), mass / mass.sum()


def _concentration(n: int, mean: np.ndarray, floor: float) -> np.ndarray:
    """The kappa of a mean height: Banerjee's guess and Newton steps, up to a width of `floor`."""
    most = 1 / floor**2
    r = np.clip(mean, 0, 1 - 1e-15)
    kappa = np.clip(r * (n - r**2) / (1 - r**2), 0, most)
    for _ in range(4):
        a = mean_height(n, kappa)
        slope = 1 - a**2 - (n - 1) * a / np.maximum(kappa, 1e-8)
        # where kappa is large the slope is a small difference: there the guess is as good
        step = np.where(slope > 1e-6, (a - r) / np.maximum(slope, 1e-6), 0)
        kappa = np.clip(kappa - np.clip(step, -kappa / 2, kappa / 2), 0, most)
    return kappa
