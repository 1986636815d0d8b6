"""Deflation: k directions exactly, another method for their complement."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
from jaxtyping import Array, Float, Int, PRNGKeyArray

from determinax import _checks, _linalg, sphere
from determinax._checks import counted, require_key, whole_number
from determinax._diagnostics import Rounding
from determinax._keys import stream
from determinax._linalg import mm
from determinax.estimate import Estimate
from determinax.methods._base import AbstractMethod, Plan, registered
from determinax.methods.monte_carlo import MonteCarlo
from determinax.operators import (
    CompressedLinearOperator,
    Products,
    Reflector,
    Traits,
    columns,
    reflector,
    require_transpose,
    traits,
)

# blocks of the Krylov space, and steps of subspace iteration, that look for small singular values
_KRYLOV_BLOCKS, _SOLVES = 10, 8
# arrays of n x k in memory at a time, and that many more for each block of the Krylov space
_COPIES, _COPIES_A_BLOCK = 6, 3


class Prepared(NamedTuple):
    """R, the reflectors of the frame and of its images, and what the inner method prepared."""

    r: Float[Array, "k k"]
    right: Reflector | None
    left: Reflector | None
    inner: Any


@registered("deflated")
class Deflated(AbstractMethod):
    r"""$|\det A| = |\det R|\,|\det C|$: `num_directions` products give R, a `method` estimates C.

    For an orthonormal frame $V$ and $AV = QR$, in bases that begin with $V$ and $Q$ the operator is
    block triangular, and $C = Q_\perp^\top A V_\perp$ acts between the orthogonal complements.

    Use it with a budget between n/4 and n products and nothing known of A: its error falls as the
    complement shrinks, and with n directions it is exact. Forward products only, unless the method
    for the complement asks for more. Memory is six arrays of n x k beside the method's own, and thirty
    more for `"smallest"` without a `solve`.

    **Arguments:**

    - `num_directions`: k; n or more: the result is exact.
    - `method`: for the compressed operator C of size n - k; `MonteCarlo` or `Lanczos`.
    - `which`: `"random"`: a uniformly random orthonormal frame. `"smallest"`: the directions of the k
        smallest singular values, which are what defeats Monte Carlo, as far as 19 k more products
        with A and its transpose find them.
    - `solve`: $v \mapsto A^{-1}v$ of one vector, in JAX: finds the smallest with solves instead.

    !!! example

        ```python
        method = dx.Deflated(5, dx.MonteCarlo(100))
        dx.log_abs_det(A, method, key=key).num_matvecs    # 105
        ```
    """

    num_directions: int = eqx.field(static=True)
    method: AbstractMethod
    which: Literal["random", "smallest"] = eqx.field(static=True)
    solve: Callable | None

    def __init__(
        self,
        num_directions: int,
        method: AbstractMethod | None = None,
        which: Literal["random", "smallest"] = "random",
        solve: Callable | None = None,
    ):
        method = MonteCarlo(32) if method is None else method
        if not isinstance(method, AbstractMethod):
            raise TypeError(f"method is one such as MonteCarlo(32) or Lanczos(), not {method!r}")
        if which not in ("random", "smallest"):
            raise ValueError(f'which is "random" or "smallest", not {which!r}')
        if solve is not None and which == "random":
            raise ValueError('solve finds small singular values: say which="smallest" too')
        self.num_directions = whole_number(num_directions, "num_directions")
        self.method, self.which, self.solve = method, which, solve

    def _rest(self, t: Traits) -> Traits | None:
        """Of the complement; None where there is none."""
        k = self.num_directions
        rest = t._replace(
            rows=t.rows - k,
            cols=t.cols - k,
            sign=0,
            is_dense=False,
            has_pattern=False,
            is_complex=False,
        )
        return rest if k < t.cols else None

    def plan(self, traits: Traits) -> Plan:
        """See `AbstractMethod`."""
        rest = self._rest(traits)
        return Plan(0, 1, 0) if rest is None else self.method.plan(rest)

    def cost(self, traits: Traits) -> Products:
        """See `AbstractMethod`."""
        rest = self._rest(traits)
        spent = Products(min(self.num_directions, traits.cols))
        return spent if rest is None else spent + self._search(traits) + self.method.cost(rest)

    def _search(self, t: Traits) -> Products:
        """The products that find the smallest directions."""
        if self.which == "random" or self.solve is not None:
            return Products()
        k = self.num_directions
        depth = _depth(t.cols, k)
        return Products(depth * k, (depth - 1) * k)

    def require(self, operator: lx.AbstractLinearOperator, key: PRNGKeyArray | None) -> None:
        """See `AbstractMethod`."""
        require_key(key, "Deflated")
        self._require_memory(traits(operator))
        if self._search(traits(operator)).transposed and self.num_directions < operator.in_size():
            require_transpose(
                operator,
                'which="smallest" needs products with the transpose, which the operator lacks: give it '
                'one, give solve=, or take which="random"',
            )

    def memory(self, traits: Traits) -> int:
        """See `AbstractMethod`: the frame with its images, and what the rest takes."""
        copies, size, k = self._arrays(traits)
        own = copies * size * k * jnp.dtype(traits.dtype).itemsize
        return own + self.method.memory(traits)

    def _arrays(self, t: Traits) -> tuple[int, int, int]:
        """How many, and how large."""
        k, size = min(self.num_directions, t.cols), max(t.rows, t.cols)
        searches = self._search(t).forward > 0 and k < t.cols
        return _COPIES + _COPIES_A_BLOCK * _depth(t.cols, k) * searches, size, k

    def _require_memory(self, t: Traits) -> None:
        copies, size, k = self._arrays(t)
        _checks.require_memory(
            copies * size * k * jnp.dtype(t.dtype).itemsize,
            f"Deflated() needs {copies} arrays of {size:,}x{k:,}",
            "lower num_directions, or use MonteCarlo or Lanczos",
        )

    def prepare(self, operator: lx.AbstractLinearOperator, key: PRNGKeyArray | None) -> Prepared:
        """See `AbstractMethod`."""
        t = traits(operator)
        k = min(self.num_directions, t.cols)
        frame = sphere.frame(stream(key, "deflation"), t.cols, k, t.dtype)
        if self.which == "smallest" and k < t.cols:
            # which directions they are is no function of A for a gradient to follow
            frame = jax.lax.stop_gradient(self._smallest(operator, frame))
        q, r = _linalg.qr(columns(operator, frame))
        if k == t.cols:
            return Prepared(r, None, None, None)
        right, left = reflector(frame), reflector(q)
        rest = CompressedLinearOperator(operator, right, left)
        return Prepared(r, right, left, self.method.prepare(rest, stream(key, "complement")))

    def _smallest(self, operator, start: Float[Array, "n k"]) -> Float[Array, "n k"]:
        if self.solve is not None:
            return smallest_by_solves(self.solve, start, _SOLVES)
        return smallest_directions(operator, operator.transpose(), start, _depth(*start.shape))

    def empty(self, operator: lx.AbstractLinearOperator, prepared: Prepared) -> Any:
        """See `AbstractMethod`."""
        if prepared.right is None:
            return None
        return self.method.empty(_rest_of(operator, prepared), prepared.inner)

    def chunk(
        self,
        operator: lx.AbstractLinearOperator,
        prepared: Prepared,
        key: PRNGKeyArray | None,
        index: Int[Array, ""],
        size: int,
    ) -> Any:
        """See `AbstractMethod`."""
        own = stream(key, "complement")
        return self.method.chunk(_rest_of(operator, prepared), prepared.inner, own, index, size)

    def merge(self, state: Any, partial: Any) -> Any:
        """See `AbstractMethod`."""
        return self.method.merge(state, partial)

    def traced(self, traits: Traits) -> AbstractMethod:
        """See `AbstractMethod`: the draws are those of the method for the complement."""
        rest = self._rest(traits)
        if rest is None:
            return self
        return Deflated(self.num_directions, self.method.traced(rest), self.which, self.solve)

    def has_enough(self, state: Any) -> Any:
        """See `AbstractMethod`."""
        return self.method.has_enough(state)

    @property
    def can_split(self) -> bool:
        """See `AbstractMethod`."""
        return self.method.can_split

    def summarise(
        self, operator: lx.AbstractLinearOperator, prepared: Prepared, state: Any
    ) -> Estimate:
        """See `AbstractMethod`."""
        t = traits(operator)
        factor, k = t.log_det_factor, prepared.r.shape[0]
        logs = jnp.log(jnp.abs(jnp.diagonal(prepared.r)))
        values = _linalg.singular_values(jax.lax.stop_gradient(prepared.r))
        largest, smallest = values[0], values[-1]
        if prepared.right is None:
            condition = largest / smallest
            return Estimate(
                log_abs_det=factor * jnp.sum(logs),
                standard_error=_rounding(condition, logs),
                diagnostics=Rounding(condition),
                cost=Products(k),
                method="deflated, all directions",
                num_dense=t.num_dense,
            )
        rest = self.method.summarise(_rest_of(operator, prepared), prepared.inner, state)
        condition = _joint_condition(largest, smallest, rest, t.cols - k)
        moved = rest.moved(factor * jnp.sum(logs), factor=factor, error=_rounding(condition, logs))
        of_rest = isinstance(rest.diagnostics, Rounding)
        return moved.replace(
            diagnostics=Rounding(condition) if of_rest else moved.diagnostics,
            cost=rest.cost + Products(k) + self._search(t),
            method=f"deflated, {counted(k, 'direction')}; {rest.method}",
            num_dense=t.num_dense,
        )


def _rest_of(operator: lx.AbstractLinearOperator, prepared: Prepared) -> CompressedLinearOperator:
    assert prepared.right is not None
    assert prepared.left is not None
    return CompressedLinearOperator(operator, prepared.right, prepared.left)


def _depth(n: int, k: int) -> int:
    return max(1, min(_KRYLOV_BLOCKS, n // k))


def smallest_directions(
    operator: lx.AbstractLinearOperator,
    transpose: lx.AbstractLinearOperator,
    start: Float[Array, "n k"],
    depth: int,
) -> Float[Array, "n k"]:
    r"""About the right singular directions of the k smallest singular values of A.

    The best in the block Krylov space of $A^\top A$ from `start`, of `depth` blocks (a Rayleigh-Ritz
    step): `depth` k products with A and `(depth - 1)` k with its transpose.
    """
    k = start.shape[1]
    basis, images = start, columns(operator, start)
    for _ in range(depth - 1):
        block = columns(transpose, images[:, -k:])
        for _ in range(2):  # twice is enough, for orthogonality to rounding
            block = _linalg.qr(block - mm(basis, mm(basis.T, block)))[0]
        basis = jnp.concatenate([basis, block], axis=1)
        images = jnp.concatenate([images, columns(operator, block)], axis=1)
    right = _linalg.svd(images)[2]
    return mm(basis, right[-k:].T)


def smallest_by_solves(
    solve: Callable[[Array], Array], start: Float[Array, "n k"], steps: int
) -> Float[Array, "n k"]:
    r"""The same from solves: subspace iteration with $A^{-1}A^{-\top}$, the transpose by JAX."""
    zeros = jnp.zeros(start.shape[0], start.dtype)

    def both(v):
        return solve(*jax.linear_transpose(solve, zeros)(v))

    def step(_, frame):
        return _linalg.qr(jax.vmap(both, in_axes=1, out_axes=1)(frame))[0]

    return jax.lax.fori_loop(0, steps, step, start)


def _rounding(condition: Array, logs: Array) -> Array:
    """In nats: of the directions' QR, and of the sum of its logarithms."""
    logs = jax.lax.stop_gradient(logs)
    return jnp.finfo(logs.dtype).eps * (condition + 4 * jnp.sum(jnp.abs(logs)))


def _joint_condition(largest: Array, smallest: Array, rest: Estimate, dimension: int) -> Array:
    """Largest over smallest singular value, of R and of its complement C, as far as it is known.

    QR is off by a rounding of A's size, which reaches C as well. Of C we know the geometric mean,
    and how far the smallest may be below it where C was factorised.
    """
    mean = jnp.exp(jax.lax.stop_gradient(rest.log_abs_det) / dimension)
    least = mean if rest.condition is None else mean / rest.condition
    return jnp.maximum(largest, mean) / jnp.minimum(smallest, least)
