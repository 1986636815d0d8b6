"""What is known of an operator's entries, factorised: log|det|, and M = R^{-1} for a proposal.

A sparse matrix that is given is factorised as it is; of an operator with a known pattern, probing
reveals R first. What it takes in seconds and memory is known before it starts. Methods estimate with
it, and training starts from it.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import scipy.sparse
from jax.core import Tracer
from jaxtyping import Array, PRNGKeyArray

from determinax import _checks, flows, sphere
from determinax import operators as ops
from determinax._checks import whole_number
from determinax.flows.banded import band_memory, band_seconds, band_widths, eliminate
from determinax.flows.base import dtype_of
from determinax.operators import OperatorError

# fresh products that say whether a pattern holds
CHECKS = 2
# from this rounding on, in nats, elimination in the band is tried as well
_TRY_BAND = 1e-6
EPS = float(np.finfo(np.float64).eps)
# of probing, measured on one core, rather too much than too little: seconds to compile, and for an entry,
# pattern and order of elimination included; multiply-adds a second in a convolution; bytes for an entry,
# and how often a product of each colour is in memory
_START_SECONDS, _ENTRY_SECONDS, _RATE = 0.5, 4e-7, 5e9
_ENTRY_BYTES, _IMAGES = 110, 9


class Probing(NamedTuple):
    """What probing takes, known before it starts: products, entries, seconds and bytes."""

    num_products: int
    entries: int
    seconds: float
    bytes: int

    def __str__(self) -> str:
        return in_words(self.seconds, self.bytes)


class Found(NamedTuple):
    """log|det|, its sign (1, -1; 0 where singular; None of complex ones), rounding in float64."""

    log_abs_det: float
    sign: float | None
    rounding: float
    how: str
    cost: str


# what is told, before it starts, what something takes
Tell = Callable[[str], Any]


def factorised(
    matrix: Any, *, memory: float, seconds: float = math.inf, tell: Tell | None = None
) -> Found | str:
    """Factorise a square SciPy sparse array, or say what it would take."""
    pivoted = _pivoted(matrix, memory, seconds, tell)
    if isinstance(pivoted, Found) and pivoted.rounding < _TRY_BAND:
        return pivoted
    if np.iscomplexobj(matrix.data) or matrix.nnz == 0:
        return pivoted
    n, (below, above) = matrix.shape[0], band_widths(matrix)
    needed, lasting = band_memory(n, below, above), band_seconds(n, below, above)
    if needed > memory or lasting > seconds:
        return pivoted
    cost = in_words(lasting, needed)
    if tell:
        tell(cost)
    found = eliminate(matrix)
    banded = Found(found.log_abs_det, found.sign, found.rounding, "elimination in the band", cost)
    if isinstance(pivoted, str):
        return banded
    return banded if banded.rounding < pivoted.rounding else pivoted


def _pivoted(matrix: Any, memory: float, seconds: float, tell: Tell | None) -> Found | str:
    for trial in (True, False):
        prepared = ops.prepare(matrix, trial=trial)
        cost = in_words(prepared.seconds, prepared.bytes)
        if not prepared.is_countable:
            return f"{cost}, and more entries than SuperLU can count"
        if prepared.bytes > memory or prepared.seconds > seconds:
            return cost
        if tell:
            tell(cost)
        found = ops.factorise(prepared)
        if found is not None:
            rounding = EPS * (found.condition + 4 * found.log_size)
            return Found(found.log_abs_det, found.sign, rounding, found.how, cost)
    raise AssertionError("a factorisation with pivoting ends")


def in_words(seconds: float, memory: float) -> str:
    """What something is reckoned to take."""
    shown = f"{seconds:.1f}" if seconds < 10 else f"{seconds:,.0f}"
    return f"about {shown} s and {bytes_in_words(memory)}"


def bytes_in_words(memory: float) -> str:
    """In MB or GB."""
    return f"{memory / 1e6:,.0f} MB" if memory < 1e9 else f"{memory / 1e9:,.1f} GB"


class Revealed(NamedTuple):
    """What probing found: R as a matrix, and as a circulant factor where it is one."""

    matrix: Any
    circulant: flows.Circulant | None
    num_products: int
    dtype: Any

    def log_abs_det(self, seconds: float = math.inf, tell: Tell | None = None) -> Found | str:
        """Of R; or what finding it would take, where that is longer, or more than there is memory."""
        if self.circulant is None:
            memory = _checks.physical_memory()
            return factorised(self.matrix, memory=memory, seconds=seconds, tell=tell)
        return Found(*_by_frequencies(self.circulant), "by the FFT", "")


def reveal(
    operator: lx.AbstractLinearOperator, pattern: Any = None, tell: Tell | None = None
) -> Revealed:
    """Probe the pattern: a SciPy sparse array, `(below, above)`, or None: known."""
    if ops.is_compiling() or any(isinstance(x, Tracer) for x in jax.tree.leaves(operator)):
        raise ValueError("probing looks at values: call it outside of jit, vmap and grad")
    if isinstance(operator, ops.RealEmbedding):
        raise OperatorError("probing takes real operators only: use Exact() for a complex one")
    m, n = operator.out_size(), operator.in_size()
    if m != n:
        raise OperatorError(f"operator is {m}x{n}: probing factorises square operators only")
    need = probing(operator, pattern)
    if tell:
        tell(f"probing {need.entries:,} entries of a pattern, {need}")
    _checks.require_memory(
        need.bytes,
        f"Probed() needs {need.entries:,} entries of a pattern and {need.num_products:,} products",
        "give a narrower pattern, or use Auto(max_matvecs=...), MonteCarlo or Lanczos",
    )
    matrix, num_products = ops.probe(operator, _pattern_of(operator, pattern))
    circulant = _circulant(ops.untagged(operator), matrix) if is_circulant(operator) else None
    return Revealed(matrix, circulant, num_products, operator.in_structure().dtype)


def probing(operator: lx.AbstractLinearOperator, pattern: Any = None) -> Probing:
    """What `reveal` takes: of bands and of the kinds that have an outline, without their pattern."""
    n, itemsize = operator.in_size(), operator.in_structure().dtype.itemsize
    kind: Any = ops.untagged(operator)
    found = None
    if pattern is None:
        found = ops.outline(kind)
    elif not scipy.sparse.issparse(pattern):
        found = ops.banded_outline(n, *_diagonals(pattern))
    if found is None:
        where = scipy.sparse.csr_array(_pattern_of(operator, pattern))
        # a row's columns differ in colour: there are at least so many
        found = ops.Outline(where.nnz, int(np.max(np.diff(where.indptr), initial=0)))
    entries, colours = found
    seconds = _START_SECONDS + _ENTRY_SECONDS * entries
    needed = _ENTRY_BYTES * entries + _IMAGES * itemsize * n * colours
    if isinstance(kind, ops.ConvolutionLinearOperator):
        seconds += float(entries) * colours / _RATE
    if is_circulant(operator):  # a matrix for each frequency, and its singular values
        channels: int = kind.kernel.shape[0]
        seconds += 25.0 * n * channels**2 / _RATE
        needed += 48 * n * channels
    return Probing(colours, entries, seconds, needed)


def _by_frequencies(factor: flows.Circulant) -> tuple[float, None, float]:
    """log|det|, no sign, and the rounding of the first in double precision."""
    spectrum = np.linalg.svd(np.asarray(factor.spectrum()), compute_uv=False)
    with np.errstate(divide="ignore"):  # a frequency that vanishes: -inf is right
        log_abs_det = float(np.sum(np.log(spectrum)))
        rounding = 4 * EPS * float(np.sum(np.max(spectrum) / spectrum))
    return log_abs_det, None, rounding


def inverse(found: Revealed, key: PRNGKeyArray) -> tuple[flows.AbstractFactor, float]:
    """M = R^{-1}, and how far rounding may move the weights under it, in nats; refused if no M."""
    n = found.matrix.shape[0]
    if found.circulant is None:
        require_band(found.matrix)
        banded = eliminate(found.matrix, found.dtype)
        factor, error = flows.Inverse(banded.factor), banded.rounding
    else:
        factor, error = flows.Inverse(found.circulant), _by_frequencies(found.circulant)[2]
    error *= float(jnp.finfo(found.dtype).eps) / EPS
    if math.isfinite(error):
        error += n * float(_solve_defect(factor, key))
    if not math.isfinite(error):
        raise OperatorError(
            "what the pattern has of the operator is singular, or a zero on its diagonal stops an "
            "elimination without pivoting, so its inverse is no proposal: permute the operator's "
            "rows until the diagonal has no zeros (|det| stays), or use Exact() or MonteCarlo()"
        )
    return factor, error


def require_band(matrix: Any) -> None:
    """Refuse a band that does not fit."""
    n, (below, above) = matrix.shape[0], band_widths(matrix)
    _checks.require_memory(
        band_memory(n, below, above),
        f"Probed() needs a band of {n}x{below + 1 + above} and its factors",
        "use Auto(max_matvecs=...), MonteCarlo or Lanczos",
    )


def is_circulant(operator: lx.AbstractLinearOperator) -> bool:
    """Whether the FFT factorises it, which needs no band."""
    kind: Any = ops.untagged(operator)
    return isinstance(kind, ops.ConvolutionLinearOperator) and kind.padding == "circular"


def _circulant(operator: Any, matrix: Any) -> flows.Circulant:
    """The kernel as large as the image: the response to the first pixel of each channel."""
    shape, (channels, _) = operator.image_shape, operator.kernel.shape[:2]
    responses = matrix[:, :: math.prod(shape)].toarray()
    kernel = np.moveaxis(responses.reshape(channels, *shape, channels), -1, 1)
    identity = flows.Circulant(shape, channels, dtype=kernel.dtype)
    return eqx.tree_at(lambda f: f.kernel, identity, jnp.asarray(kernel))


def _pattern_of(operator: lx.AbstractLinearOperator, pattern: Any) -> Any:
    if pattern is None:
        pattern = ops.pattern(ops.untagged(operator))
        if pattern is None:
            raise OperatorError(
                "the operator's pattern is not known: pass pattern=, a SciPy sparse array with "
                "entries where A may have some, or (below, above), its number of diagonals"
            )
        return pattern
    if scipy.sparse.issparse(pattern):
        return pattern
    return ops.banded_pattern(operator.in_size(), *_diagonals(pattern))


def _diagonals(pattern: Any) -> tuple[int, int]:
    try:
        below, above = (whole_number(size, "pattern", least=0) for size in pattern)
    except TypeError as error:
        raise ValueError(
            f"pattern is a SciPy sparse array or (below, above), not {pattern!r}"
        ) from error
    return below, above


def pattern_defect(operator: lx.AbstractLinearOperator, matrix: Any, key: PRNGKeyArray) -> float:
    """The largest difference between A and R on random directions, over |R| times their size."""
    z = sphere.uniform(key, operator.in_size(), CHECKS, operator.in_structure().dtype)
    images = np.asarray(ops.compiled_columns(operator, z))
    size = abs(matrix) @ np.abs(z)
    scale = np.maximum(size, np.finfo(images.dtype).tiny)
    defect = float(np.max(np.abs(images - matrix @ np.asarray(z)) / scale))
    return defect if math.isfinite(defect) else math.inf


@eqx.filter_jit
def _solve_defect(factor: flows.AbstractFactor, key: PRNGKeyArray) -> Array:
    """How far R M z is from z: what rounding does to the proposal."""
    z = sphere.uniform(key, factor.n, CHECKS, dtype_of(factor))
    return jnp.max(jnp.linalg.norm(factor.solve(factor.multiply(z)) - z, axis=0))
