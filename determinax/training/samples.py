"""Fit a flow to data on the sphere: likelihood on points held out decides when to stop and what to keep."""

import dataclasses
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh
from jaxtyping import ArrayLike, Bool, Float, PRNGKeyArray

from determinax import flows, sphere
from determinax._checks import counted, positive_number, real_numbers, require_key, whole_number
from determinax._devices import line_of, spans_processes
from determinax._interrupts import heeded
from determinax._keys import stream
from determinax.flows import AbstractSphereMap
from determinax.proposals import Mixture, Proposal, Uniform, kernels
from determinax.proposals.bumps import neighbour_distances
from determinax.training._base import History
from determinax.training._likelihood import Data, LikelihoodFitter
from determinax.training._loop import run
from determinax.training._optimisers import clipped
from determinax.training._split import part_size

# of `steps=None`: what the schedule spans, and from how many points on it is twice that
HORIZON, _MANY = 6000, 8000
# how often a fit that ended at the uniform law begins anew
_RESTARTS = 2
# nats: at the uniform law, and what kernels must find there to be
_NOTHING, _SOMETHING = 0.02, 0.1


@dataclasses.dataclass(frozen=True)
class SampleFit:
    """A flow fitted to data, and how likely it makes points that it has not seen.

    **Fields:**

    - `proposal`: the density, by the averaged weights that were best on the held-out points; a `Mixture`
        of several where `members` were asked for.
    - `log_likelihood`, `standard_error`: mean log-density of the held-out points, in nats relative to
        the uniform law, and its error; of the training points where none were held out.
    - `train_log_likelihood`: the same of the points it was fitted to: much more is overfitting.
    - `held_out`: which rows were held out.
    - `history`: arrays with an entry a step: `loss` (minus the mean log-density of the batch),
        `held_out` and `standard_error` (every hundredth step, NaN between), `finite`.
    - `num_skipped`: steps that were not finite and were undone; `restarts`: how often it began anew.
    - `seconds`: how long it took.
    - `members`: the fits of an ensemble, one by one; `history` is then the first one's.
    """

    proposal: Proposal | Mixture
    log_likelihood: float
    standard_error: float
    train_log_likelihood: float
    held_out: Bool[np.ndarray, " num"]
    history: History
    num_skipped: int
    seconds: float
    restarts: int = 0
    members: "tuple[SampleFit, ...]" = ()

    def __repr__(self) -> str:
        num = sum(len(fit.history["loss"]) for fit in self.members or (self,))
        steps = f"{counted(num, 'step')} in {self.seconds:.1f} s"
        steps = f"{len(self.members)} flows, {steps}" if self.members else steps
        where = f"{int(self.held_out.sum()):,} held-out" if self.held_out.any() else "training"
        text = (
            f"SampleFit({steps}, log-likelihood of {where} points {self.log_likelihood:.4f} +- "
            f"{self.standard_error:.4f} nats over the uniform law, of its own "
            f"{self.train_log_likelihood:.4f}"
        )
        text += f", {counted(self.num_skipped, 'step')} undone" if self.num_skipped else ""
        return text + (f", begun anew {self.restarts} times)" if self.restarts else ")")


