"""The gradient of log|det A| with its own error: `jax.grad` has the first, not the second."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
from jaxtyping import Array, Int, PRNGKeyArray, PyTree

from determinax import operators as ops
from determinax._checks import counted, require_key
from determinax._diagnostics import Bar
from determinax._interrupts import heeded
from determinax._states import Fault, GradientSums, WeightSums, log_mean_exp
from determinax.api import run
from determinax.estimate import Estimate
from determinax.methods import AbstractMethod, MonteCarlo, Plan, Variational, log_weights
from determinax.operators import OperatorError, Products, Traits, traits

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

    !!! example

        ```python
        method = dx.MonteCarlo(100)
        gradient = dx.log_abs_det_gradient(lambda t: t * jnp.asarray(A), 2.0, method, key=key)
        gradient.value, gradient.standard_error    # n / 2
        ```
    """

    value: PyTree[Array | None]
    standard_error: PyTree[Array | None]
    estimate: Estimate

    @property
    def fault(self) -> Fault:
        """Of the estimate."""
        return self.estimate.fault

    def judged(self, bar: Bar) -> "Gradient":
        """With the estimate's code."""
        return Gradient(self.value, self.standard_error, self.estimate.judged(bar))

    def with_notes(self, *notes: str) -> "Gradient":
        """With more to say of the estimate."""
        return Gradient(self.value, self.standard_error, self.estimate.with_notes(*notes))

    def with_products(self, num: int, num_transposed: int = 0) -> "Gradient":
        """With the estimate charged for products."""
        estimate = self.estimate.with_products(num, num_transposed)
        return Gradient(self.value, self.standard_error, estimate)


@heeded()
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

    A linear proposal with $M = A^{-1}$ draws $s = A^{-1}z$. Then the terms are
    $n z^\top \partial A\,A^{-1} z$, Hutchinson's estimate of $\operatorname{tr}(A^{-1}\partial A)$
    without a linear solve. `jax.grad` of
    `log_abs_det(operator_of(parameters), method, key=key).log_abs_det` gives the same `value`, and is
    what a training loop wants; this tells in addition how noisy it is. The weights' normalisation
    biases both by O(1/num_samples), and away from $q^*$ one sample alone has all of the bias.

    **Arguments:**

    - `operator_of`: parameters in, what `log_abs_det` takes out; traceable by JAX.
    - `parameters`: a pytree; its floating-point arrays are differentiated.
    - `method`: `MonteCarlo` or `Variational`, whose proposal is held fixed.

    Costs as many products with the transpose as with A. Memory: three more copies of the parameters,
    and a block of per-group gradients.

    !!! example

        ```python
        operator_of = lambda theta: jnp.diag(jnp.exp(theta))
        dx.log_abs_det_gradient(operator_of, jnp.zeros(10), dx.MonteCarlo(100), key=key).value
        ```
    """
    if not isinstance(method, MonteCarlo | Variational):
        raise TypeError(f"method is MonteCarlo(...) or Variational(...), not {method!r}")
    key = require_key(key, "log_abs_det_gradient")
    entered = ops.admit(operator_of(parameters))
    ops.require_not_wide(entered.operator)
    if ops.host_calls(entered.operator):
        raise OperatorError(
            "JAX cannot differentiate a SciPy LinearOperator: write its product with jax.numpy"
        )
    t = traits(entered.operator)
    method.require(entered.operator, key)
    if isinstance(method, MonteCarlo) and method.is_one_frame(t):
        raise ValueError(
            f"one frame of {counted(method.groups(t).size, 'direction')} in {t.cols} dimensions does not "
            f'tell its gradient\'s error: take directions="independent", or num_samples of {t.cols} or more'
        )
    return run(entered, _WithGradient(method, operator_of, parameters), key)


class _WithGradient(AbstractMethod):
    """A sampling method that sums up the gradients of its groups as well."""

    method: MonteCarlo | Variational
    operator_of: Callable[[Any], Any]
    parameters: PyTree

    def plan(self, traits: Traits) -> Plan:
        """See `AbstractMethod`."""
        return self.method.plan(traits)

    def cost(self, traits: Traits) -> Products:
        """See `AbstractMethod`."""
        num = self.method.groups(traits).num_samples
        return Products(num, num)

    def empty(self, operator: lx.AbstractLinearOperator, prepared: Any) -> "_Sums":
        """See `AbstractMethod`."""
        t = traits(operator)
        sums = GradientSums.empty(eqx.filter(self.parameters, eqx.is_inexact_array), t.dtype)
        return _Sums(self.method.empty(operator, prepared), sums)

    def chunk(
        self,
        operator: lx.AbstractLinearOperator,
        prepared: Any,
        key: PRNGKeyArray | None,
        index: Int[Array, ""],
        size: int,
    ) -> "_Sums":
        """See `AbstractMethod`."""
        t = traits(operator)
        points, log_q = self.method.draw(t, key, index, size)
        differentiated, rest = eqx.partition(self.parameters, eqx.is_inexact_array)
        group = self.method.groups(t).size

        def minus_log_mean(differentiated, points, log_q):
            made = self.operator_of(eqx.combine(differentiated, rest))
            operator = ops.as_operator(made, check_linear=False)
            log_w = log_weights(operator, points, log_q)
            return -log_mean_exp(log_w), log_w

        each = jax.vmap(jax.value_and_grad(minus_log_mean, has_aux=True), in_axes=(None, 0, 0))

        def add_block(sums, block):
            (values, log_w), gradients = each(differentiated, *block)
            return sums.merge(GradientSums.of(-values, gradients)), log_w

        blocks = size // _block_size(differentiated, size)
        points = jnp.moveaxis(points.reshape(t.cols, blocks, -1, group), 0, 2)
        empty = GradientSums.empty(differentiated, t.dtype)
        sums, log_w = jax.lax.scan(add_block, empty, (points, log_q.reshape(blocks, -1, group)))
        return _Sums(self.method.sums(t, log_w.reshape(-1), index, size), sums)

    def has_enough(self, state: "_Sums") -> Any:
        """See `AbstractMethod`."""
        return self.method.has_enough(state.weights)

    def summarise(
        self, operator: lx.AbstractLinearOperator, prepared: Any, state: "_Sums"
    ) -> Gradient:
        """See `AbstractMethod`."""
        t = traits(operator)
        estimate = self.method.summarise(operator, prepared, state.weights)
        estimate = estimate.replace(
            cost=Products(estimate.cost.forward, estimate.cost.forward), code=None
        )
        both = state.gradients.mean, state.gradients.error()
        value, error = jax.tree.map(lambda x: t.log_det_factor * x, both)
        return Gradient(value, error, estimate)


class _Sums(eqx.Module):
    """The sums of weights, and those of gradients."""

    weights: WeightSums
    gradients: GradientSums

    def merge(self, other: "_Sums") -> "_Sums":
        """Of both."""
        return _Sums(self.weights.merge(other.weights), self.gradients.merge(other.gradients))


def _block_size(parameters: PyTree, size: int) -> int:
    """Groups whose gradients are in memory at a time: a divisor of the chunk's."""
    entries = sum(leaf.size for leaf in jax.tree.leaves(parameters))
    most = max(1, min(size, _BLOCK_ENTRIES // max(entries, 1)))
    return next(b for b in range(most, 0, -1) if size % b == 0)
