"""The exact baseline: n products give A itself, then a factorisation."""

import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
from jaxtyping import Array, Float, Inexact, Int, PRNGKeyArray

from determinax import _checks, _linalg
from determinax._diagnostics import PRODUCT, Rounding
from determinax._revealed import EPS, factorised, in_words
from determinax._states import Fault
from determinax.estimate import Estimate
from determinax.methods._base import AbstractMethod, Plan, Selection, registered
from determinax.operators import (
    NO_PRODUCTS,
    Products,
    RealEmbedding,
    Traits,
    columns,
    num_parts,
    on_one_device,
    sparse_matrix,
    traits,
    untagged,
)
from determinax.progress import Report

# unit vectors in memory at a time
_CHUNK = 256
# flops a second of a dense LU on two cores, rather too few than too many; seconds to compile it
_DENSE_RATE, _DENSE_START = 2e10, 0.5


class Block(NamedTuple):
    """Columns of the matrix, from `start` on."""

    columns: Inexact[Array, "m size"]
    start: Int[Array, ""]


class Factorised(NamedTuple):
    """log|det|, the condition number, how large the logarithms are that were summed, and the sign."""

    log_abs_det: Float[Array, ""]
    condition: Float[Array, ""]
    log_size: Float[Array, ""]
    sign: Float[Array, ""] | None


@registered("exact")
class Exact(AbstractMethod):
    r"""n products with the unit vectors, then LU (square) or QR (tall); sparse matrices as they are.

    Use it wherever n products and an n x n array are affordable: nothing that samples beats it
    there. It knows when the dtype cannot carry the digits: `standard_error` is the rounding that
    the equilibrated matrix' condition number allows, and a numerically singular operator is
    `unreliable`. Memory is three times the array.

    Square sparse, diagonal and tridiagonal operators are factorised as they are, without products and
    without an n x n array: by SuperLU, definite ones by CHOLMOD where scikit-sparse is installed,
    tridiagonal ones by LAPACK, and in their band where pivoting loses digits. Inside `jit`, `vmap` and
    `grad`, where values cannot be looked at, and where they are tall, they are dense like all others.

    !!! example

        ```python
        dx.log_abs_det(A, dx.Exact())
        ```
    """

    def plan(self, traits: Traits) -> Plan:
        """See `AbstractMethod`: units are columns; an array needs no products."""
        return Plan(0, 1, 0) if traits.is_dense else Plan.of(traits.num_dense, _CHUNK)

    def cost(self, traits: Traits) -> Products:
        """See `AbstractMethod`."""
        return Products(traits.num_dense)

    def within_jit(self, traits: Traits) -> "Exact":
        """See `AbstractMethod`: what cannot fit is not tried."""
        _require_dense(traits)
        return self

    def select(
        self,
        operator: lx.AbstractLinearOperator,
        key: PRNGKeyArray | None,
        spent: Products,
        report: Report | None,
    ) -> Selection | Estimate:
        """A sparse matrix is factorised as it is, on the host; others are made dense."""
        del key, spent
        t = traits(operator)
        matrix = sparse_matrix(operator)
        if matrix is None:
            _require_dense(t)
            if num_parts(operator) > 1:
                why = "A dense factorisation cannot be split over devices: A was gathered on one."
                return Selection(Exact(), on_one_device(operator), why)
            if report:
                report.working(f"factorising {t.rows:,} x {t.cols:,}")
            return Selection(self, operator)
        if report:
            report.working(f"factorising a sparse {t.rows:,} x {t.cols:,}")
        found, cost = sparse_estimate(operator, matrix)
        if found is None:
            raise ValueError(
                f"the operator is sparse, but its factors would take {cost}: more than this "
                "machine has; use Auto(max_matvecs=...), MonteCarlo or Lanczos"
            )
        return found.with_notes("The matrix itself was factorised, without products.")

    @property
    def can_split(self) -> bool:
        """See `AbstractMethod`: the state is the matrix."""
        return False

    def empty(self, operator: lx.AbstractLinearOperator, prepared: Any) -> Any:
        """See `AbstractMethod`: the state is the matrix, block by block."""
        if traits(operator).is_dense:
            return None
        inner = _inner(operator)
        return jnp.zeros((inner.out_size(), inner.in_size()), inner.in_structure().dtype)

    def chunk(
        self,
        operator: lx.AbstractLinearOperator,
        prepared: Any,
        key: PRNGKeyArray | None,
        index: Int[Array, ""],
        size: int,
    ) -> Block:
        """See `AbstractMethod`."""
        inner, start = _inner(operator), index * self.plan(traits(operator)).size
        n, dtype = inner.in_size(), inner.in_structure().dtype
        unit = jax.nn.one_hot(start + jnp.arange(size), n, dtype=dtype, axis=0)
        return Block(columns(inner, unit), start)

    def merge(self, state: Any, partial: Block) -> Any:
        """See `AbstractMethod`: no monoid; blocks come in the order of their numbers."""
        return jax.lax.dynamic_update_slice_in_dim(state, *partial, axis=1)

    def summarise(self, operator: lx.AbstractLinearOperator, prepared: Any, state: Any) -> Estimate:
        """See `AbstractMethod`."""
        inner = _inner(operator)
        matrix = untagged(inner).as_matrix() if state is None else state
        return dense_estimate(matrix, is_given=state is None)


