r"""Moments of log-weights -> `Estimate`: mean, error, bounds, diagnostics, verdict. Numbers only.

An `Estimate` is a pytree of arrays, so that `jit`, `vmap` and `grad` pass through it; what needs to
look at values (the Pareto fit, the verdict) is computed when asked for, outside of tracing.
"""

import dataclasses
import functools
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats
from jax.core import Tracer
from jaxtyping import Array, Bool, Float

from determinax import moments as mo
from determinax import verdict
from determinax.verdict import Status


class UnreliableEstimateError(ValueError):
    """An unreliable estimate was asked for its number."""


class Estimate(eqx.Module):
    r"""An estimate of $\log|\det A|$ (or of a log-volume) with its error, bounds, cost and verdict.

    Under `jit`, `vmap` or `grad` the array fields are traced; `status`, `reasons`, `interval` and
    `pareto_k` look at values and belong outside. A batch from `vmap` is taken apart by indexing.

    **Fields:**

    - `log_abs_det`: the estimate, in nats.
    - `standard_error`: of `log_abs_det`: the delta method over independent groups of weights
        (sampling), over probes and with the quadrature's error (Lanczos), or rounding (exact).
    - `kl_bound`, `importance_bound`: upper bounds *in expectation*, each with its own
        `..._standard_error`; None for methods that have none.
    - `lower_bound`: a lower bound in expectation; None without solves.
    - `effective_sample_size`, `max_weight_share`: of the weights, and `spread`: the standard
        deviation of the log-weights; None for methods without weights.
    - `num_pooled`: how many log-weights, of this and of earlier operators, `standard_error` and
        `spread` are pooled over (trackers only): the verdict counts them, not the few drawn here.
    - `is_linear`: whether the weights are of uniform directions or of a linear map's, whose spread says
        what their tail can be; for other flows the verdict is stricter.
    - `num_matvecs`: products spent, with the transpose included; `num_transposed` of them with it.
    - `num_matvecs_dense`: the n products that would give A itself.
    - `condition`: how much rounding is amplified (exact methods only): the condition number of the
        equilibrated matrix, or what elimination in a band was seen to do.
    - `quadrature_change`: from half the depth, in standard errors of the probes (Lanczos only).
    - `sign`: of the determinant, 1 or -1, where a factorisation of a real operator knows it.
    - `bar`: the standard error that the caller is content with, in nats (`tolerance=`, `rtol=`); the
        verdict judges by it. None: by the thresholds' own.
    """

    log_abs_det: Float[Array, ""]
    standard_error: Float[Array, ""]
    kl_bound: Float[Array, ""] | None = None
    kl_bound_standard_error: Float[Array, ""] | None = None
    importance_bound: Float[Array, ""] | None = None
    importance_bound_standard_error: Float[Array, ""] | None = None
    lower_bound: Float[Array, ""] | None = None
    lower_bound_standard_error: Float[Array, ""] | None = None
    effective_sample_size: Float[Array, ""] | None = None
    max_weight_share: Float[Array, ""] | None = None
    spread: Float[Array, ""] | None = None
    num_pooled: Float[Array, ""] | None = None
    equal_weights: Bool[Array, ""] | None = None
    tail: Float[Array, " tail"] | None = None
    condition: Float[Array, ""] | None = None
    quadrature_change: Float[Array, ""] | None = None
    sign: Float[Array, ""] | None = None
    bar: Float[Array, ""] | None = None
    method: str = eqx.field(static=True, default="")
    num_matvecs: int = eqx.field(static=True, default=0)
    num_transposed: int = eqx.field(static=True, default=0)
    num_matvecs_dense: int = eqx.field(static=True, default=0)
    num_groups: int = eqx.field(static=True, default=0)
    num_batches: int = eqx.field(static=True, default=0)
    factor: float = eqx.field(static=True, default=1.0)
    is_linear: bool = eqx.field(static=True, default=True)
    quantity: str = eqx.field(static=True, default="log|det|")
    notes: tuple[str, ...] = eqx.field(static=True, default=())
    allow_unreliable: bool = eqx.field(static=True, default=False)

    # -- figures that look at values --

    @property
    def abs_det(self) -> Float[Array, ""]:
        """|det A| itself; it over- or underflows where its logarithm does not."""
        return jnp.exp(self.log_abs_det)

    @property
    def pareto_k(self) -> float | None:
        """The tail index of the weights, by arviz-stats: above 0.7 their mean is not to be trusted.

        None where there are no weights, too few of them (under 25 groups), or all are equal.
        """
        self._require_scalar()
        return None if self.tail is None else verdict.pareto_k(np.asarray(self.tail))

    @property
    def status(self) -> Status:
        """`exact`, `ok`, `warn` or `unreliable`; the table in docs/verdict.md has the rules."""
        return self.verdict()[0]

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the status is what it is: direction of the error, cure; then the method's notes."""
        return self.verdict()[1] + self.notes

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of `log_abs_det`; None where the estimate is unreliable."""
        if self.status == "unreliable":
            return None
        value, error = float(self.log_abs_det), float(self.standard_error)
        num_draws = self._num_draws()
        freedom = num_draws - 1 if num_draws > 1 else math.inf
        t = 1.96 if math.isinf(freedom) else float(scipy.stats.t.ppf(0.975, freedom))
        return value - t * error, value + t * error

    def certified_upper(self, delta: float = 0.05) -> float | Float[Array, " batch"]:
        r"""An upper bound that holds with probability at least `1 - delta`, whatever the weights.

        The means $W_1, \dots, W_R$ of R independent batches each have mean $1/|\det A|$, so their
        product has mean $|\det A|^{-R}$, and by Markov's inequality
        $\log|\det A| \le -\frac1R \sum_r \log W_r + \frac{1}{R}\log\frac1\delta$
        with probability at least $1-\delta$: no central limit theorem, no moments.
        A batch of estimates has an array of bounds.
        """
        if not (isinstance(delta, int | float) and 0 < delta < 1):
            raise ValueError(f"delta is a probability between 0 and 1, not {delta!r}")
        if self.importance_bound is None:
            raise ValueError(f"the method {self.method} samples no weights: it has no certificate")
        slack = self.factor * math.log(1 / delta) / self.num_batches
        bound = self.importance_bound + slack
        return bound if self._is_batch_or_traced() else float(bound)

    def verdict(self) -> tuple[Status, tuple[str, ...]]:
        """Status and reasons together."""
        self._require_scalar()
        error = float(self.standard_error)
        return verdict.judge(
            verdict.Figures(
                log_abs_det=float(self.log_abs_det),
                standard_error=error,
                num_groups=self._num_draws(),
                equal_weights=bool(self.equal_weights),
                effective_sample_size=_number(self.effective_sample_size),
                max_weight_share=_number(self.max_weight_share),
                spread=_number(self.spread),
                pareto_k=self.pareto_k,
                num_tail=0 if self.tail is None else len(self.tail) - 1,
                is_linear=self.is_linear,
                rounding=None if self.condition is None else error,
                quadrature_change=_number(self.quadrature_change),
                bar=_number(self.bar),
            )
        )

    # -- as a number, text, JSON --

    def value(self, *, allow_unreliable: bool = False) -> float:
        """`log_abs_det` as a float; raises where unreliable, unless asked not to."""
        status, reasons = self.verdict()
        if status == "unreliable" and not (allow_unreliable or self.allow_unreliable):
            raise UnreliableEstimateError(
                f"this estimate is unreliable: {reasons[0]} "
                "(estimate.value(allow_unreliable=True) gives the number all the same)"
            )
        return float(self.log_abs_det)

    def __float__(self) -> float:
        return self.value()

    def __getitem__(self, index: Any) -> "Estimate":
        return jax.tree.map(lambda leaf: leaf[index], self)

    def __str__(self) -> str:
        if self._is_batch_or_traced():
            return f"Estimate(method={self.method}, log_abs_det={self.log_abs_det})"
        status, reasons = self.verdict()
        value, error = float(self.log_abs_det), float(self.standard_error)
        shown = f" ± {error:.2g}" if math.isfinite(value) else ""
        # "exact" once is enough
        label = f"{status}, {self.method.removeprefix('exact, ')}"
        lines = [f"{self.quantity} = {_round_to(value, error)}{shown}   [{label}]"]
        if self.sign is not None:
            lines.append(f"  sign of the determinant: {float(self.sign):+.0f}")
        interval = self.interval
        if interval is not None and status != "exact":
            low, high = (_round_to(end, error) for end in interval)
            lines.append(f"  95 % interval {low} .. {high}")
        certified = math.nan if self.importance_bound is None else float(self.certified_upper())
        if self.kl_bound is not None and status != "exact" and math.isfinite(certified):
            figures = f"  certified < {certified:.6g} (95 %), KL bound {float(self.kl_bound):.6g}"
            if self.lower_bound is not None:
                figures += f", lower bound {float(self.lower_bound):.6g}"
            if self.effective_sample_size is not None:
                size = float(self.effective_sample_size)
                figures += f"; effective sample size {size:.3g}, Pareto k {_show(self.pareto_k)}"
            lines.append(figures)
        lines.append(f"  {self.cost}")
        lines += [f"  - {reason}" for reason in reasons + self.notes]
        return "\n".join(lines)

    @property
    def cost(self) -> str:
        """The products spent, in words."""
        transposed = f" ({self.num_transposed:,} transposed)" if self.num_transposed else ""
        dense = _products(self.num_matvecs_dense)
        return f"{_products(self.num_matvecs)}{transposed}; {dense} would give A itself"

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain JSON types; what is not finite becomes None."""
        status, reasons = self.verdict()
        interval = self.interval
        numbers = {
            name: _plain(getattr(self, name))
            for name in (
                "log_abs_det",
                "abs_det",
                "standard_error",
                "kl_bound",
                "kl_bound_standard_error",
                "importance_bound",
                "importance_bound_standard_error",
                "lower_bound",
                "lower_bound_standard_error",
                "effective_sample_size",
                "pareto_k",
                "max_weight_share",
                "spread",
                "condition",
                "quadrature_change",
                "sign",
                "bar",
            )
        }
        return {
            "method": self.method,
            "quantity": self.quantity,
            "status": status,
            "reasons": list(reasons + self.notes),
            **numbers,
            "interval": None if interval is None else [_plain(x) for x in interval],
            "certified_upper_95": (
                None if self.importance_bound is None else _plain(self.certified_upper())
            ),
            "num_matvecs": self.num_matvecs,
            "num_transposed": self.num_transposed,
            "num_matvecs_dense": self.num_matvecs_dense,
        }

    def with_notes(self, *notes: str) -> "Estimate":
        """The same estimate with more to say."""
        return dataclasses.replace(self, notes=self.notes + notes)

    def moved(self, shift: Any, *, factor: float = 1.0, error: Any = 0.0) -> "Estimate":
        r"""The estimate of another operator: `factor` times this, plus `shift` known to `error`.

        What is known exactly of a determinant is taken out before sampling, and comes back here.
        """

        def move(value):
            return None if value is None else factor * value + shift

        def scale(value):
            return None if value is None else factor * value

        exact = None if self.equal_weights is None else self.equal_weights & (error < 1e-3)
        return dataclasses.replace(
            self,
            log_abs_det=move(self.log_abs_det),
            standard_error=jnp.hypot(factor * self.standard_error, jnp.asarray(error)),
            kl_bound=move(self.kl_bound),
            kl_bound_standard_error=scale(self.kl_bound_standard_error),
            importance_bound=move(self.importance_bound),
            importance_bound_standard_error=scale(self.importance_bound_standard_error),
            lower_bound=move(self.lower_bound),
            equal_weights=exact,
            sign=None,  # that of what was taken out is not known here
            factor=factor * self.factor,
        )

    def with_products(self, num: int, num_transposed: int = 0) -> "Estimate":
        """The same estimate, charged for products that were spent on its way, as in training."""
        return dataclasses.replace(
            self,
            num_matvecs=self.num_matvecs + num,
            num_transposed=self.num_transposed + num_transposed,
        )

    def judged_by(self, tolerance: float | None, rtol: float | None) -> "Estimate":
        """The same estimate, judged by the standard error that the caller is content with.

        In nats, or as a share of |log det|; of both, the larger counts.
        """
        bars = [] if tolerance is None else [jnp.asarray(tolerance, self.standard_error.dtype)]
        bars += [] if rtol is None else [rtol * jnp.abs(jax.lax.stop_gradient(self.log_abs_det))]
        return dataclasses.replace(self, bar=functools.reduce(jnp.maximum, bars)) if bars else self

    def _num_draws(self) -> int:
        return self.num_groups if self.num_pooled is None else round(float(self.num_pooled))

    def _is_batch_or_traced(self) -> bool:
        return isinstance(self.log_abs_det, Tracer) or np.ndim(self.log_abs_det) > 0

    def _require_scalar(self) -> None:
        if isinstance(self.log_abs_det, Tracer):
            raise ValueError(
                "status, reasons, interval and pareto_k look at values: "
                "return the estimate from jit, vmap or grad and ask it outside"
            )
        if np.ndim(self.log_abs_det):
            shape = np.shape(self.log_abs_det)
            raise ValueError(f"this is a batch of estimates {shape}: take one, as estimate[0]")


