"""The uniform law itself: what every other is relative to."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from determinax._checks import whole_number
from determinax.proposals.base import AbstractProposal, Columns


class Uniform(AbstractProposal):
    """The uniform law on the sphere in n dimensions: log-density 0 everywhere.

    !!! example

        ```python
        dx.Uniform(3).log_density([0.0, 0.0, 1.0], measure="area")    # -log(4 pi)
        ```
    """

    dimension: int = eqx.field(static=True)

    def __check_init__(self):
        whole_number(self.dimension, "the dimension")

    @property
    def n(self) -> int:
        """See `AbstractProposal`."""
        return self.dimension

    def push(
        self,
        z: Float[Array, "n num"],
        key: PRNGKeyArray | None = None,
        context: Columns = None,
    ) -> tuple[Float[Array, "n num"], Float[Array, " num"]]:
        """See `AbstractProposal`: the points as they are."""
        return z, self.log_density_columns(z)

    def log_density_columns(
        self, points: Float[Array, "n *num"], context: Columns = None
    ) -> Float[Array, "*num"]:
        """See `AbstractProposal`."""
        dtype = points.dtype if jnp.issubdtype(points.dtype, jnp.floating) else float
        return jnp.zeros(points.shape[1:], dtype)
