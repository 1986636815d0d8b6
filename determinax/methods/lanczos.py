"""Stochastic Lanczos quadrature, the neighbours' method, by matfree."""

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
import matfree.decomp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from determinax import _checks, _linalg, sphere
from determinax._checks import counted, require_key, whole_number
from determinax._diagnostics import (
    ASYMMETRIC,
    NEGATIVE,
    OTHER_SIGN,
    PROBE,
    THRESHOLDS,
    Quadrature,
)
from determinax._keys import stream
from determinax._linalg import log_norm
from determinax._states import Fault, Spread
from determinax.estimate import Estimate
from determinax.methods._base import Plan, registered
from determinax.methods._traced import AbstractDrawing
from determinax.operators import OperatorError, Products, Traits, has_transpose, traits

# what the Lanczos bases of the probes in memory may hold together, and how often XLA copies them
_BASIS_ENTRIES, _COPIES = 2**26, 3
# a recurrence is exhausted where the next direction is so many roundings of the largest before it: a
# step leaves a few of them, and a direction of sixteen has no digit. Chosen, not measured
_EXHAUSTED = 16
# a tag is wrong where it is by more than so many times the square root of the dtype's epsilon: rounding
# is near epsilon itself, and half of the digits are left to whoever made the matrix. Chosen, not measured
_WRONG_TAG = 10


class Probes(eqx.Module):
    """What the probes gave at full and at half depth, and the derivative of their sum."""

    values: Spread
    halves: Spread
    slope: Float[Array, ""]  # zero, with the gradient of the values' sum
    fault: Fault

    def merge(self, other: "Probes") -> "Probes":
        """Of the probes of both."""
        return Probes(
            self.values.merge(other.values),
            self.halves.merge(other.halves),
            self.slope + other.slope,
            self.fault.merge(other.fault),
        )


