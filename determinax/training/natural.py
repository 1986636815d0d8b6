r"""The secant update: fit a projective linear proposal by linear algebra instead of gradients.

With an orthonormal frame $Z$ of $k$ directions, $B = AM$, $W = BZ$, $S = W^\top W$ and
$Y = B^\top W$ (products with $A^\top$), or $Y = ZS$ (forward products only), both over the geometric
mean of $S$'s eigenvalues,

$$M \leftarrow M + MZ\,(S^{-1/2} Z^\top - S^{-1} Y^\top)$$

is a block BFGS step on $B^\top B$: the new $BZ$ is orthonormal up to scale. As $Z^\top Y = S$, the
update multiplies $\det M$ by $\det S^{-1/2} = 1$: $\log|\det M|$ never changes.

Once $M$ is $A^{-1}$ up to scale, not just up to scale and rotation, forward products tell more: with
$W$ over its scale, $W - Z$ is what the frame misses of $B = I$, and

$$M \leftarrow M\,(I + (W - Z)Z^\top)^{-1}$$

is Broyden's update: the new $M$ takes $W = A\,MZ$ back to $MZ$, and $\|B - I\|_F^2$ loses its share $k/n$
a step, where the block BFGS step without a transpose takes $(k/n)^2$ of $\|B^\top B - I\|_F^2$. That is
what follows an operator that moves. It multiplies $\det M$ by $1/\det(Z^\top W)$.

For a family of structured M the block BFGS step is projected on it: of its tangent vectors the one with
$M^{-1}dM$ nearest to $Z(S^{-1/2}Z^\top - S^{-1}Y^\top)$ in the Frobenius norm.
"""

import math
import time
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.scipy.sparse.linalg import cg
from jaxtyping import Array, Float, Int, PRNGKeyArray

from determinax import flows, sphere, verdict, weights
from determinax import operators as ops
from determinax.methods.base import require_key, whole_number
from determinax.methods.probed import require_proposal, reveal
from determinax.operators import OperatorError, Products
from determinax.progress import reporting
from determinax.proposals import Proposal
from determinax.training.loop import Fit, effective_share

