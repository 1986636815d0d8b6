r"""What every map has in common: one point in, the moved point and its log-determinant out.

A point is a column. `(n,)` is one point; any trailing axes are a batch, so `(n, num)` is `num`
points side by side, as `determinax.sphere.uniform` draws them. `jax.vmap` works as well, but
columns are what XLA's CPU backend runs fast: it reduces well over the first axis only, and
`vmap` through a scan moves the batch to the front.
"""

import abc
from collections.abc import Callable
from typing import Any, TypeVar, cast

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

Function = TypeVar("Function", bound=Callable)


class AbstractSphereMap(eqx.Module):
    r"""A diffeomorphism $f$ of the sphere $S^{n-1} \subset \mathbb{R}^n$.

    `log_det` is $\log|\det Df|$ between tangent spaces, so that a uniform $s$ gives $f(s)$ the
    density $q(f(s)) = e^{-\text{log\_det}}$ relative to the uniform measure.
    """

    n: eqx.AbstractVar[int]
    context_size: eqx.AbstractVar[int]

    @property
    def is_linear(self) -> bool:
        r"""Whether it is $s \mapsto Ms/\|Ms\|$: then the spread of log-weights tells their tail."""
        return False

    def forward(
        self, s: Float[Array, "n *num"], context: Float[Array, "c *num"] | None = None
    ) -> tuple[Float[Array, "n *num"], Float[Array, "*num"]]:
        r"""$f(s)$ and $\log|\det Df(s)|$."""
        self._check(s, context)
        return self._forward(s, context)

    def inverse(
        self, s: Float[Array, "n *num"], context: Float[Array, "c *num"] | None = None
    ) -> tuple[Float[Array, "n *num"], Float[Array, "*num"]]:
        r"""$f^{-1}(s)$ and $\log|\det Df^{-1}(s)|$."""
        self._check(s, context)
        return self._inverse(s, context)

    def factor_at(self, context: Float[Array, " c"] | None = None) -> Any:
        r"""The factor M of a map $s = Mz/\|Mz\|$, for a context where it has one; None elsewhere."""
        del context
        return None

    @abc.abstractmethod
    def _forward(self, s: Array, context: Array | None) -> tuple[Array, Array]: ...

    @abc.abstractmethod
    def _inverse(self, s: Array, context: Array | None) -> tuple[Array, Array]: ...

    def _check(self, s: Array, context: Array | None) -> None:
        if s.ndim == 0 or s.shape[0] != self.n:
            raise ValueError(
                f"points of shape {s.shape} do not lie in {self.n} dimensions; "
                f"pass one point ({self.n},) or columns ({self.n}, num)"
            )
        if self.context_size == 0 and context is not None:
            raise ValueError("this map takes no context; build it with context_size > 0")
        if self.context_size > 0:
            if context is None:
                raise ValueError(f"this map needs a context of {self.context_size} numbers")
            if context.shape[:1] != (self.context_size,):
                raise ValueError(
                    f"a context of shape {context.shape} does not have {self.context_size} rows"
                )


class AbstractIntervalMap(eqx.Module):
    r"""A family of increasing maps of $[-1, 1]$ onto itself, one member per parameter vector."""

    @property
    @abc.abstractmethod
    def num_parameters(self) -> int:
        """How many numbers choose one member."""

    @abc.abstractmethod
    def forward(self, h: Float[Array, "*num"], params: Array) -> tuple[Array, Array, Array]:
        r"""$g(h)$, $\log g'(h)$ and $\log\frac{1-g(h)^2}{1-h^2}$.

        The last is finite also at the poles, where it is $\log g'(\pm1)$, so that a caller that
        knows $1-h^2$ keeps its relative precision. `params` is `(num_parameters, *num)`.
        """

    @abc.abstractmethod
    def inverse(self, h: Float[Array, "*num"], params: Array) -> tuple[Array, Array, Array]:
        r"""The same three of $g^{-1}$."""


class AbstractCircleMap(eqx.Module):
    r"""A family of orientation-keeping diffeomorphisms of the circle, points as `(2, *num)`."""

    @property
    @abc.abstractmethod
    def num_parameters(self) -> int:
        """How many numbers choose one member."""

    @abc.abstractmethod
    def forward(self, z: Float[Array, "2 *num"], params: Array) -> tuple[Array, Array]:
        """The moved point and the log-derivative of its angle; `params` as `(size, *num)`."""

    @abc.abstractmethod
    def inverse(self, z: Float[Array, "2 *num"], params: Array) -> tuple[Array, Array]:
        """The same of the inverse map."""


class Constant(eqx.Module):
    """An array that is part of a map but not a parameter of it: no gradient, no weight decay."""

    array: Array

    def __call__(self) -> Array:
        """Its value."""
        return jax.lax.stop_gradient(self.array)


def require_dimension(n: int) -> None:
    """Refuse a sphere of two points, on which nothing moves."""
    if n < 2:
        raise ValueError(f"a flow needs a sphere with n >= 2, not n = {n}")


def trainable(tree: Any) -> Any:
    """A filter for `equinox.partition`: true at every parameter, false at every `Constant`."""
    return jax.tree.map(
        lambda leaf: not isinstance(leaf, Constant) and eqx.is_inexact_array(leaf),
        tree,
        is_leaf=lambda leaf: isinstance(leaf, Constant),
    )


def dtype_of(tree: Any) -> Any:
    """The floating-point type of a map's parameters."""
    leaves = [leaf for leaf in jax.tree.leaves(tree) if eqx.is_inexact_array(leaf)]
    return jnp.result_type(*leaves) if leaves else jnp.result_type(float)


def with_backward(function: Function, forward: Callable, backward: Callable) -> Function:
    """`function` with a hand-written backward pass; its first argument is not differentiated."""
    f = jax.custom_vjp(function, nondiff_argnums=(0,))
    f.defvjp(forward, backward)
    return cast(Function, f)


def as_column(v: Any, like: Array) -> Any:
    """`v` with as many trailing axes as `like`, to broadcast over its batch."""
    return v.reshape(v.shape + (1,) * (like.ndim - v.ndim))
