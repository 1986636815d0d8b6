r"""States that merge: each is a monoid with its own counts. Numbers only.

`merge(a, b)` is associative up to rounding and has an identity, so that streaming is a fold, and
chunks that were computed apart are merged in the order of their numbers with the same result.
"""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Float, Int, PyTree

NEVER = 2**31 - 1
# the Pareto fit wants up to 3 sqrt(S) tail draws; past this many, a deeper tail is as good
_MAX_TAIL = 1024


class Spread(eqx.Module):
    """Count, mean and sum of squared deviations from it.

    The mean is compensated, a pair of a value and what rounding dropped: in float32 the roundings of
    10^4 merges would add up to more than the mean of 10^8 samples is off by.

    References: Chan, Golub and LeVeque (1979), "Updating formulae and a pairwise algorithm for
    computing sample variances".
    """

    num: Int[Array, ""]
    pair: Float[Array, "2"]
    squares: Float[Array, ""]

    @staticmethod
    def of(values: Float[Array, "..."]) -> "Spread":
        """Of these values; no gradient passes."""
        x = jax.lax.stop_gradient(values).reshape(-1)
        mean = jnp.mean(x) if x.size else jnp.zeros((), x.dtype)
        pair = jnp.stack([mean, jnp.zeros_like(mean)])
        return Spread(jnp.asarray(x.size, jnp.int32), pair, jnp.sum((x - mean) ** 2))

    @property
    def mean(self) -> Float[Array, ""]:
        """Of the values."""
        return jnp.sum(self.pair)

    def merge(self, other: "Spread") -> "Spread":
        """Of the values of both."""
        num = self.num + other.num
        share = other.num / jnp.maximum(num, 1).astype(self.squares.dtype)
        delta = jnp.sum(other.pair - self.pair)
        pair = _add(self.pair, jnp.stack([delta * share, jnp.zeros_like(delta)]))
        pair = jnp.where(self.num == 0, other.pair, jnp.where(other.num == 0, self.pair, pair))
        between = delta**2 * self.num.astype(self.squares.dtype) * share
        is_alone = (self.num == 0) | (other.num == 0)
        squares = self.squares + other.squares + jnp.where(is_alone, 0, between)
        return Spread(num, pair, squares)

    @property
    def variance(self) -> Float[Array, ""]:
        """Of the values about their mean."""
        return self.squares / jnp.maximum(self.num, 1)

    @property
    def error(self) -> Float[Array, ""]:
        """The standard error of the mean; infinite for a single value."""
        num = jnp.maximum(self.num, 1).astype(self.squares.dtype)
        error = jnp.sqrt(self.squares / (jnp.maximum(num - 1, 1) * num))
        return jnp.where(self.num > 1, error, jnp.inf)


class Fault(eqx.Module):
    """The first thing that went wrong: which (a code of `FAULTS`), where, and by how much."""

    code: Int[Array, ""]
    where: Int[Array, ""]
    size: Float[Array, ""]

    @staticmethod
    def none() -> "Fault":
        """Nothing did."""
        return Fault(
            jnp.zeros((), jnp.int32), jnp.asarray(NEVER, jnp.int32), jnp.zeros((), jnp.float32)
        )

    @staticmethod
    def when(
        condition: Array, code: int, where: Array | int = 0, size: Array | float = 0.0
    ) -> "Fault":
        """This fault where the condition holds, none elsewhere."""
        condition, size = jax.lax.stop_gradient((condition, jnp.asarray(size)))
        return Fault(
            jnp.where(condition, code, 0).astype(jnp.int32),
            jnp.where(condition, where, NEVER).astype(jnp.int32),
            jnp.where(condition, size, 0).astype(jnp.float32),
        )

    def merge(self, other: "Fault") -> "Fault":
        """The earlier of both."""
        first = self.where <= other.where
        return jax.tree.map(lambda a, b: jnp.where(first, a, b), self, other)