def from_moments(
    moments: mo.Moments,
    *,
    num_groups: int,
    groups_per_chunk: int,
    n: int,
    factor: float,
    group_size: int = 1,
    **fields: Any,
) -> Estimate:
    r"""The estimate $-\log \bar w$ and all that the moments say about it.

    `n` is the dimension of the sphere's ambient space; `factor` is 1/2 for embedded complex
    operators, whose weights estimate $|\det A|^{-2}$.
    """
    g = num_groups
    mean = jnp.sum(moments.weights) / g
    shift = jnp.where(jnp.isinf(moments.shift), 0, moments.shift)
    # a product that was not finite has spoiled everything, also where its weight would be 0
    log_mean = jnp.where(moments.first_bad >= 0, jnp.nan, shift + jnp.log(mean))

    log_center, log_error = mo.mean_and_error(moments.logs, moments.log_squares, g)
    squares = jnp.sum(moments.squares)
    weight_error = jnp.sqrt(jnp.maximum(squares / (g * mean**2) - 1, 0) / max(g - 1, 1))
    # nearly equal weights: their second moment cancels; their logs have the same spread
    _, group_error = mo.mean_and_error(moments.group_logs, moments.group_log_squares, g)
    nearly_equal = (group_error * math.sqrt(g) < 0.03) | (g == 1)
    error = jnp.where(nearly_equal, group_error, weight_error)

    num_batches = mo.num_batches(g, groups_per_chunk, moments.batch)
    batch_center, batch_error = mo.mean_and_error(
        moments.batch_logs, moments.batch_log_squares, num_batches
    )
    variance = jnp.maximum(jnp.sum(moments.direction_squares) / g - log_center**2, 0)
    value_range = moments.largest - moments.smallest
    rounding = verdict.EQUAL_WEIGHTS * n * float(jnp.finfo(value_range.dtype).eps)
    tolerance = min(rounding, verdict.EQUAL_WEIGHTS_NATS)
    equal = (value_range <= tolerance) & (g * group_size >= verdict.MIN_EQUAL)
    # a single frame has no spread to take an error from
    error = jnp.where(equal, jnp.minimum(error, tolerance), error)
    return Estimate(
        log_abs_det=-factor * log_mean,
        standard_error=factor * error,
        kl_bound=-factor * (moments.pivot + log_center),
        kl_bound_standard_error=factor * log_error,
        importance_bound=-factor * (moments.pivot + batch_center),
        importance_bound_standard_error=factor * batch_error,
        effective_sample_size=g**2 * mean**2 / squares,
        max_weight_share=1 / (g * mean),
        spread=jnp.sqrt(variance),
        equal_weights=equal,
        tail=moments.tail,
        num_groups=g,
        num_batches=num_batches,
        factor=factor,
        **fields,
    )


def _products(num: int) -> str:
    return "1 product" if num == 1 else f"{num:,} products"


def _number(x: Any) -> float | None:
    return None if x is None else float(x)


def _plain(x: Any) -> float | None:
    return float(x) if x is not None and math.isfinite(float(x)) else None


def _show(x: float | None) -> str:
    return "-" if x is None else f"{x:.2f}"


def _round_to(value: float, error: float) -> str:
    """The value with one digit more than its error has."""
    if not (math.isfinite(value) and math.isfinite(error)):
        return f"{value:.6g}"
    digits = 12 if error <= 0 else max(0, min(12, 1 - math.floor(math.log10(error))))
    return f"{value:.{digits}f}"
