"""Stochastic Lanczos quadrature, the neighbours' method, by matfree."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.scipy.linalg
import lineax as lx
import matfree.decomp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from determinax import operators as ops
from determinax import sphere, weights
from determinax.estimate import Estimate
from determinax.methods.base import AbstractMethod, require_key, whole_number
from determinax.operators import NO_PRODUCTS, OperatorError, Products
from determinax.progress import Report

# what the Lanczos bases of the probes in memory may hold together
_BASIS_ENTRIES = 2**26


@dataclasses.dataclass(frozen=True)
class Lanczos(AbstractMethod):
    r"""$\log|\det A| = \frac12 \operatorname{tr}\log A^\top A$ by random probes and quadrature.

    Use it for broad spectra with fewer than n products, where sampling weights fails. Operators
    tagged positive (or negative) semidefinite cost one product a step, others one with A and one
    with its transpose. The quadrature errs upward until it has converged; its change from half
    its depth is part of the standard error, and decides the verdict.

    **Arguments:**

    - `num_probes`: independent random vectors.
    - `depth`: Lanczos steps for each; more than n bring nothing and are not taken.

    matfree decomposes; the quadrature is ours, since it must survive an exhausted Krylov space
    (a multiple of the identity) and be read at half its depth. The gradient is that of the trace,
    $n\,\mathbb{E}\langle A^{-\top} e, \mathrm{d}A\, e\rangle$, with the solve in the same Krylov space: one
    more product a probe, and first derivatives only.

    References: Ubaru, Chen and Saad (2017); Golub and Kahan (1965); for the gradient Dong, Eriksson,
    Nickisch, Bindel and Wilson (2017), arXiv:1711.03481.
    """

    num_probes: int = 30
    depth: int = 30

    def __post_init__(self):
        object.__setattr__(self, "num_probes", whole_number(self.num_probes, "num_probes"))
        object.__setattr__(self, "depth", whole_number(self.depth, "depth"))

    def estimate(
        self,
        operator: lx.AbstractLinearOperator,
        key: PRNGKeyArray | None,
        *,
        spent: Products = NO_PRODUCTS,
        progress: Report | None = None,
    ) -> Estimate:
        """Run the probes, batch by batch."""
        key = require_key(key, "Lanczos")
        depth = min(self.depth, operator.in_size())
        sign = _sign(operator)
        transpose = operator if sign else transposed(operator)
        run = _traced if ops.is_traced((operator, key)) else _in_pieces
        values, halves, faults, log_scale = run(
            operator, transpose, key, self.num_probes, depth, sign, progress
        )
        if not ops.is_traced(values):
            _require_tagged_rightly(np.asarray(faults), operator, sign)
            _require_finite(np.asarray(values))
        # the value alone has a gradient
        spread = jax.lax.stop_gradient(values)
        factor, n = ops.log_det_factor(operator), operator.in_size()
        rounding = n * jnp.finfo(operator.in_structure().dtype).eps
        error = jnp.std(spread) / np.sqrt(max(self.num_probes - 1, 1))
        bias = jnp.abs(jnp.mean(halves) - jnp.mean(spread)) if depth < n else jnp.zeros(())
        if depth == 1 < n:  # nothing to compare with
            bias = jnp.full((), jnp.inf)
        error, bias = jnp.maximum(error, rounding), jnp.maximum(bias - rounding, 0)
        steps = self.num_probes * depth
        # and one product to find the scale
        spent += Products(steps + 1) if sign else Products(steps + 1, steps)
        return Estimate(
            log_abs_det=factor * (jnp.mean(values) + n * log_scale),
            standard_error=factor * jnp.hypot(error, bias),
            quadrature_change=bias / error,
            method=f"Lanczos, {self.num_probes} probes of depth {depth}",
            num_groups=self.num_probes,
            factor=factor,
            num_matvecs=spent.total,
            num_transposed=spent.transposed,
            num_matvecs_dense=ops.rows_columns(operator)[1],
        )


def is_definite(operator: lx.AbstractLinearOperator) -> bool:
    """Whether the operator is tagged as definite: then one product a step is enough."""
    return lx.is_positive_semidefinite(operator) or lx.is_negative_semidefinite(operator)


def transposed(operator: lx.AbstractLinearOperator) -> lx.AbstractLinearOperator:
    """The transpose, with a sentence where there is none."""
    try:
        return operator.transpose()
    except OperatorError:
        raise
    except Exception as error:
        raise OperatorError(
            "Lanczos needs products with the transpose, and JAX could not transpose the operator: "
            "use MonteCarlo, or pass a lineax operator that has a transpose"
        ) from error


def _sign(operator: lx.AbstractLinearOperator) -> int:
    """1 where tagged positive semidefinite, -1 where negative, 0 where nothing is known."""
    return int(lx.is_positive_semidefinite(operator)) or -int(is_definite(operator))


def _start(operator, key, num_probes):
    """The probes as columns, and the log of the operator's scale."""
    probes = sphere.uniform(key, operator.in_size(), num_probes, operator.in_structure().dtype)
    # A^T A squares the scale: take it out first, by the size of one of the probes' products
    log_size = weights.log_norm(operator.mv(probes[:, 0])[:, None])[0]
    log_scale = jax.lax.stop_gradient(jnp.where(jnp.isfinite(log_size), log_size, 0))
    return probes.astype(float), log_scale


