"""What every fit is: an algorithm that takes steps, a record of each, and a `Fit` at the end."""

import abc
import dataclasses
import html
import math
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from determinax._checks import counted
from determinax._drawing.curves import curve
from determinax._drawing.page import card
from determinax.operators import Products
from determinax.proposals import Proposal

History = dict[str, np.ndarray]


class Record(NamedTuple):
    """What a step saw before its update."""

    loss: Float[Array, ""]
    effective_sample_size: Float[Array, ""]
    spread: Float[Array, ""]
    finite: Bool[Array, ""]
    log_abs_det: Float[Array, ""]

    @staticmethod
    def of(
        log_w: Float[Array, " num"], loss: Array | None = None, finite: Array | bool = True
    ) -> "Record":
        """Of a batch of log-weights; the loss is minus their mean unless it is something else."""
        return Record(
            loss=-jnp.mean(log_w) if loss is None else loss,
            effective_sample_size=effective_share(log_w),
            spread=jnp.std(log_w) if len(log_w) > 1 else jnp.full((), jnp.nan, log_w.dtype),
            finite=jnp.all(jnp.isfinite(log_w)) & finite,
            log_abs_det=math.log(len(log_w)) - jax.nn.logsumexp(log_w),
        )


def effective_share(log_w: Float[Array, " num"]) -> Float[Array, ""]:
    r"""$(\sum w)^2 / (N \sum w^2)$ of log-weights: 1 where all are equal."""
    w = jnp.exp(log_w - jnp.max(log_w))
    return jnp.sum(w) ** 2 / (len(w) * jnp.sum(w**2))


