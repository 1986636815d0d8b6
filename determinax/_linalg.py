r"""Factorisations and solves of one matrix that may be put under `vmap`: nothing here waits for ever.

From jaxlib 0.10.0 to 0.11.0 a *batched* LAPACK call on a CPU hands its batch to XLA's thread pool
and waits for it while it holds one of the pool's threads: once all of them wait, nothing moves. A
call for one matrix does not wait. So all that this library factorises goes through here, where
`vmap` is a loop over single calls on CPUs, and the ordinary batched call elsewhere.

Such a loop has no transpose, so the derivatives are written out below, by products and by the same
solves: they go through `jit`, `vmap`, `jvp` and `grad` in any order, as often as one likes.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.scipy.linalg
from jaxtyping import Array, Float, Inexact, Int, PyTree


def mm(a: Array, b: Array) -> Array:
    """The product of two matrices in full precision, which is no backend's default but the CPU's."""
    return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)


# From so many columns on OpenBLAS takes threads for a triangular solve, which then wait for the cores that
# XLA's threads have: 0.8 ms for 64 rows in the midst of a program, where substitution takes 0.05
_THREADED, _SMALL = 8, 256


def _one_by_one(f: Callable, *, columns: bool = False, wide: Callable | None = None) -> Callable:
    """`f` of single matrices, whose `vmap` on a CPU is a loop: see the module's docstring.

    With `columns` the last argument has independent columns: where it alone is batched, the batch
    becomes more columns of one call, of `wide` if there is one.
    """
    single = jax.custom_batching.custom_vmap(f)

    @single.def_vmap
    def rule(size: int, batched: list[bool], *args: Array):
        if columns and not any(batched[:-1]):
            n, together = args[-1].shape[1], jnp.moveaxis(args[-1], 0, 1)
            out = (wide or single)(*args[:-1], together.reshape(n, -1))
            return jnp.moveaxis(out.reshape(len(out), size, -1), 1, 0), True

        def loop(*args):
            def one(mapped):
                return single(
                    *(m if b else a for a, m, b in zip(args, mapped, batched, strict=True))
                )

            return jax.lax.map(one, [a if b else None for a, b in zip(args, batched, strict=True)])

        axes = [0 if b else None for b in batched]
        out = jax.lax.platform_dependent(*args, cpu=loop, default=jax.vmap(f, axes))
        return out, jax.tree.map(lambda _: True, out)

    return single


def _lu_solver(trans: int) -> Callable:
    def run(lu, pivots, b):
        return jax.scipy.linalg.lu_solve((lu, pivots), b, trans=trans)

    return _one_by_one(run, columns=True)


def _triangular_solver(lower: bool) -> Callable:
    def lapack(a, b):
        return jax.scipy.linalg.solve_triangular(a, b, lower=lower)

    def run(a, b):
        if len(a) > _SMALL or b.shape[1] < _THREADED:
            return single(a, b)
        by_rows = functools.partial(_by_rows, lower=lower)
        return jax.lax.platform_dependent(a, b, cpu=by_rows, default=lapack)

    single = _one_by_one(lapack, columns=True, wide=run)
    return run


def _by_rows(a: Array, b: Array, lower: bool) -> Array:
    """The same by substitution, without LAPACK."""

    def step(i, x):
        i = i if lower else len(a) - 1 - i
        # x is 0 where it is not known yet
        return x.at[i].set((b[i] - mm(a[i], x)) / a[i, i])

    return jax.lax.fori_loop(0, len(a), step, jnp.zeros_like(b))


_lu = _one_by_one(lambda a: tuple(jax.scipy.linalg.lu_factor(a)))
_lu_solve, _lu_solve_transposed, _lu_solve_adjoint = (_lu_solver(trans) for trans in range(3))
_solve_upper, _solve_lower = (_triangular_solver(lower) for lower in (False, True))
_qr = _one_by_one(lambda a: tuple(jnp.linalg.qr(a)))
_eigh = _one_by_one(lambda a: tuple(jnp.linalg.eigh(a)))
_svd = _one_by_one(lambda a: tuple(jnp.linalg.svd(a, full_matrices=False)))
# full_matrices is True by default, and then XLA sets m x m numbers aside even for the values alone
_svdvals = _one_by_one(lambda a: jnp.linalg.svd(a, full_matrices=False, compute_uv=False))


class Factors(NamedTuple):
    """L and U in one array, and the rows that were exchanged."""

    lu: Inexact[Array, "n n"]
    pivots: Int[Array, " n"]


def lu_factor(a: Inexact[Array, "n n"]) -> Factors:
    """LU with partial pivoting: a constant for any gradient, see `solve` and `log_abs_det`."""
    return Factors(*_lu(jax.lax.stop_gradient(a)))


def lu_solve(
    factors: Factors, b: Inexact[Array, " n"], *, adjoint: bool = False
) -> Inexact[Array, " n"]:
    r"""$A^{-1}b$, or $A^{-*}b$, for one b without a gradient."""
    return (_lu_solve_adjoint if adjoint else _lu_solve)(*factors, b[:, None])[:, 0]


def solve(
    a: Inexact[Array, "n n"], b: Inexact[Array, "n *k"], factors: Factors | None = None
) -> Inexact[Array, "n *k"]:
    r"""$A^{-1}b$, by the factors of A where they are known."""
    if len(a) == 1:
        return b / a[0, 0]
    factors = lu_factor(a) if factors is None else factors
    x = jax.lax.custom_linear_solve(
        lambda x: mm(a, x),
        b.reshape(len(a), -1),
        lambda _, b: _lu_solve(*factors, b),
        lambda _, b: _lu_solve_transposed(*factors, b),
    )
    return x.reshape(b.shape)


def log_abs_det(a: Inexact[Array, "n n"], factors: Factors | None = None) -> Float[Array, ""]:
    r"""$\log|\det A|$, by the factors of A where they are known; -inf for a singular one."""
    if len(a) == 1:
        return jnp.log(jnp.abs(a[0, 0]))
    return _log_abs_det(a, lu_factor(a) if factors is None else factors)


@jax.custom_jvp
def _log_abs_det(a: Array, factors: Factors) -> Array:
    return jnp.sum(jnp.log(jnp.abs(jnp.diagonal(factors.lu))))


@_log_abs_det.defjvp
def _log_abs_det_jvp(primals, tangents):
    a, factors = primals
    return _log_abs_det(a, factors), jnp.trace(solve(a, tangents[0], factors)).real


def solve_triangular(
    a: Inexact[Array, "n n"], b: Inexact[Array, "n *k"], *, lower: bool = False
) -> Inexact[Array, "n *k"]:
    r"""$A^{-1}b$ for the upper (or lower) triangle of A."""
    forth, back = (_solve_lower, _solve_upper) if lower else (_solve_upper, _solve_lower)
    held = jax.lax.stop_gradient(a)
    x = jax.lax.custom_linear_solve(
        lambda x: mm(jnp.tril(a) if lower else jnp.triu(a), x),
        b.reshape(len(a), -1),
        lambda _, b: forth(held, b),
        lambda _, b: back(held.T, b),
    )
    return x.reshape(b.shape)


@jax.custom_jvp
def qr(a: Inexact[Array, "m k"]) -> tuple[Inexact[Array, "m k"], Inexact[Array, "k k"]]:
    """Q with orthonormal columns and R of a tall (or square) matrix."""
    return _qr(a)


@qr.defjvp
def _qr_jvp(primals, tangents):
    q, r = qr(*primals)
    moved = solve_triangular(r.T, tangents[0].T, lower=True).T  # dA R^-1
    inner = mm(q.conj().T, moved)
    below = jnp.tril(inner, -1)
    # Q^* dQ is skew; and for complex ones R keeps its real diagonal
    turn = below - below.conj().T + jnp.diag(jnp.diagonal(inner) - jnp.diagonal(inner).real)
    return (q, r), (mm(q, turn - inner) + moved, mm(inner - turn, r))


def eigh(a: Float[Array, "n n"]) -> tuple[Float[Array, " n"], Float[Array, "n n"]]:
    """Eigenvalues in ascending order and eigenvectors, as columns, of a real symmetric matrix."""
    return _symmetric((a + a.T) / 2)


@jax.custom_jvp
def _symmetric(a):
    return _eigh(a)


@_symmetric.defjvp
def _symmetric_jvp(primals, tangents):
    values, v = _symmetric(*primals)
    inner = mm(v.T, mm(tangents[0], v))
    return (values, v), (jnp.diagonal(inner), mm(v, _over_gaps(values) * inner))


@jax.custom_jvp
def svd(
    a: Float[Array, "m n"],
) -> tuple[Float[Array, "m k"], Float[Array, " k"], Float[Array, "k n"]]:
    """U, the singular values in descending order, and V^T, of a real matrix; k is min(m, n)."""
    return _svd(a)


@svd.defjvp
def _svd_jvp(primals, tangents):
    u, s, vt = svd(*primals)
    forth, back = mm(tangents[0], vt.T), mm(tangents[0].T, u)
    inner, gaps = mm(u.T, forth), _over_gaps(s**2)
    du = mm(u, gaps * (inner * s + s[:, None] * inner.T)) + (forth - mm(u, inner)) / s
    dv = mm(vt.T, gaps * (s[:, None] * inner + inner.T * s)) + (back - mm(vt.T, inner.T)) / s
    return (u, s, vt), (du, jnp.diagonal(inner), dv.T)


def _over_gaps(values: Float[Array, " k"]) -> Float[Array, "k k"]:
    r"""$1/(x_j - x_i)$, and 0 on the diagonal."""
    identity = jnp.eye(len(values), dtype=values.dtype)
    return 1 / (values - values[:, None] + identity) - identity


def singular_values(a: Float[Array, "m n"]) -> Float[Array, " k"]:
    """In descending order, in memory O(mn): constants for any gradient."""
    return _svdvals(jax.lax.stop_gradient(a))


def log_norm(vectors: Float[Array, "m num"]) -> Float[Array, " num"]:
    """Log of the columns' Euclidean norms, for entries of any size that the dtype can hold."""
    # one scale for the chunk: 1e200 squared overflows, 1e-200 squared is 0
    largest = jnp.max(jnp.abs(vectors))
    scale = jax.lax.stop_gradient(jnp.where((largest > 0) & jnp.isfinite(largest), largest, 1))
    return 0.5 * jnp.log(jnp.sum((vectors / scale) ** 2, axis=0)) + jnp.log(scale)


def held(tree: PyTree) -> PyTree:
    """The tree with constants for arrays: no gradient passes."""
    arrays, rest = eqx.partition(tree, eqx.is_array)
    return eqx.combine(jax.lax.stop_gradient(arrays), rest)
