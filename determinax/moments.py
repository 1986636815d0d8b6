r"""What streaming carries from chunk to chunk: sums over the groups' log-weights. Numbers only."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

# the Pareto fit wants up to 3 sqrt(S) tail draws; past this many, a deeper tail is as good
_MAX_TAIL = 1024


class Moments(eqx.Module):
    r"""Sums from which every figure of an `Estimate` follows, in memory that does not grow.

    A group's weight is the mean weight of its directions. Sums are compensated, as pairs of a value
    and what rounding dropped: float32 keeps its digits over $10^8$ samples.
    """

    pivot: Float[Array, ""]  # a typical log-weight: logs are summed relative to it
    shift: Float[Array, ""]  # the largest group log-weight: weights are summed relative to it
    largest: Float[Array, ""]  # of the single log-weights, whose range tells an isometry
    smallest: Float[Array, ""]
    weights: Float[Array, "2"]
    squares: Float[Array, "2"]
    logs: Float[Array, "2"]  # of the directions' mean log-weight, for the KL bound
    log_squares: Float[Array, "2"]
    direction_squares: Float[Array, "2"]  # of single log-weights, for their spread
    group_logs: Float[Array, "2"]  # of the groups' own log-weight
    group_log_squares: Float[Array, "2"]
    batch_logs: Float[Array, "2"]
    batch_log_squares: Float[Array, "2"]
    tail: Float[Array, " tail"]
    count: Int[Array, ""]
    first_bad: Int[Array, ""]
    batch: int = eqx.field(static=True)
    candidates: int = eqx.field(static=True)  # a chunk's largest weights, looked at for the tail


def empty(num_groups: int, groups_per_chunk: int, dtype) -> Moments:
    r"""Moments of nothing yet.

    Independent batches of about $\sqrt{G}/2$ groups serve the importance bound and the certificate:
    with R batches the first errs by about $\mathrm{Var}(w) R / 2G$ and the second adds
    $\log(1/\delta)/R$, so that $R \propto \sqrt{G}$ is best. A batch never spans two chunks.
    """
    zero, pair = jnp.zeros((), dtype), jnp.zeros(2, dtype)
    batch = 2 ** round(math.log2(max(1.0, math.sqrt(num_groups) / 2)))
    num_tail = min(math.ceil(3 * math.sqrt(num_groups)), num_groups // 5, _MAX_TAIL)
    # a chunk holds so many of the final tail on average; far more than that never happens by chance
    expected = num_tail * groups_per_chunk / num_groups
    candidates = math.ceil(expected + 12 * math.sqrt(expected) + 32)
    return Moments(
        pivot=zero,
        shift=zero - jnp.inf,
        largest=zero - jnp.inf,
        smallest=zero + jnp.inf,
        weights=pair,
        squares=pair,
        logs=pair,
        log_squares=pair,
        direction_squares=pair,
        group_logs=pair,
        group_log_squares=pair,
        batch_logs=pair,
        batch_log_squares=pair,
        # float32 is enough to fit a tail's shape, and its top_k is eight times faster on the CPU;
        # one more than the tail itself: the fit wants the largest value below it
        tail=jnp.full(num_tail + 1, -jnp.inf, jnp.float32),
        count=jnp.zeros((), jnp.int32),
        first_bad=jnp.full((), -1, jnp.int32),
        batch=min(batch, groups_per_chunk),
        candidates=candidates,
    )


def update(moments: Moments, log_w: Float[Array, "groups size"]) -> Moments:
    """Add a chunk of groups of log-weights."""
    groups, size = log_w.shape
    first = moments.count == 0
    group_log_w = log_w[:, 0] if size == 1 else log_mean_exp(log_w, axis=1)
    mean_log = jnp.mean(log_w, axis=1)
    pivot = jnp.where(first, jax.lax.stop_gradient(jnp.mean(mean_log)), moments.pivot)

    stopped = jax.lax.stop_gradient(group_log_w)
    shift = jnp.maximum(moments.shift, jnp.max(stopped))
    # an infinite shift would turn inf - inf into NaN and hide that the operator is singular
    safe = jnp.where(jnp.isinf(shift), 0, shift)
    rescale = jnp.where(first, 0, jnp.exp(moments.shift - safe))
    relative = jnp.exp(group_log_w - safe)

    logs, group_logs = mean_log - pivot, group_log_w - pivot
    whole = groups // moments.batch * moments.batch
    batches = log_mean_exp(group_log_w[:whole].reshape(-1, moments.batch), axis=1) - pivot
    candidates, _ = jax.lax.top_k(
        (stopped - pivot).astype(jnp.float32), min(moments.candidates, groups)
    )
    tail = jnp.concatenate([moments.tail, candidates])
    return Moments(
        pivot=pivot,
        shift=shift,
        largest=jnp.maximum(moments.largest, jnp.max(jax.lax.stop_gradient(log_w))),
        smallest=jnp.minimum(moments.smallest, jnp.min(jax.lax.stop_gradient(log_w))),
        weights=_add(moments.weights * rescale, relative),
        squares=_add(moments.squares * rescale**2, relative**2),
        logs=_add(moments.logs, logs),
        log_squares=_add(moments.log_squares, logs**2),
        direction_squares=_add(moments.direction_squares, jnp.mean((log_w - pivot) ** 2, axis=1)),
        group_logs=_add(moments.group_logs, group_logs),
        group_log_squares=_add(moments.group_log_squares, group_logs**2),
        batch_logs=_add(moments.batch_logs, batches),
        batch_log_squares=_add(moments.batch_log_squares, batches**2),
        tail=jax.lax.top_k(tail, len(moments.tail))[0],
        count=moments.count + groups,
        first_bad=jnp.where(
            moments.first_bad >= 0, moments.first_bad, _first_bad(log_w, moments.count)
        ),
        batch=moments.batch,
        candidates=moments.candidates,
    )


def num_batches(num_groups: int, groups_per_chunk: int, batch: int) -> int:
    """How many whole batches the chunks of `num_groups` groups held."""
    full, rest = divmod(num_groups, groups_per_chunk)
    return full * (groups_per_chunk // batch) + rest // batch


def mean_and_error(total: Array, squares: Array, num: int) -> tuple[Array, Array]:
    """The mean of `num` summed values and its standard error (infinite for a single value)."""
    mean = jnp.sum(total) / num
    variance = jnp.maximum(jnp.sum(squares) / num - mean**2, 0)
    error = jnp.sqrt(variance / (num - 1)) if num > 1 else jnp.full_like(mean, jnp.inf)
    return mean, error


def log_mean_exp(x: Array, axis: int) -> Array:
    r"""$\log \frac1K \sum_k e^{x_k}$."""
    return jax.nn.logsumexp(x, axis=axis) - math.log(x.shape[axis])


def _first_bad(log_w: Array, count: Array) -> Array:
    """The number of the first product that was not finite, or -1.

    A NaN shows as NaN and an infinite product as -inf; +inf is a product that vanished.
    """
    flat = log_w.reshape(-1)
    bad = jnp.isnan(flat) | (flat == -jnp.inf)
    return jnp.where(bad.any(), count * log_w.shape[1] + jnp.argmax(bad), -1).astype(jnp.int32)


def _add(total: Float[Array, "2"], terms: Array) -> Float[Array, "2"]:
    """Compensated addition (Neumaier) of a chunk's sum to the total."""
    value, dropped = total
    x = jnp.sum(terms)
    s = value + x
    lost = jnp.where(jnp.abs(value) >= jnp.abs(x), (value - s) + x, (x - s) + value)
    # an infinite sum has no rounding error, only inf - inf
    return jnp.stack([s, jnp.where(jnp.isinf(s), 0, dropped + lost)])