@registered("lanczos")
class Lanczos(AbstractDrawing):
    r"""$\log|\det A| = \frac12 \operatorname{tr}\log A^\top A$ by random probes and quadrature.

    Use it for broad spectra with fewer than n products, where sampling weights fails. Operators
    tagged positive (or negative) semidefinite cost one product a step, others one with A and one
    with its transpose; `lx.TaggedLinearOperator(as_operator(a), lx.positive_semidefinite_tag)` tags any
    operator. The quadrature errs upward until it has converged; its change from half its depth is
    part of the standard error, and decides the verdict.

    **Arguments:**

    - `num_probes`: independent random vectors.
    - `depth`: Lanczos steps for each; more than n bring nothing and are not taken.

    Memory is three times the bases of the probes that run at a time, a basis being `depth` vectors
    (twice as many unless definite). As many run at a time as have up to 2^26 numbers in their bases,
    but at least one.

    matfree decomposes; the quadrature is ours, since it must survive an exhausted Krylov space
    (a multiple of the identity) and be read at half its depth. The gradient is that of the trace,
    $n\,\mathbb{E}\langle A^{-\top} e, \mathrm{d}A\, e\rangle$, with the solve in the same Krylov space: one
    more product a probe, and first derivatives only.

    !!! example

        ```python
        dx.log_abs_det(A, dx.Lanczos(num_probes=20, depth=5), key=key)
        ```

    References: Ubaru, Chen and Saad (2017); Golub and Kahan (1965); for the gradient Dong, Eriksson,
    Nickisch, Bindel and Wilson (2017), arXiv:1711.03481.
    """

    logs: ClassVar[bool] = False
    num_probes: int = eqx.field(static=True)
    depth: int = eqx.field(static=True)

    def __init__(self, num_probes: int = 30, depth: int = 30):
        self.num_probes = whole_number(num_probes, "num_probes")
        self.depth = whole_number(depth, "depth")

    def _depth(self, t: Traits) -> int:
        return min(self.depth, t.cols)

    def plan(self, traits: Traits) -> Plan:
        """See `AbstractMethod`: as many probes side by side as their bases leave room for."""
        memory = _checks.physical_memory() // (2 * _COPIES * _itemsize())
        room = min(_BASIS_ENTRIES, memory) // _basis_entries(traits, self._depth(traits))
        # in a few pieces, so that there is something to report
        most = max(8, -(-self.num_probes // 8))
        return Plan.of(self.num_probes, max(1, min(room, most)))

    def cost(self, traits: Traits) -> Products:
        """See `AbstractMethod`: and one product to find the scale."""
        steps = self.num_probes * self._depth(traits)
        return Products(steps + 1, 0 if traits.sign else steps)

    def require(self, operator: lx.AbstractLinearOperator, key: PRNGKeyArray | None) -> None:
        """See `AbstractMethod`."""
        require_key(key, "Lanczos")
        if traits(operator).sign == 0 and not has_transpose(operator):
            raise OperatorError(
                "Lanczos needs products with the transpose, and the operator has no transpose (a SciPy "
                "LinearOperator: give it an rmatvec): use MonteCarlo, or pass a lineax operator that "
                "has one"
            )
        self._require_memory(traits(operator))

    def memory(self, traits: Traits) -> int:
        """See `AbstractMethod`: the bases of the probes in memory."""
        size = self.plan(traits).size
        bases = _COPIES * size * _basis_entries(traits, self._depth(traits))
        return _itemsize() * (bases + size * (traits.cols + 2 * traits.rows))

    def _require_memory(self, t: Traits) -> None:
        _checks.require_memory(
            self.memory(t),
            f"Lanczos needs {self._depth(t):,} vectors of {t.cols:,} numbers for a probe",
            "lower depth, or use MonteCarlo, which keeps none",
        )

    def prepare(
        self, operator: lx.AbstractLinearOperator, key: PRNGKeyArray | None
    ) -> Float[Array, ""]:
        r"""The log of the operator's scale, which $A^\top A$ would square: that of one product."""
        t = traits(operator)
        probe = sphere.uniform(stream(key, "scale"), t.cols, 1, t.dtype)
        log_size = log_norm(operator.mv(probe[:, 0])[:, None])[0]
        return jax.lax.stop_gradient(jnp.where(jnp.isfinite(log_size), log_size, 0))

    def empty(self, operator: lx.AbstractLinearOperator, prepared: Any) -> Probes:
        """See `AbstractMethod`."""
        none, zero = Spread.of(jnp.zeros(0)), jnp.zeros(())
        return Probes(none, none, zero, Fault.none())

    def chunk_and_draws(
        self,
        operator: lx.AbstractLinearOperator,
        prepared: Float[Array, ""],
        key: PRNGKeyArray | None,
        index: Int[Array, ""],
        size: int,
    ) -> tuple[Probes, Float[Array, "size 1"]]:
        """See `AbstractDrawing`: the draws are the quadratures of single probes."""
        t = traits(operator)
        depth, n = self._depth(t), t.cols
        probes = sphere.uniform(stream(key, "probes", index), n, size, t.dtype).astype(float)
        still = _linalg.held(operator)
        values, halves, faults, solutions = jax.lax.stop_gradient(
            jax.vmap(lambda e: _quadrature(still, e, prepared, depth, t.sign), in_axes=1)(probes)
        )
        # the images are needed for the derivative alone: where nobody asks, XLA leaves them out
        images = jax.vmap(_scaled_product(operator, jnp.exp(prepared)), in_axes=1)(probes)
        slope = n * jnp.sum(_first_derivative(solutions, images))
        bad = jnp.isnan(values)
        asymmetry, other_sign = jnp.max(faults, axis=0)
        limit, tag = _tolerance(operator), NEGATIVE if t.sign < 0 else 0
        fault = Fault.when(asymmetry > limit, ASYMMETRIC + tag, -2, asymmetry)
        fault = fault.merge(Fault.when(other_sign > limit, OTHER_SIGN + tag, -1, other_sign))
        first = index * self.plan(t).size
        fault = fault.merge(Fault.when(bad.any(), PROBE, first + jnp.argmax(bad)))
        return Probes(Spread.of(values), Spread.of(halves), slope, fault), values[:, None]

    def has_enough(self, state: Probes) -> Any:
        """See `AbstractMethod`."""
        return state.values.num >= THRESHOLDS["num_probes"].warn

    def summarise(
        self, operator: lx.AbstractLinearOperator, prepared: Float[Array, ""], state: Probes
    ) -> Estimate:
        """See `AbstractMethod`."""
        t = traits(operator)
        n, depth, factor = t.cols, self._depth(t), t.log_det_factor
        rounding = n * t.eps
        num = jnp.maximum(state.values.num, 1)
        # one probe has no error of its own; too few are told by the verdict
        error = jnp.where(num > 1, state.values.error, 0)
        bias = jnp.abs(state.halves.mean - state.values.mean) if depth < n else jnp.zeros(())
        if depth == 1 < n:  # nothing to compare with
            bias = jnp.full((), jnp.inf)
        error, bias = jnp.maximum(error, rounding), jnp.maximum(bias - rounding, 0)
        steps = state.values.num * depth
        value = state.values.mean + state.slope / num + n * prepared
        # a wrong tag is refused outside; where traced it cannot be, and is NaN
        value = jnp.where(state.fault.code > 0, jnp.nan, value)
        return Estimate(
            log_abs_det=factor * value,
            standard_error=factor * jnp.hypot(error, bias),
            diagnostics=Quadrature(state.values.num, bias / error),
            cost=Products(steps + 1, jnp.zeros_like(steps) if t.sign else steps),
            fault=state.fault,
            method=f"Lanczos, {counted(self.num_probes, 'probe')} of depth {depth}",
            num_dense=t.num_dense,
        )


def _basis_entries(t: Traits, depth: int) -> int:
    """Of one probe: its basis, and the small matrices that are factorised."""
    return depth * (t.cols if t.sign else t.cols + t.rows) + 2 * depth**2


def _itemsize() -> int:
    """Bytes of a number in the recurrences, which are in the widest type that is switched on."""
    return jnp.result_type(float).itemsize


def _quadrature(operator, probe, log_scale, depth, sign):
    r"""$n\,e^\top \log|A|\,e$ at full and at half depth, how far A is from its tag, and $A^{-\top} e$."""
    n, scale = operator.in_size(), jnp.exp(log_scale)
    decompose = _tridiagonal if sign else _bidiagonal
    nodes, solution, faults = decompose(operator, scale, depth, sign, probe)
    return n * nodes(depth), n * nodes(max(depth // 2, 1)), faults, solution


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
    return _WRONG_TAG * float(jnp.finfo(operator.in_structure().dtype).eps) ** 0.5


def _scaled_product(operator, scale):
    """Products in the operator's dtype, recurrences in the widest: matfree knows only that one."""
    dtype = operator.in_structure().dtype
    return lambda v: (operator.mv(v.astype(dtype)) / scale).astype(float)


def _bidiagonal(operator, scale, depth, sign, probe):
    del sign
    product = _scaled_product(operator, scale)
    result = matfree.decomp.bidiag(depth, materialize=False, reortho="full")(product, probe)
    diagonal, off = result.J_small
    behind = _behind(_exhausted(operator, diagonal, off) | (diagonal[:-1] == 0))
    alphas, betas = _cut(diagonal, off, behind)

    def nodes(d):
        matrix = jnp.diag(alphas[:d]) + jnp.diag(betas[: d - 1], 1)
        _, values, vt = _linalg.svd(matrix)
        return jnp.sum(vt[:, 0] ** 2 * jnp.log(values))

    # A (A^T A)^{-1} e = U B^{-T} e_1
    lower = jnp.diag(alphas) + jnp.diag(betas, -1)
    y = _linalg.solve_triangular(lower, jnp.eye(depth)[0], lower=True)
    left, _ = result.Q_tall
    return nodes, y @ jnp.where(behind[:, None], 0, left), jnp.zeros(2)


def _tridiagonal(operator, scale, depth, sign, probe):
    # not tridiag_sym: its averaged off-diagonal hides the exact zero of an exhausted Krylov space
    decompose = matfree.decomp.hessenberg(depth, reortho="full", custom_vjp=False)
    result = decompose(_scaled_product(operator, scale), probe)
    matrix = jnp.asarray(result.J_small)
    behind = _behind(_exhausted(operator, jnp.diagonal(matrix), jnp.diagonal(matrix, -1)))
    diagonal, off = _cut(jnp.diagonal(matrix), jnp.diagonal(matrix, -1), behind)
    small = jnp.diag(diagonal) + jnp.diag(off, 1) + jnp.diag(off, -1)

    def nodes(d):
        values, vectors = _linalg.eigh(small[:d, :d])
        return jnp.sum(vectors[0] ** 2 * jnp.log(jnp.abs(values)))

    y = _linalg.solve(small, jnp.eye(depth)[0])
    solution = y @ jnp.where(behind[:, None], 0, jnp.asarray(result.Q_tall))
    return nodes, solution, _faults(matrix, behind, sign, _tolerance(operator))


def _faults(matrix, behind, sign, tolerance):
    """How far Q^T A Q is from symmetric, and its eigenvalues from their sign, beside its size."""
    size = jnp.max(jnp.where(behind | behind[:, None], 0, jnp.abs(matrix)))
    # behind a nearly exhausted Krylov space the basis is rounding
    unsure = behind | _behind(jnp.diagonal(matrix, -1) < tolerance * size)
    matrix = jnp.where(unsure | unsure[:, None], 0, matrix)
    asymmetry = jnp.max(jnp.abs(matrix - matrix.T))
    other_sign = jnp.max(-sign * _linalg.eigh(matrix)[0])
    return jnp.stack([asymmetry, jnp.maximum(other_sign, 0)]) / jnp.where(size > 0, size, 1)


def _exhausted(operator, diagonal: Float[Array, " d"], off: Float[Array, " d-1"]):
    """Where the next direction is nothing but rounding; a NaN is not, and stays."""
    eps = float(jnp.finfo(operator.in_structure().dtype).eps)
    return jnp.abs(off) <= _EXHAUSTED * eps * jax.lax.cummax(jnp.abs(diagonal[:-1]))


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
