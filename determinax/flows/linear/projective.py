"""The map of the sphere that a factor makes."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..base import AbstractSphereMap
from ._base import AbstractFactor


class ProjectiveLinear(AbstractSphereMap):
    r"""$s = Mz/\|Mz\|$ for a factor $M$.

    ```python
    q = dx.Proposal(dx.flows.ProjectiveLinear(dx.flows.Dense(np.linalg.inv(A))))
    ```
    """

    factor: AbstractFactor
    context_size: int = eqx.field(static=True)
    n: int = eqx.field(static=True)

    @property
    def is_linear(self) -> bool:
        """See `AbstractSphereMap`."""
        return True

    def __init__(self, factor: AbstractFactor):
        self.factor = factor
        self.n, self.context_size = factor.n, 0

    def factor_at(self, context: Float[Array, " c"] | None = None) -> AbstractFactor:
        """See `AbstractSphereMap`."""
        del context
        return self.factor

    def _forward(self, s, context):
        return project(self.factor.multiply(s), self.factor.log_abs_det())

    def _inverse(self, s, context):
        return project(self.factor.solve(s), -self.factor.log_abs_det())


def project(x: Array, log_abs_det: Array) -> tuple[Array, Array]:
    r"""The direction of $x = Mz$ for a unit vector z, and the log-determinant of $z \mapsto x/\|x\|$."""
    norm = jnp.linalg.norm(x, axis=0)
    return x / norm, log_abs_det - x.shape[0] * jnp.log(norm)
