"""Sparse matrices, factorised as they are: log|det|, its sign and a condition number, without n x n arrays.

SuperLU pivots as dense LU does, which spoils a fill-reducing order. A matrix whose diagonal dominates,
or that is symmetric and turns out to be definite, is eliminated without pivoting, in an order for
just that: by CHOLMOD where scikit-sparse is installed (definite ones), else by SuperLU. Tridiagonal
matrices are LAPACK's.
"""

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import lineax as lx
import numpy as np
import scipy.linalg.lapack
import scipy.sparse
import scipy.sparse.csgraph
import scipy.sparse.linalg

from determinax.operators._callable import FlatLinearOperator
from determinax.operators._complex import RealEmbedding
from determinax.operators._fill import Plan, plan
from determinax.operators._sparse import SparseLinearOperator, require_finite_entries
from determinax.operators._traits import traits

# how many times A's entries SuperLU reckons to have room for, in 32 bits
_GUESS = 30
_HAGER_STEPS = 4
# measured: seconds and bytes for a row of a tridiagonal matrix, its condition number included
_ROW_SECONDS, _ROW_BYTES = 4e-7, 200


class Prepared(NamedTuple):
    r"""A matrix ready to be factorised: equilibrated, and without what its determinant ignores.

    `kind` says how: `definite` and `dominant` without pivoting, on trial, `general` with it;
    `tridiagonal` in its band, with pivoting; `diagonal` and `singular` (an empty row or column) need
    no factors.
    """

    matrix: Any  # SciPy's, by columns
    log_scale: float  # what equilibration took out
    kind: Literal["singular", "diagonal", "tridiagonal", "definite", "dominant", "general"]
    plan: Plan | None

    @property
    def seconds(self) -> float:
        """What factorising should take."""
        if self.kind == "tridiagonal":
            return _ROW_SECONDS * self.matrix.shape[0]
        return self.plan.seconds if self.plan else 0.0

    @property
    def bytes(self) -> int:
        """What factorising should need in memory."""
        rows = _ROW_BYTES * self.matrix.shape[0] if self.kind == "tridiagonal" else 0
        return (self.plan.bytes if self.plan else rows) * self.matrix.dtype.itemsize // 8

    @property
    def is_countable(self) -> bool:
        """Whether SuperLU can count the entries of the factors, and its first guess of them."""
        most = 0 if self.plan is None else max(self.plan.entries, _GUESS * self.plan.given)
        return most < 2**31


class Factorised(NamedTuple):
    """What a factorisation says: the condition number is that of the equilibrated matrix."""

    log_abs_det: float
    sign: float | None  # of a real determinant: 1, -1, or 0 where singular
    condition: float
    log_size: float  # the absolute logarithms that were summed
    how: str


def sparse_matrix(operator: lx.AbstractLinearOperator) -> Any:
    """The matrix of an operator that is sparse and known, as a SciPy array; None for all others."""
    kind: Any = operator
    if isinstance(kind, RealEmbedding):
        kind = kind.inner
    while isinstance(kind, lx.TaggedLinearOperator | FlatLinearOperator):
        kind = kind.operator if isinstance(kind, lx.TaggedLinearOperator) else kind.inner
    t = traits(operator)
    if t.rows != t.cols:
        return None
    if isinstance(kind, SparseLinearOperator):
        a = kind.matrix
        parts = np.asarray(a.data), np.asarray(a.indices), np.asarray(a.indptr)
        return scipy.sparse.csr_array(parts, shape=a.shape)
    if isinstance(kind, lx.IdentityLinearOperator):
        return scipy.sparse.eye_array(t.num_dense, format="csr")
    if isinstance(kind, lx.DiagonalLinearOperator):
        leaves = [np.ravel(leaf) for leaf in jax.tree.leaves(kind.diagonal)]
        return scipy.sparse.csr_array(scipy.sparse.diags_array(np.concatenate(leaves)))
    if isinstance(kind, lx.TridiagonalLinearOperator):
        diagonals = kind.diagonal, kind.lower_diagonal, kind.upper_diagonal
        parts = [np.asarray(d) for d in diagonals]
        diags: Any = scipy.sparse.diags_array
        return scipy.sparse.csr_array(diags(parts, offsets=(0, -1, 1)))
    return None


