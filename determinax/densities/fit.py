"""`density`: fit what is worth fitting, stack it by held-out likelihood, judge it."""

import math
import time
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import ArrayLike, Bool, Float, PRNGKeyArray

from determinax import sphere
from determinax._checks import counted, positive_number, real_numbers, require_key, whole_number
from determinax._interrupts import check, heeded
from determinax._keys import stream
from determinax.densities.result import Density
from determinax.densities.verdict import Score, Verdict, is_better, score, verdict_on
from determinax.progress import Report, reporting
from determinax.proposals import (
    AbstractProposal,
    Mixture,
    Uniform,
    VonMisesFisher,
    fitted_bumps,
    fitted_weights,
    kernels,
)
from determinax.proposals.bumps import FLOOR
from determinax.training import fit_samples
from determinax.training.samples import HORIZON, held_out_rows, horizon, require_places

NEIGHBOURS, SCALES = (1, 2, 4, 8, 16, 32), (0.35, 0.7)
BUMPS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
_LEAST, _LEAST_SHARE = 10, 1e-3
# a flow is compiled for 10 to 20 seconds, and needs about a thousand steps to be worth a look
LEAST_SECONDS = 30.0


class _Part(NamedTuple):
    """A model, its family, and its log-densities at the held-out points."""

    name: str
    family: str
    proposal: AbstractProposal
    held_out: np.ndarray


@heeded()
def density(
    points: Float[ArrayLike, "num n"],
    *,
    key: PRNGKeyArray,
    validation: float | Bool[ArrayLike, " num"] = 0.1,
    floor: float = FLOOR,
    seconds: float = 240.0,
    members: int | None = None,
    refit: bool = True,
    progress: bool | None = None,
) -> Density:
    r"""The density of data on a sphere, in one call.

    The uniform law, sums of von Mises-Fisher bumps (as many as held-out points ask for), twelve adaptive
    kernel densities and an ensemble of flows are fitted, and stacked by weights that make the held-out
    points likeliest. Simple models win ties: the uniform law, then the bumps alone, unless the stack is
    better by two standard errors of the difference.

    **Arguments:**

    - `points`: unit vectors, one a row; see `determinax.sphere.from_lonlat`.
    - `validation`: the share of points that is held out, or which (True: held out).
    - `floor`: the least width of a kernel, in radians (a hundredth of a degree). Where points stand
        twice, this decides the likelihood: the verdict says how many do.
    - `seconds`: the time for flows, with their compilation; all else takes some seconds more. Below 30
        there is no time for a flow worth having, and none is fitted; 0 leaves them out.
    - `members`: flows of the ensemble at most: 6, or 4 from 8,000 points on, where each takes longer.
        The report says how many there was time for.
    - `refit`: whether bumps and kernels take the held-out points in at the end, weights as they were.

    The same key gives the same result as long as the flows have the time they need.

    !!! example

        ```python
        points = dx.sphere.from_lonlat(longitude, latitude)
        density = dx.density(points, key=jax.random.key(0), seconds=0)    # without flows
        print(density.report())
        density.log_density(points, measure="area")
        ```
    """
    start = time.perf_counter()
    rows = sphere.unit_matrix(points)
    key = require_key(key, "fitting a density")
    if len(rows) < _LEAST:
        raise ValueError(f"{len(rows)} points are too few for a density: {_LEAST} or more")
    require_places(rows)
    floor = positive_number(floor, "floor, a width in radians,")
    seconds = positive_number(seconds, "seconds, the time for flows,", or_zero=True, most=math.inf)
    if members is None:
        members = 6 if horizon(len(rows)) == HORIZON else 4
    members = whole_number(members, "members", least=0)
    held = held_out_rows(validation, len(rows), key)
    if not held.any():
        raise ValueError("models are weighed by held-out points: validation is above 0")
    with reporting(progress) as report:
        parts = _candidates(rows, held, key, floor, seconds, members, report)
        _say(report, "weighing")
        chosen, weights, is_structured = _stacked(parts)
        proposal = _joined(chosen, weights)
        scores = _scores(parts, chosen, weights)
        _say(report, "judging")
        verdict = verdict_on(
            proposal, scores, rows[held], rows[~held], is_structured=is_structured, key=key
        )
        if refit:
            again = [_refitted(part, rows, key, floor) for part in chosen]
            proposal = _joined(again, weights)
    return Density(
        proposal=proposal,
        parts={p.name: float(w) for p, w in zip(chosen, weights, strict=True)},
        models={p.name: p.proposal for p in parts},
        verdict=verdict,
        num_points=len(rows),
        num_held_out=int(held.sum()),
        seconds=time.perf_counter() - start,
        key=key,
        flows=_flows_said(sum(p.family == "flows" for p in parts), members, seconds),
        floor=floor,
    )