@dataclasses.dataclass(frozen=True)
class Fit:
    """What training gives.

    **Fields:**

    - `proposal`: the trained density, ready to sample and to evaluate.
    - `history`: arrays with an entry a step: `loss`, `effective_sample_size` (a share of the
        batch), `spread` (standard deviation of the batch's log-weights), `finite` (False where the
        step was undone), `log_abs_det` (the estimate from the step's own log-weights).
    - `num_skipped`: steps that were not finite and were undone.
    - `seconds`: how long it took, what came before a resumption included.
    - `num_matvecs`: products with the operator that training spent, transposed ones and those of the
        door's checks included; `num_transposed` of them. 0 where there is no operator.
    - `converged`: whether the spread fell below `tolerance`.
    - `to_data`: whether the loss is minus the mean log-density of data. Then effective sample size and
        spread say how far from uniform the data are, not how good the fit is.

    !!! example

        ```python
        fit = dx.fit_linear(A, key=key)
        fit.num_matvecs, fit.history["spread"]
        dx.log_abs_det(A, dx.Variational(fit.proposal, 1), key=key)
        ```
    """

    proposal: Proposal
    history: History
    num_skipped: int
    seconds: float
    num_matvecs: int = 0
    num_transposed: int = 0
    converged: bool = False
    to_data: bool = False

    def _repr_html_(self) -> str:
        drawn = curve(self.history["loss"], "loss, nats", self.history["finite"])
        return card(f"<p>{html.escape(repr(self))}</p>{drawn}")

    def __repr__(self) -> str:
        steps = len(self.history["loss"])
        skipped = f", {counted(self.num_skipped, 'step')} undone" if self.num_skipped else ""
        products = f", {counted(self.num_matvecs, 'product')}" if self.num_matvecs else ""
        said = summary(self.history, -max(1, steps // 20), to_data=self.to_data)
        return f"Fit({counted(steps, 'step')} in {self.seconds:.1f} s{products}, {said}{skipped})"


def summary(history: History, start: int, *, to_data: bool) -> str:
    """The steps from `start` on in words: of data their likelihood, of an operator the weights."""
    loss = mean_of(history, "loss", start)
    if to_data:
        return f"mean log-density of the data {-loss:.4f} nats"
    spread = mean_of(history, "spread", start)
    share = mean_of(history, "effective_sample_size", start)
    return f"loss {loss:.4f}, spread {spread:.2g}, effective sample size {share:.1%}"


def mean_of(history: History, name: str, start: int) -> float:
    """Over the steps from `start` on that were taken; NaN where none was."""
    taken = history["finite"][start:]
    return float(np.mean(history[name][start:], where=taken)) if taken.any() else float("nan")


class FitInterrupted(KeyboardInterrupt):
    """Ctrl-C ended a fit; `fit` is the `Fit` that it had come to, after its last whole chunk of steps.

    !!! example

        ```python
        try:
            fit = dx.fit_linear(A, key=key)
        except dx.FitInterrupted as interrupt:
            fit = interrupt.fit
        ```
    """

    def __init__(self, fit: Fit):
        self.fit = fit
        done = len(fit.history["loss"])
        steps = counted(done, "step")
        super().__init__(f"interrupted after {steps}; what was trained is in the error's .fit")


class AbstractFitter(eqx.Module):
    """An algorithm with its problem: steps depend on each other, and the one loop takes them."""

    what: eqx.AbstractVar[str]
    # what a step sees: a named tuple of scalars, with `loss` and `finite` among them
    record: ClassVar[Any] = Record

    @property
    def is_compiled_loop(self) -> bool:
        """Many steps in one program, or one by one: XLA's CPU takes ten times as long for a
        convolution inside of a loop.
        """
        return True

    @abc.abstractmethod
    def init(self) -> Any:
        """The state before the first step: a pytree of arrays."""

    @abc.abstractmethod
    def step(self, state: Any, key: PRNGKeyArray, index: Int[Array, ""]) -> tuple[Any, Any]:
        """The next state, and what the step saw."""

    def is_due(self, index: Any) -> Any:
        """Whether there is more to do after this step than after others."""
        del index
        return False

    def single_step(
        self, state: Any, key: PRNGKeyArray, index: Int[Array, ""], due: bool
    ) -> tuple[Any, Any]:
        """`step`, where they go one by one and whether it is due is known."""
        del due
        return self.step(state, key, index)

    @abc.abstractmethod
    def proposal(self, state: Any) -> Proposal:
        """The proposal of a state."""

    @abc.abstractmethod
    def products(self) -> Products:
        """Of one step."""

    def is_done(self, state: Any) -> Bool[Array, ""] | bool:
        """Whether the state says that there is nothing left to do; looked at before every step."""
        del state
        return False

    def has_converged(self, state: Any, history: History) -> bool:
        """Whether the goal is reached; on the host, after every hundredth step and the last."""
        del state, history
        return False

    def has_stalled(self, history: History) -> bool:
        """Whether more steps would bring nothing; on the host, as above."""
        del history
        return False

    def require_finite(self, history: History, steps: int) -> None:
        """Raise, in a sentence, where steps that are not finite make going on useless."""

    def note(self, history: History, products: int) -> str:
        """What a progress bar says beside the count."""
        del products
        return f"spread {history['spread'][-1]:.1e}"

    @property
    def to_data(self) -> bool:
        """Whether the loss is minus a mean log-likelihood of data."""
        return False


class AbstractBatchFitter(AbstractFitter):
    """A fitter whose step is an update by what a batch says, and a batch can be drawn in parts."""

    @abc.abstractmethod
    def part(self, state: Any, key: PRNGKeyArray) -> Any:
        """What a batch, or a part of one, says."""

    @abc.abstractmethod
    def merged(self, parts: Any) -> Any:
        """Parts of one size, stacked, as the batch that they are together."""

    @abc.abstractmethod
    def updated(self, state: Any, part: Any, index: Int[Array, ""]) -> tuple[Any, Any]:
        """The next state, and what step number `index` saw."""

    def step(self, state: Any, key: PRNGKeyArray, index: Int[Array, ""]) -> tuple[Any, Any]:
        """See `AbstractFitter`: with a batch in one part."""
        return self.updated(state, self.part(state, key), index)
