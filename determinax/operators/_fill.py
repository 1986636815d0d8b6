"""What a sparse factorisation will take, known before it starts: an order, its fill, its work.

Eliminating in some order fills the columns of L. How many entries each gets follows from the pattern
alone, through the elimination tree and without any elimination: two of a row's entries share their
path from their lowest common ancestor on.

References: Liu (1990), "The role of elimination trees in sparse factorization"; Gilbert, Ng and
Peyton (1994), "An efficient algorithm to compute row and column counts for sparse Cholesky".
"""

import functools
import math
import time
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
import scipy.sparse.csgraph
import scipy.sparse.linalg

# Measured with SuperLU on one core, rather too slow than too fast: multiply-adds a second in large
# factors, seconds for an entry of the factors, of A, and for a row; bytes for each of these
_RATE = 5e9
_ENTRY_SECONDS, _GIVEN_SECONDS, _ROW_SECONDS = 7e-8, 5e-8, 1e-6
_ENTRY_BYTES, _GIVEN_BYTES, _ROW_BYTES = 24, 60, 250
# what takes longer than this is reckoned by the speed of the machine at hand: SuperLU on a full matrix of
# so many rows, of whose rate this share is taken (grids and random matrices reached 1.3 to 1.8 times that)
_SOON, _TRIAL, _TRIAL_SHARE = 1.0, 400, 0.9
# a band of which a fraction this large is A's own entries needs no better order
_FULL_BAND = 0.25
# Minimum degree is quick on grids and the like; where the narrowest band is this share of n it takes
# up to 1e-8 n^2 seconds (measured), and so many are spent at most
_WIDE, _DEGREE_SECONDS, _DEGREE_LIMIT = 0.125, 1e-8, 10.0
# rows this full (times sqrt(n)) are left out of A^T A, as COLAMD does
_DENSE_ROW = 10
# and A^T A is looked at where it has at most so many times A's entries
_PRODUCT = 20


class Plan(NamedTuple):
    """The order in which to eliminate, the entries of L and U that it leads to, its flops."""

    order: np.ndarray
    entries: float
    work: float
    given: int  # entries of A

    @property
    def seconds(self) -> float:
        """What the factorisation should take."""
        given = _GIVEN_SECONDS * self.given + _ROW_SECONDS * len(self.order)
        slow = given + _ENTRY_SECONDS * self.entries + self.work / _RATE
        return slow / _speed() if slow > _SOON else slow

    @property
    def bytes(self) -> int:
        """What it should need in memory."""
        given = _GIVEN_BYTES * self.given + _ROW_BYTES * len(self.order)
        return int(given + _ENTRY_BYTES * self.entries)


@functools.cache
def _speed() -> float:
    """How many times as fast as `_RATE` this machine is; 1 where it is slower."""
    n = _TRIAL
    full = scipy.sparse.csc_array(n * np.eye(n) + np.random.default_rng(0).random((n, n)))
    least = math.inf
    for _ in range(5):
        began = time.perf_counter()
        scipy.sparse.linalg.splu(full, permc_spec="NATURAL", diag_pivot_thresh=0.0)
        least = min(least, time.perf_counter() - began)
    return max(1.0, _TRIAL_SHARE * 2 / 3 * n**3 / least / _RATE)


def plan(matrix: Any, *, pivoting: bool) -> Plan:
    """An order for a SciPy sparse array without zeros on its diagonal, and what it costs.

    Without pivoting the plan is exact for symmetric patterns, but for what SuperLU adds to make its
    blocks larger; others count as if they were symmetric. With pivoting it lies between what the
    diagonal's pivots and what any others would fill.
    """
    n = matrix.shape[0]
    pattern = scipy.sparse.csc_array(matrix)
    pattern = scipy.sparse.csc_array(
        (np.ones(pattern.nnz), pattern.indices, pattern.indptr), shape=pattern.shape
    )
    if not pivoting:
        pattern = scipy.sparse.csc_array(pattern + pattern.T)
    below = above = 0
    for find in (_given, _cuthill_mckee):
        order = find(pattern, pivoting)
        below, above = _band(pattern, order)
        banded = _banded_plan(order, below, above, pattern.nnz, pivoting)
        if pattern.nnz >= _FULL_BAND * banded.entries:
            return banded
    if pivoting:
        return _pivoting_plan(pattern, _superlu_order(pattern, "COLAMD"))
    degree_seconds = _DEGREE_SECONDS * n**2 if max(below, above) > _WIDE * n else 0.0
    found = None
    if degree_seconds:
        found = _diagonal_plan(pattern, _superlu_order(pattern, "COLAMD"))
        if degree_seconds > min(found.seconds, _DEGREE_LIMIT):
            return found
    other = _diagonal_plan(pattern, _superlu_order(pattern, "MMD_AT_PLUS_A"))
    return other if found is None or other.seconds < found.seconds else found


def _given(pattern: Any, pivoting: bool) -> np.ndarray:
    return np.arange(pattern.shape[0])


def _cuthill_mckee(pattern: Any, pivoting: bool) -> np.ndarray:
    csr = scipy.sparse.csr_array(pattern)
    return scipy.sparse.csgraph.reverse_cuthill_mckee(csr, symmetric_mode=not pivoting)


def _band(pattern: Any, order: np.ndarray) -> tuple[int, int]:
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    column = np.repeat(place, np.diff(pattern.indptr))
    offsets = place[pattern.indices] - column
    return int(np.max(offsets, initial=0)), int(np.max(-offsets, initial=0))


