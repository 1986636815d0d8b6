"""The sentence: `log_abs_det(operator, method, key=key) -> Estimate`."""

import dataclasses
from typing import Any

from jaxtyping import PRNGKeyArray

from determinax import operators as ops
from determinax.estimate import Estimate
from determinax.methods.auto import Auto
from determinax.methods.base import AbstractMethod, require_bar
from determinax.progress import reporting


def log_abs_det(
    operator: Any,
    method: AbstractMethod | None = None,
    *,
    key: PRNGKeyArray | None = None,
    example: Any = None,
    check_linear: bool = True,
    tolerance: float | None = None,
    rtol: float | None = None,
    allow_unreliable: bool = False,
    progress: bool | None = None,
) -> Estimate:
    r"""Estimate $\log|\det A|$ of a square operator from matrix-vector products.

    **Arguments:**

    - `operator`: see `as_operator`: arrays, SciPy sparse arrays and `LinearOperator`s, lineax
        operators, linear callables (with `example`).
    - `method`: `Auto()` by default; `Exact()`, `MonteCarlo(num_samples)`, `Lanczos(...)`,
        `Variational(proposal, num_samples)`, `Probed()`, `Deflated(num_directions)`.
    - `key`: a JAX key; only `Exact()` does without.
    - `example`: an input of a callable operator.
    - `check_linear`: spend four products to check that a callable is linear.
    - `tolerance`, `rtol`: the standard error that you are content with, in nats or as a share of
        $|\log|\det A||$ (of both, the larger counts). The verdict judges by that bar: above it an
        estimate is a `warn`, above four times it `unreliable`; its other rules stay. Without one the
        bar is 0.25 nats.
    - `allow_unreliable`: let `float(estimate)` answer even where the estimate is unreliable.
    - `progress`: a bar on runs over two seconds; None: if standard error is a terminal.

    !!! example

        ```python
        estimate = log_abs_det(A, MonteCarlo(10_000), key=jax.random.key(0))
        print(estimate)         # value, error, bounds, verdict
        estimate.status         # "exact", "ok", "warn" or "unreliable"
        ```
    """
    entered, spent = ops.admit(operator, example, check_linear=check_linear)
    ops.require_square(entered)
    bars = tolerance, rtol
    return _run(entered, spent, method, key, "log|det|", bars, allow_unreliable, progress)


def log_volume(
    operator: Any,
    method: AbstractMethod | None = None,
    *,
    key: PRNGKeyArray | None = None,
    example: Any = None,
    check_linear: bool = True,
    tolerance: float | None = None,
    rtol: float | None = None,
    allow_unreliable: bool = False,
    progress: bool | None = None,
) -> Estimate:
    r"""Estimate $\frac12 \log\det A^\top A$ of an operator with at least as many rows as columns.

    For a square operator it is `log_abs_det`; the arguments are the same.
    """
    entered, spent = ops.admit(operator, example, check_linear=check_linear)
    ops.require_not_wide(entered)
    bars = tolerance, rtol
    return _run(entered, spent, method, key, "log-volume", bars, allow_unreliable, progress)


def _run(operator, spent, method, key, quantity, bars, allow_unreliable, progress) -> Estimate:
    for name, bar in zip(("tolerance", "rtol"), bars, strict=True):
        require_bar(name, bar)
    method = Auto() if method is None else method
    if not isinstance(method, AbstractMethod):
        raise TypeError(
            "method is Auto(), Exact(), MonteCarlo(num_samples), Lanczos(), Probed(), "
            f"Deflated(num_directions) or Variational(proposal, num_samples), not {method!r}"
            + (": call it" if isinstance(method, type) else "")
        )
    with reporting(False if ops.is_traced((operator, key)) else progress) as report:
        estimate = method.estimate(operator, key, spent=spent, progress=report)
    estimate = estimate.judged_by(*bars)
    return dataclasses.replace(estimate, quantity=quantity, allow_unreliable=allow_unreliable)
