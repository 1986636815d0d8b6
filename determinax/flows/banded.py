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
import scipy.sparse.linalg
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from .base import Constant, as_column
from .linear import AbstractFactor

# steps of iterative refinement in a solve, and a margin on the rounding that was seen
_REFINEMENTS, _SAFETY = 2, 4.0
# measured, rather too much than too little: bytes and seconds for an entry of the band, flops a second
_ENTRY_BYTES, _ENTRY_SECONDS, _RATE = 60, 7e-8, 5e9


class Banded(AbstractFactor):
    r"""A banded matrix with its factors $L$ and $U$, rows and columns taken in some order.

    Made by `eliminate`; not trained by gradients.

    !!! example

        ```python
        band = np.triu(np.tril(A, 1), -1)
        fit = dx.fit_linear(band, key=key, structure="probe", pattern=(1, 1))
        ```
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

    def multiply(self, z: Float[Array, "n *num"]) -> Float[Array, "n *num"]:
        """See `AbstractFactor`."""
        return _restore(self._product(z[self.order()]), self.order())

    def solve(self, s: Float[Array, "n *num"]) -> Float[Array, "n *num"]:
        """See `AbstractFactor`."""
        right = s[self.order()]
        x = self._substitute(right)
        for _ in range(_REFINEMENTS):
            x = x + self._substitute(right - self._product(x))
        return _restore(x, self.order())

    def log_abs_det(self) -> Float[Array, ""]:
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
    r"""A banded matrix factorised, its $\log|\det|$ and sign, the rounding of the first as measured."""

    factor: Banded
    log_abs_det: float
    sign: float
    rounding: float


def eliminate(matrix: Any, dtype: DTypeLike = float) -> Elimination:
    """Factorise a SciPy sparse array in its band, in the order that makes the band narrowest."""
    order = narrow_order(matrix)
    permuted = _in_order(matrix, order)
    p, q = _reach(permuted)
    lu = _eliminate(permuted)
    lower, upper = np.full((len(order), p), np.nan), np.full((len(order), q + 1), np.nan)
    if lu is not None:
        lower, upper = _as_band(lu.L, p, 0)[:, :p][:, ::-1], _as_band(lu.U, 0, q)
    value = _log_abs_det(lu)
    band = jnp.asarray(_as_band(permuted, p, q), dtype)
    factor = Banded(
        band, jnp.asarray(lower, dtype), jnp.asarray(upper, dtype), jnp.asarray(order, jnp.int32)
    )
    sign = float(np.prod(np.sign(upper[:, 0])))
    return Elimination(factor, value, sign, _rounding(permuted, value))


def _rounding(matrix: Any, value: float) -> float:
    """How far log|det| moves when entries do, by one rounding, and from the other end."""
    rng, eps = np.random.default_rng(0), float(np.finfo(np.float64).eps)
    others = []
    for _ in range(3):
        moved = matrix.copy()
        moved.data *= 1 + eps * rng.choice([-1, 1], matrix.nnz)
        others.append(_log_abs_det(_eliminate(moved)))
    backwards = np.arange(matrix.shape[0])[::-1]
    others.append(_log_abs_det(_eliminate(_in_order(matrix, backwards))))
    # np.max, which keeps a NaN; and the sum of n logarithms rounds as well
    moved = float(np.max(np.abs(np.array(others) - value)))
    rounding = _SAFETY * moved + eps * (matrix.shape[0] + abs(value))
    return rounding if math.isfinite(rounding) else math.inf


def _in_order(matrix: Any, order: np.ndarray) -> Any:
    """Rows and columns in this order, by columns, in double precision."""
    csc = scipy.sparse.csc_array(scipy.sparse.csr_array(matrix, dtype=np.float64)[order][:, order])
    csc.sort_indices()
    return csc


def narrow_order(matrix: Any) -> np.ndarray:
    """The better of the given order and reverse Cuthill-McKee's."""
    csr: Any = scipy.sparse.csr_array(matrix)
    other = scipy.sparse.csgraph.reverse_cuthill_mckee(csr, symmetric_mode=False)
    coo = csr.tocoo()

    def width(order):
        place = np.argsort(order)
        return np.max(np.abs(place[coo.row] - place[coo.col]), initial=0)

    return min((np.arange(csr.shape[0]), other), key=width)


def band_widths(matrix: Any) -> tuple[int, int]:
    """The diagonals below and above the main one, in the order that `eliminate` takes."""
    order = narrow_order(matrix)
    return _reach(scipy.sparse.csr_array(matrix)[order][:, order])


def band_memory(n: int, below: int, above: int) -> int:
    """What elimination in a band takes, in bytes."""
    return _ENTRY_BYTES * n * (below + 1 + above)


def band_seconds(n: int, below: int, above: int) -> float:
    """What it should take, all five eliminations."""
    entries = n * (below + 1.0 + above)
    return 5 * (_ENTRY_SECONDS * entries + 2.0 * n * below * above / _RATE)


def _reach(matrix: Any) -> tuple[int, int]:
    coo = scipy.sparse.coo_array(matrix)
    offsets = coo.row - coo.col
    return int(np.max(offsets, initial=0)), int(np.max(-offsets, initial=0))


def _eliminate(matrix: Any) -> Any:
    """SuperLU's factors in the given order, without pivoting; None where a zero pivot forbids it."""
    options = {"SymmetricMode": True}
    try:
        lu = scipy.sparse.linalg.splu(
            matrix, permc_spec="NATURAL", diag_pivot_thresh=0.0, options=options
        )
    except RuntimeError:  # "Factor is exactly singular"
        return None
    # where the diagonal has a zero it takes another pivot all the same
    return lu if np.array_equal(lu.perm_r, lu.perm_c) else None


def _log_abs_det(lu: Any) -> float:
    return math.nan if lu is None else float(np.sum(np.log(np.abs(lu.U.diagonal()))))


def _as_band(matrix: Any, p: int, q: int) -> np.ndarray:
    """Row i from its entry p left of the diagonal on, as many as q right of it."""
    coo: Any = scipy.sparse.coo_array(matrix)
    row, column, entry = (part[coo.data != 0] for part in (coo.row, coo.col, coo.data))
    band = np.zeros((matrix.shape[0], p + q + 1))
    band[row, column - row + p] = entry
    return band


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