def _banded_plan(order: np.ndarray, below: int, above: int, given: int, pivoting: bool) -> Plan:
    n = len(order)
    upper = above + below if pivoting else above  # pivoting moves rows up, and their ends with them
    return Plan(order, float(n) * (below + upper + 1), 2.0 * n * below * upper, given)


def _diagonal_plan(pattern: Any, order: np.ndarray) -> Plan:
    counts, post = column_counts(pattern[order][:, order])
    entries, work = _totals(counts)
    return Plan(order[post], entries, work, pattern.nnz)


def _pivoting_plan(pattern: Any, order: np.ndarray) -> Plan:
    r"""Pivots on the diagonal fill what $A + A^\top$ says, others at most what $A^\top A$ says."""
    n = len(order)
    permuted = scipy.sparse.csr_array(pattern[order][:, order])
    estimates = []
    if np.all(permuted.diagonal() != 0):
        estimates.append(_totals(column_counts(permuted + permuted.T)[0]))
    per_row = np.diff(permuted.indptr)
    kept = per_row <= max(16, _DENSE_ROW * math.sqrt(n))
    if not estimates or np.sum(per_row[kept] ** 2.0) <= _PRODUCT * pattern.nnz:
        rows = permuted[kept]
        counts = column_counts(rows.T @ rows + scipy.sparse.eye_array(n))[0]
        estimates.append(_totals(np.minimum(counts + np.sum(~kept), n)))
    most = np.array(estimates[-1])
    entries, work = np.minimum(most, np.sqrt(most * np.array(estimates[0])))
    return Plan(order, float(entries), float(work), pattern.nnz)


def _totals(counts: np.ndarray) -> tuple[float, float]:
    counts = counts.astype(float)
    return 2 * float(np.sum(counts)), 2 * float(np.sum(counts**2))


def _superlu_order(pattern: Any, name: str) -> np.ndarray:
    """SuperLU's order: an incomplete factorisation that drops everything costs little and tells."""
    n = pattern.shape[0]
    large = 1e9 * scipy.sparse.eye_array(n)
    if name == "COLAMD":  # leaves the last n columns their patterns, whatever A's diagonal
        matrix = scipy.sparse.block_array([[large, pattern], [None, large]])
    else:
        matrix = pattern + large
    csc = scipy.sparse.csc_array(matrix)
    lu = scipy.sparse.linalg.spilu(csc, drop_tol=1.0, fill_factor=1.0, permc_spec=name)
    return np.argsort(lu.perm_c[-n:])


def column_counts(pattern: Any) -> tuple[np.ndarray, np.ndarray]:
    """Entries in each column of Cholesky's factor of a symmetric pattern, and a postorder.

    The counts are those of the columns in the postorder, which fills no more.
    """
    lower = scipy.sparse.csr_array(scipy.sparse.tril(pattern, -1))
    post, first = _postorder(_elimination_tree(lower))
    n = len(post)
    place = np.empty(n, np.int64)
    place[post] = np.arange(n)
    row = np.repeat(place, np.diff(lower.indptr))
    column = place[lower.indices]
    sequence = np.argsort(row * n + column)
    row, column = row[sequence], column[sequence]
    # a row's paths to itself: each ends where that of the row's next entry, at last the row, begins
    same = row[1:] == row[:-1]
    following = np.append(np.where(same, column[1:], row[:-1]), row[-1:])
    ends = _common_ancestors(first, column, following)
    change = np.bincount(column, minlength=n) - np.bincount(ends, minlength=n)
    sums = np.concatenate([[0], np.cumsum(change)])
    return 1 + sums[1:] - sums[first], post


def _elimination_tree(lower: Any) -> list[int]:
    """Each column's parent, n for those without one (Liu's algorithm)."""
    n = lower.shape[0]
    starts, columns = lower.indptr.tolist(), lower.indices.tolist()
    parent, above = [n] * n, [n] * n  # above: an ancestor, shortened as we go
    for i in range(n):
        for k in columns[starts[i] : starts[i + 1]]:
            while k < i:
                up, above[k] = above[k], i
                if up == n:
                    parent[k] = i
                k = up
    return parent


def _postorder(parent: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Every node after its descendants; for each of them the place of its first descendant."""
    n = len(parent)
    child, sibling = [-1] * (n + 1), [-1] * n
    for j in reversed(range(n)):
        sibling[j], child[parent[j]] = child[parent[j]], j
    order, first, stack, begun = [], [], [n], [0]
    while stack:
        j = child[stack[-1]]
        if j >= 0:
            child[stack[-1]] = sibling[j]
            stack.append(j)
            begun.append(len(order))
        else:
            order.append(stack.pop())
            first.append(begun.pop())
    return np.array(order[:-1]), np.array(first[:-1])  # without the root of all


def _common_ancestors(first: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Of nodes low <= high in a postorder: the first from `high` on that has `low` below it."""
    least = [first.astype(np.int32)]  # least[k][j]: the least of first[j], ..., first[j + 2^k - 1]
    for k in range(len(first).bit_length() - 1):
        longer = least[-1].copy()
        longer[: -(1 << k)] = np.minimum(longer[: -(1 << k)], longer[1 << k :])
        least.append(longer)
    found = high.copy()
    for k in reversed(range(len(least))):
        ahead = least[k][np.minimum(found, len(first) - 1)] > low
        found += ahead << k
    return found