def prepare(matrix: Any, *, trial: bool = True) -> Prepared:
    """Equilibrate a square SciPy sparse array, see how it can be factorised and what that takes.

    Without `trial` it is going to be pivoted, whatever it looks like.
    """
    csr = _canonical(matrix)
    n = csr.shape[0]
    if not np.bincount(csr.indices, minlength=n).all() or np.any(np.diff(csr.indptr) == 0):
        return Prepared(csr, 0.0, "singular", None)
    symmetric, diagonal = _is_symmetric(csr), csr.diagonal()
    full = bool(np.all(diagonal != 0))
    if full and not symmetric:
        csr = _diagonal_blocks(csr)
    if full and csr.nnz == n:
        return Prepared(*_equilibrated(csr), "diagonal", None)
    if _is_tridiagonal(csr):
        return Prepared(*_equilibrated(csr), "tridiagonal", None)
    if trial and symmetric and _may_be_definite(csr, diagonal):
        csc, log_scale = _equilibrated(csr, diagonal)
        return Prepared(csc, log_scale, "definite", plan(csc, pivoting=False))
    csc, log_scale = _equilibrated(csr)
    if trial and full and _is_dominant(csr, diagonal):
        return Prepared(csc, log_scale, "dominant", plan(csc, pivoting=False))
    return Prepared(csc, log_scale, "general", plan(csc, pivoting=True))


def factorise(prepared: Prepared) -> Factorised | None:
    """Factorise; None if it cannot be done without pivoting after all: prepare without `trial`."""
    if prepared.kind == "singular":
        return Factorised(-math.inf, 0.0, math.inf, 0.0, "sparse LU")
    if prepared.kind == "diagonal":
        return _factorised(prepared, prepared.matrix.diagonal(), 1.0, "diagonal")
    if prepared.kind == "tridiagonal":
        return _tridiagonal(prepared)
    found = _cholmod(prepared) if prepared.kind == "definite" else None
    return found or _superlu(prepared)


def _canonical(matrix: Any) -> Any:
    """By rows, in double precision, without zeros that are stored."""
    csr: Any = scipy.sparse.csr_array(matrix, copy=True)
    csr = csr.astype(np.complex128 if np.iscomplexobj(csr.data) else np.float64)
    csr.sum_duplicates()
    csr.eliminate_zeros()
    require_finite_entries(csr)
    return csr


def _ones(csr: Any) -> Any:
    return scipy.sparse.csr_array((np.ones(csr.nnz), csr.indices, csr.indptr), shape=csr.shape)


def _is_symmetric(csr: Any) -> bool:
    other = csr.tocsc()  # whose arrays are those of the transpose by rows
    pairs = ((csr.indptr, other.indptr), (csr.indices, other.indices), (csr.data, other.data))
    return all(np.array_equal(a, b) for a, b in pairs)


def _is_tridiagonal(csr: Any) -> bool:
    n = csr.shape[0]
    if n < 3 or csr.nnz > 3 * n - 2:  # SciPy's wrapper of LAPACK cannot count to 0
        return False
    rows = np.repeat(np.arange(n, dtype=csr.indices.dtype), np.diff(csr.indptr))
    return bool(np.max(np.abs(csr.indices - rows)) <= 1)


def _may_be_definite(csr: Any, diagonal: np.ndarray) -> bool:
    """Real, and no 2 x 2 minor on the diagonal tells that it is not definite."""
    if np.iscomplexobj(diagonal) or not (np.all(diagonal > 0) or np.all(diagonal < 0)):
        return False
    root = np.sqrt(np.abs(diagonal))
    row = np.repeat(root, np.diff(csr.indptr))
    return bool(np.all(np.abs(csr.data) <= (1 + 1e-8) * row * root[csr.indices]))


def _is_dominant(csr: Any, diagonal: np.ndarray) -> bool:
    """Whether each diagonal entry outweighs the others of its row, or of its column."""
    size = abs(csr)
    return any(bool(np.all(size.sum(axis=k) <= 2 * np.abs(diagonal))) for k in (0, 1))


