"""Deflation: k directions exactly, another method for their complement."""

import dataclasses
from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
import lineax as lx
from jaxtyping import Array, Float, PRNGKeyArray

from determinax import operators as ops
from determinax import sphere, verdict, weights
from determinax.estimate import Estimate
from determinax.methods.base import AbstractMethod, require_key, whole_number
from determinax.methods.monte_carlo import MonteCarlo
from determinax.operators import NO_PRODUCTS, Products
from determinax.progress import Report

_FEW_SAMPLES = MonteCarlo(32)
# blocks of the Krylov space, and steps of subspace iteration, that look for small singular values
_KRYLOV_BLOCKS, _SOLVES = 10, 8


@dataclasses.dataclass(frozen=True)
class Deflated(AbstractMethod):
    r"""$|\det A| = |\det R|\,|\det C|$: `num_directions` products give R, a `method` estimates C.

    Use it with a budget between n/4 and n products and nothing known of A: its error falls as the
    complement shrinks, and with n directions it is exact. Forward products only, unless the method
    for the complement asks for more. Memory is O(n k) beside the method's own.

    **Arguments:**

    - `num_directions`: k; n or more: the result is exact.
    - `method`: for the compressed operator C of size n - k; `MonteCarlo` or `Lanczos`.
    - `which`: `"random"`: a uniformly random orthonormal frame. `"smallest"`: the directions of the k
        smallest singular values, which are what defeats Monte Carlo, as far as 19 k more products
        with A and its transpose find them.
    - `solve`: $v \mapsto A^{-1}v$ of one vector, in JAX: finds the smallest with solves instead.
    """

    num_directions: int
    method: AbstractMethod = _FEW_SAMPLES
    which: Literal["random", "smallest"] = "random"
    solve: Callable | None = None

    def __post_init__(self):
        number = whole_number(self.num_directions, "num_directions")
        object.__setattr__(self, "num_directions", number)
        if not isinstance(self.method, AbstractMethod):
            raise TypeError(
                f"method is one such as MonteCarlo(32) or Lanczos(), not {self.method!r}"
            )
        if self.which not in ("random", "smallest"):
            raise ValueError(f'which is "random" or "smallest", not {self.which!r}')
        if self.solve is not None and self.which == "random":
            raise ValueError('solve finds small singular values: say which="smallest" too')

    def estimate(
        self,
        operator: lx.AbstractLinearOperator,
        key: PRNGKeyArray | None,
        *,
        spent: Products = NO_PRODUCTS,
        progress: Report | None = None,
    ) -> Estimate:
        """Deflate, then hand the complement to the method."""
        frame_key, method_key = jax.random.split(require_key(key, "Deflated"))
        n, dtype = operator.in_size(), operator.in_structure().dtype
        k = min(self.num_directions, n)
        traced = ops.is_traced((operator, key))
        frame = sphere.frame(frame_key, n, k, dtype)
        if self.which == "smallest" and k < n:
            frame, found = self._smallest(operator, frame, traced)
            spent += found
        # a complex operator multiplies one complex vector for each real direction of its embedding
        spent += Products(k)
        run = ops.deflate if traced else ops.compiled_deflate
        r, compressed = weights.guarded(run, operator, frame)
        logs = jnp.log(jnp.abs(jnp.diagonal(r)))
        factor = ops.log_det_factor(operator)
        sizes = jnp.linalg.svd(jax.lax.stop_gradient(r), compute_uv=False)[jnp.array([0, -1])]
        if k == n:
            condition = sizes[0] / sizes[1]
            return Estimate(
                log_abs_det=factor * jnp.sum(logs),
                standard_error=_rounding(condition, logs),
                condition=condition,
                method="deflated, all directions",
                num_matvecs=spent.total,
                num_transposed=spent.transposed,
                num_matvecs_dense=ops.rows_columns(operator)[1],
            )
        rest = self.method.estimate(compressed, method_key, spent=spent, progress=progress)
        condition = _joint_condition(sizes, rest, n - k)
        rounding = _rounding(condition, logs)
        moved = rest.moved(factor * jnp.sum(logs), factor=factor, error=rounding)
        if not ops.is_traced(rounding) and rounding > verdict.THRESHOLDS["rounding"].warn:
            moved = moved.with_notes(
                f"Rounding in the {k:,} directions may have cost {float(rounding):.1g} nats: use "
                "float64, or a formulation with a smaller condition number."
            )
        return dataclasses.replace(
            moved,
            condition=None if rest.condition is None else condition,
            method=f"deflated, {k:,} directions; {rest.method}",
            num_matvecs_dense=ops.rows_columns(operator)[1],
        )

    def _smallest(self, operator, start, traced: bool) -> tuple[Array, Products]:
        """The frame turned to the smallest singular directions, and the products it took."""
        if self.solve is not None:
            return ops.smallest_by_solves(self.solve, start, _SOLVES), NO_PRODUCTS
        transpose = ops.require_transpose(
            operator,
            'which="smallest" needs products with the transpose, which the operator lacks: give it '
            'one, give solve=, or take which="random"',
        )
        n, k = start.shape
        depth = max(1, min(_KRYLOV_BLOCKS, n // k))
        run = ops.smallest_directions if traced else ops.compiled_smallest
        frame = weights.guarded(run, operator, transpose, start, depth)
        # which directions they are is no function of A for a gradient to follow
        return jax.lax.stop_gradient(frame), Products(depth * k, (depth - 1) * k)


def _rounding(condition: Array, logs: Array) -> Array:
    """In nats: of the directions' QR, and of the sum of its logarithms."""
    return jnp.finfo(logs.dtype).eps * (condition + 4 * jnp.sum(jnp.abs(logs)))


def _joint_condition(sizes: Float[Array, "2"], rest: Estimate, dimension: int) -> Array:
    """Largest over smallest singular value, of R and of its complement C, as far as it is known.

    QR is off by a rounding of A's size, which reaches C as well. Of C we know the geometric mean,
    and how far the smallest may be below it where C was factorised.
    """
    mean = jnp.exp(jax.lax.stop_gradient(rest.log_abs_det) / dimension)
    smallest = mean if rest.condition is None else mean / rest.condition
    return jnp.maximum(sizes[0], mean) / jnp.minimum(sizes[1], smallest)
