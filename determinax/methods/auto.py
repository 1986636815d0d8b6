"""The default: exact where the pattern or the budget allows, else what a few pilot products say."""

import dataclasses
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from determinax import operators as ops
from determinax import sphere, weights
from determinax.estimate import Estimate
from determinax.flows.banded import band_widths
from determinax.methods.base import AbstractMethod, require_key, whole_number
from determinax.methods.deflated import Deflated
from determinax.methods.exact import Exact, physical_memory
from determinax.methods.lanczos import Lanczos, is_definite, transposed
from determinax.methods.monte_carlo import MonteCarlo
from determinax.methods.probed import CHECKS, Probed, band_memory, is_circulant
from determinax.operators import NO_PRODUCTS, OperatorError, Products
from determinax.progress import Report

# without a budget: what an LU on a workstation does in about a minute
_DENSE_LIMIT = 8192
_PILOT, _MAX_DEPTH = 8, 100
# spread of log-weights up to which plain Monte Carlo beats Lanczos at equal products: a probe of
# Lanczos is as noisy as a sample here and costs two products a step
_NARROW = 1.0
# condition of a frame's images, over that of a Gaussian matrix' images: from here on a few
# directions carry what is large, and frames catch them
_STEEP = 1.6
# spread over sqrt(n/2), the relative spread of the squared singular values (1 for a Gaussian
# matrix): from here on the quadrature's bias outweighs its noise, and fewer, deeper probes win
_BROAD = 0.75
# entries of the frames that may be kept
_FRAME_ENTRIES = 2**27
# multiply-adds of one elimination in a band: for a 512x512 image they are half of this
_BAND_WORK = 2**37


