r"""Sums of von Mises-Fisher bumps: laws fitted by expectation-maximisation, and kernel densities.

A bump about the unit vector $c$ has density $e^{\kappa\langle c, x\rangle}$ over its mean under the
uniform law, $\Gamma(n/2)\,(2/\kappa)^{n/2-1} I_{n/2-1}(\kappa)$. Everything is written by the chord,
$\langle c, x\rangle = 1 - |x - c|^2/2$, which keeps its digits where a bump is
a hundredth of a degree wide.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy  # whose trees load when they are used
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray

from determinax import sphere
from determinax._checks import positive_number, real_numbers, whole_number
from determinax._keys import stream
from determinax.flows.base import Constant
from determinax.proposals._bessel import log_mean_exp_height
from determinax.proposals.base import AbstractProposal, Columns

# a hundredth of a degree, in radians: about a kilometre on the Earth
FLOOR = float(np.deg2rad(0.01))
# distances in memory at a time
_MOST_PAIRS = 2**22
# dimensions whose terms are written out
_FEW = 16


class VonMisesFisher(AbstractProposal):
    r"""A weighted sum of von Mises-Fisher laws: bumps $\propto e^{\kappa_i\langle c_i, x\rangle}$.

    **Arguments:**

    - `centres`: unit vectors, one a row.
    - `concentrations`: $\kappa_i \ge 0$, one for each or one for all; the width is about
        $1/\sqrt{\kappa}$ radians.
    - `weights`: shares of the bumps, equal by default.

    !!! example

        ```python
        q = dx.VonMisesFisher([[0.0, 0, 1], [1, 0, 0]], [10.0, 50.0], weights=[0.3, 0.7])
        q.log_density([0.0, 0.0, 1.0])
        ```
    """

    centres: Constant  # (n, num)
    concentrations: Constant
    log_peaks: Constant  # of the density of each bump at its centre, times its share
    log_shares: Constant

    def __init__(
        self,
        centres: Float[ArrayLike, "num n"],
        concentrations: Float[ArrayLike, " num"] | float,
        weights: Float[ArrayLike, " num"] | None = None,
    ):
        rows = sphere.unit_matrix(centres, "centres")
        kappa = real_numbers(concentrations, "concentrations are numbers")
        if kappa.shape not in ((), (1,), (len(rows),)):
            raise ValueError(
                f"concentrations of shape {kappa.shape} are neither one number nor one for each of "
                f"{len(rows)} centres"
            )
        kappa = np.broadcast_to(kappa, len(rows))
        if not (np.isfinite(kappa).all() and (kappa >= 0).all()):
            raise ValueError("concentrations are finite and not negative: 0 is the uniform law")
        shares = _shares(weights, len(rows))
        with np.errstate(divide="ignore"):
            log_shares = np.log(shares)
        log_peaks = kappa - log_mean_exp_height(rows.shape[1], kappa) + log_shares
        dtype = jnp.result_type(float)
        self.centres = Constant(jnp.asarray(rows.T, dtype))
        self.concentrations = Constant(jnp.asarray(kappa, dtype))
        self.log_peaks = Constant(jnp.asarray(log_peaks, dtype))
        self.log_shares = Constant(jnp.asarray(log_shares, dtype))

    @classmethod
    def joined(
        cls, parts: "Sequence[VonMisesFisher]", weights: Sequence[float]
    ) -> "VonMisesFisher":
        """The mixture of sums of bumps, which is a sum of bumps again."""
        return cls(
            np.concatenate([np.asarray(q.centres(), float).T for q in parts]),
            np.concatenate([np.asarray(q.concentrations(), float) for q in parts]),
            np.concatenate(
                [
                    w * np.exp(np.asarray(q.log_shares(), float))
                    for q, w in zip(parts, weights, strict=True)
                ]
            ),
        )

    @property
    def n(self) -> int:
        """See `AbstractProposal`."""
        return self.centres.array.shape[0]

    def push(
        self,
        z: Float[Array, "n num"],
        key: PRNGKeyArray | None = None,
        context: Columns = None,
    ) -> tuple[Float[Array, "n num"], Float[Array, " num"]]:
        """See `AbstractProposal`: a bump is chosen, a height on it drawn, and z gives the direction."""
        if key is None:
            raise ValueError("bumps are drawn from a key: pass one")
        # by the inverse of the distribution: `categorical` draws a number for every point and bump
        upto = jnp.cumsum(jnp.exp(self.log_shares()))
        u = jax.random.uniform(stream(key, "bump"), z.shape[1:], upto.dtype)
        which = jnp.minimum(jnp.searchsorted(upto, u * upto[-1]), len(upto) - 1)
        centre, kappa = self.centres()[:, which], self.concentrations()[which]
        depth = _depth(stream(key, "height"), self.n, kappa)
        aside = z - jnp.sum(z * centre, 0) * centre
        # where z is the centre itself, which float32 may draw, there is no side to go to
        length = jnp.linalg.norm(aside, axis=0)
        aside = aside / jnp.maximum(length, jnp.finfo(length.dtype).tiny)
        points = (1 - depth) * centre + jnp.sqrt(depth * (2 - depth)) * aside
        points = (points / jnp.linalg.norm(points, axis=0)).astype(z.dtype)
        return points, self.log_density_columns(points)

    def log_density_columns(
        self, points: Float[Array, "n *num"], context: Columns = None
    ) -> Float[Array, "*num"]:
        """See `AbstractProposal`: sums over all bumps, in chunks of points."""
        centres, kappa, peaks = self.centres(), self.concentrations(), self.log_peaks()
        columns = points.reshape(self.n, -1).astype(centres.dtype)

        def at(x):
            # term by term, which XLA fuses into the sum over bumps: five times faster at n = 3
            if self.n <= _FEW:
                square = sum((x[i] - centres[i]) ** 2 for i in range(self.n))
            else:
                square = jnp.sum((x[:, None] - centres) ** 2, axis=0)
            return jax.nn.logsumexp(peaks - kappa * square / 2)

        size = max(1, min(columns.shape[1], _MOST_PAIRS // centres.shape[1]))
        return jax.lax.map(at, columns.T, batch_size=size).reshape(points.shape[1:])


def kernels(
    points: Float[ArrayLike, "num n"],
    *,
    neighbours: int = 8,
    scale: float = 0.7,
    floor: float = FLOOR,
    weights: Float[ArrayLike, " num"] | None = None,
) -> VonMisesFisher:
    r"""An adaptive kernel density: a bump at every point, as wide as its neighbours are far.

    The width is $h_i = \max(a\,d_k(i), \text{floor})$ with the distance to the k-th neighbour, and
    $\kappa_i = 1/h_i^2$. No bump is narrower than `floor` radians (a hundredth of a degree), which
    is what decides the likelihood of data with duplicates. For any n, in seconds.

    **Arguments:**

    - `points`: unit vectors, one a row.
    - `neighbours`: k; `scale`: a.
    - `floor`: the least width, in radians.
    - `weights`: of the points, equal by default.

    !!! example

        ```python
        q = dx.kernels(points, neighbours=8, scale=0.7)
        q.log_density(points)
        ```
    """
    rows = sphere.unit_matrix(points, "points")
    k = min(whole_number(neighbours, "neighbours"), len(rows) - 1)
    scale = positive_number(scale, "scale")
    floor = positive_number(floor, "floor, a width in radians,")
    far = neighbour_distances(rows, k) if k else np.full(len(rows), 2.0)
    return VonMisesFisher(rows, 1 / np.maximum(scale * far, floor) ** 2, weights)


def neighbour_distances(rows: np.ndarray, k: int) -> np.ndarray:
    """The chord from every point to its k-th neighbour among the others."""
    tree: Any = scipy.spatial.KDTree(rows)
    return tree.query(rows, [k + 1])[0][:, 0]


def _shares(weights: ArrayLike | None, num: int) -> np.ndarray:
    if weights is None:
        return np.full(num, 1 / num)
    shares = real_numbers(weights, f"weights are {num} numbers")
    if shares.shape != (num,) or not np.isfinite(shares).all() or (shares < 0).any():
        raise ValueError(f"weights are {num} numbers, finite and not negative, one a row")
    if not shares.sum() > 0:
        raise ValueError("weights are all 0: at least one must be above")
    return shares / shares.sum()


def _depth(key: PRNGKeyArray, n: int, kappa: Array) -> Array:
    r"""$1 - \langle c, x\rangle$ of von Mises-Fisher points, by Ulrich's and Wood's rejection.

    Written for the depth: in float32 the height of a narrow bump is 1 to the last bit.
    """
    m = n - 1
    b = m / (2 * kappa + jnp.sqrt(4 * kappa**2 + m * m))
    far, x0 = 2 * b / (1 + b), (1 - b) / (1 + b)

    def propose(key):
        first, second = jax.random.split(key)
        x = jax.random.normal(first, (n, *kappa.shape), kappa.dtype)
        # a height of the uniform law, moved to [0, 1], has the beta law of m/2 and m/2
        z = (1 + x[0] / jnp.linalg.norm(x, axis=0)) / 2
        # rounding may lead a hair above 2, which is the antipode
        # rounded, it may lie a hair above 2, that is beyond the antipode
        depth = jnp.clip(2 * b * z / (1 - (1 - b) * z), 0, 2)
        log_ratio = kappa * (far - depth) + m * jnp.log((far + x0 * depth) * (1 + b) ** 2 / (4 * b))
        u = jax.random.uniform(second, kappa.shape, kappa.dtype)
        return depth, jnp.log(u) <= log_ratio

    def again(state):
        key, depth, is_done = state
        key, own = jax.random.split(key)
        new, accepted = propose(own)
        return key, jnp.where(is_done, depth, new), is_done | accepted

    start = key, jnp.zeros_like(kappa), jnp.zeros(kappa.shape, bool)
    return jax.lax.while_loop(lambda s: ~jnp.all(s[2]), again, start)[1]
