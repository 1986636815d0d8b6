r"""Log importance weights of $1/|\det A|$, streamed: operator + directions + key -> log-weights.

Weights come in *groups*, a row each: a group is one direction, or one orthonormal frame whose
directions depend on each other. Groups are independent; whoever folds them may rely on that.
Nothing here keeps more than one chunk.
"""

import time
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
from jaxtyping import Array, ArrayLike, Float, Int, PRNGKeyArray

from determinax import sphere
from determinax.operators import OperatorError, columns, host_operators, is_traced
from determinax.proposals import DefensiveMixture, Proposal

S = TypeVar("S")
Directions = Literal["independent", "frames"]

# measured: a chunk should stay within the caches, and be long enough to pay for its bookkeeping
_CHUNK_ENTRIES, _CHUNK_SIZES = 2**19, (64, 8192)


class Plan(NamedTuple):
    """How many groups of how many directions, and how many groups are in memory at a time."""

    num_groups: int
    group_size: int
    groups_per_chunk: int

    @property
    def num_samples(self) -> int:
        """Directions altogether: as many products with A."""
        return self.num_groups * self.group_size


def make_plan(n: int, m: int, num_samples: int, directions: Directions, chunk_size: int | None):
    """Whole groups within `num_samples`; frames have n directions, or all of them if fewer."""
    group_size = min(n, num_samples) if directions == "frames" else 1
    if chunk_size is None:
        least, most = _CHUNK_SIZES
        chunk_size = max(least, min(most, _power_of_two(_CHUNK_ENTRIES // max(n, m))))
    num_groups = num_samples // group_size
    return Plan(num_groups, group_size, min(num_groups, max(1, chunk_size // group_size)))


def _power_of_two(size: int) -> int:
    return 1 << max(0, size.bit_length() - 1)  # the largest within: XLA's loops like it


def log_norm(vectors: Float[Array, "m num"]) -> Float[Array, " num"]:
    """Log of the columns' Euclidean norms, for entries of any size that the dtype can hold."""
    # one scale for the chunk: 1e200 squared overflows, 1e-200 squared is 0
    largest = jnp.max(jnp.abs(vectors))
    scale = jax.lax.stop_gradient(jnp.where((largest > 0) & jnp.isfinite(largest), largest, 1))
    return 0.5 * jnp.log(jnp.sum((vectors / scale) ** 2, axis=0)) + jnp.log(scale)


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


def draw(key: PRNGKeyArray, n: int, num_groups: int, group_size: int, dtype) -> Array:
    """Base directions of `num_groups` groups as columns, a group's next to each other."""
    if group_size == 1:
        return sphere.uniform(key, n, num_groups, dtype)
    keys = jax.random.split(key, num_groups)
    frames = jax.vmap(lambda k: sphere.frame(k, n, group_size, dtype))(keys)
    return jnp.moveaxis(frames, 0, 1).reshape(n, num_groups * group_size)


def directions(
    key: PRNGKeyArray,
    index: Int[ArrayLike, ""],
    n: int,
    plan: Plan,
    dtype: Any,
    proposal: Proposal | DefensiveMixture | None = None,
) -> tuple[Float[Array, "n num"], Float[Array, " num"]]:
    """The directions of chunk `index` and their log-densities: constants for any gradient."""
    chunk_key = jax.random.fold_in(key, index)
    points = draw(chunk_key, n, plan.groups_per_chunk, plan.group_size, dtype)
    log_q = jnp.zeros(points.shape[1], dtype)
    if proposal is not None:
        points, log_q = proposal.push(points, jax.random.fold_in(chunk_key, 1))
        # a proposal that was made from A must not let A's gradient in by the back door
        points, log_q = jax.lax.stop_gradient((points.astype(dtype), log_q.astype(dtype)))
    return points, log_q


def fold(
    operator: lx.AbstractLinearOperator,
    key: PRNGKeyArray,
    plan: Plan,
    update: Callable[[S, Float[Array, "groups size"]], S],
    state: S,
    progress: Callable[[int], Any] | None = None,
    proposal: Proposal | DefensiveMixture | None = None,
) -> S:
    """Feed all groups of log-weights to `update`, chunk by chunk; uniform without a `proposal`.

    Each chunk has its own key, folded from `key` and the chunk's number. Outside of tracing it runs
    in pieces of about half a second and calls `progress` with the number of samples done.
    """
    full, rest = divmod(plan.num_groups, plan.groups_per_chunk)
    if is_traced((operator, key, state, proposal)):
        state = _chunks(operator, key, plan, update, state, 0, full, proposal)
    else:
        state = _chunks_in_pieces(operator, key, plan, update, state, full, progress, proposal)
    if rest:
        tail = plan._replace(num_groups=rest, groups_per_chunk=rest)
        run = _chunks if is_traced((operator, key, state, proposal)) else _compiled_chunks
        state = guarded(run, operator, key, tail, update, state, full, full + 1, proposal)
    return state


def _chunks(operator, key, plan, update, state, start, stop, proposal):
    n = operator.in_size()
    dtype = operator.in_structure().dtype

    @jax.checkpoint  # backwards, a chunk is drawn anew instead of being kept
    def step(index, state):
        points, log_q = directions(key, index, n, plan, dtype, proposal)
        # the barrier: XLA would compute the logs anew for each of the dozen sums that read them
        log_w = jax.lax.optimization_barrier(log_weights(operator, points, log_q))
        return update(state, log_w.reshape(plan.groups_per_chunk, plan.group_size))

    return jax.lax.fori_loop(start, stop, step, state)


_compiled_chunks = eqx.filter_jit(_chunks)


def _chunks_in_pieces(operator, key, plan, update, state, full, progress, proposal):
    done, piece = 0, 1
    while done < full:
        stop = min(done + piece, full)
        started = time.perf_counter()
        # traced bounds: one compilation serves every piece
        bounds = jnp.asarray(done), jnp.asarray(stop)
        state = guarded(_compiled_chunks, operator, key, plan, update, state, *bounds, proposal)
        state = jax.block_until_ready(state)
        done = stop
        if progress is not None:
            progress(done * plan.groups_per_chunk * plan.group_size)
        if time.perf_counter() - started < 0.25:
            piece *= 2
    return state


def guarded(run: Callable, operator: lx.AbstractLinearOperator, *args):
    """Run compiled code that calls the operator; what it raised on the host is chained."""
    try:
        return run(operator, *args)
    except jax.errors.JaxRuntimeError:
        for host in host_operators(operator):
            cause, host.products.failure = host.products.failure, None
            if cause is not None:
                raise OperatorError("the operator raised while computing a product") from cause
        raise
