r"""Fits by gradients: a loss, a flow and an optimiser; and the variational estimator's own objective.

The best proposal for $|\det A|$ is $q^* \propto \|As\|^{-n}$, and the paper's objective is the
divergence from it: $\mathbb{E}_q[\log q(s) + n\log\|As\|] = \log|\det A| + \mathrm{KL}(q\,\|\,q^*)$.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import optax
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int, PRNGKeyArray

from determinax import operators as ops
from determinax._checks import counted, require_key, whole_number
from determinax._interrupts import heeded
from determinax._objective import GradientKind, drawn, objective, product_with
from determinax.flows import AbstractSphereMap, trainable
from determinax.operators import NO_PRODUCTS, Products
from determinax.proposals import Proposal
from determinax.training._base import AbstractBatchFitter, Fit, History, Record, mean_of, summary
from determinax.training._loop import CHUNK, run
from determinax.training._optimisers import chosen, warm_cosine
from determinax.training._split import part_size

# a loss: flow and key -> scalar, and the batch's log-weights (target over proposal). Arrays of a
# loss that is an equinox module are arguments of the compiled step, not constants in it
Loss = Callable[[Any, PRNGKeyArray], tuple[Float[Array, ""], Float[Array, " batch"]]]


@heeded()
def fit(
    operator: Any,
    flow: AbstractSphereMap,
    *,
    key: PRNGKeyArray,
    steps: int,
    batch_size: int = 1024,
    learning_rate: float | optax.Schedule | None = None,
    gradient: GradientKind = "path",
    optimiser: optax.GradientTransformation | None = None,
    example: Any = None,
    check_linear: bool = True,
    mesh: Mesh | None = None,
    **options: Any,
) -> Fit:
    r"""Train a flow to be a proposal for $|\det A|$, from products alone.

    **Arguments:**

    - `operator`, `example`, `check_linear`: as in `log_abs_det`.
    - `flow`: where to start; `determinax.flows.cylinder(n, key=key)` serves any operator.
    - `steps`, `batch_size`: a step takes `batch_size` products, and as many with the transpose.
    - `learning_rate`: of Adam, a number or an optax schedule; by default it rises to 5e-3 over the
        first hundredth of the steps (at most 100), then falls to nothing along a cosine.
    - `gradient`: `"path"` differentiates through the points only, with the parameters inside
        $\log q$ held fixed (Roeder et al., 2017): its noise vanishes as $q$ becomes the best, at
        the price of one inverse a step. `"total"` differentiates everything, as the paper does.
        `"forward"` needs no transpose: importance-weighted maximum likelihood at fixed points.
    - `optimiser`: an `optax.GradientTransformation` instead of Adam.
    - `mesh`: a `jax.sharding.Mesh`, to whose devices the batch is dealt in eight parts. Each device
        multiplies with the whole of A. The same bits on any number of devices, though not those without
        a mesh.
    - `tolerance`, `checkpoint`, `checkpoint_every`, `resume`, `progress`: see
        `determinax.training.train`.

    The loss in the history is the paper's equation 5: an upper bound of $\log|\det A|$ in
    expectation. `Fit.num_matvecs` counts what training spent.

    !!! example

        ```python
        flow = dx.flows.projective_linear(10)    # or flows.cylinder, the paper's
        trained = dx.fit(A, flow, key=jax.random.key(0), steps=20, batch_size=64)
        dx.log_abs_det(A, dx.Variational(trained.proposal, 100), key=jax.random.key(1))
        ```

    References: Passenheim and Hoogeboom (2020), arXiv:2012.13311, equation 5.
    """
    if gradient not in ("path", "total", "forward"):
        raise ValueError(f'gradient is "path", "total" or "forward", not {gradient!r}')
    batch_size, steps = (
        whole_number(batch_size, "batch_size", least=2),
        whole_number(steps, "steps"),
    )
    admitted = ops.admit(operator, example, check_linear=check_linear)
    entered = admitted.operator
    ops.require_not_wide(entered)
    if flow.n != entered.in_size():
        raise ValueError(
            f"the flow lives in {flow.n} dimensions and the operator takes vectors of "
            f"{entered.in_size()}: build the flow with n = {entered.in_size()}"
        )
    transpose = None
    if gradient != "forward":
        transpose = ops.require_transpose(
            entered,
            "training by gradients needs products with the transpose, and this operator has none: "
            'pass gradient="forward", which fits from forward products alone',
        )
    if learning_rate is None and optimiser is None:
        learning_rate = warm_cosine(steps)
    return train(
        Objective(entered, transpose, gradient, part_size(batch_size, mesh)),
        flow,
        key=key,
        steps=steps,
        learning_rate=learning_rate,
        optimiser=optimiser,
        products=Products(batch_size, 0 if gradient == "forward" else batch_size),
        spent=admitted.spent,
        what=f"fitting a proposal ({gradient} gradients)",
        mesh=mesh,
        **options,
    )


@heeded()
def train(
    loss: Loss,
    flow: AbstractSphereMap,
    *,
    key: PRNGKeyArray,
    steps: int,
    learning_rate: float | optax.Schedule | None = None,
    optimiser: optax.GradientTransformation | None = None,
    tolerance: float = 0.0,
    products: Products = NO_PRODUCTS,
    spent: Products = NO_PRODUCTS,
    what: str = "training",
    to_data: bool = False,
    **options: Any,
) -> Fit:
    """Minimise `loss` over the flow's parameters.

    A step whose loss or gradient is not finite is undone and counted; if none of the first hundred is
    finite, training stops with an error. It also stops once the spread of the log-weights, averaged
    over a hundred steps, is below `tolerance`. The optimiser is Adam at `learning_rate` (1e-3, or an
    optax schedule), or your own. `products` are those of one step, `spent` went before.

    With `mesh`, a `jax.sharding.Mesh`, the loss is called eight times a step, with a key of its own each
    time, on the devices in turn, and the mean is taken: so it should draw an eighth of the batch.

    `checkpoint`, `checkpoint_every`, `resume`, `progress`: a file is written every so many steps,
    every half minute and on an interrupt, and the one before it is kept; a run that was killed goes
    on from there and ends with the very bits of one that was not.

    Ctrl-C ends it with `FitInterrupted`, whose `fit` has what was trained.
    """
    fitter = GradientFitter(
        loss=loss,
        start=flow,
        optimiser=chosen(optimiser, learning_rate),
        tolerance=tolerance,
        per_step=products,
        what=what,
        is_to_data=to_data,
    )
    key = require_key(key, "training")
    return run(fitter, key=key, steps=steps, spent=spent, **options)


class State(NamedTuple):
    """What goes from step to step."""

    parameters: Any
    optimiser: Any


class Part(NamedTuple):
    """What a batch, or a part of one, says: the loss, its log-weights, and its gradient."""

    value: Float[Array, ""]
    log_w: Float[Array, " num"]
    gradient: Any


class GradientFitter(AbstractBatchFitter):
    """Steps of an optimiser on a loss."""

    loss: Loss
    start: AbstractSphereMap
    optimiser: optax.GradientTransformation = eqx.field(static=True)
    tolerance: float = eqx.field(static=True)
    per_step: Products = eqx.field(static=True)
    what: str = eqx.field(static=True)
    is_to_data: bool = eqx.field(static=True)

    def init(self) -> State:
        """See `AbstractFitter`."""
        parameters = eqx.filter(self.start, trainable(self.start))
        return State(parameters, self.optimiser.init(parameters))

    def flow(self, state: State) -> AbstractSphereMap:
        """The flow with the parameters of a state."""
        _, fixed = eqx.partition(self.start, trainable(self.start))
        return eqx.combine(state.parameters, fixed)

    def part(self, state: State, key: PRNGKeyArray) -> Part:
        """See `AbstractBatchFitter`."""

        def of_parameters(parameters):
            return self.loss(self.flow(State(parameters, None)), key)

        (value, log_w), gradient = jax.value_and_grad(of_parameters, has_aux=True)(state.parameters)
        return Part(value, log_w, gradient)

    def merged(self, parts: Part) -> Part:
        """See `AbstractBatchFitter`: means; of weighted likelihoods by what the parts weigh."""
        num = len(parts.value)
        shares = jnp.full(num, 1 / num, parts.log_w.dtype)
        if isinstance(self.loss, Objective) and self.loss.gradient == "forward":
            shares = jax.nn.softmax(jax.nn.logsumexp(parts.log_w, axis=1))
        gradient = jax.tree.map(
            lambda g: jnp.tensordot(shares.astype(g.dtype), g, 1), parts.gradient
        )
        return Part(jnp.mean(parts.value), parts.log_w.reshape(-1), gradient)

    def updated(self, state: State, part: Part, index: Int[Array, ""]) -> tuple[State, Record]:
        """See `AbstractBatchFitter`: undone where the loss or its gradient is not finite."""
        del index
        value, log_w, gradient = part
        updates, optimiser = self.optimiser.update(gradient, state.optimiser, state.parameters)
        proposed = State(optax.apply_updates(state.parameters, updates), optimiser)
        finite = jnp.isfinite(value) & jnp.isfinite(optax.tree.norm(gradient))
        kept = jax.tree.map(lambda new, old: jnp.where(finite, new, old), proposed, state)
        return kept, Record.of(log_w, value)._replace(finite=finite)

    def proposal(self, state: State) -> Proposal:
        """See `AbstractFitter`."""
        return Proposal(self.flow(state))

    def products(self) -> Products:
        """See `AbstractFitter`."""
        return self.per_step

    def has_converged(self, state: State, history: History) -> bool:
        """See `AbstractFitter`: by the mean over the last chunk of steps."""
        done = len(history["spread"])
        return mean_of(history, "spread", (done - 1) // CHUNK * CHUNK) < self.tolerance

    def require_finite(self, history: History, steps: int) -> None:
        """See `AbstractFitter`."""
        first = history["finite"][:CHUNK]
        if len(first) == min(CHUNK, steps) and not first.any():
            raise FloatingPointError(
                f"none of the first {len(first)} training steps was finite: check that the target "
                "is finite on the whole sphere, or lower the learning rate"
            )

    def note(self, history: History, products: int) -> str:
        """See `AbstractFitter`."""
        said = summary(history, -CHUNK, to_data=self.is_to_data)
        skipped = int(np.sum(np.logical_not(history["finite"])))
        said += f", {counted(products, 'product')}" if products else ""
        return said + (f", {counted(skipped, 'step')} undone" if skipped else "")

    @property
    def to_data(self) -> bool:
        """See `AbstractFitter`."""
        return self.is_to_data


class Objective(eqx.Module):
    """The paper's objective on a batch: its value, its log-weights, and one of three gradients."""

    operator: lx.AbstractLinearOperator
    transpose: lx.AbstractLinearOperator | None
    gradient: GradientKind = eqx.field(static=True)
    batch_size: int = eqx.field(static=True)

    def __call__(
        self, flow: AbstractSphereMap, key: PRNGKeyArray
    ) -> tuple[Float[Array, ""], Float[Array, " batch"]]:
        """Minus the mean log-weight, and the log-weights."""
        product = product_with(self.operator, self.transpose)
        z = drawn(flow, key, self.batch_size)
        return objective(flow, z, product, self.gradient)
