"""Plain Monte Carlo: Sohl-Dickstein's estimator."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
from jaxtyping import Array, Float, Int, PRNGKeyArray

from determinax import sphere
from determinax._checks import counted
from determinax._keys import stream
from determinax._linalg import log_norm, mm
from determinax._states import WeightSums, empty_sums, sums_of, tail_and_batch
from determinax.estimate import Bound, Bounds, Estimate
from determinax.methods._base import AbstractMethod, Plan, registered
from determinax.methods._sampling import (
    AbstractSampling,
    Directions,
    check_sampling,
    estimate_from,
    spent_on,
)
from determinax.operators import Traits, columns, traits


class FrameSums(eqx.Module):
    """The sums of one frame of k < n directions, and its mean's second-order noise, in nats."""

    sums: WeightSums
    noise: Float[Array, ""]

    @property
    def groups(self) -> Any:
        """As `WeightSums` has them."""
        return self.sums.groups

    def merge(self, other: "FrameSums") -> "FrameSums":
        """There is one frame only: one of the two is empty."""
        return FrameSums(self.sums.merge(other.sums), self.noise + other.noise)


@registered("mc")
class MonteCarlo(AbstractSampling):
    r"""Uniform directions: $1/|\det A| = \mathbb{E}\,\|As\|^{-n}$.

    Use it for operators near a multiple of an isometry (singular values within a factor of 1.4 of
    each other), or as the baseline that it is in the paper. Forward products only. Its error is
    honest but large for anything else: the weights' variance is infinite in all but name once a
    singular value falls below 0.7 of the typical one.

    **Arguments:**

    - `num_samples`: directions, as many products. Memory does not depend on it, but for one frame:
        it is four times the directions that are in memory at a time, a chunk or a frame.
    - `directions`: `"independent"`, or `"frames"`: whole orthonormal frames of n directions, which
        cancel the first-order noise (`num_samples` is rounded down to whole frames). With fewer
        than n samples it is one frame, which cancels its share of the first-order noise and nearly
        all of the second-order noise. Its error bar is that of independent directions, too large by
        $1/\sqrt{1-k/n}$ or more; its certificate rests on a single batch, so where `certified_upper`
        matters take independent ones; and all its products are in memory at a time.
    - `chunk_size`: directions in memory at a time; by default as many as the caches like. Another
        chunk size draws other directions from the same key.

    !!! example

        ```python
        dx.log_abs_det(A, dx.MonteCarlo(1000), key=key)
        dx.log_abs_det(A, dx.MonteCarlo(1000, "frames"), key=key)    # less error near isometries
        ```

    References: Sohl-Dickstein (2020), arXiv:2005.06553.
    """

    num_samples: int = eqx.field(static=True)
    directions: Directions = eqx.field(static=True)
    chunk_size: int | None = eqx.field(static=True)

    def __init__(
        self,
        num_samples: int,
        directions: Directions = "independent",
        chunk_size: int | None = None,
    ):
        self.num_samples, self.directions, self.chunk_size = check_sampling(
            num_samples, directions, chunk_size
        )

    def is_one_frame(self, t: Traits) -> bool:
        """Whether all directions together are less than a frame of n."""
        return 1 < self.groups(t).size < t.cols

    def plan(self, traits: Traits) -> Plan:
        """See `AbstractMethod`."""
        return Plan(1, 1, 0) if self.is_one_frame(traits) else super().plan(traits)

    def empty(self, operator: lx.AbstractLinearOperator, prepared: Any) -> Any:
        """See `AbstractMethod`."""
        t = traits(operator)
        if not self.is_one_frame(t):
            return super().empty(operator, prepared)
        num_tail, _ = tail_and_batch(self.num_samples)
        return FrameSums(empty_sums(num_tail, t.dtype), jnp.zeros((), t.dtype))

    def chunk(
        self,
        operator: lx.AbstractLinearOperator,
        prepared: Any,
        key: PRNGKeyArray | None,
        index: Int[Array, ""],
        size: int,
    ) -> Any:
        """See `AbstractMethod`."""
        if self.is_one_frame(traits(operator)):
            return self._frame(operator, key)
        return super().chunk(operator, prepared, key, index, size)

    def traced(self, traits: Traits) -> AbstractMethod:
        """See `AbstractMethod`: one frame is one draw."""
        return self if self.is_one_frame(traits) else super().traced(traits)

    def _frame(self, operator: lx.AbstractLinearOperator, key: PRNGKeyArray | None) -> FrameSums:
        r"""The sums of the weights of k < n orthonormal directions V, and their mean's second-order noise.

        With $S = (AV)^\top AV$ over its mean diagonal, $w_i \propto S_{ii}^{-n/2}$ has the second-order
        term $\frac{n^2}8 (S_{ii} - 1)^2$, and over all frames
        $\mathbb{E}[S_{ii}^2 - S_{ii}S_{jj} - 2S_{ij}^2] = 0$ (moments of the orthogonal group). The k
        squares on the diagonal are noisy, the k^2 beside it are not, and cost no products.
        """
        t, num = traits(operator), self.num_samples
        alone = MonteCarlo(num, "independent", self.chunk_size).plan(t)
        frame = sphere.frame(stream(key, "directions"), t.cols, num, t.dtype)
        images = _in_chunks(operator, frame, alone.size)
        log_norms = log_norm(images)
        num_tail, batch = tail_and_batch(num)
        sums = sums_of(-t.cols * log_norms[:, None], num_tail, batch)
        images = images / jnp.exp(jnp.mean(log_norms))
        gram = mm(images.T, images)
        diagonal = jnp.diagonal(gram)
        mean = jnp.mean(diagonal)
        beside = jnp.sum((gram - jnp.diag(diagonal)) ** 2)
        # over num - 1 it would be all of the noise; so it is what leaves least, as `beside` is noisy too
        odd = (jnp.sum((diagonal - mean) ** 2) - 2 * beside / num) / (num + 1)
        noise = t.cols**2 / 8 * odd / mean**2
        # not finite where A takes a direction to zero, which the weights tell
        return FrameSums(sums, jnp.where(jnp.isfinite(noise), noise, 0))

    def summarise(
        self, operator: lx.AbstractLinearOperator, prepared: Any, state: WeightSums | FrameSums
    ) -> Estimate:
        """See `AbstractMethod`."""
        t = traits(operator)
        groups = self.groups(t)
        if isinstance(state, FrameSums):
            return self._of_frame(t, state)
        return estimate_from(
            state,
            t,
            group_size=groups.size,
            num_tail=len(state.tail) - 1,
            is_linear=True,
            name=f"Monte Carlo, {groups.num_samples:,} {self.directions}",
            cost=spent_on(state, groups.size),
        )

    def _of_frame(self, t: Traits, state: FrameSums) -> Estimate:
        """As of independent directions, which overstates the error; noise that is known is taken off."""
        estimate = estimate_from(
            state.sums,
            t,
            group_size=1,
            num_tail=len(state.sums.tail) - 1,
            is_linear=True,
            name=f"Monte Carlo, {counted(self.num_samples, 'direction')} of a frame",
            cost=spent_on(state.sums, 1),
        )
        value, error = estimate.log_abs_det, estimate.standard_error
        # the certificate multiplies independent batches: a frame is one
        slack = jnp.asarray(t.log_det_factor, value.dtype)
        bounds = Bounds(kl=estimate.bounds.kl, importance=Bound(value, error), slack=slack)
        moved = value + t.log_det_factor * state.noise
        return estimate.replace(log_abs_det=moved, bounds=bounds)


def _in_chunks(operator, points: Float[Array, "n num"], size: int) -> Float[Array, "m num"]:
    """Products with columns, so many at a time."""
    n, num = points.shape
    full = num - num % size
    if not full:
        return columns(operator, points)
    chunks = jnp.moveaxis(points[:, :full].reshape(n, -1, size), 1, 0)
    images = jnp.moveaxis(jax.lax.map(lambda x: columns(operator, x), chunks), 0, 1)
    images = images.reshape(-1, full)
    if full == num:
        return images
    return jnp.concatenate([images, columns(operator, points[:, full:])], axis=1)