def _diagonal_blocks(csr: Any) -> Any:
    """Without the entries that no product over a permutation has: its block triangular form's.

    It has no zeros on its diagonal. A triangular matrix, in whatever order, becomes diagonal.
    """
    num, block = scipy.sparse.csgraph.connected_components(_ones(csr), connection="strong")
    if num == 1:
        return csr
    kept = np.repeat(block, np.diff(csr.indptr)) == block[csr.indices]
    ends = np.concatenate([[0], np.cumsum(kept)])[csr.indptr]
    return scipy.sparse.csr_array((csr.data[kept], csr.indices[kept], ends), shape=csr.shape)


def _equilibrated(csr: Any, diagonal: np.ndarray | None = None) -> tuple[Any, float]:
    """By columns, rows and columns divided by powers of two, and the logarithm of all of these.

    That is free of rounding, and leaves the ill-condition that costs digits. With a diagonal given,
    both are divided by its roots: what is symmetric stays so.
    """
    if diagonal is None:
        rows = np.frexp(np.maximum.reduceat(np.abs(csr.data), csr.indptr[:-1]))[1]
        csc = _scaled(csr, rows).tocsc()
        columns = np.frexp(np.maximum.reduceat(np.abs(csc.data), csc.indptr[:-1]))[1]
    else:
        rows = columns = np.frexp(np.abs(diagonal))[1] // 2
        csc = _scaled(csr, rows).tocsc()
    csc = _scaled(csc, columns)
    return csc, math.log(2) * float(np.sum(rows, dtype=np.int64) + np.sum(columns, dtype=np.int64))


def _scaled(compressed: Any, exponents: np.ndarray) -> Any:
    """Each compressed row, or column, divided by two to the power of its exponent."""
    shift = -np.repeat(exponents, np.diff(compressed.indptr))
    data: Any = np.array(compressed.data)
    data.real = np.ldexp(data.real, shift)
    if np.iscomplexobj(data):
        data.imag = np.ldexp(data.imag, shift)
    parts = data, compressed.indices, compressed.indptr
    return type(compressed)(parts, shape=compressed.shape)


def _parity(order: np.ndarray) -> int:
    """1 for an even permutation, -1 for an odd one: by its number of cycles."""
    n = len(order)
    if np.array_equal(order, np.arange(n)):
        return 1
    links = scipy.sparse.csr_array((np.ones(n), order, np.arange(n + 1)), shape=(n, n))
    cycles = scipy.sparse.csgraph.connected_components(links, return_labels=False)
    return -1 if (n - int(cycles)) % 2 else 1


def _factorised(prepared: Prepared, pivots: np.ndarray, condition: float, how: str) -> Factorised:
    logs = np.log(np.abs(pivots))
    value = float(np.sum(logs)) + prepared.log_scale
    negative = int(np.sum(np.real(pivots) < 0))
    sign = None if np.iscomplexobj(pivots) else (-1.0) ** negative
    log_size = float(np.sum(np.abs(logs))) + abs(prepared.log_scale)
    return Factorised(value, sign, condition, log_size, how)


def _tridiagonal(prepared: Prepared) -> Factorised:
    """By LAPACK's gttrf, which exchanges neighbouring rows."""
    matrix, how = prepared.matrix, "tridiagonal LU"
    lapack: Any = scipy.linalg.lapack
    elimination, solution = lapack.get_lapack_funcs(("gttrf", "gttrs"), dtype=matrix.dtype)
    *factors, info = elimination(*(matrix.diagonal(k) for k in (-1, 0, 1)))
    if info > 0:  # the number of a pivot that is zero
        return Factorised(-math.inf, 0.0, math.inf, 0.0, how)
    _, pivots, _, _, place = factors
    condition = _condition(
        matrix, lambda x: solution(*factors, x)[0], lambda x: solution(*factors, x, trans="C")[0]
    )
    found = _factorised(prepared, pivots, condition, how)
    if found.sign is None:
        return found
    exchanges = int(np.sum(place != 1 + np.arange(len(place))))
    return found._replace(sign=found.sign * (-1.0) ** exchanges)


