"""What every density on the sphere has in common."""

import abc
from typing import Literal, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.core import Tracer
from jaxtyping import Array, ArrayLike, DTypeLike, Float, PRNGKeyArray

from determinax import _spheres, sphere
from determinax._checks import require_key, whole_number
from determinax._drawing.curves import circles, world
from determinax._drawing.page import card
from determinax._keys import stream
from determinax.flows.base import dtype_of

T = TypeVar("T")
Measure = Literal["uniform", "area"]
Context = Float[ArrayLike, " c"] | Float[ArrayLike, "num c"] | float | None
Columns = Float[Array, " c"] | Float[Array, "c num"] | None  # of contexts


class AbstractProposal(eqx.Module):
    r"""A density $q$ on the sphere, relative to the uniform law: $\mathbb{E}_U[q] = 1$.

    Points are rows in `log_density` and `sample`, and columns, which is what matrices multiply, in
    what a density of your own has to say: `push` and `log_density_columns`.
    """

    @property
    @abc.abstractmethod
    def n(self) -> int:
        """The dimension of the space around the sphere."""

    @property
    def context_size(self) -> int:
        """How many numbers a context has; 0 where there is none."""
        return 0

    def given(self, context: Context) -> "AbstractProposal":
        """A conditional density for one context, to be asked without."""
        del context
        raise ValueError("this density takes no context: ask it as it is")

    @abc.abstractmethod
    def push(
        self,
        z: Float[Array, "n num"],
        key: PRNGKeyArray | None = None,
        context: Columns = None,
    ) -> tuple[Float[Array, "n num"], Float[Array, " num"]]:
        """Uniform points, moved to be points of this law, and the log-densities where they end."""

    @abc.abstractmethod
    def log_density_columns(
        self,
        points: Float[Array, "n *num"],
        context: Columns = None,
    ) -> Float[Array, "*num"]:
        """The log-density at given unit vectors, one a column."""

    def _repr_html_(self) -> str:
        flow = getattr(self, "flow", None)
        by = "" if flow is None else f", by {type(flow).__name__}"
        words = f"<p>{type(self).__name__} on the sphere in {self.n} dimensions{by}</p>"
        if self.n == 2 and not self.context_size:
            words += circles({"density": _spheres.relative(self, _spheres.circle())})
        elif self.n == 3 and not self.context_size:
            words += world(_spheres.on_sphere(self, "").frames[0])
        return card(words)

    def log_density(
        self,
        points: Float[ArrayLike, "num n"] | Float[ArrayLike, " n"],
        context: Context = None,
        *,
        measure: Measure = "uniform",
    ) -> Float[Array, " num"] | Float[Array, ""]:
        r"""The log-density at given unit vectors, one a row, or at one; `context` likewise.

        A context of one number may be a plain number, or an array with a number for each point.

        Relative to the uniform law, which then has 0 everywhere, or with `measure="area"` to the area
        of the unit sphere (the uniform law has $-\log 4\pi$ at n = 3). Lists will do. What is off
        the sphere by more than 1e-3 is refused, but inside of `jit`, where values cannot be seen.

        !!! example

            ```python
            points = dx.sphere.from_lonlat([13.4, 2.35], [52.5, 48.86])
            q.log_density(points, measure="area")
            ```
        """
        shift = _shift(measure, self.n)
        rows = sphere.unit_rows(points, self.n)
        num = len(rows) if rows.ndim == 2 else None
        return _log_density_columns(self, rows.T, self._as_columns(context, num)) - shift

    def sample(self, key: PRNGKeyArray, num: int, context: Context = None) -> Float[Array, "num n"]:
        """`num` points, one a row; `context` for all, or one a row.

        !!! example

            ```python
            longitude, latitude = dx.sphere.to_lonlat(q.sample(jax.random.key(0), 1000))
            ```
        """
        num = whole_number(num, "num")
        key = require_key(key, "sampling")
        return _sample_alone(self, key, num, self._as_columns(context, num)).T

    def sample_and_log_density(
        self, key: PRNGKeyArray, num: int, context: Context = None
    ) -> tuple[Float[Array, "num n"], Float[Array, " num"]]:
        """`num` points, one a row, and their log-densities; `context` for all, or one a row."""
        points, log_density = _sample_columns(self, key, num, self._as_columns(context, num))
        return points.T, log_density

    def sample_columns(
        self,
        key: PRNGKeyArray,
        num: int,
        context: Columns = None,
    ) -> tuple[Float[Array, "n num"], Float[Array, " num"]]:
        """Points as columns, the layout in which matrices multiply them and flows are fast."""
        z = sphere.uniform(key, self.n, num, dtype_of(self))
        return self.push(z, stream(key, "push"), context)

    def _as_columns(self, context: ArrayLike | None, num: int | None) -> Array | None:
        size = self.context_size
        if context is None:
            return None
        if size == 0:
            raise ValueError("this density takes no context: leave it out")
        context = jnp.asarray(context)
        if size == 1 and context.shape in ((), (num,)):
            context = context[None] if context.ndim == 0 else context[:, None]
        if context.shape not in ((size,), (num, size)):
            many = "" if num is None else f", nor {num} of them, one a row"
            raise ValueError(
                f"a context of shape {context.shape} is not one of {size} numbers{many}"
            )
        if not isinstance(context, Tracer) and not jnp.isfinite(context).all():
            bad = (
                ""
                if context.ndim == 1
                else f"row {int(jnp.argmin(jnp.isfinite(context).all(1)))} of "
            )
            raise ValueError(f"{bad}the context holds NaN or Inf")
        return context.T


# compiled once for a density and a number of points: else every call compiles its layers anew
_sample_columns = eqx.filter_jit(AbstractProposal.sample_columns)
_log_density_columns = eqx.filter_jit(
    lambda proposal, points, context: proposal.log_density_columns(points, context)
)


@eqx.filter_jit
def _sample_alone(proposal, key, num, context):
    return proposal.sample_columns(key, num, context)[0]


def _shift(measure: Measure, n: int) -> float:
    """What to take off a log-density relative to the uniform law."""
    if measure not in ("uniform", "area"):
        raise ValueError(f'measure is "uniform" or "area", not {measure!r}')
    return sphere.log_area(n) if measure == "area" else 0.0


def cast(tree: T, dtype: DTypeLike) -> T:
    """A proposal, or a part of one, with its floating-point arrays in another dtype."""
    return jax.tree.map(lambda x: x.astype(dtype) if eqx.is_inexact_array(x) else x, tree)
