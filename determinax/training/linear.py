r"""Fit the best proposal there is: $s = Mz/\|Mz\|$ with $M \approx A^{-1}$, by linear algebra."""

import math
import time
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from determinax import _shell, flows
from determinax import operators as ops
from determinax._checks import counted, require_key, whole_number
from determinax._diagnostics import THRESHOLDS
from determinax._interrupts import heeded
from determinax._keys import stream
from determinax._revealed import inverse, reveal
from determinax.methods import log_weights
from determinax.operators import OperatorError, Products
from determinax.proposals import Proposal, cast
from determinax.training._base import Fit, Record
from determinax.training._loop import run
from determinax.training.projected import ProjectedFitter
from determinax.training.secant import SecantFitter, require_memory

# fresh log-weights of a probed proposal
_PROBE_CHECKS = 8
# products in units of n when nothing is said, for blocks: measured need is half of it
_BUDGET_TWO_SIDED, _BUDGET_FORWARD, _BUDGET_STRUCTURED = 100, 400, 32


@heeded()
def fit_linear(
    operator: Any,
    *,
    key: PRNGKeyArray,
    structure: Literal["dense", "probe"] | flows.AbstractFactor = "dense",
    pattern: Any = None,
    transpose: bool | Literal["auto"] = "auto",
    block_size: int | None = None,
    max_matvecs: int | None = None,
    tolerance: float = 1e-11,
    start: Fit | Proposal | None = None,
    example: Any = None,
    **options: Any,
) -> Fit:
    r"""Fit $s = Mz/\|Mz\|$ to an operator until one sample gives $|\det A|$.

    Use it before `Variational(fit.proposal, num_samples)`, and to follow an operator that moves:
    hand the last fit over as `start`. Fresh log-weights of every step come before the step's
    update, so `history` has an honest estimate for each: `log_abs_det`, and their `spread` (NaN for
    a frame of one direction).

    **Arguments:**

    - `operator`: what `log_abs_det` takes; tall operators work too.
    - `structure`: `"dense"`: any M, by the secant update. `"probe"`: $M = R^{-1}$ for what probing
        finds in a known sparsity pattern (`Probed` estimates with it in one go); of the options
        below it takes `pattern` and `tolerance`. Or a factor to start from, such as
        `flows.Diagonal(n)`: the update is projected on its family.
    - `pattern`: for `"probe"`, as in `Probed`.
    - `transpose`: use products with the transpose, which saves three in four of the products when
        blocks are smaller than n; "auto": where the operator has one and blocks are smaller than n.
    - `block_size`: directions in a frame, k. None: n, the cheapest where the budget allows 2n
        products; else a quarter of what the budget has in products. For a structured family n/4.
    - `max_matvecs`: the budget, transposed products included. None: 2n with full frames, and for
        smaller ones 100 n with the transpose and 400 n without; 32 n for a structured family.
    - `tolerance`: stop when fresh log-weights spread by less, in nats (never less than rounding);
        the fit has `converged` if those of the last step do.
    - `start`: a fit or a projective linear proposal to start from, instead of M = I.
    - `example`: an input of a callable operator.
    - `checkpoint`, `resume`, `progress`: see `determinax.training.train`.

    Memory is four arrays of n x n and ten of n x k, a step takes O(n^2 k). Ctrl-C ends it with
    `FitInterrupted`, whose `fit` has what came before.

    !!! example

        ```python
        fit = dx.fit_linear(A, key=key)    # 2n products
        dx.log_abs_det(A, dx.Variational(fit.proposal, 1), key=key)    # one more, and exact
        ```
    """
    is_family = isinstance(structure, flows.AbstractFactor)
    if not is_family and structure not in ("dense", "probe"):
        raise ValueError(
            f'structure is "dense", "probe" or a factor such as flows.Diagonal(n), not {structure!r}'
        )
    admitted = ops.admit(operator, example)
    entered, spent = admitted.operator, admitted.spent
    ops.require_not_wide(entered)
    key = require_key(key, "fit_linear")
    n, dtype = entered.in_size(), entered.in_structure().dtype
    tolerance = max(float(tolerance), 4 * math.sqrt(n) * float(jnp.finfo(dtype).eps))
    if structure == "probe":
        return _fit_probed(entered, key, pattern, tolerance, spent)
    if is_family:
        max_matvecs = _BUDGET_STRUCTURED * n if max_matvecs is None else max_matvecs
        if block_size is None:
            block_size = max(1, min(n, whole_number(max_matvecs, "max_matvecs") // 2) // 4)
        plan = _plan(entered, transpose, block_size, max_matvecs, spent)
        _require_family(structure, n, start)
        require_memory(entered, plan.block_size, "fit_linear")
        fitter = ProjectedFitter(
            operator=entered,
            transpose=plan.transpose,
            start=cast(structure, dtype),
            block_size=plan.block_size,
            tolerance=tolerance,
        )
    else:
        plan = _plan(entered, transpose, block_size, max_matvecs, spent)
        require_memory(entered, plan.block_size, "fit_linear")
        matrix, log_abs_det = _start(start, n, dtype)
        fitter = SecantFitter(
            operator=entered,
            transpose=plan.transpose,
            start=matrix,
            log_abs_det=log_abs_det,
            block_size=plan.block_size,
            tolerance=tolerance,
        )
    return run(fitter, key=key, steps=plan.num_steps, spent=spent, **options)


def _start(start: Fit | Proposal | None, n: int, dtype: Any) -> tuple[Array, Array]:
    """M and its log-determinant to start from, in the operator's dtype."""
    identity = jnp.eye(n, dtype=dtype)
    if start is None:
        return identity, jnp.zeros((), dtype)
    proposal = start.proposal if isinstance(start, Fit) else start
    flow = proposal.flow if isinstance(proposal, Proposal) else None
    if not isinstance(flow, flows.ProjectiveLinear) or flow.n != n:
        raise ValueError(f"start is a fit or a projective linear proposal in {n} dimensions")
    factor = cast(flow.factor, dtype)
    return factor.multiply(identity), factor.log_abs_det().astype(dtype)


def _fit_probed(operator, key, pattern, tolerance: float, spent: Products) -> Fit:
    """M = R^{-1}, and a few fresh weights to see how well it fits."""
    began = time.perf_counter()
    found = _shell.guarded(operator, reveal, operator, pattern)
    factor, error = inverse(found, stream(key, "defect"))
    if error > THRESHOLDS["rounding"].unreliable:
        raise OperatorError(
            f"what the pattern has of the operator is so ill-conditioned that rounding may move the "
            f'weights under its inverse by {error:.1g} nats: use float64, or structure="dense"'
        )
    proposal = Proposal(flows.ProjectiveLinear(factor))
    fresh = stream(key, "fresh")
    log_w = _shell.guarded(operator, _fresh_log_weights, operator, proposal, fresh)
    history = {name: np.asarray(x)[None] for name, x in Record.of(log_w)._asdict().items()}
    spent += Products(found.num_products + _PROBE_CHECKS)
    return Fit(
        proposal=proposal,
        history=history,
        num_skipped=0,
        seconds=time.perf_counter() - began,
        num_matvecs=spent.total,
        num_transposed=spent.transposed,
        converged=bool(history["spread"][-1] < tolerance / 4),
    )


@eqx.filter_jit
def _fresh_log_weights(operator, proposal: Proposal, key) -> Float[Array, " num"]:
    return log_weights(operator, *proposal.sample_columns(key, _PROBE_CHECKS))


def _require_family(factor: flows.AbstractFactor, n: int, start) -> None:
    if factor.n != n:
        raise ValueError(
            f"the factor has {factor.n} dimensions and the operator takes vectors of {n}: build it "
            f"with n = {n}"
        )
    if not jax.tree.leaves(eqx.filter(factor, flows.trainable(factor))):
        raise ValueError(
            f"a {type(factor).__name__} has no parameters to fit: use it as it is, with "
            'Variational(Proposal(flows.ProjectiveLinear(factor)), ...), or take structure="dense"'
        )
    if start is not None:
        raise ValueError("a structured fit starts from the factor itself: give no start beside it")


class _Plan(NamedTuple):
    block_size: int
    num_steps: int
    transpose: lx.AbstractLinearOperator | None


def _plan(operator, transpose, block_size, max_matvecs, spent: Products) -> _Plan:
    n = operator.in_size()
    if transpose not in (True, False, "auto"):
        raise ValueError(f'transpose is True, False or "auto", not {transpose!r}')
    budget = None
    if max_matvecs is not None:
        budget = whole_number(max_matvecs, "max_matvecs") - spent.total
    if block_size is None:
        block_size = n if budget is None or budget >= 2 * n else max(1, budget // 4)
    k = whole_number(block_size, "block_size")
    if k > n:
        raise ValueError(f"block_size is at most n = {n}, not {k}")
    # a full frame tells everything about A: its transpose adds nothing
    wanted = k < n if transpose == "auto" else transpose
    transposed = _transposed(operator, required=transpose is True) if wanted else None
    if budget is None:
        blocks = _BUDGET_FORWARD if transposed is None else _BUDGET_TWO_SIDED
        budget = (2 if k == n else blocks) * n
    cost = k if transposed is None else 2 * k
    if budget < cost:
        raise ValueError(
            f"one update costs {counted(cost, 'product')}, and the budget has {max(budget, 0):,} left: "
            "raise max_matvecs, or lower block_size"
        )
    return _Plan(k, budget // cost, transposed)


def _transposed(operator, *, required: bool) -> lx.AbstractLinearOperator | None:
    try:
        return ops.require_transpose(
            operator,
            "the operator has no transpose: leave transpose=False, which takes forward products only",
        )
    except OperatorError:
        if required:
            raise
        return None
