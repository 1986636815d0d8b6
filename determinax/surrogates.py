r"""$\log|\det J(x)|$ inside of a loss: one set of products, and a say in whom each gradient reaches.

Three gradients come from the same m products: that of the model with the proposal held, that of
the proposal with the model held, and both at once.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from determinax import flows
from determinax import operators as ops
from determinax._checks import require_key, whole_number
from determinax._diagnostics import THRESHOLDS, UNRELIABLE, WARN, as_code
from determinax._keys import stream
from determinax._linalg import held, log_norm
from determinax._objective import drawn, known_product, objective
from determinax._states import log_mean_exp
from determinax.blocks import in_segments, stacked, through_known
from determinax.jacobians import require_context, require_points, require_proposal
from determinax.operators import OperatorError, columns, traits
from determinax.proposals import BlockProposals, Proposal, cast


class Surrogate(eqx.Module):
    r"""$\log|\det J|$ from m log-weights, as terms of a loss; of a batch every field has it in front.

    **Fields:**

    - `log_abs_det`: $-\log\frac1m\sum w$. Its gradient is that of the model, self-normalised; the
        proposal is held.
    - `bound`: the same value, above $\log|\det J|$ in expectation, with gradients to the model and to
        the proposal: one loss for both, where the model pays for $+\log|\det J|$.
    - `loss`: $-\frac1m\sum\log w$, the proposal's own objective, with the model held; the gradient is
        the path one where the flow has an inverse. It is above $\log|\det J|$ by about `correction`.
    - `correction`: half the variance of the log-weights, $\frac{m}{2(m-1)}$ times the squared spread
        of m samples; NaN for one sample, which has no spread.
    - `corrected`: $-\frac1m\sum\log w$ less `correction`: right to second order; gradients as
        `log_abs_det`. What a model that is paid for $-\log|\det J|$ should be trained on.
    - `spread`: the standard deviation of the m log-weights; NaN for one.
    - `code`: 1 ok, 2 warn (a spread above 1.65 nats, or one sample, which cannot tell), 3 unreliable
        (not finite).
    - `num_matvecs`: products with J for each x; a gradient takes as many with its transpose.

    The bias of `log_abs_det` itself is about `correction / m`.

    !!! example

        ```python
        proposal = dx.Proposal(dx.flows.conditional_linear(10, key=key))
        s = dx.jacobian_surrogate(f, x, proposal, key=key, num_samples=2)
        s.corrected.shape, s.health().spread
        ```
    """

    log_abs_det: Float[Array, "*batch"]
    bound: Float[Array, "*batch"]
    loss: Float[Array, "*batch"]
    corrected: Float[Array, "*batch"]
    correction: Float[Array, "*batch"]
    spread: Float[Array, "*batch"]
    code: Int[Array, "*batch"]
    num_matvecs: int = eqx.field(static=True)

    def __getitem__(self, index: Any) -> "Surrogate":
        return jax.tree.map(lambda leaf: leaf[index], self)

    def health(self) -> "Health":
        """How good the proposal is for the whole batch: few samples for each x are many together."""
        finite = (jnp.isfinite(self.log_abs_det) & jnp.isfinite(self.loss)).reshape(-1)
        num = jnp.sum(finite)
        seen = jax.lax.stop_gradient((self.correction.reshape(-1), self.spread.reshape(-1)))
        bias, spread = (jnp.sum(jnp.where(finite, a, 0)) / num for a in seen)
        worst = THRESHOLDS["spread"].level(jnp.sqrt(2 * bias))
        code = jnp.where(jnp.all(finite), worst if self.num_matvecs > 1 else WARN, UNRELIABLE)
        return Health(num, jnp.sum(~finite), spread, bias / self.num_matvecs, bias, as_code(code))

    @property
    def reasons(self) -> tuple[str, ...]:
        """What is wrong, in words that name each x: outside of `jit`."""
        bad = np.flatnonzero(~np.isfinite(np.asarray(self.log_abs_det).reshape(-1)))
        single = np.ndim(self.log_abs_det) == 0
        where = (
            "at this x" if single else f"at x number {', '.join(map(str, bad[:8]))} of the batch"
        )
        said = ()
        if len(bad):
            more = f" and {len(bad) - 8} more" if len(bad) > 8 else ""
            said = (
                f"A product with the Jacobian is not finite, or vanishes, {where}{more}: the other "
                "values are as without it; look at f there.",
            )
        if self.num_matvecs == 1:
            return (*said, "One sample tells no spread and no correction; take num_samples=2.")
        return said


class Health(eqx.Module):
    """Of a batch of surrogates; figures to be plotted along a training.

    **Fields:**

    - `num_finite`, `num_bad`: how many x have a value, and how many do not.
    - `spread`: the mean standard deviation of the log-weights at one x; NaN for one sample.
    - `bias`: how much `log_abs_det` is too large in the mean, estimated; `loss_bias`: the same of
        `loss`. A model that is paid for it lets it grow: watch it.
    - `code`: as of a `Surrogate`, for all x together.
    """

    num_finite: Int[Array, ""]
    num_bad: Int[Array, ""]
    spread: Float[Array, ""]
    bias: Float[Array, ""]
    loss_bias: Float[Array, ""]
    code: Int[Array, ""]


def surrogate(
    operator: Any,
    proposal: Proposal,
    *,
    key: PRNGKeyArray,
    num_samples: int = 1,
    context: Float[Array, " c"] | None = None,
    gradient: Literal["path", "total"] = "path",
) -> Surrogate:
    r"""$\log|\det A|$ as terms of a loss, for an operator that depends on what is trained.

    Pure: use it inside of `jit`, `grad` and `vmap`.

    **Arguments:**

    - `operator`: as in `log_abs_det`, but never checked for being linear. It needs products with its
        transpose for the gradient of `loss` and of `bound`.
    - `proposal`: a `Proposal`; `context` is what a conditional one knows.
    - `num_samples`: products to spend.
    - `gradient`: of `loss`: `"path"`, which vanishes at the best proposal and needs its inverse, or
        `"total"`, which costs less.

    !!! example

        ```python
        def loss(matrix, proposal, key):
            s = dx.surrogate(matrix, proposal, key=key, num_samples=2)
            return jnp.sum(matrix**2) - s.corrected + s.loss - jax.lax.stop_gradient(s.loss)
        ```
    """
    require_proposal(proposal)
    num_samples = whole_number(num_samples, "num_samples")
    key = require_key(key, "surrogate")
    entered = ops.admit(operator, check_linear=False).operator
    t = traits(entered)
    if t.rows != t.cols:
        raise OperatorError(
            f"the operator is {t.rows} x {t.cols}: a determinant needs a square one; for volumes take "
            "log_volume"
        )
    if proposal.n != t.cols:
        raise ValueError(
            f"the proposal lives in {proposal.n} dimensions and the operator takes vectors of "
            f"{t.cols}: build the flow with n = {t.cols}"
        )
    if ops.host_calls(entered):
        raise OperatorError(
            "JAX cannot differentiate a SciPy LinearOperator: write its product with jax.numpy"
        )
    require_given(proposal, context)
    return _surrogate(
        lambda points: columns(entered, points),
        cast(proposal, t.dtype),
        key,
        num_samples,
        context,
        t.log_det_factor,
        gradient,
    )


def jacobian_surrogate(
    f: Callable[[Float[Array, " n"]], Float[Array, " n"]] | Sequence[Callable],
    x: Float[Array, " n"] | Float[Array, "batch n"],
    proposal: Proposal | BlockProposals,
    *,
    key: PRNGKeyArray,
    num_samples: int = 1,
    context: Float[Array, " c"] | Float[Array, "batch c"] | None = None,
    gradient: Literal["path", "total"] = "path",
) -> Surrogate:
    r"""$\log|\det J(x)|$ of a function as terms of a loss, from `num_samples` products for each x.

    Pure: use it inside of `jit`, `grad` and `vmap`. See `Surrogate` for what goes where.

    **Arguments:**

    - `f`: one point in, one of the same size out, in JAX. What it closes over is trained. Or a sequence
        of blocks, the first of which acts first, with a proposal of `block_proposals`: each block then
        takes `num_samples` products, and its input is the context. Blocks with a method `log_abs_det(x)`
        take none.
    - `x`: one point `(n,)`, or one a row.
    - `proposal`: a `Proposal`. One whose flow has a context gets x, unless `context` says otherwise.
    - `num_samples`, `gradient`: as in `surrogate`.

    !!! example

        ```python
        def loss(model, proposal, x, key):  # maximum likelihood, for f with invertible blocks
            s = dx.jacobian_surrogate(model, x, proposal, key=key, num_samples=2)
            learn = s.loss - jax.lax.stop_gradient(s.loss)  # moves the proposal alone
            return jnp.mean(0.5 * jnp.sum(jax.vmap(model)(x) ** 2, 1) - s.corrected + learn)
        ```
    """
    x = require_points(x)
    if isinstance(proposal, BlockProposals):
        return _along_blocks(f, x, proposal, key, num_samples, context, gradient)
    if not callable(f):
        raise TypeError(
            "a sequence of blocks needs a proposal for each of them: see block_proposals"
        )
    require_proposal(proposal)
    num_samples = whole_number(num_samples, "num_samples")
    key = require_key(key, "jacobian_surrogate")
    require_square(f, x)
    if context is None:
        require_context(proposal, x.shape[-1])
        context = x if proposal.context_size else None
    elif proposal.n != x.shape[-1]:
        require_context(proposal, x.shape[-1])

    def one(x, context, key):
        require_given(proposal, context)
        push = linearised(f, x)[1]
        product = jax.vmap(push, in_axes=-1, out_axes=-1)
        q = cast(proposal, x.dtype)
        return _surrogate(product, q, key, num_samples, context, 1.0, gradient)

    if x.ndim == 1:
        return one(x, context, key)
    keys = jax.vmap(lambda i: stream(key, "points", i))(jnp.arange(len(x)))
    own = None if context is None or context.ndim == 1 else 0
    return jax.vmap(one, in_axes=(0, own, 0))(x, context, keys)


def _along_blocks(
    blocks: Any,
    x: Array,
    proposals: BlockProposals,
    key: PRNGKeyArray,
    num: int,
    context: Any,
    gradient: Literal["path", "total"],
) -> Surrogate:
    """The sum over the blocks of a composition; segments of one shape are one scan."""
    segments, last = in_segments(blocks) if isinstance(blocks, Sequence) else ((), ())
    if len(segments) != len(proposals):
        raise TypeError(
            f"proposals for {len(proposals)} blocks need f to be a sequence of as many functions, besides "
            "those with a log_abs_det of their own"
        )
    if context is not None:
        raise ValueError("what goes into a block is its context: leave context= out")
    together = stacked(segments)

    def step(x, inputs):
        segment, proposal, key = inputs
        x, known = through_known(segment.known, x)
        block = segment.block
        s = jacobian_surrogate(block, x, proposal, key=key, num_samples=num, gradient=gradient)
        return block(x), (s, known)

    def one(x, key):
        keys = jax.vmap(lambda i: stream(key, "blocks", i))(jnp.arange(len(segments)))
        if together is not None:
            inputs, rest = eqx.partition((together, proposals.stacked, keys), eqx.is_array)
            body = lambda x, a: step(x, eqx.combine(a, rest))  # noqa: E731
            x, (parts, known) = jax.lax.scan(
                body, x, inputs, unroll=len(segments)
            )  # a fifth faster
        else:
            found = []
            for i, segment in enumerate(segments):
                x, s = step(x, (segment, proposals[i], keys[i]))
                found.append(s)
            parts, known = jax.tree.map(lambda *a: jnp.stack(a), *found)
        return parts, jnp.sum(known) + through_known(last, x)[1]

    if x.ndim == 1:
        return _summed(*one(x, key), 0)
    keys = jax.vmap(lambda i: stream(key, "points", i))(jnp.arange(len(x)))
    return _summed(*jax.vmap(one)(x, keys), 1)


def _summed(parts: Surrogate, known: Array, axis: int) -> Surrogate:
    """Of a composition, from its blocks along an axis, and the log-determinants that are known."""
    total = jax.tree.map(lambda a: jnp.sum(a, axis=axis), parts)
    return dataclasses.replace(
        total,
        log_abs_det=total.log_abs_det + known,
        bound=total.bound + known,
        corrected=total.corrected + known,
        loss=total.loss + held(known),
        spread=jnp.linalg.norm(parts.spread, axis=axis),
        code=jnp.max(parts.code, axis=axis),
    )


def linearised(f: Callable, x: Float[Array, " n"]) -> tuple[Array, Callable]:
    r"""$f(x)$, and the product with its Jacobian: a pytree, so that `held` works on it."""
    try:
        return jax.linearize(f, x)
    except Exception as error:
        raise OperatorError(_not_differentiable(error)) from error


def require_square(f: Callable, x: Float[Array, "*batch n"], name: str = "f") -> None:
    """Refuse a function that changes the dimension, or that JAX cannot trace."""
    n = x.shape[-1]
    try:
        image = jax.eval_shape(f, jax.ShapeDtypeStruct((n,), x.dtype))
    except Exception as error:
        raise OperatorError(_not_differentiable(error, name)) from error
    shape = getattr(image, "shape", None)
    if shape != (n,):
        raise OperatorError(
            f"{name} takes {n} numbers to {'something else' if shape is None else f'shape {shape}'}: "
            f"a determinant needs as many out as in; for volumes take jacobian_log_abs_det"
        )
    if not jnp.issubdtype(image.dtype, jnp.floating):
        raise OperatorError(
            f"{name} gives {image.dtype}, which has no derivative: let it give floating-point numbers"
        )


def _not_differentiable(error: Exception, name: str = "f") -> str:
    first = (str(error) or type(error).__name__).strip().splitlines()[0][:120]
    return (
        f"JAX cannot differentiate {name} ({type(error).__name__}: {first}): write it with jax.numpy, "
        "for one point"
    )


def _surrogate(
    product, proposal: Proposal, key, num: int, context, factor: float, gradient: Any
) -> Surrogate:
    """From products of columns; what `product` closes over is the model."""
    z = drawn(proposal.flow, key, num)
    points, log_q = proposal.push(z, context=context)
    # the model's products once; the proposal's gradients go back through them with the model held
    images, pull = jax.vjp(product, jax.lax.stop_gradient(points))
    known = known_product(images, pull)
    moved = known(points)
    both = images + (moved - jax.lax.stop_gradient(moved))
    n = proposal.n
    log_w = -n * log_norm(images) - jax.lax.stop_gradient(log_q)
    bound = -log_mean_exp(-n * log_norm(both) - log_q)
    if gradient not in ("path", "total"):
        raise ValueError(f'gradient is "path" or "total", not {gradient!r}')
    kind = gradient if _has_inverse(proposal) else "total"
    loss, _ = objective(proposal.flow, z, known, kind, held(context))
    nothing = jnp.full_like(loss, jnp.nan)
    correction = 0.5 * jnp.var(log_w, ddof=1) if num > 1 else nothing
    spread = jnp.std(jax.lax.stop_gradient(log_w)) if num > 1 else nothing
    value = -log_mean_exp(log_w)
    level = THRESHOLDS["spread"].level(spread) if num > 1 else WARN
    return Surrogate(
        log_abs_det=factor * value,
        bound=factor * bound,
        loss=factor * loss,
        corrected=factor * (-jnp.mean(log_w) - correction),
        correction=factor * correction,
        spread=factor * spread,
        code=as_code(jnp.where(jnp.isfinite(value), level, UNRELIABLE)),
        num_matvecs=num,
    )


def _has_inverse(proposal: Proposal) -> bool:
    """Whether the density can be evaluated at given points: not with half a preconditioner."""
    is_half = lambda x: isinstance(x, flows.Preconditioner) and x.inverse is None  # noqa: E731
    return not any(map(is_half, jax.tree.leaves(proposal, is_leaf=is_half)))


def require_given(proposal: Proposal, context: Any) -> None:
    """Refuse a context where the proposal has none, and none or another one where it has."""
    size, shape = proposal.context_size, np.shape(context) if context is not None else None
    if size == 0 and context is not None:
        raise ValueError("this proposal takes no context: leave it out, or build one that does")
    if size and shape != (size,):
        raise ValueError(f"this proposal needs a context of {size} numbers, not {shape}")