# steps between two looks at the clock
_CHUNK = 64
# so many fresh log-weights must agree before we stop, four times as well as asked: few tell roughly
_MIN_FRESH, _MARGIN = 16, 0.25
# fresh log-weights of a probed proposal
_PROBE_CHECKS = 8
# products in units of n when nothing is said, for blocks: measured need is half of it
_BUDGET_TWO_SIDED, _BUDGET_FORWARD = 100, 400
# the same for structured families; steps of conjugate gradients for one projection; and after so many
# updates without progress, in units of n/k, their size falls: noise of what the family misses averages out
_BUDGET_STRUCTURED, _MAX_PROJECTION, _FULL_STEPS = 32, 64, 4


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
    progress: bool | None = None,
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

    Memory is O(n^2), a step O(n^2 k).
    """
    is_family = isinstance(structure, flows.AbstractFactor)
    if not is_family and structure not in ("dense", "probe"):
        raise ValueError(
            f'structure is "dense", "probe" or a factor such as flows.Diagonal(n), not {structure!r}'
        )
    entered, spent = ops.admit(operator, example)
    ops.require_not_wide(entered)
    key = require_key(key, "fit_linear")
    n, dtype = entered.in_size(), entered.in_structure().dtype
    eps = float(jnp.finfo(dtype).eps)
    tolerance = max(float(tolerance), 4 * math.sqrt(n) * eps)
    if structure == "probe":
        return _fit_probed(entered, key, pattern, tolerance, spent)
    if is_family:
        max_matvecs = _BUDGET_STRUCTURED * n if max_matvecs is None else max_matvecs
        if block_size is None:
            block_size = max(1, min(n, whole_number(max_matvecs, "max_matvecs") // 2) // 4)
        plan = _plan(entered, transpose, block_size, max_matvecs, spent)
        _require_family(structure, n, start)
        return _fit_family(entered, structure, key, plan, tolerance, spent, progress)
    plan = _plan(entered, transpose, block_size, max_matvecs, spent)
    state = _start(start, n, plan.block_size, dtype)
    began, records = time.perf_counter(), []
    with reporting(progress) as report:
        if report:
            report.start(plan.num_steps, "secant updates")
        done = 0
        while done < plan.num_steps:
            stop = min(done + _CHUNK, plan.num_steps)
            bounds = jnp.asarray(done), jnp.asarray(stop)
            state, record = weights.guarded(
                _run, entered, plan.transpose, state, key, bounds, tolerance, plan.block_size
            )
            num = int(state.step) - done
            done = int(state.step)
            records.append({name: np.asarray(values)[:num] for name, values in record.items()})
            _require_finite(records[-1], done - num)
            if report:
                report.advance(done, f"spread {records[-1]['pooled'][-1]:.1e}")
            if bool(state.converged) or _has_stalled(records, plan, n, eps):
                break
    history = {name: np.concatenate([r[name] for r in records]) for name in records[0]}
    del history["pooled"]
    spent += Products(done * plan.block_size, done * plan.block_size * (plan.transpose is not None))
    return Fit(
        proposal=Proposal(flows.ProjectiveLinear(flows.Dense(state.matrix, state.log_abs_det))),
        history=history,
        num_skipped=0,
        seconds=time.perf_counter() - began,
        num_matvecs=spent.total,
        num_transposed=spent.transposed,
        converged=bool(state.converged) or bool(_agree(history["spread"][-1], tolerance)),
    )


def _fit_probed(operator, key, pattern, tolerance: float, spent: Products) -> Fit:
    """M = R^{-1}, and a few fresh weights to see how well it fits."""
    began = time.perf_counter()
    found = reveal(operator, pattern)
    error = require_proposal(found, key)
    if error > verdict.THRESHOLDS["rounding"].unreliable:
        raise OperatorError(
            f"what the pattern has of the operator is so ill-conditioned that rounding may move the "
            f'weights under its inverse by {error:.1g} nats: use float64, or structure="dense"'
        )
    proposal = Proposal(flows.ProjectiveLinear(found.factor))
    log_w = weights.guarded(_fresh_log_weights, operator, proposal, key)
    history = {name: np.asarray(value)[None] for name, value in _look(log_w).items()}
    spent += Products(found.num_products + _PROBE_CHECKS)
    return Fit(
        proposal=proposal,
        history=history,
        num_skipped=0,
        seconds=time.perf_counter() - began,
        num_matvecs=spent.total,
        num_transposed=spent.transposed,
        converged=bool(_agree(history["spread"][-1], tolerance)),
    )


@eqx.filter_jit
def _fresh_log_weights(operator, proposal: Proposal, key) -> Float[Array, " num"]:
    return weights.log_weights(operator, *proposal.sample_columns(key, _PROBE_CHECKS))


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


def _fit_family(
    operator, factor, key, plan: "_Plan", tolerance: float, spent: Products, progress
) -> Fit:
    """Projected updates until fresh log-weights agree, or the budget is spent."""
    n, k = operator.in_size(), plan.block_size
    began, records, fresh = time.perf_counter(), [], np.empty(0)
    num_fresh = k * math.ceil(_MIN_FRESH / k)
    least, idle, converged = math.inf, 0, False
    with reporting(progress) as report:
        if report:
            report.start(plan.num_steps, "projected updates")
        for step in range(plan.num_steps):
            rate = jnp.asarray(min(1.0, _FULL_STEPS * n / k / (idle + 1)))
            factor, record, log_w = weights.guarded(
                _family_step,
                operator,
                plan.transpose,
                factor,
                jax.random.fold_in(key, step),
                k,
                rate,
            )
            records.append({name: np.asarray(value) for name, value in record.items()})
            _require_finite({"finite": records[-1]["finite"][None]}, step)
            fresh = np.concatenate([np.asarray(log_w), fresh])[:num_fresh]
            spread = float(np.std(fresh))
            if report:
                report.advance(step + 1, f"spread {spread:.1e}")
            if len(fresh) < num_fresh:
                continue
            converged = bool(_agree(spread, tolerance))
            if converged:
                break
            idle += spread > 0.9 * least
            least = min(least, spread)
    spent += Products(len(records) * k, len(records) * k * (plan.transpose is not None))
    history = {name: np.stack([r[name] for r in records]) for name in records[0]}
    return Fit(
        proposal=Proposal(flows.ProjectiveLinear(factor)),
        history=history,
        num_skipped=0,
        seconds=time.perf_counter() - began,
        num_matvecs=spent.total,
        num_transposed=spent.transposed,
        converged=converged,
    )


@eqx.filter_jit
def _family_step(operator, transpose, factor: flows.AbstractFactor, key, k: int, rate):
    """The factor after a projected update, the step's entry in the history, and its log-weights."""
    n, dtype = operator.in_size(), operator.in_structure().dtype
    z = sphere.frame(key, n, k, dtype)
    images = _images(operator, factor.multiply(z))
    log_w = factor.log_abs_det() - n * images.log_norms
    if transpose is None:
        change = _change(images, z)
    else:
        back = ops.columns(transpose, images.scaled) / images.scale
        (y,) = jax.linear_transpose(factor.multiply, z)(back)
        change = _change(images, z, y)
    parameters, rest = eqx.partition(factor, flows.trainable(factor))
    theta, unravel = ravel_pytree(parameters)

    def relative(theta):
        return factor.solve(eqx.combine(unravel(theta), rest).multiply(jnp.eye(n, dtype=dtype)))

    _, push = jax.linearize(relative, theta)
    pull = jax.linear_transpose(push, theta)
    (wanted,) = pull(_mm(z, change))
    step, _ = cg(lambda d: pull(push(d))[0], wanted, tol=1e-6, maxiter=_MAX_PROJECTION)
    new = eqx.combine(unravel(theta + rate * step), rest)
    entry = _look(log_w)
    entry["finite"] &= jnp.all(jnp.isfinite(step))
    return new, entry, log_w


