"""The exact baseline: n products reveal A, then a factorisation."""

import dataclasses
import os

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.scipy.linalg
import lineax as lx
import numpy as np
from jaxtyping import Array, Inexact, PRNGKeyArray

from determinax import operators as ops
from determinax import weights
from determinax.estimate import Estimate
from determinax.methods.base import AbstractMethod
from determinax.operators import NO_PRODUCTS, OperatorError, Products
from determinax.progress import Report

# unit vectors in memory at a time
_CHUNK = 256


@dataclasses.dataclass(frozen=True)
class Exact(AbstractMethod):
    r"""n products with the unit vectors, then LU (square) or QR (tall).

    Use it wherever n products and an n x n array are affordable: nothing that samples beats it
    there. It knows when the dtype cannot carry the digits: `standard_error` is the rounding that
    the equilibrated matrix' condition number allows, and a numerically singular operator is
    `unreliable`.
    """

    def estimate(
        self,
        operator: lx.AbstractLinearOperator,
        key: PRNGKeyArray | None = None,
        *,
        spent: Products = NO_PRODUCTS,
        progress: Report | None = None,
    ) -> Estimate:
        """Reveal the matrix and factorise it; the key is not used."""
        m, n = ops.rows_columns(operator)
        inner = operator.inner if isinstance(operator, ops.RealEmbedding) else operator
        require_memory(m, n, inner.in_structure().dtype)
        if ops.is_traced(inner):
            matrix = reveal(inner)
        else:
            matrix = _reveal_in_blocks(inner, progress)
            if not ops.is_traced(matrix):  # constants inside of jit are traced as well
                require_finite_columns(matrix)
        log_abs_det, condition, log_size = _square(matrix) if m == n else _tall(matrix)
        if not isinstance(inner, lx.MatrixLinearOperator | ops.SparseLinearOperator):
            condition = jnp.maximum(condition, _product_condition(matrix))
        # the factors' rounding, and that of the sum of their logarithms
        rounding = jnp.finfo(matrix.dtype).eps * (condition + 4 * log_size)
        spent += Products(n)
        return Estimate(
            log_abs_det=log_abs_det,
            standard_error=rounding,
            condition=condition,
            method="exact, LU" if m == n else "exact, QR",
            num_matvecs=spent.total,
            num_transposed=spent.transposed,
            num_matvecs_dense=n,
        )


def reveal(operator: lx.AbstractLinearOperator) -> Inexact[Array, "m n"]:
    """The matrix, from n products with unit vectors in chunks."""
    if isinstance(operator, lx.MatrixLinearOperator):
        return operator.matrix
    n = operator.in_size()
    chunk = min(n, _CHUNK)
    full, rest = divmod(n, chunk)
    blocks = jax.lax.map(lambda start: _block(operator, start, chunk), chunk * jnp.arange(full))
    matrix = jnp.moveaxis(blocks, 0, 1).reshape(operator.out_size(), -1)
    if rest:
        matrix = jnp.concatenate([matrix, _block(operator, full * chunk, rest)], axis=1)
    return matrix


def _block(operator: lx.AbstractLinearOperator, start, size: int) -> Inexact[Array, "m size"]:
    """The columns from `start` on."""
    n, dtype = operator.in_size(), operator.in_structure().dtype
    unit = jax.nn.one_hot(start + jnp.arange(size), n, dtype=dtype, axis=0)
    return ops.columns(operator, unit)


_compiled_block = eqx.filter_jit(_block)


def _reveal_in_blocks(operator: lx.AbstractLinearOperator, progress: Report | None) -> Array:
    """As `reveal`, outside of tracing, with a report after every block."""
    if isinstance(operator, lx.MatrixLinearOperator):
        return operator.matrix
    n = operator.in_size()
    if progress:
        progress.start(n, "Exact")
    blocks = []
    for start in range(0, n, _CHUNK):
        stop = min(start + _CHUNK, n)
        block = weights.guarded(_compiled_block, operator, jnp.asarray(start), stop - start)
        blocks.append(block)
        if progress:
            jax.block_until_ready(block)
            progress.advance(stop)
    return jnp.concatenate(blocks, axis=1)


def physical_memory() -> int:
    """Of this machine, in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def require_memory(m: int, n: int, dtype) -> None:
    """Say so before a dense matrix that cannot fit is allocated."""
    need = 3 * m * n * np.dtype(dtype).itemsize
    if need > physical_memory():
        raise ValueError(
            f"Exact() needs a dense {m}x{n} array and its factors, {need / 2**30:.0f} GiB: "
            "more than this machine has; use Auto(max_matvecs=...), MonteCarlo or Lanczos"
        )


def require_finite_columns(matrix: Array) -> None:
    """Name the first column that is not finite: it is the product with that unit vector."""
    finite = np.isfinite(np.asarray(matrix)).all(axis=0)
    if not finite.all():
        raise OperatorError(
            f"product {int(np.argmin(finite))} of the operator contains NaN or Inf: every product "
            "with a unit vector must be finite"
        )


@jax.jit
def _square(matrix: Inexact[Array, "n n"]) -> tuple[Array, Array, Array]:
    """log|det| by LU of the equilibrated matrix, and that matrix' condition number.

    Scaling rows and columns by powers of two is free of rounding and leaves only the ill-condition
    that costs digits: a diagonal matrix has none, whatever its entries.
    """
    rows = _binary_scale(matrix, axis=1)
    scaled = matrix / rows
    cols = _binary_scale(scaled, axis=0)
    scaled = scaled / cols
    lu, pivots = jax.scipy.linalg.lu_factor(scaled)
    logs = jnp.log(jnp.abs(jnp.diagonal(lu)))
    log_scales = jnp.sum(jnp.log(rows)) + jnp.sum(jnp.log(cols))
    log_abs_det = jnp.sum(logs) + log_scales
    norm = jnp.max(jnp.sum(jnp.abs(scaled), axis=0))
    factors = jax.lax.stop_gradient(lu), pivots
    inverse = _one_norm(
        lambda x: jax.scipy.linalg.lu_solve(factors, x),
        lambda x: jax.scipy.linalg.lu_solve(factors, x, trans=2),
        jax.lax.stop_gradient(scaled),
    )
    return log_abs_det, _condition(norm, inverse), jnp.sum(jnp.abs(logs)) + jnp.abs(log_scales)


@jax.jit
def _tall(matrix: Inexact[Array, "m n"]) -> tuple[Array, Array, Array]:
    """Half of log det A^T A by QR, columns scaled first."""
    cols = _binary_scale(matrix, axis=0)
    r = jnp.linalg.qr(matrix / cols, mode="r")
    logs, log_scales = jnp.log(jnp.abs(jnp.diagonal(r))), jnp.sum(jnp.log(cols))
    log_volume = jnp.sum(logs) + log_scales
    norm = jnp.max(jnp.sum(jnp.abs(r), axis=0))
    stopped = jax.lax.stop_gradient(r)
    inverse = _one_norm(
        lambda x: jax.scipy.linalg.solve_triangular(stopped, x),
        lambda x: jax.scipy.linalg.solve_triangular(stopped, x, trans=2),
        stopped,
    )
    return log_volume, _condition(norm, inverse), jnp.sum(jnp.abs(logs)) + jnp.abs(log_scales)


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
