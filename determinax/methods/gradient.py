"""The gradient of log|det A| with its own error: `jax.grad` has the first, not the second."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from determinax import moments as mo
from determinax import operators as ops
from determinax import weights
from determinax.estimate import Estimate
from determinax.methods.base import require_key
from determinax.methods.monte_carlo import MonteCarlo, require_finite_products, summarise
from determinax.methods.variational import Variational
from determinax.operators import OperatorError, Products
from determinax.proposals import DefensiveMixture, Proposal

# what the gradients of single groups may hold together
_BLOCK_ENTRIES = 2**22


class Gradient(eqx.Module):
    r"""A gradient of $\log|\det A|$ and how far off it may be.

    **Fields:**

    - `value`: the gradient, shaped like the parameters (None where these are not floating-point).
    - `standard_error`: of each of its entries, over independent groups of directions (delta method;
        infinite for one group).
    - `estimate`: the `Estimate` from the same products, transposed ones included in its cost.
        Where its verdict is bad, so is the gradient's error: both rest on the same weights.
    """

    value: PyTree[Array | None]
    standard_error: PyTree[Array | None]
    estimate: Estimate


def log_abs_det_gradient(
    operator_of: Callable[[Any], Any],
    parameters: PyTree,
    method: MonteCarlo | Variational,
    *,
    key: PRNGKeyArray,
) -> Gradient:
    r"""The gradient of $\log|\det A(\theta)|$, its standard error, and the estimate itself.

    $$\partial\log|\det A| = \mathbb{E}_{q^*}\Big[n\frac{\langle As, \partial A\,s\rangle}{\|As\|^2}\Big]
    \approx \sum_i \bar w_i\, n\frac{\langle As_i, \partial A\,s_i\rangle}{\|As_i\|^2},
    \qquad \bar w_i = w_i/\textstyle\sum_j w_j.$$

    With a proposal at $M = A^{-1}$ the terms are Hutchinson's $n z^\top \partial A\,A^{-1} z$ for
    $\operatorname{tr}(A^{-1}\partial A)$, without a linear solve. `jax.grad` of
    `log_abs_det(operator_of(parameters), method, key=key).log_abs_det` gives the same `value`, and is
    what a training loop wants; this tells in addition how noisy it is. The weights' normalisation
    biases both by O(1/num_samples), and away from $q^*$ one sample alone has all of the bias.

    **Arguments:**

    - `operator_of`: parameters in, what `log_abs_det` takes out; traceable by JAX.
    - `parameters`: a pytree; its floating-point arrays are differentiated.
    - `method`: `MonteCarlo` or `Variational`, whose proposal is held fixed.

    Costs as many products with the transpose as with A. Memory: three more copies of the parameters,
    and a block of per-group gradients.
    """
    if not isinstance(method, MonteCarlo | Variational):
        raise TypeError(f"method is MonteCarlo(...) or Variational(...), not {method!r}")
    key = require_key(key, "log_abs_det_gradient")
    entered, spent = ops.admit(operator_of(parameters))
    ops.require_not_wide(entered)
    if ops.host_operators(entered):
        raise OperatorError(
            "JAX cannot differentiate a SciPy LinearOperator: write its product with jax.numpy"
        )
    name, proposal = "Monte Carlo", None
    if isinstance(method, Variational):
        name, proposal = "variational", method.sampled(entered)
        key = method.keys(key)[0]
    n, m = entered.in_size(), entered.out_size()
    plan = weights.make_plan(n, m, method.num_samples, method.directions, method.chunk_size)
    if proposal is None and 1 < plan.group_size < n:
        raise ValueError(
            f"one frame of {plan.group_size} directions in {n} dimensions does not tell its gradient's "
            f'error: take directions="independent", or num_samples of {n} or more'
        )
    moments, value, error = _run(operator_of, parameters, proposal, key, plan)
    require_finite_products(moments)
    spent += Products(plan.num_samples, plan.num_samples)
    estimate = summarise(entered, moments, plan, name, method.directions, spent)
    factor = ops.log_det_factor(entered)
    value, error = jax.tree.map(lambda x: factor * x, (value, error))
    return Gradient(value, error, estimate)


class _Sums(NamedTuple):
    """Sums over groups of weights w and of gradients g less a pivot, relative to the largest w."""

    shift: Float[Array, ""]
    weights: Float[Array, ""]
    squares: Float[Array, ""]
    pivot: PyTree
    first: PyTree  # of w g
    cross: PyTree  # of w^2 g
    second: PyTree  # of w^2 g^2


@eqx.filter_jit
def _run(operator_of, parameters, proposal: Proposal | DefensiveMixture | None, key, plan):
    """The moments, the gradient and its standard error."""
    differentiated, rest = eqx.partition(parameters, eqx.is_inexact_array)
    structure = ops.admit(operator_of(parameters), check_linear=False)[0].in_structure()
    n, dtype = structure.shape[0], structure.dtype

    def minus_log_mean(differentiated, points, log_q):
        operator_ = operator_of(eqx.combine(differentiated, rest))
        operator, _ = ops.admit(operator_, check_linear=False)
        log_w = weights.log_weights(operator, points, log_q)
        return -mo.log_mean_exp(log_w, axis=0), log_w

    each_group = jax.vmap(jax.value_and_grad(minus_log_mean, has_aux=True), in_axes=(None, 0, 0))

    def add_block(sums: _Sums, block):
        (values, log_w), gradients = each_group(differentiated, *block)
        return _add(sums, -values, gradients), log_w

    def add_chunk(index, state, plan):
        moments, sums = state
        points, log_q = weights.directions(key, index, n, plan, dtype, proposal)
        groups, size = plan.groups_per_chunk, plan.group_size
        blocks = groups // _block_size(differentiated, plan)
        points = jnp.moveaxis(points.reshape(n, blocks, -1, size), 0, 2)
        sums, log_w = jax.lax.scan(add_block, sums, (points, log_q.reshape(blocks, -1, size)))
        return mo.update(moments, log_w.reshape(groups, size)), sums

    zero, zeros = jnp.zeros((), dtype), jax.tree.map(jnp.zeros_like, differentiated)
    sums = _Sums(zero - jnp.inf, zero, zero, zeros, zeros, zeros, zeros)
    state = mo.empty(plan.num_groups, plan.groups_per_chunk, dtype), sums
    full, left = divmod(plan.num_groups, plan.groups_per_chunk)
    state = jax.lax.fori_loop(0, full, lambda i, state: add_chunk(i, state, plan), state)
    if left:
        tail = plan._replace(num_groups=left, groups_per_chunk=left)
        state = add_chunk(full, state, tail)
    moments, sums = state
    return moments, *_gradient_and_error(sums, plan.num_groups)


def _block_size(parameters: PyTree, plan: weights.Plan) -> int:
    """Groups whose gradients are in memory at a time: a divisor of the chunk's."""
    entries = sum(leaf.size for leaf in jax.tree.leaves(parameters))
    most = max(1, min(plan.groups_per_chunk, _BLOCK_ENTRIES // max(entries, 1)))
    return next(b for b in range(most, 0, -1) if plan.groups_per_chunk % b == 0)


def _add(sums: _Sums, log_w: Float[Array, " groups"], gradients: PyTree) -> _Sums:
    is_first = jnp.isneginf(sums.shift)
    shift = jnp.maximum(sums.shift, jnp.max(log_w))
    old = jnp.where(is_first, 0, jnp.exp(sums.shift - shift))
    w = jnp.exp(log_w - shift)
    # squares about a typical gradient: about 0 they would cancel where the noise is small
    pivot = jax.tree.map(lambda p, g: jnp.where(is_first, g[0], p), sums.pivot, gradients)
    relative = jax.tree.map(lambda g, p: g - p, gradients, pivot)

    def add(total, factor, by, power=1):
        return jax.tree.map(
            lambda t, r: by * t + jnp.tensordot(factor, r**power, 1), total, relative
        )

    return _Sums(
        shift=shift,
        weights=old * sums.weights + jnp.sum(w),
        squares=old**2 * sums.squares + jnp.sum(w**2),
        pivot=pivot,
        first=add(sums.first, w, old),
        cross=add(sums.cross, w**2, old**2),
        second=add(sums.second, w**2, old**2, power=2),
    )


def _gradient_and_error(sums: _Sums, num_groups: int) -> tuple[PyTree, PyTree]:
    r"""$\sum \bar w g$, and the delta method's $\sqrt{\sum \bar w^2 (g - \hat g)^2}$."""
    mean = jax.tree.map(lambda first: first / sums.weights, sums.first)
    value = jax.tree.map(jnp.add, sums.pivot, mean)

    def error(d, cross, second):
        if num_groups == 1:
            return jnp.full_like(d, jnp.inf)
        variance = jnp.maximum(second - 2 * d * cross + d**2 * sums.squares, 0) / sums.weights**2
        return jnp.sqrt(variance * (num_groups / (num_groups - 1)))

    return value, jax.tree.map(error, mean, sums.cross, sums.second)