class _Plan(NamedTuple):
    block_size: int
    num_steps: int
    transpose: lx.AbstractLinearOperator | None


class _State(NamedTuple):
    """What goes from step to step; `fresh` holds the last log-weights, each fresh when drawn."""

    matrix: Float[Array, "n n"]
    log_abs_det: Float[Array, ""]
    fresh: Float[Array, " fresh"]
    step: Int[Array, ""]
    converged: Array


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
            f"one update costs {cost:,} products and {max(budget, 0):,} are left: raise max_matvecs, "
            "or lower block_size"
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


def _start(start: Fit | Proposal | None, n: int, k: int, dtype) -> _State:
    matrix, log_abs_det = jnp.eye(n, dtype=dtype), jnp.zeros((), dtype)
    if start is not None:
        proposal = start.proposal if isinstance(start, Fit) else start
        flow = proposal.flow if isinstance(proposal, Proposal) else None
        if not isinstance(flow, flows.ProjectiveLinear) or flow.n != n:
            raise ValueError(f"start is a fit or a projective linear proposal in {n} dimensions")
        matrix = flow.factor.multiply(matrix)
        log_abs_det = flow.factor.log_abs_det().astype(dtype)
    unknown = jnp.full(k * math.ceil(_MIN_FRESH / k), jnp.nan, dtype)
    return _State(matrix, log_abs_det, unknown, jnp.asarray(0), jnp.asarray(False))