def _superlu(prepared: Prepared) -> Factorised | None:
    pivoting = prepared.kind == "general"
    matrix, how = _in_order(prepared), "sparse LU"
    # SuperLU's symmetric mode is wrong where it leaves the diagonal: see that it did not
    settings: dict[str, Any] = {"diag_pivot_thresh": 0.0, "options": {"SymmetricMode": True}}
    try:
        lu = scipy.sparse.linalg.splu(
            matrix, permc_spec="NATURAL", **({} if pivoting else settings)
        )
    except RuntimeError:  # "Factor is exactly singular"
        return Factorised(-math.inf, 0.0, math.inf, 0.0, how) if pivoting else None
    pivots = lu.U.diagonal()
    if not pivoting:
        changed = prepared.kind == "definite" and np.any(pivots.real * pivots.real[0] <= 0)
        if changed or not np.array_equal(lu.perm_r, lu.perm_c):
            return None
    solve: Any = lu.solve
    condition = _condition(matrix, solve, lambda x: solve(x, trans="H"))
    found = _factorised(prepared, pivots, condition, how)
    if found.sign is None:
        return found
    return found._replace(sign=found.sign * _parity(lu.perm_r) * _parity(lu.perm_c))


def _cholmod(prepared: Prepared) -> Factorised | None:
    """By scikit-sparse, where it is installed; None where not, or where not definite."""
    try:
        import sksparse.cholmod as cholmod  # pyright: ignore[reportMissingImports]
    except ImportError:
        return None
    matrix = prepared.matrix
    sign = 1.0 if matrix.diagonal()[0] > 0 else -1.0
    try:
        pivots, solve = _cholesky(cholmod, sign * matrix)
    except cholmod.CholmodNotPositiveDefiniteError:
        return None
    if not np.all(pivots > 0):
        return None
    condition = _condition(matrix, solve, solve)
    return _factorised(prepared, sign * pivots, condition, "sparse Cholesky")


def _cholesky(cholmod: Any, matrix: Any) -> tuple[np.ndarray, Callable]:
    """The pivots of a definite matrix, and what solves with it: in the words of 0.4 and of 0.5."""
    if hasattr(cholmod, "cho_factor"):
        factor = cholmod.cho_factor(scipy.sparse.csc_array(matrix), lower=True, sym_kind="sym")
        return factor.get_factor(kind="LL", lower=True).diagonal() ** 2, factor.solve
    factor = cholmod.cholesky(scipy.sparse.csc_matrix(matrix))
    return factor.D(), factor


def _in_order(prepared: Prepared) -> Any:
    assert prepared.plan is not None
    order, matrix = prepared.plan.order, prepared.matrix
    if not np.array_equal(order, np.arange(len(order))):
        matrix = matrix[:, order][order]
    matrix.sort_indices()
    return matrix


def _condition(matrix: Any, solve: Callable, solve_adjoint: Callable) -> float:
    """The condition number in the 1-norm, by Hager's iteration."""
    n, inverse = matrix.shape[0], 0.0
    x = np.full(n, 1 / n, matrix.dtype)
    for _ in range(_HAGER_STEPS):
        y = solve(x)
        size = float(np.sum(np.abs(y)))
        if size <= inverse:
            break
        inverse = size
        z = np.abs(solve_adjoint(np.where(y == 0, 1, y / np.where(y == 0, 1, np.abs(y)))))
        top = int(np.argmax(z))
        if x[top] == 1:
            break
        x = np.zeros(n, matrix.dtype)
        x[top] = 1
    # Higham's alternating vector catches what the iteration misses
    alternating = 1 + np.arange(n) / max(n - 1, 1)
    alternating[1::2] *= -1
    other = 2 * float(np.sum(np.abs(solve(alternating.astype(matrix.dtype))))) / (3 * n)
    norm = float(np.max(abs(matrix).sum(axis=0)))
    condition = norm * float(np.max([inverse, other]))
    return condition if math.isfinite(condition) else math.inf
