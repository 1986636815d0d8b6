"""Probing: an operator whose zeros are known is revealed by as many products as they leave colours.

Columns that share no row can be summed in one product and told apart afterwards. A 3x3 convolution
of one channel has 9 such colours, whatever the image; a matrix with p diagonals below and q above
the main one has p + q + 1.

References: Curtis, Powell and Reid (1974), "On the estimation of sparse Jacobian matrices".
"""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import lineax as lx
import numpy as np
import scipy.sparse

from determinax.operators.kinds import (
    ConvolutionLinearOperator,
    OperatorError,
    SparseLinearOperator,
    columns,
)


def known_pattern(operator: lx.AbstractLinearOperator) -> scipy.sparse.csr_array | None:
    """Where the operator may have entries, if its kind says so; None where it does not."""
    n = operator.in_size()
    if isinstance(operator, ConvolutionLinearOperator):
        return _convolution_pattern(operator)
    if isinstance(operator, SparseLinearOperator):
        matrix = operator.matrix
        ones = np.ones(matrix.indices.shape[0])
        parts = (ones, np.asarray(matrix.indices), np.asarray(matrix.indptr))
        return scipy.sparse.csr_array(parts, shape=matrix.shape)
    if isinstance(operator, lx.DiagonalLinearOperator | lx.IdentityLinearOperator):
        return banded_pattern(n, 0, 0)
    if isinstance(operator, lx.TridiagonalLinearOperator):
        return banded_pattern(n, 1, 1)
    return None


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
    """A number for every column, different for any two that share a row; greedy, in order."""
    pattern = scipy.sparse.csc_array(pattern, dtype=bool, copy=True).astype(np.int32)
    pattern.eliminate_zeros()
    neighbours = scipy.sparse.csr_array(pattern.T @ pattern)
    ends, others = neighbours.indptr, neighbours.indices
    colours = np.full(pattern.shape[1], -1)
    for j in range(len(colours)):
        taken = set(colours[others[ends[j] : ends[j + 1]]].tolist())
        colours[j] = next(c for c in range(len(taken) + 1) if c not in taken)
    return colours


def probe(operator: lx.AbstractLinearOperator, pattern: Any) -> tuple[scipy.sparse.csr_array, int]:
    """The entries in the pattern, and how many products revealed them.

    Entries outside of the pattern, if there are any, are added to those of the same colour: what
    comes back is then near A and not A itself.
    """
    shape = operator.out_size(), operator.in_size()
    pattern = scipy.sparse.csr_array(pattern, copy=True)
    if pattern.shape != shape:
        raise OperatorError(
            f"the pattern is {pattern.shape[0]}x{pattern.shape[1]} and the operator "
            f"{shape[0]}x{shape[1]}: give the pattern of the operator"
        )
    pattern.eliminate_zeros()  # a zero that is stored is no entry
    colours = colour(pattern)
    num = int(np.max(colours)) + 1
    summed = np.equal(colours[:, None], np.arange(num)).astype(operator.in_structure().dtype)
    images = np.asarray(_columns(operator, jnp.asarray(summed)))
    if not np.all(np.isfinite(images)):
        raise OperatorError(
            "a product of the operator contains NaN or Inf: every product with a finite vector "
            "must be finite"
        )
    coo = pattern.tocoo()
    entries = images[coo.row, colours[coo.col]]
    return scipy.sparse.csr_array((entries, (coo.row, coo.col)), shape=shape), num


_columns = eqx.filter_jit(columns)


def _convolution_pattern(operator: ConvolutionLinearOperator) -> scipy.sparse.csr_array:
    """Each pixel of each channel sees the window around it, in all channels."""
    pattern = np.ones((1, 1))
    for size, window in zip(operator.image_shape, operator.kernel.shape[2:], strict=True):
        # even windows reach one further to the right, as the operator does
        reach = (window - 1) // 2, window // 2
        axis = banded_pattern(size, *reach, circular=operator.padding == "circular")
        pattern = scipy.sparse.kron(pattern, axis)
    return scipy.sparse.csr_array(scipy.sparse.kron(np.ones(operator.kernel.shape[:2]), pattern))
