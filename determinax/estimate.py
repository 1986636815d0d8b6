"""`Estimate`: a value with its error, bounds, cost, and one diagnostics object that judges it.

A pytree of arrays, so that `jit`, `vmap`, `scan` and `grad` pass through it; `code` says inside of
them what `status` says outside.
"""

import math
import os
from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy  # whose special functions load when they are used
from jax.core import Tracer
from jaxtyping import Array, Float, Int

from determinax import _text
from determinax._bounds import Bound as Bound
from determinax._bounds import Bounds as Bounds
from determinax._checks import counted
from determinax._diagnostics import (
    STATUSES,
    AbstractDiagnostics,
    Bar,
    Status,
    as_code,
    rounding_finding,
)
from determinax._states import Fault
from determinax._trace import Trace
from determinax.operators import Products


class UnreliableEstimateError(ValueError):
    """An unreliable estimate was asked for its number.

    ```python
    hard = dx.log_abs_det(np.diag([1.0] * 9 + [1e-6]), dx.MonteCarlo(1000), key=key)
    hard.reasons if hard.status == "unreliable" else float(hard)    # which would raise
    ```
    """


class Estimate(eqx.Module):
    r"""An estimate of $\log|\det A|$ (or of a log-volume) with its error, bounds, cost and verdict.

    Under `jit`, `vmap` or `scan` every array is traced, `code` among them, and a compiled loop can
    branch on it; `status`, `reasons` and `interval` are words and belong outside. A batch from `vmap`
    is taken apart by indexing.

    **Fields:**

    - `log_abs_det`: the estimate, in nats.
    - `standard_error`: of `log_abs_det`: the delta method over independent groups of weights
        (sampling), over probes and with the quadrature's error (Lanczos), or rounding (exact).
    - `diagnostics`: what the estimate rests on; it judges itself.
    - `cost`: the products spent, forward and transposed.
    - `bounds`: in expectation, where the method has some.
    - `fault`: the first thing that went wrong with values; outside of `jit` it is raised.
    - `code`: 0 exact, 1 ok, 2 warn, 3 unreliable: an integer array.
    - `sign`: of the determinant, 1 or -1, where a factorisation of a real operator knows it.
    - `bar`: the standard error that the caller is content with.
    - `drawn`, `num_planned`: where there is a bar, the draws (or probes) that were taken, of how many.
    - `rounding`: of what was taken out before sampling, in nats; part of `standard_error`.
    - `trace`: how it came about, where `trace=True` asked for that.
    - `provenance`: with `trace=True`: key, operator, its digest, and versions.
    - `num_dense`: the n products that would give A itself.

    ```python
    estimate = dx.log_abs_det(A, dx.MonteCarlo(1000), key=key)
    print(estimate, estimate.interval, estimate.certified_upper(0.05))
    ```
    """

    log_abs_det: Float[Array, ""]
    standard_error: Float[Array, ""]
    diagnostics: AbstractDiagnostics
    cost: Products
    bounds: Bounds = Bounds()
    fault: Fault = eqx.field(default_factory=Fault.none)
    code: Int[Array, ""] | None = None
    sign: Float[Array, ""] | None = None
    bar: Bar = Bar()
    drawn: Int[Array, ""] | None = None
    rounding: Float[Array, ""] | None = None
    trace: Trace | None = None
    provenance: tuple[tuple[str, str], ...] = eqx.field(static=True, default=())
    method: str = eqx.field(static=True, default="")
    num_dense: int = eqx.field(static=True, default=0)
    num_planned: int = eqx.field(static=True, default=0)
    quantity: str = eqx.field(static=True, default="log|det|")
    notes: tuple[str, ...] = eqx.field(static=True, default=())
    allow_unreliable: bool = eqx.field(static=True, default=False)

    def judged(self, bar: Bar | None = None) -> Self:
        """The same estimate with its code, by the caller's bar: the last step of every run."""
        bar = self.bar if bar is None else bar
        value, error = jax.lax.stop_gradient((self.log_abs_det, self.standard_error))
        code = as_code(self.diagnostics.code(value, error, bar.at(value), self.fault))
        if self.rounding is not None:
            code = jnp.maximum(code, as_code(rounding_finding(self.rounding).level * (code > 0)))
        return eqx.tree_at(
            lambda e: (e.code, e.bar), self, (code, bar), is_leaf=lambda x: x is None
        )

    # -- the verdict, in words --

    @property
    def status(self) -> Status:
        """`exact`, `ok`, `warn` or `unreliable`: `code` as a word; docs/verdict.md has the rules."""
        self._require_scalar()
        code: Any = self.judged().code if self.code is None else self.code
        return STATUSES[int(code)]

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the status is what it is: direction of the error, cure; then the method's notes."""
        self._require_scalar()
        found, value, error, bar, fault = jax.device_get(
            (self.diagnostics, self.log_abs_det, self.standard_error, self.bar, self.fault)
        )
        reasons = found.reasons(value, error, bar.at(value), fault)
        if self.rounding is not None:
            extra = rounding_finding(float(self.rounding))
            reasons += (extra.say(),) if extra.level > 1 else ()
        if self.drawn is not None and int(self.drawn) < self.num_planned:
            reasons += (
                f"Stopped after {int(self.drawn):,} of {counted(self.num_planned, 'draw')}: the standard "
                "error had reached what was asked for.",
            )
        return reasons + self.notes

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of `log_abs_det`; None where the estimate is unreliable."""
        if self.status == "unreliable":
            return None
        value, error = float(self.log_abs_det), float(self.standard_error)
        freedom = getattr(self.diagnostics, "num_draws", getattr(self.diagnostics, "num_probes", 0))
        freedom = round(float(freedom)) - 1
        t = float(scipy.special.stdtrit(freedom, 0.975)) if freedom > 0 else 1.96
        return value - t * error, value + t * error

    # -- figures --

    @property
    def abs_det(self) -> Float[Array, ""]:
        """|det A| itself; it over- or underflows where its logarithm does not."""
        return jnp.exp(self.log_abs_det)

    @property
    def kl_bound(self) -> Float[Array, ""] | None:
        """An upper bound in expectation: minus the mean log-weight."""
        return None if self.bounds.kl is None else self.bounds.kl.value

    @property
    def kl_bound_standard_error(self) -> Float[Array, ""] | None:
        """Of `kl_bound`."""
        return None if self.bounds.kl is None else self.bounds.kl.error

    @property
    def importance_bound(self) -> Float[Array, ""] | None:
        """A tighter upper bound in expectation: minus the mean log of batches' mean weights."""
        return None if self.bounds.importance is None else self.bounds.importance.value

    @property
    def importance_bound_standard_error(self) -> Float[Array, ""] | None:
        """Of `importance_bound`."""
        return None if self.bounds.importance is None else self.bounds.importance.error

    @property
    def lower_bound(self) -> Float[Array, ""] | None:
        """A lower bound in expectation; None without solves."""
        return None if self.bounds.lower is None else self.bounds.lower.value

    @property
    def lower_bound_standard_error(self) -> Float[Array, ""] | None:
        """Of `lower_bound`."""
        return None if self.bounds.lower is None else self.bounds.lower.error

    @property
    def upper_bound(self) -> Float[Array, ""] | None:
        """An upper bound in expectation: `importance_bound`, unless there is another."""
        bound = self.bounds.importance if self.bounds.upper is None else self.bounds.upper
        return None if bound is None else bound.value

    @property
    def effective_sample_size(self) -> Float[Array, ""] | None:
        """How many equal weights these are worth; None for methods without weights."""
        return getattr(self.diagnostics, "effective_sample_size", None)

    @property
    def max_weight_share(self) -> Float[Array, ""] | None:
        """The largest weight's share of their sum; None for methods without weights."""
        return getattr(self.diagnostics, "max_weight_share", None)

    @property
    def spread(self) -> Float[Array, ""] | None:
        """The standard deviation of the log-weights; None for methods without weights."""
        return getattr(self.diagnostics, "spread", None)

    @property
    def pareto_k(self) -> float | Array | None:
        """The tail index of the weights: above 0.7 their mean is not to be trusted.

        None where there are no weights; outside of `jit` also where there are too few to tell (under
        25 groups), or all are equal: inside it is NaN there.
        """
        k = getattr(self.diagnostics, "pareto_k", None)
        if k is None or self._is_batch_or_traced():
            return k
        return None if math.isnan(k) else float(k)

    @property
    def condition(self) -> Float[Array, ""] | None:
        """How much rounding is amplified (exact methods only).

        The condition number of the equilibrated matrix, or what elimination in a band was seen to do.
        """
        return getattr(self.diagnostics, "condition", None)

    @property
    def quadrature_change(self) -> Float[Array, ""] | None:
        """From half the depth, in standard errors of the probes (Lanczos only)."""
        return getattr(self.diagnostics, "change", None)

    @property
    def num_matvecs(self) -> Any:
        """Products spent, with the transpose included; `num_transposed` of them with it."""
        return _whole(self.cost.total)

    @property
    def num_transposed(self) -> Any:
        """Products with the transpose."""
        return _whole(self.cost.transposed)

    @property
    def num_matvecs_dense(self) -> int:
        """The n products that would give A itself."""
        return self.num_dense

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
        if self.bounds.importance is None or self.bounds.slack is None:
            raise ValueError(f"the method {self.method} samples no weights: it has no certificate")
        bound = self.bounds.importance.value + self.bounds.slack * math.log(1 / delta)
        return bound if self._is_batch_or_traced() else float(bound)

    # -- as a number, text, JSON --

    def value(self, *, allow_unreliable: bool = False) -> float:
        """`log_abs_det` as a float; raises where unreliable, unless asked not to."""
        if self.status == "unreliable" and not (allow_unreliable or self.allow_unreliable):
            raise UnreliableEstimateError(
                f"this estimate is unreliable: {self.reasons[0]} "
                "(estimate.value(allow_unreliable=True) gives the number all the same)"
            )
        return float(self.log_abs_det)

    def __float__(self) -> float:
        return self.value()

    def __getitem__(self, index: Any) -> Self:
        return jax.tree.map(lambda leaf: leaf[index], self)

    def __str__(self) -> str:
        if self._is_batch_or_traced():
            return f"Estimate(method={self.method}, log_abs_det={self.log_abs_det})"
        return "\n".join(_text.lines(self))

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain JSON types; what is not finite becomes None."""
        interval, bar = self.interval, self.bar.at(self.log_abs_det)
        return {
            "method": self.method,
            "quantity": self.quantity,
            "status": self.status,
            "reasons": list(self.reasons),
            **{name: _text.plain(getattr(self, name)) for name in _text.NUMBERS},
            "bar": _text.plain(bar),
            "interval": None if interval is None else [_text.plain(x) for x in interval],
            "certified_upper_95": _text.plain(_text.certified(self)),
            "num_matvecs": self.num_matvecs,
            "num_transposed": self.num_transposed,
            "num_matvecs_dense": self.num_dense,
        }

    def report(
        self,
        path: str | os.PathLike[str],
        *,
        exact: float | None = None,
        fit: Any = None,
        density: Any = None,
        source: str | None = None,
        command: str | None = None,
    ) -> None:
        """Write a page that shows this estimate: one file, which asks for nothing from elsewhere.

        What it shows of the run needs `log_abs_det(..., trace=True)`. The same estimate gives the same
        bytes.

        **Arguments:**

        - `path`: the file, replaced where there is one.
        - `exact`: the value, where it is known.
        - `fit`: the `Fit` of the proposal, for its training curves.
        - `density`: for n = 2 or 3: a `Proposal`, or several densities by name, to be drawn.
        - `source`: what the operator is, in words; `command`: what the cure on the page is an addition to.
        """
        from determinax import _report  # late: few estimates are drawn

        self._require_scalar()
        page = _report.report(
            self, exact=exact, fit=fit, density=density, source=source, command=command
        )
        _report.write(path, page)

    def _repr_html_(self) -> str | None:
        from determinax import _report

        return None if self._is_batch_or_traced() else _report.card(self)

    # -- the same, changed --

    def replace(self, **fields: Any) -> Self:
        """The same estimate with other fields."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return type(self)(**(values | fields))

    def with_notes(self, *notes: str) -> "Estimate":
        """The same estimate with more to say."""
        return self.replace(notes=self.notes + notes) if notes else self

    def with_products(self, num: int, num_transposed: int = 0) -> "Estimate":
        """The same estimate, charged for `num` products, transposed ones included, spent on its way."""
        return self.replace(cost=self.cost + Products(num - num_transposed, num_transposed))

    def moved(self, shift: Any, *, factor: float = 1.0, error: Any = 0.0) -> "Estimate":
        r"""The estimate of another operator: `factor` times this, plus `shift` known to `error`.

        What is known exactly of a determinant is taken out before sampling, and comes back here.
        """
        return self.replace(
            log_abs_det=factor * self.log_abs_det + shift,
            standard_error=jnp.hypot(factor * self.standard_error, jnp.asarray(error)),
            bounds=self.bounds.moved(shift, factor),
            diagnostics=self.diagnostics.moved(error),
            rounding=jnp.asarray(error) + (0.0 if self.rounding is None else self.rounding),
            sign=None,  # that of what was taken out is not known here
            code=None,
            trace=None if self.trace is None else self.trace.scaled(factor),
        )

    def _is_batch_or_traced(self) -> bool:
        return isinstance(self.log_abs_det, Tracer) or np.ndim(self.log_abs_det) > 0

    def _require_scalar(self) -> None:
        if isinstance(self.log_abs_det, Tracer):
            raise ValueError(
                "status, reasons and interval are words: return the estimate from jit, vmap or grad and "
                "ask it outside; inside, estimate.code says the same as a number"
            )
        if np.ndim(self.log_abs_det):
            shape = np.shape(self.log_abs_det)
            raise ValueError(f"this is a batch of estimates {shape}: take one, as estimate[0]")


def _whole(num: Any) -> Any:
    """A count as a Python number, where it is one."""
    return num if isinstance(num, Tracer) or np.ndim(num) else int(num)