class WeightSums(eqx.Module):
    r"""All that an estimate wants to know of log-weights, in memory that does not grow.

    Weights come in independent groups, and a group's weight is the mean of its directions'. `total`
    and `squares` are compensated, pairs of a value and what rounding dropped: float32 keeps its
    digits over $10^8$ samples. Of all these only `total` carries a gradient.
    """

    shift: Float[Array, ""]  # the largest group log-weight: sums of weights are relative to it
    total: Float[Array, "2"]
    squares: Float[Array, "2"]
    singles: Spread  # log-weights of single directions
    logs: Spread  # a group's mean log-weight, for the KL bound
    groups: Spread  # a group's log mean weight
    batches: Spread  # a batch's log mean weight, for the importance bound and the certificate
    largest: Float[Array, ""]  # of the single log-weights, whose range tells an isometry
    smallest: Float[Array, ""]
    tail: Float[Array, " tail"]  # the largest group log-weights, descending, and one below them
    fault: Fault

    def merge(self, other: "WeightSums") -> "WeightSums":
        """Of the weights of both."""
        shift = jnp.maximum(self.shift, other.shift)
        # an infinite shift would turn inf - inf into NaN and hide that the operator is singular
        safe = jnp.where(jnp.isinf(shift), 0, shift)
        mine, theirs = jnp.exp(self.shift - safe), jnp.exp(other.shift - safe)
        tail = jnp.concatenate([self.tail, other.tail])
        return WeightSums(
            shift=shift,
            total=_add(self.total * mine, other.total * theirs),
            squares=_add(self.squares * mine**2, other.squares * theirs**2),
            singles=self.singles.merge(other.singles),
            logs=self.logs.merge(other.logs),
            groups=self.groups.merge(other.groups),
            batches=self.batches.merge(other.batches),
            largest=jnp.maximum(self.largest, other.largest),
            smallest=jnp.minimum(self.smallest, other.smallest),
            tail=jax.lax.top_k(tail, len(self.tail))[0],
            fault=self.fault.merge(other.fault),
        )