def _batch(operator, num_probes: int, depth: int) -> int:
    """Probes side by side: as many as their bases leave room for, in a few pieces to report."""
    room = _BASIS_ENTRIES // (depth * (operator.in_size() + operator.out_size()))
    return max(1, min(num_probes, room, max(8, -(-num_probes // 8))))


def _traced(operator, transpose, key, num_probes, depth, sign, progress):
    del progress
    probes, log_scale = _start(operator, key, num_probes)
    still = jax.tree.map(lambda x: jax.lax.stop_gradient(x) if eqx.is_array(x) else x, operator)
    values, halves, faults, solutions = jax.lax.stop_gradient(
        jax.lax.map(
            lambda e: _quadrature(still, transpose, e, log_scale, depth, sign),
            probes.T,
            batch_size=_batch(operator, num_probes, depth),
        )
    )
    images = jax.vmap(_scaled_product(operator, jnp.exp(log_scale)), in_axes=1)(probes)
    values += operator.in_size() * _first_derivative(solutions, images)
    return values, halves, faults, log_scale


def _in_pieces(operator, transpose, key, num_probes, depth, sign, progress):
    probes, log_scale = weights.guarded(_compiled_start, operator, key, num_probes)
    batch = _batch(operator, num_probes, depth)
    if progress:
        progress.start(num_probes, "Lanczos")
    results = []
    for start in range(0, num_probes, batch):
        piece = probes[:, start : start + batch]
        results.append(
            weights.guarded(
                _compiled_quadratures, operator, transpose, piece, log_scale, depth, sign
            )
        )
        if progress:
            jax.block_until_ready(results[-1])
            progress.advance(min(start + batch, num_probes))
    return *(jnp.concatenate(parts) for parts in zip(*results, strict=True)), log_scale


def _quadratures(operator, transpose, probes, log_scale, depth, sign):
    def run(probe):
        return _quadrature(operator, transpose, probe, log_scale, depth, sign)[:3]

    return jax.vmap(run, in_axes=1)(probes)


_compiled_start, _compiled_quadratures = eqx.filter_jit(_start), eqx.filter_jit(_quadratures)


def _quadrature(operator, transpose, probe, log_scale, depth, sign):
    r"""$n\,e^\top \log|A|\,e$ at full and at half depth, how far A is from its tag, and $A^{-\top} e$."""
    n, scale = operator.in_size(), jnp.exp(log_scale)
    decompose = _tridiagonal if sign else _bidiagonal
    nodes, solution, faults = decompose(operator, transpose, scale, depth, sign, probe)
    # a wrong tag is refused; where traced it cannot be, and is NaN
    wrong = jnp.any(faults > _tolerance(operator))
    value = jnp.where(wrong, jnp.nan, nodes(depth))
    return n * value, n * nodes(max(depth // 2, 1)), faults, solution


@jax.custom_jvp
def _first_derivative(solutions, images):
    """Zeros with the derivatives <solution, d image>: the images are needed only for these."""
    return jnp.zeros(len(solutions), images.dtype)


@_first_derivative.defjvp
def _first_derivative_jvp(primals, tangents):
    derivatives = jnp.sum(_only_once(*primals) * tangents[1], axis=1)
    return _first_derivative(*primals), derivatives


@jax.custom_jvp
def _only_once(solutions, images):
    del images
    return solutions


@_only_once.defjvp
def _only_once_jvp(primals, tangents):
    raise NotImplementedError("Lanczos has first derivatives only: for second ones use Exact()")


def _tolerance(operator) -> float:
    return 10 * float(jnp.finfo(operator.in_structure().dtype).eps) ** 0.5


def _require_tagged_rightly(faults: np.ndarray, operator, sign: int) -> None:
    asymmetry, other_sign = np.max(faults, axis=0)
    tag = f"the operator is tagged {'positive' if sign > 0 else 'negative'} semidefinite, but "
    if asymmetry > _tolerance(operator):
        raise OperatorError(
            f"{tag}it is not symmetric: <u, Av> and <Au, v> differ by {asymmetry:.1g} of its size; "
            "leave the tag out"
        )
    if other_sign > _tolerance(operator):
        raise OperatorError(
            f"{tag}it has values of the other sign, {other_sign:.1g} of its size; leave the tag out"
        )


def _require_finite(values: np.ndarray) -> None:
    if np.isnan(values).any():
        raise OperatorError(
            f"a product of probe {int(np.argmax(np.isnan(values)))} contains NaN or Inf: every "
            "product of the operator with a finite vector must be finite"
        )


def _scaled_product(operator, scale):
    """Products in the operator's dtype, recurrences in the widest: matfree knows only that one."""
    dtype = operator.in_structure().dtype
    return lambda v: (operator.mv(v.astype(dtype)) / scale).astype(float)


def _bidiagonal(operator, transpose, scale, depth, sign, probe):
    del sign
    product = _scaled_product(operator, scale)
    if ops.host_operators(operator):
        # matfree transposes by jax.vjp, which a callback to the host lacks: tell it how
        forward = product
        product = jax.custom_vjp(forward)
        product.defvjp(
            lambda v: (forward(v), None), lambda _, u: (_scaled_product(transpose, scale)(u),)
        )
    result = matfree.decomp.bidiag(depth, materialize=False, reortho="full")(product, probe)
    diagonal, off = result.J_small
    behind = _behind(_exhausted(operator, diagonal, off) | (diagonal[:-1] == 0))
    alphas, betas = _cut(diagonal, off, behind)

    def nodes(d):
        matrix = jnp.diag(alphas[:d]) + jnp.diag(betas[: d - 1], 1)
        _, values, vt = jnp.linalg.svd(matrix)
        return jnp.sum(vt[:, 0] ** 2 * jnp.log(values))

    # A (A^T A)^{-1} e = U B^{-T} e_1
    lower = jnp.diag(alphas) + jnp.diag(betas, -1)
    y = jax.scipy.linalg.solve_triangular(lower, jnp.eye(depth)[0], lower=True)
    left, _ = result.Q_tall
    return nodes, y @ jnp.where(behind[:, None], 0, left), jnp.zeros(2)


def _tridiagonal(operator, transpose, scale, depth, sign, probe):
    del transpose
    # not tridiag_sym: its averaged off-diagonal hides the exact zero of an exhausted Krylov space
    decompose = matfree.decomp.hessenberg(depth, reortho="full", custom_vjp=False)
    result = decompose(_scaled_product(operator, scale), probe)
    matrix = jnp.asarray(result.J_small)
    behind = _behind(_exhausted(operator, jnp.diagonal(matrix), jnp.diagonal(matrix, -1)))
    diagonal, off = _cut(jnp.diagonal(matrix), jnp.diagonal(matrix, -1), behind)
    small = jnp.diag(diagonal) + jnp.diag(off, 1) + jnp.diag(off, -1)

    def nodes(d):
        values, vectors = jnp.linalg.eigh(small[:d, :d])
        return jnp.sum(vectors[0] ** 2 * jnp.log(jnp.abs(values)))

    y = jnp.linalg.solve(small, jnp.eye(depth)[0])
    solution = y @ jnp.where(behind[:, None], 0, jnp.asarray(result.Q_tall))
    return nodes, solution, _faults(matrix, behind, sign, _tolerance(operator))


def _faults(matrix, behind, sign, tolerance):
    """How far Q^T A Q is from symmetric, and its eigenvalues from their sign, beside its size."""
    size = jnp.max(jnp.where(behind | behind[:, None], 0, jnp.abs(matrix)))
    # behind a nearly exhausted Krylov space the basis is rounding
    unsure = behind | _behind(jnp.diagonal(matrix, -1) < tolerance * size)
    matrix = jnp.where(unsure | unsure[:, None], 0, matrix)
    asymmetry = jnp.max(jnp.abs(matrix - matrix.T))
    other_sign = jnp.max(-sign * jnp.linalg.eigvalsh(matrix))
    return jnp.stack([asymmetry, jnp.maximum(other_sign, 0)]) / jnp.where(size > 0, size, 1)


def _exhausted(operator, diagonal: Float[Array, " d"], off: Float[Array, " d-1"]):
    """Where the next direction is nothing but rounding; a NaN is not, and stays."""
    eps = float(jnp.finfo(operator.in_structure().dtype).eps)
    return jnp.abs(off) <= 16 * eps * jax.lax.cummax(jnp.abs(diagonal[:-1]))


def _behind(broken: Bool[Array, " d-1"]) -> Bool[Array, " d"]:
    """What comes behind the first break: the Krylov space was exhausted, and NaN is left there."""
    return jnp.concatenate([jnp.zeros(1, bool), jnp.cumsum(broken) > 0])


def _cut(
    diagonal: Float[Array, " d"], off: Float[Array, " d-1"], behind: Bool[Array, " d"]
) -> tuple[Array, Array]:
    """Cut the small matrix where the Krylov space was exhausted.

    Only behind what is zero to rounding: a NaN before comes from the operator and must stay.
    """
    return jnp.where(behind, 1, diagonal), jnp.where(behind[1:], 0, off)
