r"""Banded matrices by elimination without pivoting, the effect of its rounding measured.

Without pivoting rounding errors stay within the band. Pivoting spreads them, and a banded matrix can
have a determinant that its entries fix to 12 digits and a condition number of $10^{20}$, as
zero-padded convolutions do: then an LU with pivoting is 12 nats off without a word. Its growth alone
does not tell (multipliers of $10^{23}$ are harmless there), so we eliminate again with entries moved
by one rounding, and from the other end, and see how far the result moves.
"""

import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
import scipy.sparse.csgraph
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from .base import Constant, as_column
from .linear import AbstractFactor

# steps of iterative refinement in a solve, and a margin on the rounding that was seen
_REFINEMENTS, _SAFETY = 2, 4.0


class Banded(AbstractFactor):
    r"""A banded matrix with its factors $L$ and $U$, rows and columns taken in some order.

    Made by `eliminate`; not trained by gradients.
    """

    band: Constant  # (n, p + 1 + q): row i from its entry p left of the diagonal on
    lower: Constant  # (n, p): L's entries left of its unit diagonal, nearest first
    upper: Constant  # (n, q + 1): U's diagonal and the entries right of it
    order: Constant  # row and column order[i] of the matrix come i-th
    n: int = eqx.field(static=True)

    def __init__(
        self,
        band: Float[Array, "n width"],
        lower: Float[Array, "n p"],
        upper: Float[Array, "n q1"],
        order: Int[Array, " n"],
    ):
        self.band, self.lower = Constant(band), Constant(lower)
        self.upper, self.order = Constant(upper), Constant(order)
        self.n = len(order)

    def multiply(self, z):
        """See `AbstractFactor`."""
        return _restore(self._product(z[self.order()]), self.order())

    def solve(self, s):
        """See `AbstractFactor`."""
        right = s[self.order()]
        x = self._substitute(right)
        for _ in range(_REFINEMENTS):
            x = x + self._substitute(right - self._product(x))
        return _restore(x, self.order())

    def log_abs_det(self):
        """See `AbstractFactor`."""
        return jnp.sum(jnp.log(jnp.abs(self.upper()[:, 0])))

    def _product(self, x):
        band, p, q = self.band(), self.lower.array.shape[1], self.upper.array.shape[1] - 1
        padded = jnp.pad(x, [(p, q)] + [(0, 0)] * (x.ndim - 1))

        def add(d, total):
            shifted = jax.lax.dynamic_slice_in_dim(padded, d, self.n)
            entries = jax.lax.dynamic_index_in_dim(band, d, 1, keepdims=False)
            return total + as_column(entries, x) * shifted

        return jax.lax.fori_loop(0, p + q + 1, add, jnp.zeros_like(x))

    def _substitute(self, x):
        lower, upper = self.lower(), self.upper()
        x = _substitute(lower, jnp.ones(self.n, x.dtype), x, reverse=False)
        return _substitute(upper[:, 1:], upper[:, 0], x, reverse=True)


class Elimination(NamedTuple):
    r"""A banded matrix factorised, its $\log|\det|$, and the rounding error of that as measured."""

    factor: Banded
    log_abs_det: float
    rounding: float


def eliminate(matrix: Any, dtype: DTypeLike = float) -> Elimination:
    """Factorise a SciPy sparse array in its band, in the order that makes the band narrowest."""
    coo = scipy.sparse.coo_array(scipy.sparse.csr_array(matrix, dtype=np.float64))
    n = matrix.shape[0]
    order = narrow_order(coo)
    place = np.argsort(order)
    rows, columns = place[coo.row], place[coo.col]
    p, q = _reach(rows - columns)
    band = np.zeros((n, p + q + 1))
    band[rows, columns - rows + p] = coo.data
    factors = _eliminate(band, p)
    value = _log_abs_det(factors, p)
    rng, eps = np.random.default_rng(0), float(np.finfo(np.float64).eps)
    others = [
        _log_abs_det(_eliminate(band * (1 + eps * rng.choice([-1, 1], band.shape)), p), p)
        for _ in range(3)
    ]
    others.append(_log_abs_det(_eliminate(np.ascontiguousarray(band[::-1, ::-1]), q), q))
    # np.max, which keeps a NaN; and the sum of n logarithms rounds as well
    moved = float(np.max(np.abs(np.array(others) - value)))
    rounding = _SAFETY * moved + eps * (n + abs(value))
    factor = Banded(
        jnp.asarray(band, dtype),
        jnp.asarray(factors[:, :p][:, ::-1], dtype),
        jnp.asarray(factors[:, p:], dtype),
        jnp.asarray(order, jnp.int32),
    )
    return Elimination(factor, value, rounding if math.isfinite(rounding) else math.inf)


def narrow_order(coo: scipy.sparse.coo_array) -> np.ndarray:
    """The better of the given order and reverse Cuthill-McKee's."""
    csr = scipy.sparse.csr_array(coo)
    other = scipy.sparse.csgraph.reverse_cuthill_mckee(csr, symmetric_mode=False)
    given = np.arange(csr.indptr.size - 1)

    def width(order):
        place = np.argsort(order)
        return np.max(np.abs(place[coo.row] - place[coo.col]), initial=0)

    return min((given, other), key=width)


def band_widths(pattern: Any) -> tuple[int, int]:
    """The diagonals below and above the main one, in the order that `eliminate` takes."""
    coo = scipy.sparse.coo_array(scipy.sparse.csr_array(pattern))
    place = np.argsort(narrow_order(coo))
    return _reach(place[coo.row] - place[coo.col])


def _reach(offsets: np.ndarray) -> tuple[int, int]:
    return int(np.max(offsets, initial=0)), int(np.max(-offsets, initial=0))


def _eliminate(band: np.ndarray, p: int) -> np.ndarray:
    """L and U in the band's own layout; a zero pivot leaves infinities, which the caller sees."""
    band = band.copy()
    n, width = band.shape
    q = width - p - 1
    flat = band.ravel()
    with np.errstate(all="ignore"):
        for i in range(n - 1):
            rows = min(p, n - 1 - i)
            if rows == 0:
                continue
            # entry (i + r, i) is r rows down and r columns to the left in this layout
            column = flat[(i + 1) * width + p - 1 :: width - 1][:rows]
            column /= band[i, p]
            start = (i + 1) * width + p
            block = np.lib.stride_tricks.as_strided(
                flat[start:], (rows, q), ((width - 1) * 8, 8), writeable=True
            )
            block -= column[:, None] * band[i, p + 1 :]
    return band


def _log_abs_det(factors: np.ndarray, p: int) -> float:
    with np.errstate(all="ignore"):
        return float(np.sum(np.log(np.abs(factors[:, p]))))


def _substitute(off: Array, diagonal: Array, x: Array, *, reverse: bool) -> Array:
    """Solve with a unit lower triangle, or backwards with an upper one."""
    shape = x.shape
    x = x.reshape(len(x), -1)
    diagonal = diagonal.reshape(len(x), -1)

    def step(last, row):  # `last`: what was solved just before, nearest first
        weights, pivot, right = row
        value = (right - jnp.matmul(weights, last, precision=jax.lax.Precision.HIGHEST)) / pivot
        return jnp.concatenate([value[None], last])[: last.shape[0]], value

    start = jnp.zeros((off.shape[1], x.shape[1]), x.dtype)
    return jax.lax.scan(step, start, (off, diagonal, x), reverse=reverse)[1].reshape(shape)


def _restore(x: Array, order: Array) -> Array:
    return jnp.zeros_like(x).at[order].set(x, unique_indices=True)
