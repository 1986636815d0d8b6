"""The default: exact where the pattern or the budget allows, else what a few pilot products say."""

import math
import time
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
from jaxtyping import Array, PRNGKeyArray

from determinax import _checks, _linalg, sphere
from determinax import operators as ops
from determinax._checks import counted, require_key, whole_number
from determinax._keys import stream
from determinax._linalg import log_norm
from determinax._revealed import CHECKS, bytes_in_words, in_words, probing
from determinax.estimate import Estimate
from determinax.methods._base import AbstractMethod, AbstractSelector, Selection, registered
from determinax.methods.deflated import Deflated
from determinax.methods.exact import Exact, dense_memory, dense_seconds, sparse_estimate
from determinax.methods.lanczos import Lanczos
from determinax.methods.monte_carlo import MonteCarlo
from determinax.methods.probed import Probed, TooLong
from determinax.operators import NO_PRODUCTS, Products, Traits, traits
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
# the share of the budget that frames take, and the depth of Lanczos on what they leave: on a kernel of
# 300 points, of 1/2, 3/4 and 7/8 with depths 5, 10 and 20, none was best with both n/4 and n/2 products
_DIRECTIONS, _REST_DEPTH = 0.75, 10
# without a transpose, one product in so many goes into the complement: enough for an error bar
_COMPLEMENT = 8
# entries of the frames that may be kept
_FRAME_ENTRIES = 2**27
# seconds beside the product itself for each row of one in Lanczos of depth up to 50, and in proportion to
# the depth beyond, measured on one core and sparse matrices of 60,000 and 300,000 rows
_ROW_SECONDS, _ROW_DEPTH = 1.5e-7, 50
# the same for a direction that is drawn; and multiplications a second in the QR of a tall frame
_DRAW_SECONDS, _FRAME_RATE = 5e-8, 2e9
# products that are tried whatever they take: as rows are reckoned, and once a product was timed
_LEAST, _FEWEST = 64, 8


