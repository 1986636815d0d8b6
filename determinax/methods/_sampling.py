"""What `MonteCarlo` and `Variational` share: directions in groups, their weights, an estimate from sums.

Weights come in *groups*, a row each: a group is one direction, or one orthonormal frame whose
directions depend on each other. Groups are independent, and the sums rely on that.
"""

from typing import Any, ClassVar, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
from jaxtyping import Array, Float, Int, PRNGKeyArray

from determinax import _checks, sphere
from determinax._checks import counted, require_key, whole_number
from determinax._diagnostics import (
    EQUAL_WEIGHTS,
    EQUAL_WEIGHTS_NATS,
    MIN_EQUAL,
    THRESHOLDS,
    Weights,
)
from determinax._keys import stream
from determinax._linalg import log_norm
from determinax._pareto import pareto_k
from determinax._states import WeightSums, empty_sums, sums_of, tail_and_batch
from determinax.estimate import Bound, Bounds, Estimate
from determinax.methods._base import Plan
from determinax.methods._traced import AbstractDrawing
from determinax.operators import COPIES, Products, Traits, columns, traits

Directions = Literal["independent", "frames"]

# measured: a chunk should stay within the caches, and be long enough to pay for its bookkeeping
_CHUNK_ENTRIES, _CHUNK_SIZES = 2**19, (64, 8192)
# what a chunk has at most, unless told otherwise; less where it is copied more often than usual
MOST_ENTRIES = 2**26
# relative spread of the weights below which their second moment cancels in rounding: its square, 1e-3,
# leaves float32 four digits of seven, and the spread of the logs is off by 3 % of itself at most
_NEARLY_EQUAL = 0.03


class Groups(NamedTuple):
    """How many independent groups of how many directions."""

    num: int
    size: int

    @property
    def num_samples(self) -> int:
        """Directions altogether: as many products with A."""
        return self.num * self.size


