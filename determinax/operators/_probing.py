"""Probing: an operator whose zeros are known is revealed by as many products as they leave colours.

Columns that share no row can be summed in one product and told apart afterwards. A 3x3 convolution
of one channel has 9 such colours, whatever the image; a matrix with p diagonals below and q above
the main one has p + q + 1.

References: Curtis, Powell and Reid (1974), "On the estimation of sparse Jacobian matrices".
"""

import functools
from typing import Any, NamedTuple

import jax.numpy as jnp
import lineax as lx
import numpy as np
import scipy.sparse

from determinax._checks import not_finite
from determinax.operators._traits import OperatorError, compiled_columns, pattern, untagged


def banded_pattern(
    n: int, below: int, above: int, *, circular: bool = False
) -> scipy.sparse.csr_array:
    """The pattern of an n x n matrix with so many diagonals below and above the main one.

    Circular: diagonals that leave the matrix on one side come back on the other.
    """
    offsets = np.arange(-min(below, n - 1), min(above, n - 1) + 1)
    rows = np.repeat(np.arange(n), len(offsets))
    others = rows + np.tile(offsets, n)
    kept = np.full(len(rows), True) if circular else (others >= 0) & (others < n)
    places = rows[kept], others[kept] % n
    return scipy.sparse.csr_array((np.ones(len(places[0])), places), shape=(n, n))


class Outline(NamedTuple):
    """How large a pattern is, and how many products reveal it, known before it is built."""

    entries: int
    colours: int


@functools.singledispatch
def outline(operator: Any) -> Outline | None:
    """By arithmetic on the operator's shape; None where only the pattern itself tells."""
    del operator


def banded_outline(n: int, below: int, above: int, *, circular: bool = False) -> Outline:
    """Of `banded_pattern`."""
    below, above = min(below, n - 1), min(above, n - 1)
    width = below + 1 + above
    if circular:
        return Outline(n * width, int(np.max(round_turns(n, width))) + 1)
    cut = below * (below + 1) // 2 + above * (above + 1) // 2
    return Outline(n * width - cut, min(n, width))


def round_turns(n: int, width: int) -> np.ndarray:
    """Numbers around a circle of n, as few as can be, that come again after `width` or more places.

    As many blocks as fit, of sizes that differ by one at most, each numbered from 0.
    """
    starts = np.arange(n // width) * n // (n // width)
    return np.arange(n) - np.repeat(starts, np.diff(np.append(starts, n)))


def colour(pattern: Any) -> np.ndarray:
    """A number for every column, different for any two that share a row.

    Greedy, in order; where a row fills the band, columns take turns, which is as good as can be.
    """
    pattern = scipy.sparse.csc_array(pattern, dtype=bool, copy=True).astype(np.int32)
    pattern.eliminate_zeros()
    n = pattern.shape[1]
    offsets = pattern.indices - np.repeat(np.arange(n), np.diff(pattern.indptr))
    width = int(np.max(offsets, initial=0) - np.min(offsets, initial=0)) + 1
    if np.max(np.bincount(pattern.indices), initial=0) == width:
        return np.arange(n) % width
    neighbours = scipy.sparse.csr_array(pattern.T @ pattern)
    ends, others = neighbours.indptr, neighbours.indices
    found = np.full(n, -1)
    for j in range(n):
        taken = set(found[others[ends[j] : ends[j + 1]]].tolist())
        found[j] = next(c for c in range(len(taken) + 1) if c not in taken)
    return found


@functools.singledispatch
def turns(operator: Any) -> np.ndarray | None:
    """Colours that the kind of the operator suggests; None where it has none to suggest."""
    del operator


def colours(operator: lx.AbstractLinearOperator, where: Any) -> np.ndarray:
    """As `colour`, by the kind's own suggestion where that tells all entries of the pattern apart."""
    found = turns(untagged(operator))
    if found is not None:
        coo: Any = scipy.sparse.coo_array(where)
        num = int(np.max(found)) + 1
        seen = np.zeros(coo.shape[0] * num, bool)
        seen[coo.row * np.int64(num) + found[coo.col]] = True
        if np.count_nonzero(seen) == coo.nnz:
            return found
    return colour(where)


def probe(operator: lx.AbstractLinearOperator, where: Any) -> tuple[scipy.sparse.csr_array, int]:
    """The entries in the pattern, and how many products revealed them.

    Entries outside of the pattern, if there are any, are added to those of the same colour: what
    comes back is then near A and not A itself.
    """
    shape = operator.out_size(), operator.in_size()
    pattern: Any = scipy.sparse.csr_array(where, copy=True)
    if pattern.shape != shape:
        raise OperatorError(
            f"the pattern is {pattern.shape[0]}x{pattern.shape[1]} and the operator "
            f"{shape[0]}x{shape[1]}: give the pattern of the operator"
        )
    pattern.eliminate_zeros()  # a zero that is stored is no entry
    colour_of = colours(operator, pattern)
    num = int(np.max(colour_of)) + 1
    summed = np.equal(colour_of[:, None], np.arange(num)).astype(operator.in_structure().dtype)
    images = np.asarray(compiled_columns(operator, jnp.asarray(summed)))
    if not np.all(np.isfinite(images)):
        raise OperatorError(not_finite("a product of the operator"))
    coo = pattern.tocoo()
    entries = images[coo.row, colour_of[coo.col]]
    return scipy.sparse.csr_array((entries, (coo.row, coo.col)), shape=shape), num


@outline.register(lx.IdentityLinearOperator)
@outline.register(lx.DiagonalLinearOperator)
def _(operator: lx.AbstractLinearOperator) -> Outline:
    return banded_outline(operator.in_size(), 0, 0)


@outline.register(lx.TridiagonalLinearOperator)
def _(operator: lx.AbstractLinearOperator) -> Outline:
    return banded_outline(operator.in_size(), 1, 1)


@pattern.register(lx.IdentityLinearOperator)
@pattern.register(lx.DiagonalLinearOperator)
def _(operator: lx.AbstractLinearOperator) -> scipy.sparse.csr_array:
    return banded_pattern(operator.in_size(), 0, 0)


@pattern.register(lx.TridiagonalLinearOperator)
def _(operator: lx.AbstractLinearOperator) -> scipy.sparse.csr_array:
    return banded_pattern(operator.in_size(), 1, 1)
