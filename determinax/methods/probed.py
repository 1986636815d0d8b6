"""Probing a known pattern: a few products give A, or nearly, and sampling corrects the rest."""

import math
import time
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import lineax as lx
from jaxtyping import PRNGKeyArray

from determinax._checks import counted, require_key, whole_number
from determinax._diagnostics import Rounding
from determinax._keys import stream
from determinax._revealed import (
    CHECKS,
    EPS,
    Revealed,
    inverse,
    pattern_defect,
    require_band,
    reveal,
)
from determinax.estimate import Estimate
from determinax.methods._base import AbstractSelector, Selection, registered
from determinax.methods.monte_carlo import MonteCarlo
from determinax.methods.preconditioned import Preconditioned
from determinax.operators import Products, traits
from determinax.progress import Report

# by how many roundings fresh products may differ from what the pattern says
_ROUNDINGS = 32


class TooLong(NamedTuple):
    """What was revealed, what factorising it would take, and what was spent to know that."""

    found: Revealed
    cost: str
    spent: Products


@registered("probed")
class Probed(AbstractSelector):
    r"""Reveal the entries of a known sparsity pattern, R, by colouring; factorise R; then sample.

    Use it for convolutions, banded and sparse operators: a 3x3 convolution of one channel takes 9
    products whatever the image. Fresh products then say whether A is R. If so, $\log|\det R|$ by sparse
    LU is the answer, or by elimination in its band where pivoting loses digits, the rounding measured;
    if not, $M = R^{-1}$ is a proposal, and `num_samples` weights correct the difference without bias.

    **Arguments:**

    - `num_samples`: weights where the pattern is only nearly right.
    - `pattern`: where A may have entries: a SciPy sparse array, or `(below, above)`, the number of
        diagonals. None: known for convolutions, sparse, diagonal and tridiagonal operators.

    !!! example

        ```python
        band = scipy.sparse.diags_array([1.0, 3.0, 1.0], offsets=[-1, 0, 1], shape=(50, 50))
        dx.log_abs_det(band, dx.Probed(), key=key)
        unnamed = dx.as_operator(lambda v: 3 * v + 0.5 * jnp.append(v[1:], 0), jnp.zeros(50))
        dx.log_abs_det(unnamed, dx.Probed(pattern=(0, 1)), key=key)    # below, above the diagonal
        ```
    """

    num_samples: int = eqx.field(static=True)
    pattern: Any = eqx.field(static=True)

    def __init__(self, num_samples: int = 100, pattern: Any = None):
        self.num_samples = whole_number(num_samples, "num_samples")
        self.pattern = pattern

    def require(self, operator: lx.AbstractLinearOperator, key: PRNGKeyArray | None) -> None:
        """See `AbstractMethod`."""
        del operator
        require_key(key, "Probed")

    def select(
        self,
        operator: lx.AbstractLinearOperator,
        key: PRNGKeyArray | None,
        spent: Products,
        report: Report | None,
    ) -> Selection | Estimate:
        """Reveal, factorise, check; and what corrects it, if need be."""
        del spent
        found = self.attempt(operator, key, report)
        if isinstance(found, TooLong):
            require_band(found.found.matrix)
            raise ValueError(
                f"what Probed() revealed would take {found.cost} to factorise: more memory than this "
                "machine has; use MonteCarlo or Lanczos"
            )
        return found

    def attempt(
        self,
        operator: lx.AbstractLinearOperator,
        key: PRNGKeyArray | None,
        report: Report | None,
        seconds: float = math.inf,
    ) -> Selection | Estimate | TooLong:
        """As `select`; `TooLong` where all would take more than the seconds, or too much memory."""
        began = time.perf_counter()
        found = reveal(operator, self.pattern, report.working if report else None)
        t, own = traits(operator), Products(found.num_products + CHECKS)
        defect = pattern_defect(operator, found.matrix, stream(key, "pattern"))
        names = counted(found.num_products, "product")
        if defect <= _ROUNDINGS * t.eps:

            def tell(cost: str) -> None:
                if report:
                    report.working(f"factorising what {names} revealed, {cost}")

            exact = found.log_abs_det(seconds - (time.perf_counter() - began), tell)
            if isinstance(exact, str):
                return TooLong(found, exact, own)
            factors = f"; its factors: {exact.cost}" if exact.cost else ""
            rounding = t.eps / EPS * exact.rounding  # entries that float32 gave carry its rounding
            return Estimate(
                log_abs_det=jnp.asarray(exact.log_abs_det),
                standard_error=jnp.asarray(rounding),
                diagnostics=Rounding(jnp.asarray(rounding / t.eps)),
                cost=own,
                sign=None if exact.sign is None else jnp.asarray(float(exact.sign)),
                method=f"probed, {exact.how}",
                num_dense=t.num_dense,
            ).with_notes(
                f"{names} revealed A by its pattern, and {CHECKS} more agreed with what they found"
                f"{factors}."
            )
        factor, error = inverse(found, stream(key, "defect"))
        samples = counted(self.num_samples, "sample")
        why = (
            f"{names} revealed what the pattern has of A; A differs from it by {defect:.1e} of its "
            f"size, which {samples} corrected."
        )
        name = f"probed, {samples}"
        method = MonteCarlo(self.num_samples)
        corrected = Preconditioned(factor, method, jnp.asarray(error), name)
        return Selection(corrected, operator, why, own)