@dataclasses.dataclass(frozen=True)
class Auto(AbstractMethod):
    """Choose a method by size, budget and a pilot run, and say in `reasons` which and why.

    **Arguments:**

    - `max_matvecs`: the products that may be spent, transposed ones included. Where n fit, the
        result is exact. None: exact up to n = 8192, and a budget of n/4 products beyond.

    Where the operator's kind tells where it has entries, a few products reveal them all (`Probed`):
    convolutions are always probed, sparse, diagonal and tridiagonal operators where n products are
    too many, both as far as the band fits in memory.

    It never fits a proposal: from scratch that costs more than the n products which reveal A. A
    proposal pays where it is used again, see `Variational` and `Tracker`.
    """

    max_matvecs: int | None = None

    def __post_init__(self):
        if self.max_matvecs is not None:
            budget = whole_number(self.max_matvecs, "max_matvecs")
            object.__setattr__(self, "max_matvecs", budget)

    def estimate(
        self,
        operator: lx.AbstractLinearOperator,
        key: PRNGKeyArray | None,
        *,
        spent: Products = NO_PRODUCTS,
        progress: Report | None = None,
    ) -> Estimate:
        """Choose, run, explain."""
        n = ops.rows_columns(operator)[1]
        budget = self.max_matvecs
        limit = _DENSE_LIMIT if budget is None else budget
        # a convolution can be a trap for dense factorisations, of any size
        if n > limit or isinstance(operator, ops.ConvolutionLinearOperator):
            allowed = n if n <= limit else budget or n // 4
            probed = self._probe(operator, key, allowed, spent, progress)
            if probed is not None:
                return probed
        if n <= limit:
            note = f"Auto chose Exact: {n:,} products reveal A, and {limit:,} were allowed."
            return Exact().estimate(operator, key, spent=spent, progress=progress).with_notes(note)
        key = require_key(key, "Auto")
        budget = n // 4 if budget is None else max(1, budget - spent.total)
        pilot_key, main_key = jax.random.split(key)
        pilot = min(_PILOT, budget // 4)
        traced = ops.is_traced((operator, key))
        if pilot < 4 or traced:
            # a good share of n directions is worth more exactly than as samples
            worth = 4 * budget > n and not traced
            method = _deflated(operator, budget) if worth else MonteCarlo(budget)
            name = type(method).__name__
            note = f"Auto chose {name}: no pilot run within {budget:,} products."
            return method.estimate(operator, main_key, spent=spent, progress=progress).with_notes(
                note
            )
        spread, condition = map(float, weights.guarded(_look, operator, pilot_key, pilot))
        spent, left = spent + Products(pilot), budget - pilot
        method, why = self._choose(operator, spread, condition, left)
        note = (
            f"Auto chose {type(method).__name__}: {n:,} products would reveal A, {budget:,} were "
            f"allowed; in {pilot} pilot products log-weights spread by {spread:.2g} nats, {why}."
        )
        return method.estimate(operator, main_key, spent=spent, progress=progress).with_notes(note)

    def _probe(self, operator, key, budget: int, spent, progress) -> Estimate | None:
        """The result, where a pattern is known and what it takes can be afforded."""
        n = operator.in_size()
        if key is None or n != operator.out_size() or ops.is_traced((operator, key)):
            return None
        pattern = ops.known_pattern(operator)
        if pattern is None or not (is_circulant(operator) or _has_narrow_band(pattern)):
            return None
        needed = int(np.max(ops.colour(pattern))) + 1 + CHECKS
        if needed > budget - spent.total:
            return None
        note = (
            f"Auto chose Probed: {needed} products reveal and check what its pattern leaves open."
        )
        estimate = Probed().estimate(operator, key, spent=spent, progress=progress)
        return estimate.with_notes(note)

    def _choose(
        self, operator, spread: float, condition: float, left: int
    ) -> tuple[AbstractMethod, str]:
        if spread < _NARROW:
            fits = left * max(operator.in_size(), operator.out_size()) < _FRAME_ENTRIES
            method = MonteCarlo(left, "frames" if fits else "independent")
            return method, "near an isometry, where Monte Carlo has the smaller error"
        if not is_definite(operator):
            try:
                transposed(operator)
            except OperatorError:
                return _deflated(operator, left), "and without a transpose there is no Lanczos"
        n = operator.in_size()
        ratio = math.sqrt(_PILOT / n)
        directions = 3 * left // 4
        depth = min(10, (left - directions - 1) // 2)
        # the frames are kept: as many entries as memory is reckoned to have
        if (
            condition > _STEEP * (1 + ratio) / (1 - ratio)
            and depth
            and directions * n < _FRAME_ENTRIES
        ):
            rest = Lanczos(max(1, (left - directions - 1) // (2 * depth)), depth)
            return Deflated(directions, rest), "and few directions carry what is large"
        steps = left - 1 if is_definite(operator) else (left - 1) // 2
        deeper = 2 if spread > _BROAD * math.sqrt(n / 2) else 1
        depth = max(1, min(n, round(deeper * steps**0.5), steps, _MAX_DEPTH))
        return Lanczos(max(1, steps // depth), depth), "too broad for Monte Carlo"


def _has_narrow_band(pattern) -> bool:
    n = pattern.shape[0]
    below, above = band_widths(pattern)
    fits = band_memory(n, below, above) <= physical_memory()
    return fits and n * below * above <= _BAND_WORK


def _deflated(operator, left: int) -> AbstractMethod:
    """Most of the budget for exact directions, the rest for their complement."""
    samples = max(2, left // 8)
    directions = min(left - samples, _FRAME_ENTRIES // operator.in_size())
    if directions < 1:
        return MonteCarlo(left)
    return Deflated(directions, MonteCarlo(left - directions))


@eqx.filter_jit
def _look(operator, key, num: int) -> tuple[Array, Array]:
    """The spread of a frame's log-weights, and the condition of its images."""
    n = operator.in_size()
    images = ops.columns(operator, sphere.frame(key, n, num, operator.in_structure().dtype))
    values = jnp.linalg.svd(images, compute_uv=False)
    return n * jnp.std(weights.log_norm(images)), values[0] / values[-1]
