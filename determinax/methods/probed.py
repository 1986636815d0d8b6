"""Probing a known pattern: a few products reveal A, or nearly, and sampling corrects the rest."""

import dataclasses
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import scipy.sparse
import scipy.sparse.linalg
from jaxtyping import Array, PRNGKeyArray

from determinax import flows, sphere
from determinax import operators as ops
from determinax.estimate import Estimate
from determinax.flows.banded import band_widths, eliminate
from determinax.flows.base import dtype_of
from determinax.methods.base import AbstractMethod, require_key, whole_number
from determinax.methods.exact import physical_memory
from determinax.methods.monte_carlo import MonteCarlo
from determinax.operators import NO_PRODUCTS, OperatorError, Products
from determinax.progress import Report

# fresh products that say whether the pattern holds, and how many roundings they may differ by
CHECKS, _ROUNDINGS = 2, 32
# from this rounding on, in nats, an LU with pivoting is tried as well
_PIVOT_FROM = 1e-6
# bands in memory at a time: A's, its factors', those that measure rounding, and what JAX holds
_BANDS = 5


@dataclasses.dataclass(frozen=True, eq=False)
class Probed(AbstractMethod):
    r"""Reveal the entries of a known sparsity pattern, R, by colouring; factorise R; then sample.

    Use it for convolutions, banded and sparse operators: a 3x3 convolution of one channel takes 9
    products whatever the image. Fresh products then say whether A is R. If so, $\log|\det R|$ by
    elimination in its band is the answer, its rounding measured; if not, $M = R^{-1}$ is a
    proposal, and `num_samples` weights correct the difference without bias.

    **Arguments:**

    - `num_samples`: weights where the pattern is only nearly right.
    - `pattern`: where A may have entries: a SciPy sparse array, or `(below, above)`, the number of
        diagonals. None: known for convolutions, sparse, diagonal and tridiagonal operators.
    """

    num_samples: int = 100
    pattern: Any = None

    def __post_init__(self):
        object.__setattr__(self, "num_samples", whole_number(self.num_samples, "num_samples"))

    def estimate(
        self,
        operator: lx.AbstractLinearOperator,
        key: PRNGKeyArray | None,
        *,
        spent: Products = NO_PRODUCTS,
        progress: Report | None = None,
    ) -> Estimate:
        """Reveal, factorise, check, and correct if need be."""
        check_key, sample_key = jax.random.split(require_key(key, "Probed"))
        n = operator.in_size()
        found = reveal(operator, self.pattern)
        spent += Products(found.num_products + CHECKS)
        defect = _pattern_defect(operator, found.matrix, check_key)
        names = f"{found.num_products} products"
        eps = float(jnp.finfo(operator.in_structure().dtype).eps)
        if defect <= _ROUNDINGS * eps:
            note = (
                f"{names} revealed A by its pattern, and {CHECKS} more agreed with what they found."
            )
            return Estimate(
                log_abs_det=jnp.asarray(found.log_abs_det),
                standard_error=jnp.asarray(found.rounding),
                condition=jnp.asarray(found.rounding / eps),
                method=f"probed, {found.how}",
                num_matvecs=spent.total,
                num_transposed=spent.transposed,
                num_matvecs_dense=n,
                notes=(note,),
            )
        error = require_proposal(found, check_key)
        note = (
            f"{names} revealed what the pattern has of A; A differs from it by {defect:.1e} of its "
            f"size, which {self.num_samples:,} samples corrected."
        )
        preconditioned = ops.PreconditionedLinearOperator(operator, found.factor.multiply)
        estimate = MonteCarlo(self.num_samples).estimate(
            preconditioned, sample_key, spent=spent, progress=progress
        )
        estimate = estimate.moved(-found.factor.log_abs_det(), error=error)
        method = f"probed, {self.num_samples:,} samples"
        return dataclasses.replace(estimate, method=method).with_notes(note)


@dataclasses.dataclass(frozen=True)
class Revealed:
    """What probing found: R as a matrix, M = R^{-1} as a factor, log|det R|, its rounding.

    The factor has a rounding of its own, infinite where only pivoting could factorise R: then
    there is no M. Ask `require_proposal` before using it.
    """

    matrix: Any
    factor: flows.AbstractFactor
    factor_rounding: float
    log_abs_det: float
    rounding: float
    num_products: int
    how: str


def reveal(operator: lx.AbstractLinearOperator, pattern: Any = None) -> Revealed:
    """Probe the pattern (a SciPy sparse array, `(below, above)`, or None: known) and factorise."""
    if ops.is_traced(operator):
        raise ValueError("probing looks at values: call it outside of jit, vmap and grad")
    if isinstance(operator, ops.RealEmbedding):
        raise OperatorError("probing takes real operators only: use Exact() for a complex one")
    m, n = operator.out_size(), operator.in_size()
    if m != n:
        raise OperatorError(f"operator is {m}x{n}: probing factorises square operators only")
    pattern, circulant = _pattern(operator, pattern), is_circulant(operator)
    if not circulant:
        _require_memory(n, *band_widths(pattern))
    matrix, num_products = ops.probe(operator, pattern)
    dtype = operator.in_structure().dtype
    if circulant:
        factor, how = _circulant(operator, matrix), "by the FFT"
        spectrum = np.linalg.svd(np.asarray(factor.spectrum()), compute_uv=False)
        with np.errstate(divide="ignore"):  # a frequency that vanishes: -inf is right
            log_abs_det = float(np.sum(np.log(spectrum)))
            rounding = 4 * float(np.finfo(np.float64).eps * np.sum(np.max(spectrum) / spectrum))
        factor_rounding = rounding
    else:
        factor, log_abs_det, factor_rounding = eliminate(matrix, dtype)
        rounding = factor_rounding
        how = "elimination in the band"
        if not rounding < _PIVOT_FROM:
            pivoted, pivoted_rounding = _pivoted(matrix)
            if not rounding <= pivoted_rounding:
                log_abs_det, rounding, how = pivoted, pivoted_rounding, "sparse LU"
    # entries that products in float32 gave carry its rounding
    coarser = float(jnp.finfo(dtype).eps) / float(np.finfo(np.float64).eps)
    return Revealed(
        matrix=matrix,
        factor=flows.Inverse(factor),
        factor_rounding=coarser * factor_rounding,
        log_abs_det=log_abs_det,
        rounding=coarser * rounding,
        num_products=num_products,
        how=how,
    )


