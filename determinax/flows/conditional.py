r"""Maps that depend on a context: linear ones whose matrix a network gives, and any with it given."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.flatten_util
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray

from .base import AbstractSphereMap, Constant, as_column, dtype_of, trainable
from .conditioners import Conditioner, ImageConditioner
from .linear import AbstractFactor, Product, project


class ConditionalLinear(AbstractSphereMap):
    r"""$s = M(c)z/\|M(c)z\|$ with $M(c) = M_0\,R(c)$: a global matrix, corrected for every context.

    `part` says of which family R is: `Triangular(n)` (holds the best M for every context, and makes
    the network's last layer wide: $n^2$), `DiagonalLowRank(n, rank)`, `Diagonal(n)`, or a `Product`
    of such. A ReLU network of the context gives what is added to its parameters; its last layer
    starts at zero, so that R starts as `part` is: the identity, unless you say otherwise.

    **Arguments:**

    - `base`: $M_0$; a `Dense` one, as `fit_linear` finds it at a typical context, stays as it is, and
        a `Triangular` one is trained along.
    - `part`: R where the network gives zeros.
    - `context_size`, `hidden`: of the network; `network`: another one, as `conditional_convolution`
        has it.

    !!! example

        ```python
        part, base = dx.flows.Diagonal(10), dx.flows.Triangular(10)
        flow = dx.flows.ConditionalLinear(base, part, context_size=10, hidden=(16,), key=key)
        ```
    """

    base: AbstractFactor
    part: AbstractFactor
    network: Conditioner | ImageConditioner
    context_size: int = eqx.field(static=True)
    n: int = eqx.field(static=True)

    @property
    def is_linear(self) -> bool:
        """See `AbstractSphereMap`."""
        return True

    def __init__(
        self,
        base: AbstractFactor,
        part: AbstractFactor,
        *,
        context_size: int,
        key: PRNGKeyArray,
        hidden: tuple[int, ...] = (64, 64),
        network: ImageConditioner | None = None,
    ):
        if base.n != part.n:
            raise ValueError(f"base has n = {base.n} and part n = {part.n}: make them equal")
        if context_size < 1:
            raise ValueError(f"context_size must be 1 or more, not {context_size}")
        size = _ravel(part)[0].size
        if size == 0:
            raise ValueError(
                f"a {type(part).__name__} has no parameters for a network to move: take Triangular(n) "
                "or DiagonalLowRank(n, rank) as part"
            )
        self.network = (
            _network(size, context_size, hidden, key, dtype_of(part))
            if network is None
            else network
        )
        self.base, self.part = base, part
        self.context_size, self.n = context_size, base.n

    def factor(self, context: Float[Array, " c"]) -> Product:
        r"""$M(c)$ for one context."""
        flat, unravel = _ravel(self.part)
        nothing = jnp.zeros(0, flat.dtype)
        moved = self.network(nothing, context.astype(flat.dtype))[:, 0]
        return Product([self.base, unravel(flat + moved)])

    def factor_at(self, context: Float[Array, " c"] | None = None) -> Product | None:
        """See `AbstractSphereMap`."""
        return None if context is None else self.factor(context)

    def _forward(self, s, context):
        return self._apply(s, context, lambda m, z: project(m.multiply(z), m.log_abs_det()))

    def _inverse(self, s, context):
        return self._apply(s, context, lambda m, z: project(m.solve(z), -m.log_abs_det()))

    def _apply(self, s, context, act):
        if context.ndim == 1:  # one matrix for all points
            return act(self.factor(context), s)
        columns, contexts = s.reshape(self.n, -1), context.reshape(self.context_size, -1)
        moved, log_det = jax.vmap(
            lambda z, c: act(self.factor(c), z), in_axes=-1, out_axes=(-1, -1)
        )(columns, contexts)
        return moved.reshape(s.shape), log_det.reshape(s.shape[1:])


def _network(size: int, context_size: int, hidden, key, dtype) -> Conditioner:
    network = Conditioner(
        0, 1, size, key=key, hidden=tuple(hidden), context_size=context_size, dtype=dtype
    )
    # zeros in the last layer rather than the gate: every output finds its own way from the start
    return eqx.tree_at(
        lambda net: (net.gate, net.weights[-1], net.biases[-1]),
        network,
        replace_fn=lambda a: jnp.ones_like(a) if a.ndim == 0 else jnp.zeros_like(a),
    )


def _ravel(part: AbstractFactor) -> tuple[Array, Callable[[Array], AbstractFactor]]:
    """The parameters in one vector, and the factor for any such vector."""
    parameters, rest = eqx.partition(part, trainable(part))
    flat, unravel = jax.flatten_util.ravel_pytree(parameters)
    return flat, lambda flat: eqx.combine(unravel(flat), rest)


class Given(AbstractSphereMap):
    """A conditional map with its context filled in."""

    flow: AbstractSphereMap
    context: Constant
    context_size: int = eqx.field(static=True)
    n: int = eqx.field(static=True)

    def __init__(self, flow: AbstractSphereMap, context: Float[Array, " c"]):
        if context.shape != (flow.context_size,):
            raise ValueError(
                f"a context of shape {context.shape} is not one of {flow.context_size} numbers"
            )
        self.flow, self.context = flow, Constant(context)
        self.n, self.context_size = flow.n, 0

    @property
    def is_linear(self) -> bool:
        """See `AbstractSphereMap`."""
        return self.flow.is_linear

    def factor_at(self, context: Float[Array, " c"] | None = None) -> AbstractFactor | None:
        """See `AbstractSphereMap`."""
        del context
        return self.flow.factor_at(self.context())

    def _forward(self, s, context):
        return self.flow.forward(s, self.context())

    def _inverse(self, s, context):
        return self.flow.inverse(s, self.context())


class RescaledContext(AbstractSphereMap):
    r"""A conditional map that sees $(c - \text{shift})/\text{scale}$ in place of the context c.

    Networks learn from numbers about 1; a context may be years, or kelvin.
    """

    flow: AbstractSphereMap
    shift: Constant
    scale: Constant
    context_size: int = eqx.field(static=True)
    n: int = eqx.field(static=True)

    def __init__(
        self,
        flow: AbstractSphereMap,
        shift: Float[ArrayLike, " c"],
        scale: Float[ArrayLike, " c"],
    ):
        dtype = dtype_of(flow)
        shift, scale = jnp.asarray(shift, dtype), jnp.asarray(scale, dtype)
        if not shift.shape == scale.shape == (flow.context_size,):
            raise ValueError(
                f"a shift of shape {shift.shape} and a scale of shape {scale.shape} are not "
                f"{flow.context_size} numbers each"
            )
        self.flow, self.shift, self.scale = flow, Constant(shift), Constant(scale)
        self.n, self.context_size = flow.n, flow.context_size

    @property
    def is_linear(self) -> bool:
        """See `AbstractSphereMap`."""
        return self.flow.is_linear

    def factor_at(self, context: Float[Array, " c"] | None = None) -> AbstractFactor | None:
        """See `AbstractSphereMap`."""
        return None if context is None else self.flow.factor_at(self._rescaled(context))

    def _forward(self, s, context):
        return self.flow.forward(s, self._rescaled(context))

    def _inverse(self, s, context):
        return self.flow.inverse(s, self._rescaled(context))

    def _rescaled(self, context):
        return (context - as_column(self.shift(), context)) / as_column(self.scale(), context)
