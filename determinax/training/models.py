"""Train any model by a loss in which products stand for log-determinants: the one loop serves them too."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from determinax._checks import counted, positive_number, require_key, whole_number
from determinax._interrupts import heeded
from determinax._keys import stream
from determinax.flows import trainable
from determinax.likelihood import free_form_loss, standard_normal
from determinax.likelihood.loss import LogDensity, Map
from determinax.operators import Products
from determinax.proposals import Proposal
from determinax.training._averaged import AbstractAveragedFitter, AveragedState
from determinax.training._base import History
from determinax.training._loop import run
from determinax.training._optimisers import chosen, warm_cosine

SampleX = Callable[[PRNGKeyArray, int], Float[Array, "num n"]]


@dataclasses.dataclass(frozen=True)
class ModelFit:
    """What training a model gives.

    **Fields:**

    - `models`: as they went in, trained: the average of the last steps that was best on held-out data.
    - `history`: arrays with an entry a step: `loss`, `held_out` (minus the loss of the held-out data, or
        their likelihood's bound; every hundredth step, NaN between) with `standard_error`, `finite`.
    - `num_skipped`: steps that were not finite and were undone.
    - `seconds`: how long it took; `num_matvecs`: products with Jacobians that training spent.
    """

    models: Any
    history: History
    num_skipped: int
    seconds: float
    num_matvecs: int

    def __repr__(self) -> str:
        steps = len(self.history["loss"])
        last = float(np.mean(self.history["loss"][-max(1, steps // 20) :]))
        seen = self.history["held_out"][np.isfinite(self.history["held_out"])]
        held = f", held out {seen.max():.4f} at best" if seen.size else ""
        skipped = f", {counted(self.num_skipped, 'step')} undone" if self.num_skipped else ""
        return f"ModelFit({counted(steps, 'step')} in {self.seconds:.1f} s, loss {last:.4f}{held}{skipped})"


@heeded()
def fit_model(
    loss: Callable[[Any, Float[Array, "num n"], PRNGKeyArray], Any],
    models: Any,
    sample_x: SampleX,
    *,
    key: PRNGKeyArray,
    steps: int,
    batch_size: int = 128,
    held_out: Float[Array, "held n"] | None = None,
    score: Callable[[Any, Float[Array, "held n"], PRNGKeyArray], Float[Array, " held"]]
    | None = None,
    patience: int | None = None,
    learning_rate: float | optax.Schedule | None = None,
    optimiser: optax.GradientTransformation | None = None,
    products: int = 0,
    what: str = "training",
    **options: Any,
) -> ModelFit:
    r"""Minimise a loss of your own over models of any kind, proposals among them.

    Steps that are not finite are undone; an average of the last 200 steps is what counts; Ctrl-C raises
    `FitInterrupted`, whose `fit.proposal` has the models.

    **Arguments:**

    - `loss`: models, points and a key in, a number (or a number and anything else) out. Products with
        Jacobians come from `jacobian_surrogate` or `free_form_loss`.
    - `models`: any pytree: equinox modules, dictionaries of arrays, a tuple of such.
    - `sample_x`: key and number in, as many points out, one a row.
    - `held_out`: points on which the average is looked at every hundredth step, and the best one kept.
        `score` says how good it is on each of them, larger is better; minus the loss by default.
    - `patience`: stop after so many steps without a new best.
    - `learning_rate`: of Adam, by default a short rise to 1e-3 and a cosine down; `optimiser` instead.
    - `products`: with Jacobians for each point and step, to be counted.
    - `checkpoint`, `checkpoint_every`, `resume`, `progress`: see `determinax.training.train`.

    !!! example

        ```python
        import equinox as eqx

        model = eqx.nn.MLP(10, 10, 16, 1, key=key)
        proposal = dx.Proposal(dx.flows.conditional_linear(10, key=key))
        sample_x = lambda key, num: jax.random.normal(key, (num, 10))

        def loss(models, x, key):
            model, proposal = models
            s = dx.jacobian_surrogate(model, x, proposal, key=key, num_samples=2)
            learn = s.loss - jax.lax.stop_gradient(s.loss)  # moves the proposal alone
            return jnp.mean(0.5 * jnp.sum(jax.vmap(model)(x) ** 2, 1) - s.corrected + learn)

        fit = dx.training.fit_model(loss, (model, proposal), sample_x, key=key, steps=20)
        ```
    """
    key = require_key(key, "training")
    steps = whole_number(steps, "steps")
    batch_size = whole_number(batch_size, "batch_size")
    _require_sampler(sample_x, batch_size, key)
    if optimiser is None and learning_rate is None:
        learning_rate = warm_cosine(steps, 1e-3)
    fitter = ModelFitter(
        function=loss,
        scorer=score,
        start=models,
        sample_x=sample_x,
        held_out=None if held_out is None else jnp.asarray(held_out),
        optimiser=chosen(optimiser, learning_rate),
        batch_size=batch_size,
        patience=None if patience is None else whole_number(patience, "patience"),
        deadline=np.asarray(np.inf),
        per_step=Products(batch_size * products),
        what=what,
        has_convolutions=False,
    )
    if _has_convolutions(fitter, key):
        fitter = dataclasses.replace(fitter, has_convolutions=True)
    done = run(fitter, key=key, steps=steps, **options)
    return ModelFit(
        models=done.proposal,
        history=done.history,
        num_skipped=done.num_skipped,
        seconds=done.seconds,
        num_matvecs=done.num_matvecs,
    )


def fit_free_form(
    f: Map,
    g: Map,
    sample_x: SampleX,
    proposal: Proposal,
    *,
    key: PRNGKeyArray,
    steps: int,
    reconstruction: float = 50.0,
    num_samples: int = 1,
    prior: LogDensity = standard_normal,
    **options: Any,
) -> ModelFit:
    r"""Train an encoder, a decoder and a proposal together: `free_form_loss` in the one loop.

    `fit.models` are the three, ready for `log_likelihood(f, g, x, proposal, key=key)`. With `held_out`
    points the best average by their bound is kept. Options as in `fit_model`.

    !!! example

        ```python
        import equinox as eqx

        f, g = (eqx.nn.MLP(10, 10, 16, 1, key=k) for k in jax.random.split(key))
        proposal = dx.Proposal(dx.flows.conditional_linear(10, key=key))
        sample_x = lambda key, num: jax.random.normal(key, (num, 10))
        fit = dx.fit_free_form(f, g, sample_x, proposal, key=key, steps=20)
        f, g, proposal = fit.models
        ```
    """
    weight = positive_number(reconstruction, "reconstruction")
    num_samples = whole_number(num_samples, "num_samples")
    for name, model in (("f", f), ("g", g)):
        if not jax.tree.leaves(eqx.filter(model, trainable(model))):
            raise ValueError(
                f"{name} holds no arrays that could be trained: pass a module, or take fit_model with "
                "your parameters and free_form_loss"
            )
    return fit_model(
        FreeFormObjective(weight, num_samples, prior),
        (f, g, proposal),
        sample_x,
        key=key,
        steps=steps,
        score=FreeFormScore(weight, prior),
        products=num_samples + 3,
        what="training encoder, decoder and proposal",
        **options,
    )


class FreeFormObjective(eqx.Module):
    """The loss of three models."""

    weight: float = eqx.field(static=True)
    num_samples: int = eqx.field(static=True)
    prior: LogDensity = eqx.field(static=True)

    def __call__(self, models: Any, x: Array, key: PRNGKeyArray) -> Float[Array, ""]:
        """Of a batch."""
        f, g, proposal = models
        return free_form_loss(
            f,
            g,
            x,
            proposal,
            key=key,
            reconstruction=self.weight,
            num_samples=self.num_samples,
            prior=self.prior,
        )[0]


class FreeFormScore(eqx.Module):
    """Minus the bound, and the reconstruction's part: a decoder that cannot be inverted is no good."""

    weight: float = eqx.field(static=True)
    prior: LogDensity = eqx.field(static=True)

    def __call__(self, models: Any, x: Array, key: PRNGKeyArray) -> Float[Array, " held"]:
        """Of every point."""
        f, g, proposal = models
        parts = free_form_loss(
            f, g, x, proposal, key=key, reconstruction=1.0, num_samples=8, prior=self.prior
        )[1]
        return -parts.bound - self.weight * parts.reconstruction


class ModelFitter(AbstractAveragedFitter):
    """Any loss of any models."""

    function: Callable
    scorer: Callable | None
    start: Any
    sample_x: Callable
    held_out: Array | None
    optimiser: optax.GradientTransformation = eqx.field(static=True)
    batch_size: int = eqx.field(static=True)
    patience: int | None = eqx.field(static=True)
    deadline: np.ndarray
    per_step: Products = eqx.field(static=True)
    what: str = eqx.field(static=True)
    has_convolutions: bool = eqx.field(static=True)

    @property
    def is_compiled_loop(self) -> bool:
        """See `AbstractFitter`."""
        return not self.has_convolutions

    @property
    def has_held_out(self) -> bool:
        """See `AbstractAveragedFitter`."""
        return self.held_out is not None

    def loss(self, model: Any, key: PRNGKeyArray) -> Float[Array, ""]:
        """See `AbstractAveragedFitter`."""
        x = self.sample_x(stream(key, "points"), self.batch_size)
        value = self.function(model, x, stream(key, "loss"))
        return value[0] if isinstance(value, tuple) else value

    def score(self, model: Any) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """See `AbstractAveragedFitter`: the same draws at every look."""
        key = jax.random.key(0)
        if self.scorer is not None:
            values = self.scorer(model, self.held_out, key)
            return jnp.mean(values), jnp.std(values) / math.sqrt(max(1, values.size - 1))
        value = self.function(model, self.held_out, key)
        value = value[0] if isinstance(value, tuple) else value
        return -value, jnp.full_like(value, jnp.nan)

    def proposal(self, state: AveragedState) -> Any:
        """See `AbstractFitter`: all of the models."""
        return self.best(state)

    def products(self) -> Products:
        """See `AbstractFitter`."""
        return self.per_step


def _has_convolutions(fitter: ModelFitter, key: PRNGKeyArray) -> bool:
    """Whether the loss convolves: inside of a loop XLA's CPU backend does so on one thread, and slowly."""
    parameters = eqx.filter(fitter.start, trainable(fitter.start))
    program = jax.make_jaxpr(lambda p, key: fitter.loss(fitter.model(p), key))(parameters, key)
    return "conv_general_dilated" in str(program)


def _require_sampler(sample_x: Any, num: int, key: PRNGKeyArray) -> None:
    if not callable(sample_x):
        raise TypeError(
            "sample_x is a function of a key and a number that gives as many points, such as "
            "lambda key, num: jax.random.choice(key, points, (num,))"
        )
    points = jax.eval_shape(lambda key: sample_x(key, num), key)
    if getattr(points, "ndim", 0) != 2 or len(points) != num:
        raise ValueError(f"sample_x(key, {num}) gives {points}, not {num} points, one a row")