class AbstractSampling(AbstractDrawing):
    """Weights of random directions, streamed."""

    num_samples: eqx.AbstractVar[int]
    directions: eqx.AbstractVar[Directions]
    chunk_size: eqx.AbstractVar[int | None]
    logs: ClassVar[bool] = True

    def groups(self, t: Traits) -> Groups:
        """Whole groups within `num_samples`; frames have n directions, or all of them if fewer."""
        size = min(t.cols, self.num_samples) if self.directions == "frames" else 1
        return Groups(self.num_samples // size, size)

    def plan(self, traits: Traits) -> Plan:
        """See `AbstractMethod`: units are groups."""
        groups = self.groups(traits)
        size = self.chunk_size or default_chunk_size(traits)
        return Plan.of(groups.num, max(1, size // groups.size))

    def cost(self, traits: Traits) -> Products:
        """See `AbstractMethod`."""
        return Products(self.groups(traits).num_samples)

    def empty(self, operator: lx.AbstractLinearOperator, prepared: Any) -> Any:
        """See `AbstractMethod`."""
        t = traits(operator)
        return empty_sums(tail_and_batch(self.groups(t).num)[0], t.dtype)

    def chunk_and_draws(
        self,
        operator: lx.AbstractLinearOperator,
        prepared: Any,
        key: PRNGKeyArray | None,
        index: Int[Array, ""],
        size: int,
    ) -> tuple[Any, Float[Array, "groups size"]]:
        """See `AbstractDrawing`: the draws are log-weights."""
        t = traits(operator)
        points, log_q = self.draw(t, key, index, size)
        # the barrier: XLA would compute the logs anew for each of the dozen sums that read them
        log_w = jax.lax.optimization_barrier(log_weights(operator, points, log_q))
        return self.sums(t, log_w, index, size), log_w.reshape(size, -1)

    def draw(
        self, t: Traits, key: PRNGKeyArray | None, index: Int[Array, ""], size: int
    ) -> tuple[Float[Array, "n num"], Float[Array, " num"]]:
        """The directions of `size` groups and their log-densities: constants for any gradient."""
        group = self.groups(t).size
        own = stream(key, "directions", index)
        if group == 1:
            z = sphere.uniform(own, t.cols, size, t.dtype)
        else:
            keys = jax.random.split(own, size)
            frames = jax.vmap(lambda k: sphere.frame(k, t.cols, group, t.dtype))(keys)
            z = jnp.moveaxis(frames, 0, 1).reshape(t.cols, size * group)
        points, log_q = self.propose(z, stream(key, "mixture", index))
        # a proposal that was made from A must not let A's gradient in by the back door
        return jax.lax.stop_gradient((points.astype(t.dtype), log_q.astype(t.dtype)))

    def propose(
        self, z: Float[Array, "n num"], key: PRNGKeyArray
    ) -> tuple[Float[Array, "n num"], Float[Array, " num"]]:
        """Where the uniform points end, and their log-densities there."""
        del key
        return z, jnp.zeros(z.shape[1], z.dtype)

    def sums(self, t: Traits, log_w: Float[Array, " num"], index: Any, size: int) -> WeightSums:
        """Of the log-weights of a chunk."""
        groups = self.groups(t)
        num_tail, batch = tail_and_batch(groups.num)
        most = self.plan(t).size
        first = index * most * groups.size
        return sums_of(log_w.reshape(size, groups.size), num_tail, min(batch, most), first)

    def has_enough(self, state: Any) -> Any:
        """See `AbstractMethod`: fewer draws than the verdict wants cannot tell their own error."""
        return state.groups.num >= THRESHOLDS["num_draws"].warn

    def require(self, operator: lx.AbstractLinearOperator, key: PRNGKeyArray | None) -> None:
        """See `AbstractMethod`: directions that do not fit beside each other are not tried."""
        require_key(key, type(self).__name__)
        t = traits(operator)
        self.require_memory(t)

    def memory(self, traits: Traits) -> int:
        """See `AbstractMethod`: the directions of a chunk and their products."""
        num = self.plan(traits).size * self.groups(traits).size
        itemsize = jnp.dtype(traits.dtype).itemsize
        return traits.copies * num * max(traits.rows, traits.cols) * itemsize

    def require_memory(self, t: Traits, times: int = 1) -> None:
        """Refuse directions that do not fit beside each other, in so many runs at a time."""
        groups = self.groups(t)
        num = self.plan(t).size * groups.size
        _checks.require_memory(
            times * self.memory(t),
            f"{f'{times:,} times ' if times > 1 else ''}{counted(num, 'direction')} in {t.cols:,} "
            "dimensions and their products have to be in memory",
            "take independent directions" if groups.size > 1 else "lower chunk_size",
        )


def default_chunk_size(t: Traits, times: int = 1) -> int:
    """Directions in memory at a time, where so many runs go on at a time."""
    least, most = _CHUNK_SIZES
    size = max(t.cols, t.rows)
    liked = max(least, min(most, _CHUNK_ENTRIES // size))
    return min(liked, max(1, MOST_ENTRIES * COPIES // (t.copies * times * size)))


def log_weights(
    operator: lx.AbstractLinearOperator,
    points: Float[Array, "n num"],
    log_density: Float[Array, " num"] | float = 0.0,
) -> Float[Array, " num"]:
    r"""Log importance weights of $1/|\det A|$ on the sphere.

    $\log w_i = -n \log\|A s_i\| - \log q(s_i)$, with $q$ relative to the uniform measure,
    so that $\mathbb{E}_q[w] = 1/|\det A|$ and $-\mathbb{E}_q[\log w] \ge \log|\det A|$.
    For a tall operator the mean is $\det(A^\top A)^{-1/2}$.

    References: Passenheim and Hoogeboom (2020), arXiv:2012.13311, section 2;
    Sohl-Dickstein (2020), arXiv:2005.06553.
    """
    # log-space: ||As||^-n underflows float32 for n > 80
    return -points.shape[0] * log_norm(columns(operator, points)) - log_density


def check_sampling(num_samples: Any, directions: Any, chunk_size: Any) -> tuple[int, Any, Any]:
    """Check, and tidy, the settings that every sampling method has."""
    num_samples = whole_number(num_samples, "num_samples")
    if directions not in ("independent", "frames"):
        raise ValueError(f'directions is "independent" or "frames", not {directions!r}')
    chunk_size = None if chunk_size is None else whole_number(chunk_size, "chunk_size")
    return num_samples, directions, chunk_size


def estimate_from(
    sums: WeightSums,
    t: Traits,
    *,
    group_size: int,
    num_tail: int,
    is_linear: bool,
    name: str,
    cost: Products,
) -> Estimate:
    r"""The estimate $-\log \bar w$ and all that the sums say about it."""
    num = sums.groups.num
    g = jnp.maximum(num, 1).astype(sums.shift.dtype)
    mean = jnp.sum(sums.total) / g
    shift = jnp.where(jnp.isinf(sums.shift), 0, sums.shift)
    # a product that was not finite has spoiled everything, also where its weight would be 0
    log_mean = jnp.where(sums.fault.code > 0, jnp.nan, shift + jnp.log(mean))

    still = jax.lax.stop_gradient(mean)
    squares = jnp.sum(sums.squares)
    relative = jnp.maximum(squares / (g * still**2) - 1, 0)
    weight_error = jnp.sqrt(relative / jnp.maximum(g - 1, 1))
    # nearly equal weights: their second moment cancels; their logs have the same spread
    nearly_equal = (jnp.sqrt(sums.groups.variance) < _NEARLY_EQUAL) | (num == 1)
    error = jnp.where(nearly_equal, sums.groups.error, weight_error)

    value_range = sums.largest - sums.smallest
    rounding = EQUAL_WEIGHTS * t.cols * float(jnp.finfo(t.dtype).eps)
    tolerance = min(rounding, EQUAL_WEIGHTS_NATS)
    equal = (value_range <= tolerance) & (num * group_size >= MIN_EQUAL)
    # a single frame has no spread to take an error from
    error = jnp.where(equal, jnp.minimum(error, tolerance), error)

    total = jnp.sum(jax.lax.stop_gradient(sums.total))
    f = t.log_det_factor
    batches = sums.batches
    return Estimate(
        log_abs_det=-f * log_mean,
        standard_error=f * error,
        diagnostics=Weights(
            num_draws=num,
            effective_sample_size=total**2 / squares,
            max_weight_share=jnp.exp(sums.shift - shift) / total,
            spread=jnp.sqrt(sums.singles.variance),
            pareto_k=pareto_k(jax.lax.optimization_barrier(sums.tail)),
            are_equal=equal,
            num_tail=num_tail,
            is_linear=is_linear,
        ),
        cost=cost,
        bounds=Bounds(
            kl=Bound(-f * sums.logs.mean, f * sums.logs.error),
            importance=Bound(-f * batches.mean, f * batches.error),
            slack=f / jnp.maximum(batches.num, 1).astype(sums.shift.dtype),
        ),
        fault=sums.fault,
        method=name,
        num_dense=t.num_dense,
    )


def spent_on(sums: WeightSums, group_size: int) -> Products:
    """The products behind the sums: where a bar stopped the run, fewer than were planned."""
    return Products(sums.groups.num * group_size, jnp.zeros_like(sums.groups.num))
