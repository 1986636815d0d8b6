"""Probing: an operator whose zeros are known is revealed by as many products as they leave colours.

Columns that share no row can be summed in one product and told apart afterwards. A 3x3 convolution
of one channel has 9 such colours, whatever the image; a matrix with p diagonals below and q above
the main one has p + q + 1.

References: Curtis, Powell and Reid (1974), "On the estimation of sparse Jacobian matrices".
"""

import functools
from typing import Any

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
        coo = scipy.sparse.coo_array(where)
        if len(np.unique(coo.row * (int(np.max(found)) + 1) + found[coo.col])) == coo.nnz:
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


@pattern.register(lx.IdentityLinearOperator)
@pattern.register(lx.DiagonalLinearOperator)
def _(operator: lx.AbstractLinearOperator) -> scipy.sparse.csr_array:
    return banded_pattern(operator.in_size(), 0, 0)


@pattern.register(lx.TridiagonalLinearOperator)
def _(operator: lx.AbstractLinearOperator) -> scipy.sparse.csr_array:
    return banded_pattern(operator.in_size(), 1, 1)