def dense_estimate(matrix: Inexact[Array, "m n"], *, is_given: bool = True) -> Estimate:
    """By LU or QR of a matrix that is given, or that products gave."""
    is_square = matrix.shape[0] == matrix.shape[1]
    found = _square(matrix) if is_square else _tall(matrix)
    condition = found.condition
    if not is_given:
        condition = jnp.maximum(condition, _product_condition(matrix))
    # the factors' rounding, and that of the sum of their logarithms
    rounding = jnp.finfo(matrix.dtype).eps * (condition + 4 * found.log_size)
    finite = jnp.all(jnp.isfinite(jax.lax.stop_gradient(matrix)), axis=0)
    return Estimate(
        log_abs_det=found.log_abs_det,
        standard_error=jax.lax.stop_gradient(rounding),
        diagnostics=Rounding(jax.lax.stop_gradient(condition)),
        cost=Products(matrix.shape[1]),
        fault=Fault.when(~jnp.all(finite), PRODUCT, jnp.argmin(finite)),
        sign=found.sign,
        method="exact, LU" if is_square else "exact, QR",
        num_dense=matrix.shape[1],
    )


_compiled_dense = eqx.filter_jit(dense_estimate)


def sparse_estimate(
    operator: lx.AbstractLinearOperator, matrix: Any, seconds: float = math.inf
) -> tuple[Estimate | None, str]:
    """By factorising the operator's SciPy array; None where that takes too much; what it takes.

    Dense where that is quicker, as it is once nearly everything fills.
    """
    t, memory = traits(operator), _checks.physical_memory()
    needed, lasting = dense_memory(t), dense_seconds(t)
    can_be_dense = needed <= memory and lasting <= seconds
    found = factorised(matrix, memory=memory, seconds=lasting if can_be_dense else seconds)
    if isinstance(found, str):
        if not can_be_dense:
            return None, found
        dense = jnp.asarray(matrix.toarray(), matrix.dtype)
        return _compiled_dense(dense).replace(cost=NO_PRODUCTS), in_words(lasting, needed)
    coarser = t.eps / EPS  # entries in float32 carry its rounding
    estimate = Estimate(
        log_abs_det=jnp.asarray(found.log_abs_det, t.dtype),
        standard_error=jnp.asarray(coarser * found.rounding, t.dtype),
        diagnostics=Rounding(jnp.asarray(found.rounding / EPS)),
        cost=NO_PRODUCTS,
        sign=None if found.sign is None else jnp.asarray(float(found.sign)),
        method=f"exact, {found.how}",
        num_dense=t.num_dense,
    )
    return estimate, found.cost


def dense_seconds(t: Traits) -> float:
    """What a dense LU should take, compilation included."""
    return _DENSE_START + 2 / 3 * t.num_dense**3 / _DENSE_RATE


def dense_memory(t: Traits) -> int:
    """What a dense matrix and its factors take, in bytes."""
    rows = t.rows // 2 if t.is_complex else t.rows
    itemsize = (2 if t.is_complex else 1) * jnp.dtype(t.dtype).itemsize
    return 3 * rows * t.num_dense * itemsize


def _require_dense(t: Traits) -> None:
    rows = t.rows // 2 if t.is_complex else t.rows
    _checks.require_memory(
        dense_memory(t),
        f"Exact() needs a dense {rows}x{t.num_dense} array and its factors",
        "use Auto(max_matvecs=...), MonteCarlo or Lanczos",
    )


def _inner(operator: lx.AbstractLinearOperator) -> lx.AbstractLinearOperator:
    """A complex operator itself: half as many products as its embedding."""
    inner: Any = operator
    return inner.inner if isinstance(operator, RealEmbedding) else operator


