r"""A trace: how an estimate came about, in memory that does not grow. Numbers only.

Draws (log-weights, or the values of Lanczos' probes) are counted into at most 256 points along the run and
512 bins by size. Both merge exactly as the states do, so that chunks may be computed apart.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

NUM_POINTS, NUM_BINS, NUM_TAIL = 256, 512, 256
# a bin is at least this share of the largest value: below it, rounding
_FINEST = 2.0**-22


class Points(eqx.Module):
    """Sums of draws along the run: a point is so many draws that follow each other."""

    num: Int[Array, " points"]
    shift: Float[Array, " points"]  # the largest log-weight of a point: its sums are relative to it
    total: Float[Array, " points"]
    squares: Float[Array, " points"]

    @staticmethod
    def of(draws: Float[Array, " num"], slots: Int[Array, " num"], *, logs: bool) -> "Points":
        """Of draws that belong to these points; with `logs` they are logarithms of what is averaged."""
        ones = jnp.ones(len(draws), jnp.int32)
        num = jax.ops.segment_sum(ones, slots, NUM_POINTS)
        shift = jnp.zeros(NUM_POINTS, draws.dtype)
        if logs:
            shift = jax.ops.segment_max(draws, slots, NUM_POINTS)
            draws = jnp.exp(draws - jnp.where(jnp.isfinite(shift), shift, 0)[slots])
        total = jax.ops.segment_sum(draws, slots, NUM_POINTS)
        squares = jax.ops.segment_sum(draws**2, slots, NUM_POINTS)
        return Points(num, shift, total, squares)

    @staticmethod
    def empty(dtype: Any, *, logs: bool) -> "Points":
        """Of no draws."""
        zeros = jnp.zeros(NUM_POINTS, dtype)
        shift = zeros - jnp.inf if logs else zeros
        return Points(jnp.zeros(NUM_POINTS, jnp.int32), shift, zeros, zeros)

    def merge(self, other: "Points") -> "Points":
        """Of the draws of both."""
        shift = jnp.maximum(self.shift, other.shift)
        safe = jnp.where(jnp.isfinite(shift), shift, 0)
        mine, theirs = jnp.exp(self.shift - safe), jnp.exp(other.shift - safe)
        return Points(
            self.num + other.num,
            shift,
            self.total * mine + other.total * theirs,
            self.squares * mine**2 + other.squares * theirs**2,
        )


class Histogram(eqx.Module):
    r"""Counts in bins $[j 2^e, (j+1) 2^e)$, where $e$ follows from the smallest and the largest value.

    The bins of two histograms nest in each other, so merging loses nothing: the result is that of all
    values at once.
    """

    low: Float[Array, ""]
    high: Float[Array, ""]
    counts: Int[Array, " bins"]

    @staticmethod
    def of(values: Float[Array, " num"]) -> "Histogram":
        """Of these values; those that are not finite are left out."""
        fine = jnp.isfinite(values)
        low = jnp.min(jnp.where(fine, values, jnp.inf))
        high = jnp.max(jnp.where(fine, values, -jnp.inf))
        exponent, first = _grid(low, high)
        bins = jnp.floor(jnp.ldexp(jnp.where(fine, values, 0), -exponent)).astype(jnp.int32) - first
        # what is out of range is dropped
        counts = jnp.zeros(NUM_BINS, jnp.int32)
        counts = counts.at[jnp.where(fine, bins, NUM_BINS)].add(1, mode="drop")
        return Histogram(low, high, counts)

    @staticmethod
    def empty(dtype: Any) -> "Histogram":
        """Of no values."""
        infinity = jnp.asarray(jnp.inf, dtype)
        return Histogram(infinity, -infinity, jnp.zeros(NUM_BINS, jnp.int32))

    def merge(self, other: "Histogram") -> "Histogram":
        """Of the values of both."""
        low, high = jnp.minimum(self.low, other.low), jnp.maximum(self.high, other.high)
        return Histogram(low, high, self._on(low, high) + other._on(low, high))

    def _on(self, low: Array, high: Array) -> Int[Array, " bins"]:
        """The counts on the coarser grid of a wider range."""
        exponent, first = _grid(low, high)
        own_exponent, own_first = _grid(self.low, self.high)
        steps = jnp.clip(exponent - own_exponent, 0, 31)
        bins = jnp.right_shift(own_first + jnp.arange(NUM_BINS), steps) - first
        bins = jnp.where(self.counts > 0, bins, NUM_BINS)
        return jnp.zeros_like(self.counts).at[bins].add(self.counts, mode="drop")

    def edges(self) -> np.ndarray:
        """Of the bins, on the host."""
        exponent, first = jax.device_get(_grid(self.low, self.high))
        return np.ldexp((int(first) + np.arange(NUM_BINS + 1)).astype(float), int(exponent))


def _grid(low: Array, high: Array) -> tuple[Int[Array, ""], Int[Array, ""]]:
    """The exponent of the bins' width, and the first bin's number: never finer for a wider range."""
    low, high = (jnp.where(jnp.isfinite(x), x, 0) for x in (low, high))
    size = jnp.maximum(jnp.maximum(jnp.abs(low), jnp.abs(high)), jnp.finfo(low.dtype).tiny * 2**30)
    width = jnp.maximum((high - low) / (NUM_BINS - 2), size * _FINEST)
    exponent = jnp.frexp(width)[1].astype(jnp.int32)
    return exponent, jnp.floor(jnp.ldexp(low, -exponent)).astype(jnp.int32)


class Trace(eqx.Module):
    """How an estimate came about: its draws along the run and by size, and the largest of them.

    `estimate.report(path)` draws it. With `logs` the draws are log-weights, and what is averaged are the
    weights; else the draws themselves are (probes).
    """

    points: Points
    histogram: Histogram
    tail: Float[Array, " tail"]
    logs: bool = eqx.field(static=True)
    factor: float = eqx.field(static=True, default=1.0)  # of the log-determinant
    products_per_draw: float = eqx.field(static=True, default=1.0)

    def merge(self, other: "Trace") -> "Trace":
        """Of the draws of both."""
        return eqx.tree_at(
            lambda t: (t.points, t.histogram),
            self,
            (self.points.merge(other.points), self.histogram.merge(other.histogram)),
        )

    def scaled(self, factor: float) -> "Trace":
        """Of `factor` times the log-determinant."""
        return dataclasses.replace(self, factor=self.factor * factor)

    def running(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Draws so far, the estimate from them, and its standard error: host arrays, up to a constant."""
        return self._added_up(np.cumsum)

    def batches(self, num_batches: int = 16) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Draws, the estimate and its standard error of each of so many parts of the run."""

        def of_parts(x: np.ndarray) -> np.ndarray:
            return np.array([part.sum() for part in np.array_split(x, min(num_batches, len(x)))])

        return self._added_up(of_parts)

    def _added_up(self, add: Callable) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        used = np.asarray(self.points.num) > 0
        num, shift, total, squares = (
            np.asarray(x, float)[used] for x in jax.tree.leaves(self.points)
        )
        shift, top = (shift - shift.max(), shift.max()) if len(shift) else (shift, 0.0)
        scale = np.exp(shift)
        num, total, squares = add(num), add(total * scale), add(squares * scale**2)
        mean = total / num
        error = np.sqrt(np.maximum(squares / num - mean**2, 0) / np.maximum(num - 1, 1))
        error[num < 2] = np.inf
        if not self.logs:
            return num, self.factor * mean, self.factor * error
        return num, -self.factor * (np.log(mean) + top), self.factor * error / mean