@registered("auto")
class Auto(AbstractSelector):
    """Choose a method by size, budget and a pilot run, and say in `reasons` which and why.

    **Arguments:**

    - `max_matvecs`: the products that may be spent, transposed ones included. Where n fit, the
        result is exact. None: exact up to n = 8192, and a budget of n/4 products beyond, or of as many
        as `max_seconds` are reckoned to allow.
    - `max_seconds`: how long a factorisation may be predicted to take, unless n products are allowed.
        Without `max_matvecs` its products count too, as do those of sampling: one or two are timed first,
        unless A is an explicit matrix.

    Sparse, diagonal and tridiagonal operators are known as they are: factorising them (`Exact`) spends
    no products, so that `max_matvecs` does not forbid it. What it takes in seconds and memory is
    known beforehand, and so is what it does not start. Where a convolution has entries is known, and
    a few products reveal them all (`Probed`), where there is memory and time for the entries.

    It never fits a proposal: from scratch that costs more than the n products which reveal A. A
    proposal pays where it is used again, see `Variational` and `Tracker`.

    !!! example

        ```python
        dx.log_abs_det(A, dx.Auto(max_matvecs=5), key=key).reasons
        ```
    """

    max_matvecs: int | None = eqx.field(static=True)
    max_seconds: float = eqx.field(static=True)

    def __init__(self, max_matvecs: int | None = None, max_seconds: float = 60.0):
        is_number = isinstance(max_seconds, int | float) and not isinstance(max_seconds, bool)
        if not (is_number and max_seconds > 0):
            raise ValueError(f"max_seconds is a positive number, not {max_seconds!r}")
        self.max_matvecs = None if max_matvecs is None else whole_number(max_matvecs, "max_matvecs")
        self.max_seconds = float(max_seconds)

    def _limit(self) -> int:
        return _DENSE_LIMIT if self.max_matvecs is None else self.max_matvecs

    def _budget(self, t: Traits) -> int:
        """Products that may be sampled with: a quarter of n, or what the seconds are reckoned to allow."""
        if self.max_matvecs is not None:
            return self.max_matvecs
        allowed = int(self.max_seconds / (_ROW_SECONDS * t.cols))
        return max(_LEAST, min(t.num_dense // 4, allowed))

    def within_jit(self, traits: Traits) -> AbstractMethod:
        """See `AbstractMethod`: exact where it is allowed, else Monte Carlo."""
        if traits.num_dense <= self._limit():
            return Exact().within_jit(traits)
        return MonteCarlo(self._budget(traits))

    def select(
        self,
        operator: lx.AbstractLinearOperator,
        key: PRNGKeyArray | None,
        spent: Products,
        report: Report | None,
    ) -> Selection | Estimate:
        """Choose, and say why."""
        t = traits(operator)
        n, limit = t.num_dense, self._limit()
        # where n products are allowed, an exact answer may take its time
        all_allowed = self.max_matvecs is not None and n <= self.max_matvecs
        seconds = math.inf if all_allowed else self.max_seconds
        too_much, left_out, lost = "", "", NO_PRODUCTS
        matrix = ops.sparse_matrix(operator)
        if matrix is not None:
            if report:
                report.working(f"factorising a sparse {n:,} x {n:,}")
            exact, cost = sparse_estimate(operator, matrix, seconds)
            if exact is not None:
                how = exact.method.removeprefix("exact, ")
                why = f"Auto chose Exact: {how} of the matrix itself, without products; {cost}."
                return exact.with_notes(why)
            too_much = f"its factors would take {cost}, "
        # what a few products reveal, as a convolution, can be a trap for dense factorisations
        elif n > limit or t.has_pattern:
            allowed = (n if n <= limit else self._budget(t)) - spent.forward
            probed = self._probed(operator, key, allowed, report, seconds)
            if not isinstance(probed, tuple) or isinstance(probed, Selection):
                return probed
            left_out, lost = probed
        timed = NO_PRODUCTS
        if n <= limit - lost.forward and not too_much:
            each, left = 0.0, seconds - dense_seconds(t)
            if not all_allowed and left > 0 and not is_explicit(operator):
                each, timed = _timed(operator, left / n)
            exact = _exact(operator, seconds, each, limit, left_out)
            if isinstance(exact, Selection):
                return exact._replace(spent=lost + timed)
            too_much = f"all products, a dense matrix and its factors would take {exact}, "
        own = require_key(key, "Auto")
        found = self._sampled(operator, own, spent + lost, timed, left_out + too_much)
        return found._replace(spent=lost + found.spent)

    def _sampled(
        self, operator, key: PRNGKeyArray, spent: Products, timed: Products, too_much: str
    ) -> Selection:
        """What a few pilot products recommend."""
        t = traits(operator)
        n = t.num_dense
        # the product that told, once, whether there is a transpose shall not change the choice
        budget = max(1, self._budget(t) - spent.forward - timed.forward)
        pilot = min(_PILOT, budget // 4) // 2 * 2
        if pilot < 4:
            # a good share of n directions is worth more exactly than as samples
            method = _deflated(t, budget) if 4 * budget > n else MonteCarlo(budget)
            name, products = type(method).__name__, counted(budget, "product")
            why = f"Auto chose {name}: {too_much}no pilot run within {products}."
            return Selection(method, operator, why, timed)
        spread, condition, each = _pilot_figures(operator, stream(key, "pilot"), pilot)
        spent = timed + Products(pilot)
        if timed.total:  # a block of products may be much quicker than one by one
            exact = _exact(operator, self.max_seconds, each, self._limit())
            if isinstance(exact, Selection):
                return exact._replace(spent=spent)
        left = budget - pilot
        if self.max_matvecs is None:
            left = self._affordable(t, spread, condition, each, left)
        method, why = self._choose(t, spread, condition, left)
        # the cost first: a progress bar has a line for this, and shows its beginning
        why = (
            f"Auto chose {type(method).__name__}: {counted(left, 'product')}, about "
            f"{lasting(t, method, each):.2g} s and {bytes_in_words(method.memory(t))}; {too_much}"
            f"{counted(n, 'product')} would give A itself; in {pilot} pilot ones log-weights spread by "
            f"{spread:.2g} nats, {why}."
        )
        return Selection(method, operator, why, spent)

    def _affordable(
        self, t: Traits, spread: float, condition: float, each: float, most: int
    ) -> int:
        """So many products, at most, as what is chosen for them ends in time with."""

        def fits(left: int) -> bool:
            method, _ = self._choose(t, spread, condition, left)
            return lasting(t, method, each) <= self.max_seconds

        fewest = min(_FEWEST, most)
        if fits(most):
            return most
        while most - fewest > max(1, fewest // 32):
            middle = (fewest + most) // 2
            fewest, most = (middle, most) if fits(middle) else (fewest, middle)
        return fewest

    def _probed(
        self, operator, key, budget: int, report: Report | None, seconds: float
    ) -> Selection | Estimate | tuple[str, Products]:
        """What probing gives where it can be afforded; else why it gives nothing, and what that took."""
        t = traits(operator)
        if key is None or t.rows != t.cols or not t.has_pattern or t.is_complex:
            return "", NO_PRODUCTS
        need = probing(operator)  # before a pattern is built
        fits = need.seconds <= seconds and need.bytes <= _checks.physical_memory()
        kind = ops.untagged(operator)
        if fits and ops.outline(kind) is None:  # the pattern has to be looked at
            colours = ops.colours(operator, ops.pattern(kind))
            need = need._replace(num_products=int(max(colours)) + 1)
        needed = need.num_products + CHECKS
        cost = f"{needed:,} products, {need}"
        if needed > budget or not fits:
            return f"probing its {need.entries:,} entries would take {cost}, ", NO_PRODUCTS
        why = f"Auto chose Probed: {cost}, reveal and check what its pattern leaves open."
        found = Probed().attempt(operator, key, report, seconds)
        if isinstance(found, TooLong):
            return f"factors of what probing revealed would take {found.cost}, ", found.spent
        if isinstance(found, Selection):
            return found._replace(why=f"{why} {found.why}")
        return found.with_notes(why)

    def _choose(
        self, t: Traits, spread: float, condition: float, left: int
    ) -> tuple[AbstractMethod, str]:
        if spread < _NARROW:
            fits = left * max(t.cols, t.rows) < _FRAME_ENTRIES
            method = MonteCarlo(left, "frames" if fits else "independent")
            return method, "near an isometry, where Monte Carlo has the smaller error"
        if not t.sign and not t.has_transpose:
            return _deflated(t, left), "and without a transpose there is no Lanczos"
        n = t.cols
        ratio = math.sqrt(_PILOT / n)
        directions = math.floor(_DIRECTIONS * left)
        depth = min(_REST_DEPTH, (left - directions - 1) // 2)
        # the frames are kept: as many entries as memory is reckoned to have
        if (
            condition > _STEEP * (1 + ratio) / (1 - ratio)
            and depth
            and directions * n < _FRAME_ENTRIES
        ):
            rest = Lanczos(max(1, (left - directions - 1) // (2 * depth)), depth)
            return Deflated(directions, rest), "and few directions carry what is large"
        steps = left - 1 if t.sign else (left - 1) // 2
        deeper = 2 if spread > _BROAD * math.sqrt(n / 2) else 1
        depth = max(1, min(n, round(deeper * steps**0.5), steps, _MAX_DEPTH))
        return Lanczos(max(1, steps // depth), depth), "too broad for Monte Carlo"


def _deflated(t: Traits, left: int) -> AbstractMethod:
    """Most of the budget for exact directions, the rest for their complement."""
    samples = max(2, left // _COMPLEMENT)
    directions = min(left - samples, _FRAME_ENTRIES // t.cols)
    if directions < 1:
        return MonteCarlo(left)
    return Deflated(directions, MonteCarlo(left - directions))


def is_explicit(operator: lx.AbstractLinearOperator) -> bool:
    """Whether it is a dense matrix, complex or not, so that no product has to be taken."""
    inner: Any = operator
    inner = inner.inner if isinstance(operator, ops.RealEmbedding) else operator
    return isinstance(ops.untagged(inner), lx.MatrixLinearOperator)


def _exact(
    operator: lx.AbstractLinearOperator, seconds: float, each: float, limit: int, left_out: str = ""
) -> Selection | str:
    """All products and a dense factorisation, or what they would take where that is too much."""
    t = traits(operator)
    needed = dense_memory(t)
    reckoned = t.num_dense * each + dense_seconds(t)
    cost = in_words(reckoned, needed)
    if reckoned > seconds or needed > _checks.physical_memory():
        return cost
    give = "give" if t.num_dense > 1 else "gives"
    why = (
        f"Auto chose Exact: {left_out}{counted(t.num_dense, 'product')} {give} A itself, and {limit:,} "
        f"were allowed; {cost}."
    )
    return Selection(Exact(), operator, why)


def lasting(t: Traits, method: AbstractMethod, each: float) -> float:
    """Seconds that a method is reckoned to take, at so many for a product."""
    if isinstance(method, Deflated):
        # the frame and its images are made orthonormal, and every product passes both
        k = method.num_directions
        passing = 8 * k * t.cols / _FRAME_RATE
        return k * each + 2 * _frame_seconds(t, k) + lasting(t, method.method, each + passing)
    products = method.cost(t).total
    if isinstance(method, Lanczos):
        row = _ROW_SECONDS * max(1.0, method.depth / _ROW_DEPTH)
    else:
        row = _DRAW_SECONDS
    framed = isinstance(method, MonteCarlo) and method.directions == "frames"
    own = _frame_seconds(t, min(products, t.cols)) if framed else 0.0
    return own + products * (each + row * t.cols)


def _frame_seconds(t: Traits, num: int) -> float:
    return 4 * t.cols * num**2 / _FRAME_RATE


def _timed(operator: lx.AbstractLinearOperator, enough: float) -> tuple[float, Products]:
    """Seconds for a product: the first may have to be compiled, and counts if it is quick enough."""
    takes = operator.in_structure()
    vector = jnp.full((*takes.shape, 1), takes.shape[0] ** -0.5, takes.dtype)
    each = math.inf
    for spent in (1, 2):
        began = time.perf_counter()
        jax.block_until_ready(ops.compiled_columns(operator, vector))
        each = min(each, time.perf_counter() - began)
        if each <= enough:
            return each, Products(spent)
    return each, Products(2)


def _pilot_figures(operator, key: PRNGKeyArray, num: int) -> tuple[float, float, float]:
    """The spread of a frame's log-weights, the condition of its images, seconds for a product."""
    frame = sphere.frame(key, operator.in_size(), num, operator.in_structure().dtype)
    parts, began = [], 0.0
    for half in jnp.split(frame, 2, axis=1):  # the first half may have to be compiled
        began = time.perf_counter()
        parts.append(jax.block_until_ready(ops.compiled_columns(operator, half)))
    each = (time.perf_counter() - began) / (num // 2)
    spread, condition = _figures(jnp.concatenate(parts, axis=1), operator.in_size())
    return float(spread), float(condition), each


@eqx.filter_jit
def _figures(images: Array, n: int) -> tuple[Array, Array]:
    values = _linalg.singular_values(images)
    return n * jnp.std(log_norm(images)), values[0] / values[-1]