def is_circulant(operator: lx.AbstractLinearOperator) -> bool:
    """Whether the FFT factorises it, which needs no band."""
    return isinstance(operator, ops.ConvolutionLinearOperator) and operator.padding == "circular"


def band_memory(n: int, below: int, above: int) -> int:
    """What elimination in a band takes, in bytes."""
    return _BANDS * 8 * n * (below + 1 + above)


def _require_memory(n: int, below: int, above: int) -> None:
    need = band_memory(n, below, above)
    if need > physical_memory():
        raise ValueError(
            f"Probed() needs a band of {n}x{below + 1 + above} and its factors, "
            f"{need / 2**30:.0f} GiB: more than this machine has; use Auto(max_matvecs=...), "
            "MonteCarlo or Lanczos"
        )


def require_proposal(found: Revealed, key: PRNGKeyArray) -> float:
    """How far rounding may move the weights under M = R^{-1}, in nats; refuse where there is no M."""
    n = found.factor.n
    error = found.factor_rounding
    if math.isfinite(error):
        error += n * float(_solve_defect(found.factor, key))
    if not math.isfinite(error):
        raise OperatorError(
            "what the pattern has of the operator is singular, or a zero on its diagonal stops an "
            "elimination without pivoting, so its inverse is no proposal: permute the operator's "
            "rows until the diagonal has no zeros (|det| stays), or use Exact() or MonteCarlo()"
        )
    return error


def _circulant(operator: Any, matrix) -> flows.Circulant:
    """The kernel as large as the image: the response to the first pixel of each channel."""
    shape, (channels, _) = operator.image_shape, operator.kernel.shape[:2]
    responses = matrix[:, :: math.prod(shape)].toarray()
    kernel = np.moveaxis(responses.reshape(channels, *shape, channels), -1, 1)
    identity = flows.Circulant(shape, channels, dtype=kernel.dtype)
    return eqx.tree_at(lambda f: f.kernel, identity, jnp.asarray(kernel))


def _pivoted(matrix) -> tuple[float, float]:
    """log|det R| by SciPy's sparse LU, and the rounding that its condition number allows."""
    csc = scipy.sparse.csc_array(matrix, dtype=np.float64)
    try:
        lu = scipy.sparse.linalg.splu(csc)
    except RuntimeError:  # "Factor is exactly singular"
        return -math.inf, math.inf
    sla: Any = scipy.sparse.linalg  # its stubs know neither of these
    solves = {"matvec": lu.solve, "rmatvec": lambda x: lu.solve(x, trans="T")}
    inverse = sla.LinearOperator(csc.shape, dtype=csc.dtype, **solves)
    condition = float(sla.onenormest(inverse)) * float(sla.norm(csc, 1))
    value = float(np.sum(np.log(np.abs(lu.U.diagonal()))))
    eps = float(np.finfo(np.float64).eps)
    return value, eps * (condition + 4 * (matrix.shape[0] + abs(value)))


def _pattern(operator, pattern: Any) -> Any:
    if pattern is None:
        pattern = ops.known_pattern(operator)
        if pattern is None:
            raise OperatorError(
                "the operator's pattern is not known: pass pattern=, a SciPy sparse array with "
                "entries where A may have some, or (below, above), its number of diagonals"
            )
        return pattern
    if scipy.sparse.issparse(pattern):
        return pattern
    try:
        below, above = (whole_number(size, "pattern", least=0) for size in pattern)
    except TypeError as error:
        raise ValueError(
            f"pattern is a SciPy sparse array or (below, above), not {pattern!r}"
        ) from error
    return ops.banded_pattern(operator.in_size(), below, above)


def _pattern_defect(operator, matrix, key) -> float:
    """The largest difference between A and R on random directions, over |R| times their size."""
    z = sphere.uniform(key, operator.in_size(), CHECKS, operator.in_structure().dtype)
    images = np.asarray(_columns(operator, z))
    size = abs(matrix) @ np.abs(z)
    scale = np.maximum(size, np.finfo(images.dtype).tiny)
    defect = float(np.max(np.abs(images - matrix @ np.asarray(z)) / scale))
    return defect if math.isfinite(defect) else math.inf


_columns = eqx.filter_jit(ops.columns)


@eqx.filter_jit
def _solve_defect(factor: flows.AbstractFactor, key) -> Array:
    """How far R M z is from z: what rounding does to the proposal."""
    z = sphere.uniform(key, factor.n, CHECKS, dtype_of(factor))
    return jnp.max(jnp.linalg.norm(factor.solve(factor.multiply(z)) - z, axis=0))