def tail_and_batch(num_groups: int) -> tuple[int, int]:
    r"""How many of the largest weights are kept, and the groups in a batch.

    Independent batches of about $\sqrt{G}/2$ groups serve the importance bound and the certificate:
    with R batches the first errs by about $\mathrm{Var}(w) R / 2G$ and the second adds
    $\log(1/\delta)/R$, so that $R \propto \sqrt{G}$ is best. A batch never spans two chunks.
    """
    num_tail = min(math.ceil(3 * math.sqrt(num_groups)), num_groups // 5, _MAX_TAIL)
    return num_tail, 2 ** round(math.log2(max(1.0, math.sqrt(num_groups) / 2)))


def empty_sums(num_tail: int, dtype: DTypeLike) -> WeightSums:
    """Of no weights: what `merge` leaves everything else as it is with."""
    zero, pair, none = jnp.zeros((), dtype), jnp.zeros(2, dtype), Spread.of(jnp.zeros(0, dtype))
    return WeightSums(
        shift=zero - jnp.inf,
        total=pair,
        squares=pair,
        singles=none,
        logs=none,
        groups=none,
        batches=none,
        largest=zero - jnp.inf,
        smallest=zero + jnp.inf,
        # float32 is enough to fit a tail's shape, and its top_k is eight times faster on the CPU
        tail=jnp.full(num_tail + 1, -jnp.inf, jnp.float32),
        fault=Fault.none(),
    )


def sums_of(
    log_w: Float[Array, "groups size"],
    num_tail: int,
    batch: int,
    first: Int[Array, ""] | int = 0,
) -> WeightSums:
    """The sums of one chunk, whose first direction is product number `first`."""
    groups, size = log_w.shape
    of_group = log_w[:, 0] if size == 1 else log_mean_exp(log_w)
    still, singles = jax.lax.stop_gradient((of_group, log_w))
    shift = jnp.max(still)
    w = jnp.exp(of_group - jnp.where(jnp.isinf(shift), 0, shift))
    whole = groups // batch * batch
    tail, _ = jax.lax.top_k(still.astype(jnp.float32), min(num_tail + 1, groups))
    # a NaN shows as NaN and an infinite product as -inf; +inf is a product that vanished
    bad = jnp.isnan(singles) | (singles == -jnp.inf)
    zero = jnp.zeros((), w.dtype)
    return WeightSums(
        shift=shift,
        total=jnp.stack([jnp.sum(w), zero]),
        squares=jnp.stack([jnp.sum(jax.lax.stop_gradient(w) ** 2), zero]),
        singles=Spread.of(singles),
        logs=Spread.of(jnp.mean(singles, axis=1)),
        groups=Spread.of(still),
        batches=Spread.of(log_mean_exp(still[:whole].reshape(-1, batch))),
        largest=jnp.max(singles),
        smallest=jnp.min(singles),
        tail=jnp.pad(tail, (0, num_tail + 1 - len(tail)), constant_values=-jnp.inf),
        fault=Fault.when(bad.any(), 1, first + jnp.argmax(bad.reshape(-1))),
    )


def log_mean_exp(x: Float[Array, "*batch num"]) -> Float[Array, "*batch"]:
    r"""$\log \frac1K \sum_k e^{x_k}$ over the last axis."""
    return jax.nn.logsumexp(x, axis=-1) - math.log(max(x.shape[-1], 1))


def _add(x: Float[Array, "2"], y: Float[Array, "2"]) -> Float[Array, "2"]:
    """Neumaier's sum of two compensated numbers."""
    s = x[0] + y[0]
    lost = jnp.where(jnp.abs(x[0]) >= jnp.abs(y[0]), (x[0] - s) + y[0], (y[0] - s) + x[0])
    # an infinite sum has no rounding error, only inf - inf
    return jnp.stack([s, jnp.where(jnp.isinf(s), 0, x[1] + y[1] + lost)])


class GradientSums(eqx.Module):
    r"""Weights w and gradients g of independent groups, for $\sum wg / \sum w$ and its error.

    `mean` is weighted by w, `centre` by $w^2$, and `scatter` is $\sum w^2 (g - \text{centre})^2$: the
    delta method's $\sum w^2 (g - \text{mean})^2$ follows without a cancellation.
    """

    num: Int[Array, ""]
    shift: Float[Array, ""]  # the largest log-weight: the sums are relative to it
    total: Float[Array, ""]
    squares: Float[Array, ""]
    mean: PyTree
    centre: PyTree
    scatter: PyTree

    @staticmethod
    def of(log_w: Float[Array, " groups"], gradients: PyTree) -> "GradientSums":
        """Of a block of groups, a gradient each."""
        shift = jnp.max(log_w)
        w = jnp.exp(log_w - jnp.where(jnp.isinf(shift), 0, shift))
        total, squares = jnp.sum(w), jnp.sum(w**2)
        mean = jax.tree.map(lambda g: jnp.tensordot(w, g, 1) / total, gradients)
        centre = jax.tree.map(lambda g: jnp.tensordot(w**2, g, 1) / squares, gradients)
        scatter = jax.tree.map(lambda g, c: jnp.tensordot(w**2, (g - c) ** 2, 1), gradients, centre)
        num = jnp.asarray(len(log_w), jnp.int32)
        return GradientSums(num, shift, total, squares, mean, centre, scatter)

    @staticmethod
    def empty(parameters: PyTree, dtype: DTypeLike) -> "GradientSums":
        """Of no groups."""
        zero, zeros = jnp.zeros((), dtype), jax.tree.map(jnp.zeros_like, parameters)
        none = jnp.zeros((), jnp.int32)
        return GradientSums(none, zero - jnp.inf, zero, zero, zeros, zeros, zeros)

    def merge(self, other: "GradientSums") -> "GradientSums":
        """Of the groups of both."""
        shift = jnp.maximum(self.shift, other.shift)
        safe = jnp.where(jnp.isinf(shift), 0, shift)
        mine, theirs = jnp.exp(self.shift - safe), jnp.exp(other.shift - safe)
        a, b = mine * self.total, theirs * other.total
        a2, b2 = mine**2 * self.squares, theirs**2 * other.squares
        share, share2 = _share(b, a + b), _share(b2, a2 + b2)
        mean = jax.tree.map(lambda x, y: x + (y - x) * share, self.mean, other.mean)
        centre = jax.tree.map(lambda x, y: x + (y - x) * share2, self.centre, other.centre)
        scatter = jax.tree.map(
            lambda s, t, x, y: mine**2 * s + theirs**2 * t + (y - x) ** 2 * a2 * share2,
            *(self.scatter, other.scatter, self.centre, other.centre),
        )
        return GradientSums(self.num + other.num, shift, a + b, a2 + b2, mean, centre, scatter)

    def error(self) -> PyTree:
        r"""$\sqrt{\sum \bar w^2 (g - \hat g)^2}$ of every entry; infinite for a single group."""
        num = self.num.astype(self.total.dtype)
        freedom = jnp.where(num > 1, num / jnp.maximum(num - 1, 1), jnp.inf)

        def of(mean, centre, scatter):
            variance = (scatter + self.squares * (centre - mean) ** 2) / self.total**2
            return jnp.where(self.num > 1, jnp.sqrt(variance * freedom), jnp.inf)

        return jax.tree.map(of, self.mean, self.centre, self.scatter)


def _share(part: Array, whole: Array) -> Array:
    return part / jnp.where(whole == 0, 1, whole)