@heeded()
def judge(
    proposal: AbstractProposal,
    held_out: Float[ArrayLike, "num n"],
    train: Float[ArrayLike, "m n"],
    *,
    key: PRNGKeyArray,
    context: Float[ArrayLike, "num c"] | Float[ArrayLike, " num"] | None = None,
    floor: float = FLOOR,
) -> Verdict:
    """The verdict on any density by points that it was not fitted to: what `density` says of its own.

    Their log-likelihood stands beside that of the uniform law, of one von Mises-Fisher law and of the
    kernels of `density`, which know nothing of a context. They are tested against the density's own
    samples, given the same contexts. Of a flow, points that come back through it have to be uniform,
    whatever their contexts are: that is tested, too.

    **Arguments:**

    - `held_out`, `train`: unit vectors, one a row: what the density has not seen, and what it was
        fitted to.
    - `context`: of the held-out points, for a conditional density.
    - `floor`: the least width of a kernel, in radians.

    !!! example

        ```python
        train, held_out = points[::2], points[1::2]
        q = dx.fitted_bumps(train, 2, key=key)
        print(dx.judge(q, held_out, train, key=key))
        ```
    """
    key = require_key(key, "a verdict")
    if not isinstance(proposal, AbstractProposal):
        raise TypeError(f"a verdict is on a density, such as fit.proposal, not on {proposal!r:.40}")
    unseen, seen = sphere.unit_matrix(held_out, "held-out points"), sphere.unit_matrix(train)
    given = None
    if context is not None:
        given = real_numbers(context, "a context is numbers, one row a held-out point")
        given = given[:, None] if given.ndim == 1 else given
    log_q = np.asarray(proposal.log_density(unseen, given), float)
    bump = np.asarray(fitted_bumps(seen, 1, key=key, floor=floor).log_density(unseen), float)
    table = [np.zeros(len(unseen))]
    table += [np.asarray(q.log_density(unseen), float) for _, q in _kernels(seen, floor)]
    stack = _mixed(np.stack(table), fitted_weights(np.stack(table)))
    scores = {"this density": score(log_q), "uniform": Score(0.0, 0.0)}
    scores |= {"von Mises-Fisher, 1 bump": score(bump), "kernels": score(stack)}
    # a density that is worse than the uniform law has found something, too, and wrongly
    found = any(is_better(other, table[0]) for other in (log_q, bump, stack))
    found |= is_better(table[0], log_q)
    return verdict_on(proposal, scores, unseen, seen, is_structured=found, key=key, context=given)


def _candidates(rows, held, key, floor, seconds, members, report) -> list[_Part]:
    train, unseen = rows[~held], rows[held]

    def part(name, family, proposal):
        check()
        return _Part(name, family, proposal, np.asarray(proposal.log_density(unseen), float))

    _say(report, "bumps")
    parts = [part("uniform", "uniform", Uniform(rows.shape[1]))]
    parts += _bumps(train, key, floor, part)
    _say(report, "kernels")
    parts += [part(name, "kernels", q) for name, q in _kernels(train, floor)]
    for i, q in enumerate(_ensemble(rows, held, key, seconds, members, report)):
        parts.append(part(f"flow {i + 1}", "flows", q))
    return parts


def _kernels(train, floor):
    """Twelve of them by name: the neighbour that counts, and the share of its distance."""
    for scale in SCALES:
        for k in (k for k in NEIGHBOURS if k < len(train)):
            yield f"kernels {k}/{scale}", kernels(train, neighbours=k, scale=scale, floor=floor)


def _bumps(train, key, floor, part) -> list[_Part]:
    """One bump, and the fewest that no larger number beats by a standard error: two misses end it."""
    found: list[_Part] = []
    best = misses = 0
    for num in (num for num in BUMPS if 4 * num <= len(train)):
        q = fitted_bumps(train, num, key=key, floor=floor)
        found.append(part(counted(num, "bump"), "bumps", q))
        if len(found) > 1 and is_better(found[-1].held_out, found[best].held_out, by=1.0):
            best, misses = len(found) - 1, 0
        else:
            misses += len(found) > 1
        if misses == 2:
            break
    return [found[i] for i in sorted({0, best}) if found]


