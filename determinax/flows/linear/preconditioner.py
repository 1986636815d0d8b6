"""M as the functions that a user has."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from ..base import Constant
from ._base import AbstractFactor, check_size


class Preconditioner(AbstractFactor):
    """M as the functions that a user has; it cannot be stored, nor inverted without `inverse`."""

    function: Callable[[Array], Array]  # one vector in, one out
    inverse: Callable[[Array], Array] | None
    log_scale: Constant
    n: int = eqx.field(static=True)

    def __init__(
        self,
        function: Callable[[Array], Array],
        log_abs_det: ArrayLike,
        n: int,
        inverse: Callable[[Array], Array] | None = None,
    ):
        check_size(n)
        self.function, self.inverse, self.n = function, inverse, n
        self.log_scale = Constant(jnp.asarray(log_abs_det, float))

    def multiply(self, z: Float[Array, "n *num"]) -> Float[Array, "n *num"]:
        """See `AbstractFactor`."""
        return _columnwise(self.function, z)

    def solve(self, s: Float[Array, "n *num"]) -> Float[Array, "n *num"]:
        """See `AbstractFactor`."""
        if self.inverse is None:
            raise ValueError("this preconditioner has no inverse: give it as inverse=")
        return _columnwise(self.inverse, s)

    def log_abs_det(self) -> Float[Array, ""]:
        """See `AbstractFactor`."""
        return self.log_scale()


def _columnwise(function, x: Array) -> Array:
    columns = jax.vmap(function, in_axes=-1, out_axes=-1)(x.reshape(x.shape[0], -1))
    return columns.reshape(x.shape)