def _square(matrix: Inexact[Array, "n n"]) -> Factorised:
    """log|det| by LU of the equilibrated matrix, and that matrix' condition number.

    Scaling rows and columns by powers of two is free of rounding and leaves only the ill-condition
    that costs digits: a diagonal matrix has none, whatever its entries.
    """
    rows = _binary_scale(matrix, axis=1)
    scaled = matrix / rows
    cols = _binary_scale(scaled, axis=0)
    scaled = scaled / cols
    factors = _linalg.lu_factor(scaled)
    pivots = jnp.diagonal(factors.lu)
    logs = jnp.log(jnp.abs(pivots))
    log_scales = jnp.sum(jnp.log(rows)) + jnp.sum(jnp.log(cols))
    log_abs_det = _linalg.log_abs_det(scaled, factors) + log_scales
    norm = jnp.max(jnp.sum(jnp.abs(scaled), axis=0))
    inverse = _one_norm(
        lambda x: _linalg.lu_solve(factors, x),
        lambda x: _linalg.lu_solve(factors, x, adjoint=True),
        jax.lax.stop_gradient(scaled),
    )
    sign = None
    if not jnp.iscomplexobj(matrix):
        moved = factors.pivots != jnp.arange(len(pivots))
        # every row that was exchanged turns the sign
        sign = jnp.prod(jnp.sign(pivots)) * (1 - 2 * (jnp.sum(moved) % 2))
    size = jnp.sum(jnp.abs(logs)) + jnp.abs(log_scales)
    return Factorised(log_abs_det, _condition(norm, inverse), size, sign)


def _tall(matrix: Inexact[Array, "m n"]) -> Factorised:
    """Half of log det A^T A by QR, columns scaled first."""
    cols = _binary_scale(matrix, axis=0)
    _, r = _linalg.qr(matrix / cols)
    logs, log_scales = jnp.log(jnp.abs(jnp.diagonal(r))), jnp.sum(jnp.log(cols))
    log_volume = jnp.sum(logs) + log_scales
    norm = jnp.max(jnp.sum(jnp.abs(r), axis=0))
    stopped = jax.lax.stop_gradient(r)
    inverse = _one_norm(
        lambda x: _linalg.solve_triangular(stopped, x),
        lambda x: _linalg.solve_triangular(stopped.conj().T, x, lower=True),
        stopped,
    )
    size = jnp.sum(jnp.abs(logs)) + jnp.abs(log_scales)
    return Factorised(log_volume, _condition(norm, inverse), size, None)


def _product_condition(matrix: Array) -> Array:
    """How small a row is beside the largest: entries that products gave may be rounding there.

    An explicit matrix may have rows of any size; a product's error is that of its largest terms,
    so a row of 1e-17 beside ones is as good as zero.
    """
    largest = jnp.max(jnp.abs(jax.lax.stop_gradient(matrix)), axis=1)
    return jnp.max(largest) / jnp.min(largest)


def _binary_scale(matrix: Array, axis: int) -> Array:
    largest = jnp.max(jnp.abs(matrix), axis=axis, keepdims=True)
    _, exponent = jnp.frexp(jax.lax.stop_gradient(jnp.where(largest > 0, largest, 1)))
    return jnp.ldexp(jnp.ones_like(largest), exponent)


def _condition(norm: Array, inverse_norm: Array) -> Array:
    condition = jax.lax.stop_gradient(norm) * inverse_norm
    # a zero pivot makes NaN or inf of the inverse: singular either way
    return jnp.where(jnp.isnan(condition), jnp.inf, condition)


def _one_norm(solve, solve_adjoint, like: Array, steps: int = 4) -> Array:
    """1-norm of an inverse by Hager's iteration (LAPACK's gecon, which JAX does not offer)."""
    n = like.shape[1]
    start = jnp.full(n, 1 / n, like.dtype)

    def step(carry, _):
        x, best = carry
        y = solve(x)
        best = jnp.maximum(best, jnp.sum(jnp.abs(y)))
        sign = jnp.where(y == 0, 1, y / jnp.where(y == 0, 1, jnp.abs(y))).astype(like.dtype)
        z = solve_adjoint(sign)
        return (jax.nn.one_hot(jnp.argmax(jnp.abs(z)), n, dtype=like.dtype), best), None

    zero = jnp.zeros((), jnp.finfo(like.dtype).dtype)
    (_, best), _ = jax.lax.scan(step, (start, zero), None, length=steps)
    # Higham's alternating vector catches what the iteration misses
    alternating = (-1.0) ** jnp.arange(n) * (1 + jnp.arange(n) / max(n - 1, 1))
    other = 2 * jnp.sum(jnp.abs(solve(alternating.astype(like.dtype)))) / (3 * n)
    return jnp.maximum(best, other)