@heeded()
def fit_samples(
    points: Float[ArrayLike, "num n"],
    flow: AbstractSphereMap | None = None,
    *,
    key: PRNGKeyArray,
    validation: float | Bool[ArrayLike, " num"] = 0.1,
    context: Float[ArrayLike, "num c"] | Float[ArrayLike, " num"] | None = None,
    weights: Float[ArrayLike, " num"] | None = None,
    steps: int | None = None,
    batch_size: int = 256,
    learning_rate: float | optax.Schedule | None = None,
    jitter: float = 0.0,
    max_seconds: float | None = None,
    members: int = 1,
    mesh: Mesh | None = None,
    **options: Any,
) -> SampleFit:
    r"""Fit a flow to data on the sphere, one unit vector a row, by maximum likelihood.

    **Arguments:**

    - `points`: unit vectors; see `determinax.sphere.from_lonlat`.
    - `flow`: where to start; by default `default_flow` for the dimension and the number of points.
    - `validation`: the share of points that are held out, or which (True: held out). They decide which
        weights are kept and when to stop. 0: none are, and `steps` has to be said.
    - `context`: numbers that the law depends on, one row a point: a conditional density
        $q(s \mid x)$; evaluate by `proposal.log_density(points, context)`.
    - `weights`: of the points, such as counts; equal by default.
    - `steps`: None goes on until the held-out likelihood has stopped rising (at most 6,000; 12,000
        from 8,000 points on).
    - `batch_size`; `learning_rate`: of Adam, by default a short rise to 5e-3 and a cosine down;
        `optimiser` (an `optax.GradientTransformation` instead).
    - `jitter`: noise on the points, as a share of the distance to the nearest other: smoother.
    - `max_seconds`: where to stop in any case.
    - `members`: how many flows to fit with different keys; their mixture is nearer to the truth than any
        of them, and takes as many times as long.
    - `mesh`, `checkpoint`, `checkpoint_every`, `resume`, `progress`: see `determinax.training.train`.

    What is kept is an average of the weights over the last steps, where it was best. A run that ends
    at the uniform law, where kernels find structure, begins anew.

    !!! example

        ```python
        points = dx.sphere.from_lonlat(longitude, latitude)
        fit = dx.fit_samples(points, key=jax.random.key(0), steps=100)
        fit.proposal.log_density(points, measure="area")
        ```
    """
    rows = _rows(points, flow)
    require_places(rows)
    key = require_key(key, "fitting data")
    held_out = held_out_rows(validation, len(rows), key)
    if whole_number(members, "members") > 1:
        settings = {"context": context, "weights": weights, "steps": steps, "jitter": jitter}
        settings |= {
            "batch_size": batch_size,
            "learning_rate": learning_rate,
            "mesh": mesh,
        } | options
        return _ensemble(rows, flow, key, held_out, int(members), max_seconds, settings)
    if steps is None and not held_out.any():
        raise ValueError("without held-out points nothing says when to stop: pass steps=")
    contexts = _contexts(context, len(rows), flow)
    if flow is None:
        flow = _suited(rows, contexts, key)
    data = _data(rows, contexts, weights, held_out, jitter, flows.base.dtype_of(flow))
    batch_size = whole_number(batch_size, "batch_size", least=2)
    num_steps = horizon(len(rows)) if steps is None else whole_number(steps, "steps")
    is_structured = _lazily(rows, held_out)
    deadline = _deadline(max_seconds, options, mesh)
    optimiser = options.pop("optimiser", None)
    attempt = 0
    while True:
        fitter = LikelihoodFitter(
            data=data,
            start=flow,
            optimiser=clipped(optimiser, learning_rate, num_steps, attempt),
            batch_size=part_size(batch_size, mesh),
            patience=None if steps else max(1000, num_steps // 4),
            deadline=np.asarray(deadline),
        )
        own = key if attempt == 0 else stream(key, "again", attempt)
        done = run(fitter, key=own, steps=num_steps, mesh=mesh, **options)
        fit = dataclasses.replace(
            _judged(done.proposal, done.history, data, held_out),
            num_skipped=done.num_skipped,
            seconds=done.seconds,
            restarts=attempt,
        )
        # a checkpoint is of one run
        is_last = attempt == _RESTARTS or "checkpoint" in options
        if is_last or fit.log_likelihood > _NOTHING or not is_structured():
            return fit
        attempt += 1


def _ensemble(rows, flow, key, held_out, num, max_seconds, settings) -> SampleFit:
    """Fits with different keys and the same held-out points, in equal parts of the time."""
    if "checkpoint" in settings:
        raise ValueError("a checkpoint is of one run: leave it out, or fit the members one by one")
    end = _deadline(max_seconds, settings, settings["mesh"])
    fits = []
    for i in range(num):
        left = (end - time.perf_counter()) / (num - i)
        settings["max_seconds"] = max(left, 1e-3) if np.isfinite(left) else None
        own = stream(key, "member", i)
        fits.append(fit_samples(rows, flow, key=own, validation=held_out, **settings))
    return _together(fits, rows, settings["context"], settings["weights"])


def _together(fits: list[SampleFit], rows: np.ndarray, context: Any, weights: Any) -> SampleFit:
    """The ensemble in equal shares, scored like a fit."""
    proposal, held_out = Mixture([fit.proposal for fit in fits]), fits[0].held_out
    contexts = _contexts(context, len(rows), None)
    data = _data(rows, contexts, weights, held_out, 0.0, flows.base.dtype_of(proposal))
    one = _judged(proposal, fits[0].history, data, held_out)
    return dataclasses.replace(
        one,
        num_skipped=sum(fit.num_skipped for fit in fits),
        seconds=sum(fit.seconds for fit in fits),
        restarts=sum(fit.restarts for fit in fits),
        members=tuple(fits),
    )


def _suited(rows: np.ndarray, contexts: np.ndarray | None, key: PRNGKeyArray) -> AbstractSphereMap:
    """The default flow; a context enters less its mean, over its spread."""
    size = 0 if contexts is None else contexts.shape[1]
    flow = default_flow(rows.shape[1], len(rows), key=stream(key, "flow"), context_size=size)
    if contexts is None:
        return flow
    spread = contexts.std(axis=0)
    return flows.RescaledContext(flow, contexts.mean(axis=0), np.where(spread > 0, spread, 1.0))


def default_flow(
    n: int, num_points: int, *, key: PRNGKeyArray, context_size: int = 0
) -> AbstractSphereMap:
    """The flow that `fit_samples` starts from: splines on every coordinate, fewer bins for few points.

    At n = 3 autoregressive layers, of 32 bins from 1,000 points on; from n = 4 on coupling layers of 16.
    With a context 8 bins: what a law is like given x is simpler than what it is like on the whole.

    !!! example

        ```python
        flow = dx.training.default_flow(3, 5000, key=key)
        ```
    """
    bins = 32 if n <= 3 else 16
    return flows.cylinder(
        n,
        key=key,
        num_flows=6,
        circle="spline",
        num_bins=bins if num_points >= 1000 and not context_size else 8,
        conditioning="autoregressive" if n == 3 else "coupling",
        context_size=context_size,
        dtype=jnp.float32,
    )


def horizon(num_points: int) -> int:
    """The most steps that `fit_samples` takes unless it is told."""
    return HORIZON * (2 if num_points >= _MANY else 1)


def require_places(rows: Float[np.ndarray, "num n"]) -> None:
    """Refuse points that all stand at one place: the likelihood of a spike there has no bound."""
    if (rows == rows[0]).all():
        raise ValueError(
            f"all points ({len(rows)}) stand at one place: a density needs points that differ"
        )


def held_out_rows(
    validation: float | Bool[ArrayLike, " num"], num: int, key: PRNGKeyArray
) -> Bool[np.ndarray, " num"]:
    """Which rows are held out: as told, or a random share, at least one row on either side."""
    if np.ndim(validation) > 0:
        chosen = np.asarray(validation)
        if chosen.shape != (num,) or chosen.dtype != bool or chosen.all():
            raise ValueError(
                f"validation is a share, or {num} of True (held out) and False, not all True"
            )
        return chosen
    share = float(real_numbers(validation, "validation is a share, such as 0.1"))
    if not 0 <= share < 1:
        raise ValueError(f"validation is a share from 0 to below 1, not {validation!r}")
    count = min(num - 1, max(1, round(share * num))) if share else 0
    order = np.asarray(jax.random.permutation(stream(key, "held out"), num))
    return np.isin(np.arange(num), order[:count])


def _rows(points: ArrayLike, flow: AbstractSphereMap | None) -> np.ndarray:
    if flow is not None:
        if not isinstance(flow, AbstractSphereMap):
            raise TypeError(
                f"flow is a map of the sphere, such as dx.flows.cylinder(...), not a "
                f"{type(flow).__name__}"
            )
        sphere.unit_rows(points, flow.n)
    return sphere.unit_matrix(points)


def _contexts(
    context: ArrayLike | None, num: int, flow: AbstractSphereMap | None
) -> np.ndarray | None:
    if context is None:
        if flow is not None and flow.context_size:
            raise ValueError(f"this flow needs a context of {flow.context_size} numbers a point")
        return None
    if flow is not None and not flow.context_size:
        raise ValueError(
            "this flow takes no context: leave it out, or build one with context_size="
        )
    array = real_numbers(context, "a context is numbers, one row a point")
    array = array[:, None] if array.ndim == 1 else array
    size = None if flow is None else flow.context_size
    if array.ndim != 2 or len(array) != num or size not in (None, array.shape[1]):
        many = "" if size is None else f"{size} "
        raise ValueError(
            f"a context of shape {array.shape} is not one row of {many}numbers for each of {num} points"
        )
    if not np.isfinite(array).all():
        row = int(np.flatnonzero(~np.isfinite(array).all(axis=1))[0])
        raise ValueError(f"row {row} of the context holds NaN or Inf")
    return array


def _data(rows, contexts, weights, held_out, jitter, dtype) -> Data:
    jitter = positive_number(jitter, "jitter, a share of the neighbour distance,", or_zero=True)
    shares = np.ones(len(rows))
    if weights is not None:
        shares = real_numbers(weights, f"weights are {len(rows)} numbers")
    if shares.shape != (len(rows),) or not (np.isfinite(shares) & (shares >= 0)).all():
        raise ValueError(f"weights are {len(rows)} numbers, finite and not negative, one a point")
    for name, chosen in (("training", ~held_out), ("held-out", held_out)):
        if chosen.any() and not shares[chosen].sum() > 0:
            raise ValueError(
                f"the weights of the {name} points are all 0: at least one must be above"
            )
    noise = jitter * neighbour_distances(rows, 1) if jitter else np.zeros(len(rows))

    def part(array, chosen) -> Any:
        return None if array is None else jnp.asarray(array[chosen].T, dtype)

    return Data(
        *(part(a, ~held_out) for a in (rows, contexts, shares, noise)),
        *(part(a, held_out) for a in (rows, contexts, shares)),
    )


def _deadline(max_seconds: float | None, options: dict[str, Any], mesh: Mesh | None) -> float:
    if max_seconds is None:
        return np.inf
    if mesh is not None and spans_processes(line_of(mesh)):
        raise ValueError("processes have clocks of their own: pass steps= in place of max_seconds=")
    if options.get("checkpoint") is not None:
        raise ValueError("a run that the clock ends has no checkpoint to go on from: pass steps=")
    return time.perf_counter() + positive_number(max_seconds, "max_seconds", most=np.inf)


def _lazily(rows: np.ndarray, held_out: np.ndarray) -> Any:
    """Whether kernels with a share of the uniform law find structure; asked only if it matters."""

    def is_structured() -> bool:
        if not held_out.any():
            return False
        q = Mixture([kernels(rows[~held_out]), Uniform(rows.shape[1])], [0.5, 0.5])
        return float(jnp.mean(q.log_density(rows[held_out]))) > _SOMETHING

    return is_structured


def _judged(proposal: Any, history: History, data: Data, held_out: np.ndarray) -> SampleFit:
    own = data.mean(proposal, "train")
    seen = data.mean(proposal, "held_out") if held_out.any() else own
    return SampleFit(
        proposal=proposal,
        log_likelihood=float(seen[0]),
        standard_error=float(seen[1]),
        train_log_likelihood=float(own[0]),
        held_out=held_out,
        history=history,
        num_skipped=0,
        seconds=0.0,
    )