def _ensemble(rows, held, key, seconds, members, report) -> list[AbstractProposal]:
    """Flows from different starts, as many as there is time for; the first one's has its compilation."""
    start, took, found = time.perf_counter(), LEAST_SECONDS, []
    for i in range(members):
        left = seconds - (time.perf_counter() - start)
        if left < took:
            break
        _say(report, f"flow {i + 1}")
        began = time.perf_counter()
        fit = fit_samples(
            rows,
            key=stream(key, "member", i),
            validation=held,
            max_seconds=left,
            progress=False,
        )
        took = time.perf_counter() - began
        found.append(fit.proposal)
    return found


def _flows_said(num: int, members: int, seconds: float) -> str:
    if not seconds or not members:
        return "flows fitted: none, as they were left out"
    text = f"flows fitted: {num} of {members} in the {seconds:g} s that they were given"
    few = f"; {LEAST_SECONDS:g} s are the least for one"
    return text if seconds >= LEAST_SECONDS else text + few


def _stacked(parts: list[_Part]) -> tuple[list[_Part], np.ndarray, bool]:
    """The simplest that nothing beats by more than chance: uniform, the best bumps, or the stack."""
    uniform = parts[0]
    bumps = max(
        (p for p in parts if p.family == "bumps"),
        key=lambda p: np.mean(p.held_out),
        default=uniform,
    )
    table = np.stack([p.held_out for p in parts])
    weights = fitted_weights(table)
    stack = _mixed(table, weights)
    simple = bumps if is_better(bumps.held_out, uniform.held_out) else uniform
    if not is_better(stack, simple.held_out):
        return [simple], np.ones(1), simple is not uniform
    kept = weights >= _LEAST_SHARE
    shares = weights[kept] / weights[kept].sum()
    return [p for p, k in zip(parts, kept, strict=True) if k], shares, True


def _scores(parts: list[_Part], chosen: list[_Part], weights: np.ndarray) -> dict[str, Score]:
    """Of the density, and beside it the best of every family: its own stack where it has many."""
    found = {"this density": score(_mixed(np.stack([p.held_out for p in chosen]), weights))}
    found["uniform"] = Score(0.0, 0.0)
    for p in (p for p in parts if p.family == "bumps"):
        found[f"von Mises-Fisher, {p.name}"] = score(p.held_out)
    for family in ("kernels", "flows"):
        tables = [p.held_out for p in parts if p.family == family]
        if tables:
            table = np.stack(tables)
            found[family] = score(_mixed(table, fitted_weights(table)))
    return found


def _mixed(table: np.ndarray, weights: np.ndarray) -> np.ndarray:
    top = table.max(axis=0)
    return top + np.log(weights @ np.exp(table - top))


def _joined(parts: list[_Part], weights: np.ndarray) -> AbstractProposal:
    """The mixture; bumps and kernels together are one sum of bumps, which is quicker to ask."""
    sums = [(p.proposal, w) for p, w in zip(parts, weights, strict=True)]
    bumps = [(q, w) for q, w in sums if isinstance(q, VonMisesFisher)]
    rest = [(q, w) for q, w in sums if not isinstance(q, VonMisesFisher)]
    if bumps:
        rest.insert(0, (VonMisesFisher.joined(*zip(*bumps, strict=True)), sum(w for _, w in bumps)))
    return rest[0][0] if len(rest) == 1 else Mixture(*zip(*rest, strict=True))


def _refitted(part: _Part, rows: np.ndarray, key: PRNGKeyArray, floor: float) -> _Part:
    """Bumps and kernels with all points; the others as they are."""
    if part.family == "bumps":
        num = int(part.name.split()[0])
        return part._replace(proposal=fitted_bumps(rows, num, key=key, floor=floor))
    if part.family == "kernels":
        k, scale = part.name.removeprefix("kernels ").split("/")
        q = kernels(rows, neighbours=int(k), scale=float(scale), floor=floor)
        return part._replace(proposal=q)
    return part


def _say(report: Report | None, what: str) -> Any:
    if report:
        report.working(f"density: {what}")
