"""The verdict on a fit to data: what held-out points say of it, in words."""

import math
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import scipy  # whose trees load when they are used
from jaxtyping import Float, PRNGKeyArray

from determinax._keys import stream
from determinax.densities.tests import Uniformity, goodness_of_fit, uniformity
from determinax.proposals import AbstractProposal, Proposal

# a richer model has to be better by so many standard errors of the difference
BETTER = 2.0
# of held-out points that stand in the training set, too; of a test; nats and standard errors
_MANY_DUPLICATES, _DOUBTFUL, _OFF, _SURE = 0.02, 0.01, 0.05, 3.0
# chords: two printed positions that are the same
_SAME = 1e-6
_FEW = 50


class Score(NamedTuple):
    """A mean log-density in nats over the uniform law, and its standard error."""

    mean: float
    standard_error: float

    def __str__(self) -> str:
        return f"{self.mean:.4f} +- {self.standard_error:.4f}"


class Verdict(NamedTuple):
    """`status`: "ok", "no structure", "overfit" or "underfit"; and why.

    `scores` are held-out log-likelihoods by model, `surplus` is how much likelier the density's own
    samples are than held-out points, `p_value` that of an energy test between both (given the same
    contexts, where there are any), `duplicates` the share of held-out points that stand in the training
    set, too. `uniformity` is of held-out points pulled back through a flow. It is None for mixtures and
    kernels, which have no one way back.
    """

    status: str
    reasons: tuple[str, ...]
    scores: dict[str, Score]
    surplus: Score
    p_value: float
    duplicates: float
    uniformity: Uniformity | None = None

    def __str__(self) -> str:
        """The verdict as a text of a few lines."""
        width = max(len(name) for name in self.scores)
        lines = ["log-likelihood of held-out points, nats over the uniform law:"]
        lines += [f"  {name:{width}s}  {value}" for name, value in self.scores.items()]
        back = self.uniformity
        if back is not None:
            lines.append(
                "tests whether held-out points, pulled back through the flow, are uniform: p = "
                f"{back.rayleigh:.3f} (Rayleigh), {back.energy:.3f} (energy)"
            )
        lines.append(f"energy test between held-out points and its samples: p = {self.p_value:.3f}")
        lines.append(f"held-out points that stand in the training set, too: {self.duplicates:.1%}")
        return "\n".join([*lines, *self.reasons])


def score(log_q: Float[np.ndarray, " num"]) -> Score:
    """Of log-densities at held-out points."""
    error = np.std(log_q, ddof=1) / len(log_q) ** 0.5 if len(log_q) > 1 else math.nan
    return Score(float(np.mean(log_q)), float(error))


def is_better(
    log_q: Float[np.ndarray, " num"], other: Float[np.ndarray, " num"], by: float = BETTER
) -> bool:
    """Whether one density is better than another by more than chance, pair by pair."""
    gain = score(log_q - other)
    return gain.mean > by * gain.standard_error


def duplicate_share(held_out: Float[np.ndarray, "num n"], rows: Float[np.ndarray, "m n"]) -> float:
    """The share of held-out points that stand in the training set, too."""
    return float(np.mean(scipy.spatial.KDTree(rows).query(held_out)[0] < _SAME))


def verdict_on(
    proposal: AbstractProposal,
    scores: dict[str, Score],
    held_out: Float[np.ndarray, "num n"],
    rows: Float[np.ndarray, "m n"],
    *,
    is_structured: bool,
    key: PRNGKeyArray,
    context: Float[np.ndarray, "num c"] | None = None,
) -> Verdict:
    """What held-out points say of a density that was fitted to `rows`."""
    duplicates = duplicate_share(held_out, rows)
    log_q = np.asarray(proposal.log_density(held_out, context), float)
    num = 2000 if context is None else len(held_out)
    own = np.asarray(proposal.sample_and_log_density(stream(key, "own"), num, context)[1], float)
    gap = score(own).mean - float(np.mean(log_q))
    surplus = Score(gap, math.hypot(score(own).standard_error, score(log_q).standard_error))
    back = _pulled_back(proposal, held_out, context, key)
    p_value = goodness_of_fit(proposal, held_out, key=stream(key, "goodness"), context=context)
    status, reasons = "ok", []
    if not is_structured:
        status = "no structure"
        reasons.append(
            "no structure: nothing that was fitted is better than the uniform law by more than chance"
        )
    elif surplus.mean > max(_OFF, _SURE * surplus.standard_error):
        status = "overfit"
        reasons.append(
            f"overfit: its own samples are likelier than held-out points by {surplus} nats, so it is "
            "surer of itself than it should be: more points, or a larger floor"
        )
    else:
        lacks = _lacks(p_value, back, surplus)
        status = "underfit" if lacks else "ok"
        cure = "the floor" if duplicates > _MANY_DUPLICATES else "too little time for flows"
        reasons += [f"underfit: {lacks}: {cure} may be why"] if lacks else []
    if duplicates > _MANY_DUPLICATES:
        reasons.append(
            f"{duplicates:.0%} of the held-out points also stand in the training set: likelihood then "
            "rewards spikes; set floor=... or remove them"
        )
    if len(held_out) < _FEW:
        reasons.append(f"held-out points are too few to judge by: {len(held_out)}")
    return Verdict(status, tuple(reasons), scores, surplus, p_value, duplicates, back)


def _lacks(p_value: float, back: Uniformity | None, surplus: Score) -> str:
    """Where held-out points differ from the density, in words; empty where they do not."""
    if back is not None and back.energy < _DOUBTFUL <= p_value:
        return (
            "held-out points, pulled back through the flow, are not uniform (energy test, p = "
            f"{back.energy:.3f})"
        )
    if p_value < _DOUBTFUL or -surplus.mean > max(_OFF, _SURE * surplus.standard_error):
        return (
            f"held-out points differ from its samples (energy test, p = {p_value:.3f}; its samples are "
            f"likelier by {surplus.mean:.3f} nats)"
        )
    return ""


def _pulled_back(proposal, held_out, context, key) -> Uniformity | None:
    """Through a flow that fits, points that it has not seen come back as uniform ones."""
    if not isinstance(proposal, Proposal):
        return None
    columns = None if context is None else jnp.asarray(context).T
    back, _ = proposal.pull(jnp.asarray(held_out).T, columns)
    return uniformity(np.asarray(back).T, key=stream(key, "uniformity"))