@eqx.filter_jit
def _run(operator, transpose, state: _State, key, bounds, tolerance, k: int):
    """Steps within the bounds, until fresh log-weights agree."""
    start, stop = bounds
    names = ("loss", "effective_sample_size", "finite", "spread", "log_abs_det", "pooled")
    record = {name: jnp.zeros(_CHUNK, bool if name == "finite" else float) for name in names}

    def going(carry):
        state, record = carry
        last_finite = record["finite"][jnp.maximum(state.step - start - 1, 0)]
        return (state.step < stop) & ~state.converged & (last_finite | (state.step == start))

    def body(carry):
        state, record = carry
        n = state.matrix.shape[0]
        z = sphere.frame(jax.random.fold_in(key, state.step), n, k, state.matrix.dtype)
        matrix, log_w = secant_update(operator, transpose, state.matrix, state.log_abs_det, z)
        fresh = jnp.concatenate([log_w, state.fresh])[: len(state.fresh)]
        # infinite before enough fresh weights have come
        pooled = jnp.nan_to_num(jnp.std(fresh), nan=jnp.inf)
        entry = {**_look(log_w), "pooled": pooled}
        entry["finite"] &= jnp.all(jnp.isfinite(matrix))
        at = state.step - start
        record = {name: record[name].at[at].set(entry[name]) for name in names}
        converged = _agree(pooled, tolerance)
        return _State(matrix, state.log_abs_det, fresh, state.step + 1, converged), record

    return jax.lax.while_loop(going, body, (state, record))


def _agree(spread, tolerance):
    return spread < _MARGIN * tolerance


def _look(log_w: Float[Array, " num"]) -> dict[str, Array]:
    """A step's entry in the history."""
    return {
        "loss": -jnp.mean(log_w),
        "effective_sample_size": effective_share(log_w),
        "finite": jnp.all(jnp.isfinite(log_w)),
        "spread": jnp.std(log_w) if len(log_w) > 1 else jnp.asarray(jnp.nan),
        "log_abs_det": math.log(len(log_w)) - jax.nn.logsumexp(log_w),
    }


def secant_update(operator, transpose, matrix, log_abs_det, z):
    """The updated M, and the log-weights of the frame under the M before it."""
    moved = _mm(matrix, z)
    images = _images(operator, moved)
    values, vectors = images.values, images.vectors
    if transpose is not None:
        y = _mm(matrix.T, ops.columns(transpose, images.scaled) / images.scale)
        change = _change(images, z, y)
    elif images.scaled.shape == z.shape == matrix.shape:
        # all is known: of the equally good M that differ by a rotation, A^{-1} up to scale
        left = _mm(images.scaled, vectors / values)
        change = _mm(vectors / values, left.T) - z.T
    else:
        change = _change(images, z)
    return matrix + _mm(moved, change), log_abs_det - z.shape[0] * images.log_norms


def tracking_update(operator, matrix, log_abs_det, z):
    r"""The updated M, its log-determinant, and the log-weights of the frame under the M before it.

    Broyden's update where the frame says that $\|B - I\|_F$ is below 1; elsewhere the secant update,
    and a rotation towards $B = I$, which costs nothing. Forward products only.
    """
    n, k = z.shape
    moved = _mm(matrix, z)
    images = _images(operator, moved)
    log_w = log_abs_det - n * images.log_norms
    if images.scaled.shape != z.shape:  # a tall operator has no inverse
        change = _change(images, z)
        return matrix + _mm(moved, change), log_abs_det, log_w

    def broyden():
        inner = _mm(z.T, images.scaled)
        missed = _mm(matrix, images.scaled - z)
        new = matrix - _mm(missed, jnp.linalg.solve(inner, z.T))
        return new, log_abs_det - jnp.linalg.slogdet(inner)[1]

    def secant():
        root = _power(images, -1)
        new = matrix + _mm(moved, _mm(root, z.T) - z.T)
        return _turned(new, z, _mm(images.scaled, root)), log_abs_det

    # the second: so that the singular values of Z^T W are above 1/2
    is_near = jnp.sum((images.scaled - z) ** 2) < min(k / n, 0.25)
    return *jax.lax.cond(is_near, broyden, secant), log_w


