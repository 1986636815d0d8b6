"""The sentence: `log_abs_det(operator, method, key=key) -> Estimate`, outside and inside of `jit`."""

import os
import pathlib
import platform
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import PRNGKeyArray

import determinax
from determinax import _devices, _shell
from determinax import operators as ops
from determinax._checks import require_bar
from determinax._diagnostics import Bar
from determinax._digest import fingerprint
from determinax._engine import NO_BAR
from determinax._interrupts import heeded
from determinax.estimate import Estimate
from determinax.methods import METHODS, AbstractMethod, Auto


@heeded()
def log_abs_det(
    operator: Any,
    method: AbstractMethod | None = None,
    *,
    key: PRNGKeyArray | None = None,
    example: Any = None,
    check_linear: bool = True,
    tolerance: float | None = None,
    rtol: float | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    resume: bool = False,
    mesh: Mesh | None = None,
    allow_unreliable: bool = False,
    trace: bool = False,
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
        $|\log|\det A||$ (of both, the larger counts). Sampling stops once it is reached, and
        `num_samples` is then the most. The verdict judges by that bar: above it an estimate is a
        `warn`, above four times it `unreliable`; its other rules stay. Without one the bar is 0.25
        nats, and all samples are taken.
    - `checkpoint`, `resume`: a file that a long run writes to now and then; with `resume` a run that
        was killed goes on from there, and ends with the very bits of one that was not.
    - `mesh`: a `jax.sharding.Mesh`, over all of whose devices chunks of directions (or probes) are split,
        of this process and of others. Each device multiplies with the whole of A. A sampler gives the
        same bits on any number of devices.
    - `allow_unreliable`: let `float(estimate)` answer even where the estimate is unreliable.
    - `trace`: keep how the estimate came about, in at most 256 points and 512 bins, for
        `estimate.report(path)`; the result is the same. Methods that draw nothing have no trace.
    - `progress`: a bar; None: if standard error is a terminal, or in a notebook.

    It means the same inside of `jit`, `vmap`, `scan` and `grad`, where `estimate.code` says what
    `status` says outside; checkpoints, meshes and progress are left out there.

    !!! example

        ```python
        estimate = dx.log_abs_det(A, dx.MonteCarlo(10_000), key=jax.random.key(0))
        print(estimate)         # value, error, bounds, verdict
        estimate.status         # "exact", "ok", "warn" or "unreliable"
        ```
    """
    admitted = ops.admit(operator, example, check_linear=check_linear)
    ops.require_square(admitted.operator)
    bar = bar_of(tolerance, rtol)
    estimate = run(admitted, method, key, bar, checkpoint, resume, mesh, progress, trace=trace)
    return estimate.replace(allow_unreliable=True) if allow_unreliable else estimate


@heeded()
def log_volume(
    operator: Any,
    method: AbstractMethod | None = None,
    *,
    key: PRNGKeyArray | None = None,
    example: Any = None,
    check_linear: bool = True,
    tolerance: float | None = None,
    rtol: float | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    resume: bool = False,
    mesh: Mesh | None = None,
    allow_unreliable: bool = False,
    trace: bool = False,
    progress: bool | None = None,
) -> Estimate:
    r"""Estimate $\frac12 \log\det A^\top A$ of an operator with at least as many rows as columns.

    For a square operator it is `log_abs_det`; the arguments are the same.

    !!! example

        ```python
        dx.log_volume(rng.standard_normal((400, 5)))
        ```
    """
    admitted = ops.admit(operator, example, check_linear=check_linear)
    ops.require_not_wide(admitted.operator)
    bar = bar_of(tolerance, rtol)
    estimate = run(admitted, method, key, bar, checkpoint, resume, mesh, progress, trace=trace)
    return estimate.replace(quantity="log-volume", allow_unreliable=allow_unreliable)


def bar_of(tolerance: float | None, rtol: float | None) -> Bar:
    """The caller's bar, checked; as arrays, since another number shall not compile anew."""
    for name, bar in (("tolerance", tolerance), ("rtol", rtol)):
        require_bar(name, bar)
    return Bar(
        None if tolerance is None else jnp.asarray(tolerance, float),
        None if rtol is None else jnp.asarray(rtol, float),
    )


def run(
    admitted: ops.Admitted,
    method: AbstractMethod | None,
    key: PRNGKeyArray | None,
    bar: Bar = NO_BAR,
    checkpoint: str | os.PathLike[str] | None = None,
    resume: bool = False,
    mesh: Mesh | None = None,
    progress: bool | None = None,
    *,
    trace: bool = False,
) -> Any:
    """Hand an admitted operator to the shell."""
    method = Auto() if method is None else method
    if not isinstance(method, AbstractMethod):
        names = ", ".join(sorted(cls.__name__ for cls in METHODS.values()))
        raise TypeError(
            f"method is one of {names}, such as MonteCarlo(num_samples), not {method!r}"
            + (": call it" if isinstance(method, type) else "")
        )
    if resume and checkpoint is None:
        raise ValueError("resume needs the checkpoint file to resume from: pass checkpoint=")
    path = None if checkpoint is None else pathlib.Path(checkpoint)
    estimate = _shell.estimate(
        admitted.operator,
        method,
        key,
        bar=bar,
        spent=admitted.spent,
        checkpoint=path,
        resume=resume,
        mesh=None if mesh is None else _devices.line_of(mesh),
        trace=trace,
        progress=progress,
    )
    if trace and not _shell.is_staged(admitted.operator, key):
        estimate = estimate.replace(provenance=_provenance(admitted.operator, key))
    return estimate.with_notes(*admitted.notes)


def _provenance(operator: Any, key: PRNGKeyArray | None) -> tuple[tuple[str, str], ...]:
    """What it takes to do it again."""
    t = ops.traits(operator)
    words = [] if key is None else np.asarray(jax.random.key_data(key)).reshape(-1).tolist()
    about = {
        "operator": f"{t.rows:,} x {t.cols:,}, {jnp.dtype(t.dtype).name}",
        "digest of the operator": _digest_of(operator),
        "key": " ".join(map(str, words)) or "none",
        "determinax": determinax.__version__,
        "jax": jax.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "platform": f"{jax.default_backend()}, {platform.machine()}",
    }
    return tuple(about.items())


def _digest_of(operator: Any) -> str:
    """Of its arrays and its program; what a host multiplies with has none."""
    if ops.host_calls(operator):
        return "none: its products are the host's"
    return fingerprint(operator)[:16]
