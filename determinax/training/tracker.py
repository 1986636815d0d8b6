"""An operator that moves: estimate with what is known of it, learn from the same products."""

from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from determinax import _shell, flows, sphere
from determinax import operators as ops
from determinax._checks import counted, require_key, whole_number
from determinax._diagnostics import EQUAL_WEIGHTS, Pooled
from determinax._interrupts import heeded
from determinax._linalg import held, log_norm
from determinax._objective import drawn, objective, product_with
from determinax._states import log_mean_exp
from determinax.estimate import Bound, Bounds, Estimate
from determinax.flows import trainable
from determinax.operators import Products, columns, traits
from determinax.proposals import Proposal, cast
from determinax.surrogates import require_given
from determinax.training._base import Fit
from determinax.training._optimisers import chosen
from determinax.training.broyden import tracking_update
from determinax.training.gradients import GradientFitter, State
from determinax.training.secant import require_memory

# steps over which the spread of log-weights is pooled: it changes no faster than the proposal
_MEMORY = 32


class Tracker(eqx.Module):
    r"""Follows the log-determinant of an operator that changes a little every step.

    Each `step` draws directions from the proposal as it is, so that the weights are fresh and their
    mean is $1/|\det A|$ without bias, and then updates the proposal from the very same products:

    - a dense M, as `fit_linear` gives it: by linear algebra, on an orthonormal frame of k directions,
        with forward products only, O(n^2 k) beside them, and the memory of `fit_linear`. While
        $M \approx A^{-1}$ up to scale (as after `fit_linear` with full frames, the default) by
        Broyden's update, which takes a share k/n of what M misses; once that is lost, by the secant
        update, slower, and turned towards $A^{-1}$. Where the verdict stays bad, call `fit_linear`
        again.
    - any other flow: one step of `optimiser` on the path (or total) gradient of the divergence; half
        of the products are with the transpose.

    A tracker is a pytree of fixed shapes: `step` works under `jax.jit` and as the body of `lax.scan`,
    and `jax.grad` of the estimate is the self-normalised gradient, with the proposal held fixed.

    **The error bar.** The few directions of one frame cannot tell their own error. The spread of the
    log-weights within frames is pooled over about 32 steps, and is never taken smaller than that of
    the frame itself, so that a jump of the operator shows at once; `standard_error` is this spread
    over $\sqrt{k}$. It presumes that the proposal is about as good as it lately was. The first steps
    have too few draws to judge, and the verdict says so (`Estimate.diagnostics.num_draws`).

    **Arguments:**

    - `proposal`: where to start, such as `fit_linear(operator, key=key).proposal`.
    - `optimiser`: an optax transformation, for flows that are trained by gradients; `optax.adam(1e-3)`
        by default.
    - `gradient`: `"path"` or `"total"`, as in `fit`.

    !!! example

        ```python
        tracker = dx.Tracker.from_fit(dx.fit_linear(A, key=key))
        step = jax.jit(lambda tracker, a, key: tracker.step(a, key))
        for i in range(3):
            moved = A + 0.001 * i * rng.standard_normal(A.shape)
            tracker, estimate = step(tracker, moved, jax.random.fold_in(key, i))
        ```

    References: Broyden (1965), Math. Comp. 19, for the update; Roeder et al. (2017),
    arXiv:1703.09194, for the path gradient.
    """

    proposal: Proposal
    optimiser_state: Any
    num_steps: Int[Array, ""]
    num_matvecs: Int[Array, ""]
    pooled_squares: Float[Array, ""]  # of log-weights about their frame's mean, fading
    pooled_freedom: Float[Array, ""]  # and how many they are, less one a frame
    optimiser: optax.GradientTransformation | None = eqx.field(static=True)
    gradient: Literal["path", "total"] = eqx.field(static=True)

    def __init__(
        self,
        proposal: Proposal,
        optimiser: optax.GradientTransformation | None = None,
        *,
        gradient: Literal["path", "total"] = "path",
    ):
        if not isinstance(proposal, Proposal):
            raise TypeError(
                f"proposal is a Proposal, not a {type(proposal).__name__}: of a fit take "
                "Tracker.from_fit(fit), of a flow Tracker(Proposal(flow))"
            )
        if gradient not in ("path", "total"):
            raise ValueError(f'gradient is "path" or "total", not {gradient!r}')
        if _dense_factor(proposal) is not None:
            if optimiser is not None:
                raise ValueError(
                    "a dense M is updated by linear algebra: leave the optimiser out, or use "
                    "flows.Triangular, which is trained by gradients"
                )
        else:
            optimiser = chosen(optimiser, None)
        parameters, _ = eqx.partition(proposal.flow, trainable(proposal.flow))
        if optimiser is not None and not jax.tree.leaves(parameters):
            raise ValueError(
                "the proposal has no parameters to learn with, as those of probing and of "
                "preconditioners: track fit_linear(operator, key=key), whose M is dense, or a flow "
                "such as flows.projective_linear(n)"
            )
        self.proposal, self.optimiser, self.gradient = proposal, optimiser, gradient
        self.optimiser_state = None if optimiser is None else optimiser.init(parameters)
        self.num_steps = self.num_matvecs = jnp.zeros((), jnp.int32)
        self.pooled_squares = self.pooled_freedom = jnp.zeros(())

    @classmethod
    def from_fit(cls, fit: Fit, optimiser: optax.GradientTransformation | None = None) -> "Tracker":
        """Go on from what `fit_linear` or `fit` found."""
        return cls(fit.proposal, optimiser)

    @heeded()
    def step(
        self,
        operator: Any,
        key: PRNGKeyArray,
        num_matvecs: int = 8,
        *,
        example: Any = None,
        context: Float[Array, " c"] | None = None,
    ) -> tuple["Tracker", Estimate]:
        """Estimate with the proposal as it is, then update it from the same products.

        **Arguments:**

        - `operator`, `example`: as in `log_abs_det`, but never checked for being linear, which would
            cost products every step.
        - `num_matvecs`: products to spend, transposed ones included: as many directions with a dense
            M, half as many with a flow that is trained by gradients.
        - `context`: what a conditional flow knows of this operator; None for any other flow.
        """
        admitted = ops.admit(operator, example, check_linear=False)
        entered = admitted.operator
        ops.require_not_wide(entered)
        if self.proposal.n != entered.in_size():
            raise ValueError(
                f"the tracker lives in {self.proposal.n} dimensions and the operator takes vectors "
                f"of {entered.in_size()}: start one for this operator"
            )
        require_given(self.proposal, context)
        products = self._products(entered, num_matvecs)
        key = require_key(key, "Tracker")
        transpose = None
        if products.transposed:
            transpose = ops.require_transpose(
                entered,
                "a flow is tracked by gradients, which need products with the transpose: give the "
                "operator one, or track a dense M, as fit_linear gives it",
            )
        tracker = self.cast(entered.in_structure().dtype)
        step = entered, transpose, tracker, key, products, context
        tracker, estimate = _shell.guarded(entered, _compiled_step, *step)
        return tracker, _shell.charged(estimate, admitted.spent)

    def cast(self, dtype: Any) -> "Tracker":
        """The same tracker in the dtype of the operator that it follows."""
        return eqx.tree_at(lambda t: t.proposal, self, cast(self.proposal, dtype))

    def _products(self, operator: lx.AbstractLinearOperator, num_matvecs: int) -> Products:
        num = whole_number(num_matvecs, "num_matvecs", least=2 if self.optimiser is None else 4)
        if self.optimiser is not None:
            return Products(num // 2, num // 2)
        if num > operator.in_size():
            raise ValueError(
                f"num_matvecs is at most n = {operator.in_size()}, not {num}: n of them give A"
            )
        require_memory(operator, num, "Tracker")
        return Products(num)


def _step(operator, transpose, tracker: Tracker, key, products: Products, context):
    if tracker.optimiser is None:
        proposal, log_w = _follow_by_algebra(operator, tracker.proposal, key, products.forward)
        optimiser_state = None
    else:
        proposal, optimiser_state, log_w = _follow_by_gradients(
            operator, transpose, tracker, key, products.forward, context
        )
    seen = jax.lax.stop_gradient(log_w)
    own = jnp.sum((seen - jnp.mean(seen)) ** 2).astype(tracker.pooled_squares.dtype)
    fade, num = 1 - 1 / _MEMORY, len(log_w) - 1
    finite = jnp.isfinite(own)
    squares = fade * tracker.pooled_squares + jnp.where(finite, own, 0)
    freedom = fade * tracker.pooled_freedom + jnp.where(finite, num, 0)
    variance = jnp.maximum(squares / freedom, own / num)
    new = eqx.tree_at(
        lambda t: (
            *(t.proposal, t.optimiser_state, t.num_steps, t.num_matvecs),
            *(t.pooled_squares, t.pooled_freedom),
        ),
        tracker,
        (
            *(proposal, optimiser_state, tracker.num_steps + 1),
            *(tracker.num_matvecs + products.total, squares, freedom),
        ),
        is_leaf=lambda x: x is None,
    )
    return new, _estimate(operator, log_w, variance, freedom, products)


_compiled_step = eqx.filter_jit(_step)


def _follow_by_algebra(operator, proposal: Proposal, key, num: int):
    """The proposal updated from a frame, and the frame's log-weights before that."""
    factor = _dense_factor(proposal)
    assert factor is not None
    matrix, log_abs_det = factor.matrix(), factor.log_abs_det()
    z = sphere.frame(key, proposal.n, num, matrix.dtype)
    new, new_log_abs_det, log_w = tracking_update(operator, matrix, log_abs_det, z)
    # an operator that is not finite, or singular, is no reason to forget the others
    finite = jnp.all(jnp.isfinite(new)) & jnp.isfinite(new_log_abs_det)
    new = jnp.where(finite, new, matrix).astype(matrix.dtype)
    new_log_abs_det = jnp.where(finite, new_log_abs_det, log_abs_det).astype(matrix.dtype)
    return held(Proposal(flows.ProjectiveLinear(flows.Dense(new, new_log_abs_det)))), log_w


def _follow_by_gradients(operator, transpose, tracker: Tracker, key, num: int, context):
    """Proposal and optimiser after a step on the objective, and the log-weights before it."""
    points, log_q = held(tracker.proposal).sample_columns(key, num, context)
    dtype = operator.in_structure().dtype
    points, log_q = points.astype(dtype), log_q.astype(dtype)
    images = columns(operator, points)
    log_w = -points.shape[0] * log_norm(images) - log_q
    product = product_with(*held((operator, transpose, images)))
    optimiser = tracker.optimiser
    assert optimiser is not None

    def loss(flow, key):
        return objective(flow, drawn(flow, key, num), product, tracker.gradient, context)

    fitter = GradientFitter(
        loss=loss,
        start=held(tracker.proposal.flow),
        optimiser=optimiser,
        tolerance=0.0,
        per_step=Products(num, num),
        what="tracking",
        is_to_data=False,
    )
    state = State(fitter.init().parameters, tracker.optimiser_state)
    state, _ = fitter.step(state, key, tracker.num_steps)
    return fitter.proposal(state), state.optimiser, log_w


def _estimate(operator, log_w, variance, freedom, products: Products) -> Estimate:
    t, num = traits(operator), len(log_w)
    value = -t.log_det_factor * log_mean_exp(log_w)
    error = t.log_det_factor * jnp.sqrt(variance / num)
    rounding = EQUAL_WEIGHTS * t.cols * t.eps
    kl = Bound(-t.log_det_factor * jnp.mean(log_w), error)
    slack = jnp.asarray(t.log_det_factor, log_w.dtype)
    return Estimate(
        log_abs_det=value,
        standard_error=jnp.maximum(error, rounding),
        diagnostics=Pooled(freedom, jnp.sqrt(variance)),
        cost=products,
        bounds=Bounds(kl=kl, importance=Bound(value, error), slack=slack),
        method=f"tracker, {counted(num, 'direction')} a step",
        num_dense=t.num_dense,
    ).judged()


def _dense_factor(proposal: Proposal) -> flows.Dense | None:
    flow = proposal.flow
    factor = flow.factor if isinstance(flow, flows.ProjectiveLinear) else None
    return factor if isinstance(factor, flows.Dense) else None
