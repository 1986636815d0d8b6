"""The default: exact where n products fit the budget, else what a few pilot products recommend."""

import dataclasses

import jax
import lineax as lx
import numpy as np
from jaxtyping import PRNGKeyArray

from determinax import operators as ops
from determinax.estimate import Estimate
from determinax.methods.base import AbstractMethod, require_key, whole_number
from determinax.methods.exact import Exact
from determinax.methods.lanczos import Lanczos, is_definite, transposed
from determinax.methods.monte_carlo import MonteCarlo
from determinax.operators import NO_PRODUCTS, OperatorError, Products
from determinax.progress import Report

# without a budget: what an LU on a workstation does in about a minute
_DENSE_LIMIT = 8192
_PILOT, _MAX_DEPTH = 32, 100
# spread of log-weights up to which plain Monte Carlo beats Lanczos at equal products
_NARROW = 0.5


@dataclasses.dataclass(frozen=True)
class Auto(AbstractMethod):
    """Choose a method by size, budget and a pilot run, and say in `reasons` which and why.

    **Arguments:**

    - `max_matvecs`: the products that may be spent, transposed ones included. Where n fit, the
        result is exact. None: exact up to n = 8192, and a budget of n/4 products beyond.
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
        if n <= limit:
            note = f"Auto chose Exact: {n:,} products reveal A, and {limit:,} were allowed."
            return Exact().estimate(operator, key, spent=spent, progress=progress).with_notes(note)
        key = require_key(key, "Auto")
        budget = n // 4 if budget is None else max(1, budget - spent.total)
        pilot_key, main_key = jax.random.split(key)
        pilot = min(_PILOT, budget // 4)
        if pilot < 8 or ops.is_traced((operator, key)):
            note = f"Auto chose Monte Carlo: no pilot run within {budget:,} products."
            method = MonteCarlo(budget)
            return method.estimate(operator, main_key, spent=spent, progress=progress).with_notes(
                note
            )
        tried = MonteCarlo(pilot).estimate(operator, pilot_key)
        spread = float(np.asarray(tried.spread))
        spent, left = spent + Products(pilot), budget - pilot
        method, why = self._choose(operator, spread, left)
        note = (
            f"Auto chose {type(method).__name__}: {n:,} products would reveal A, {budget:,} were "
            f"allowed; in {pilot} pilot products log-weights spread by {spread:.2g} nats, {why}."
        )
        return method.estimate(operator, main_key, spent=spent, progress=progress).with_notes(note)

    def _choose(self, operator, spread: float, left: int) -> tuple[AbstractMethod, str]:
        if spread < _NARROW:
            return MonteCarlo(left), "near an isometry, where Monte Carlo has the smaller error"
        if not is_definite(operator):
            try:
                transposed(operator)
            except OperatorError:
                return MonteCarlo(left), "and without a transpose there is no Lanczos"
        steps = left - 1 if is_definite(operator) else (left - 1) // 2
        depth = max(1, min(operator.in_size(), round(steps**0.5), steps, _MAX_DEPTH))
        return Lanczos(max(1, steps // depth), depth), "too broad for Monte Carlo"
