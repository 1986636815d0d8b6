r"""Fit one proposal to the Jacobians of a function at all points of a distribution."""

from collections.abc import Callable
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh
from jaxtyping import Array, Float, PRNGKeyArray

from determinax._checks import whole_number
from determinax._keys import stream
from determinax._objective import drawn, objective
from determinax.flows import AbstractSphereMap
from determinax.jacobians import require_context
from determinax.operators import OperatorError, Products
from determinax.proposals import Proposal
from determinax.training._base import Fit
from determinax.training._optimisers import warm_cosine
from determinax.training._split import part_size
from determinax.training.gradients import train


def fit_jacobian(
    f: Callable[[Float[Array, " n"]], Float[Array, " m"]],
    sample_x: Callable[[PRNGKeyArray, int], Float[Array, "num n"]],
    flow: AbstractSphereMap,
    *,
    key: PRNGKeyArray,
    steps: int,
    batch_size: int = 256,
    num_directions: int = 1,
    learning_rate: float | optax.Schedule | None = None,
    gradient: Literal["path", "total"] = "path",
    optimiser: optax.GradientTransformation | None = None,
    mesh: Mesh | None = None,
    **options: Any,
) -> Fit:
    r"""Train an amortised proposal $q(s\,|\,x)$ for $|\det J(x)|$ of $f$ over a distribution of x.

    Minimises $\mathbb{E}_x\,\mathbb{E}_{q(s|x)}[\log q(s\,|\,x) + n\log\|J(x)s\|]$, which is
    $\mathbb{E}_x[\log|\det J(x)| + \mathrm{KL}(q(\cdot|x)\,\|\,q^*_x)]$. Afterwards
    `jacobian_log_abs_det(f, x, fit.proposal, key=key, num_samples=1)` takes one product for each x.

    **Arguments:**

    - `f`: one point in, one point out.
    - `sample_x`: key and number in, as many points out, one a row.
    - `flow`: with x as its context, such as `flows.conditional_linear(n, key=key)` or
        `flows.cylinder(n, context_size=n, key=key)`; without a context it is one proposal for all x.
    - `steps`, `batch_size`, `num_directions`: a step takes `num_directions` products at each of
        `batch_size` points, and as many vector-Jacobian products.
    - `learning_rate`, `mesh`, `options`: as in `fit`; `gradient`: `"path"` or `"total"`, as there.

    `spread` in the history is that of log-weights at one x where `num_directions` is 2 or more. With
    one direction it cannot be told from how $\log|\det J(x)|$ itself varies, and has both.

    !!! example

        ```python
        sample_x = lambda key, num: jax.random.normal(key, (num, 10))
        flow = dx.flows.conditional_linear(10, key=key, hidden=(16,))
        fit = dx.fit_jacobian(f, sample_x, flow, key=key, steps=20, batch_size=32)
        dx.jacobian_log_abs_det(f, x, fit.proposal, key=key, num_samples=1)
        ```
    """
    if gradient not in ("path", "total"):
        raise ValueError(f'gradient is "path" or "total", not {gradient!r}')
    batch_size = whole_number(batch_size, "batch_size", least=2)
    num_directions = whole_number(num_directions, "num_directions")
    require_context(Proposal(flow), flow.n)
    points = jax.eval_shape(lambda key: sample_x(key, batch_size), key)
    if getattr(points, "shape", None) != (batch_size, flow.n):
        raise ValueError(
            f"sample_x(key, {batch_size}) gives {points}, not {batch_size} points of {flow.n} "
            "numbers, one a row"
        )
    image = jax.eval_shape(f, jax.ShapeDtypeStruct((flow.n,), points.dtype))
    if image.ndim != 1 or image.shape[0] < flow.n:
        raise OperatorError(
            f"f takes {flow.n} numbers to shape {image.shape}: its Jacobian has a volume where f "
            f"gives one vector of {flow.n} or more"
        )
    num = batch_size * num_directions
    if learning_rate is None and optimiser is None:
        learning_rate = warm_cosine(whole_number(steps, "steps"))
    return train(
        JacobianObjective(f, sample_x, gradient, part_size(batch_size, mesh), num_directions),
        flow,
        key=key,
        steps=steps,
        learning_rate=learning_rate,
        optimiser=optimiser,
        products=Products(num, num),
        what=f"fitting a proposal for Jacobians ({gradient} gradients)",
        mesh=mesh,
        **options,
    )


class JacobianObjective(eqx.Module):
    """The objective on a batch of points, with `num_directions` directions at each."""

    f: Callable
    sample_x: Callable
    gradient: Literal["path", "total"] = eqx.field(static=True)
    batch_size: int = eqx.field(static=True)
    num_directions: int = eqx.field(static=True)

    def __call__(
        self, flow: AbstractSphereMap, key: PRNGKeyArray
    ) -> tuple[Float[Array, ""], Float[Array, " batch"]]:
        """Minus the mean log-weight, and the log-weights, about the mean of each x if it has several."""
        x = self.sample_x(stream(key, "points"), self.batch_size)
        x = jnp.repeat(x, self.num_directions, axis=0).T

        def product(points):
            return jax.vmap(self._product, in_axes=-1, out_axes=-1)(x, points.astype(x.dtype))

        context = x if flow.context_size else None
        z = drawn(flow, stream(key, "directions"), x.shape[1])
        value, log_w = objective(flow, z, product, self.gradient, context)
        if self.num_directions > 1:
            groups = log_w.reshape(self.batch_size, self.num_directions)
            freedom = (1 - 1 / self.num_directions) ** 0.5  # of deviations from their own mean
            log_w = (groups - jnp.mean(groups, axis=1, keepdims=True)).reshape(-1) / freedom
        return value, log_w

    def _product(self, x: Array, s: Array) -> Array:
        return jax.jvp(self.f, (x,), (s,))[1]