def _turned(matrix, z: Float[Array, "n k"], u: Float[Array, "n k"]) -> Float[Array, "n n"]:
    r"""$M O^\top$ for the least rotation with $OZ = U$, of orthonormal frames.

    The product of the reflections in Z and in the subspace half-way is the rotation that takes one
    span to the other by the shortest path; what is left is a turn within the span of U.
    """
    left, cosines, right = jnp.linalg.svd(_mm(z.T, u))
    turn = _mm(left, right)
    nearest = _mm(u, turn.T)
    middle = _mm(z + nearest, left / jnp.sqrt(2 + 2 * cosines))
    for frame in (z, middle):
        matrix = 2 * _mm(_mm(matrix, frame), frame.T) - matrix
    identity = jnp.eye(z.shape[1], dtype=z.dtype)
    return matrix + _mm(_mm(_mm(matrix, nearest), turn.T - identity), nearest.T)


class _Images(NamedTuple):
    """Products with a frame: log-norms, and what they are over the geometric mean of their size."""

    log_norms: Float[Array, " k"]
    scaled: Float[Array, "m k"]
    scale: Float[Array, ""]
    values: Float[Array, " k"]  # singular values of `scaled`
    vectors: Float[Array, "k k"]  # its right singular vectors


def _images(operator, moved: Float[Array, "n k"]) -> _Images:
    images = ops.columns(operator, moved)
    log_norms = weights.log_norm(images)
    # first without their size, whose square may overflow; then over the geometric mean
    size = jnp.exp(jnp.mean(log_norms))
    values, vectors = _singular(images / size)
    mean = jnp.exp(jnp.mean(jnp.log(values)))
    scale = size * mean
    return _Images(log_norms, images / scale, scale, values / mean, vectors)


def _change(images: _Images, z: Array, y: Array | None = None) -> Float[Array, "k n"]:
    r"""$S^{-1/2}Z^\top - S^{-1}Y^\top$, with $Y = ZS$ where no transpose gives it."""
    return _mm(_power(images, -1), z.T) - (z.T if y is None else _mm(_power(images, -2), y.T))


def _power(images: _Images, power: int) -> Float[Array, "k k"]:
    r"""$S^{p/2}$ of the images' Gram matrix S."""
    return _mm(images.vectors * images.values**power, images.vectors.T)


def _singular(images):
    """Singular values and right singular vectors; by the small matrix S where that is accurate."""
    m, k = images.shape
    if 2 * k <= m:
        return _singular_by_gram(images)
    _, values, vt = jnp.linalg.svd(images, full_matrices=False)
    # LAPACK gives up at times where singular values are all but equal, and there S is accurate
    return jax.lax.cond(
        jnp.all(jnp.isfinite(values)), lambda: (values, vt.T), lambda: _singular_by_gram(images)
    )


def _singular_by_gram(images):
    squares, vectors = jnp.linalg.eigh(_mm(images.T, images))
    return jnp.sqrt(squares), vectors


def _mm(a: Array, b: Array) -> Array:
    return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)


def _has_stalled(records: list, plan: _Plan, n: int, eps: float) -> bool:
    """Whether rounding is all that is left: small, and not halved when it should long have been."""
    spread = np.concatenate([r["pooled"] for r in records])
    # steps that see every direction once; without a transpose only one in so many of them counts
    once = max(n // plan.block_size, 1)
    window = once * (16 if plan.transpose is not None else max(16, 4 * once))
    if len(spread) < 2 * window or spread[-1] > math.sqrt(eps):
        return False
    return bool(np.median(spread[-window:]) > np.median(spread[-2 * window : -window]) / 2)


def _require_finite(record: dict[str, np.ndarray], start: int) -> None:
    if not record["finite"].all():
        raise OperatorError(
            f"update {start + int(np.argmin(record['finite']))} is not finite: the operator maps a "
            "direction to zero, or a product is not finite; check that it is not singular"
        )
