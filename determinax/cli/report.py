"""`determinax report`."""

import pathlib
from typing import Annotated, Any

import typer

from determinax import _interrupts
from determinax.cli import common
from determinax.cli import estimate as asked
from determinax.cli import settings as options
from determinax.progress import reporting


def report(
    file: common.Matrix,
    out: Annotated[pathlib.Path, typer.Option(help="The page to write, such as report.html.")],
    method: options.MethodOption = options.Method.auto,
    samples: options.Samples = None,
    depth: options.Depth = None,
    directions: options.Directions = None,
    band: options.Band = None,
    frames: options.Frames = False,
    proposal: options.ProposalFile = None,
    max_matvecs: options.MaxMatvecs = None,
    volume: options.Volume = False,
    spd: options.Spd = False,
    tolerance: options.Tolerance = None,
    rtol: options.Rtol = None,
    exact: Annotated[
        bool, typer.Option("--exact", help="Show the exact value too, by a factorisation.")
    ] = False,
    header: common.Header = None,
    skip_rows: common.SkipRows = 0,
    seed: common.Seed = 0,
) -> None:
    """Estimate log|det A| of the matrix in FILE, and write a page that shows how far to trust it.

    One file, which opens without a network. Methods and options are those of `determinax estimate`.

    **Examples**

        determinax report matrix.npy --out report.html
        determinax report matrix.npy --method mc --samples 1e5 --exact --out report.html

    Exit codes are those of `estimate`: 3 where it is unreliable; the page is written all the same.
    """
    with common.bad_input_exits():
        settings = options.checked(
            method=method,
            samples=samples,
            depth=depth,
            directions=directions,
            band=band,
            frames=frames,
            proposal=proposal,
            max_matvecs=max_matvecs,
            volume=volume,
            spd=spd,
            tolerance=tolerance,
            rtol=rtol,
            seed=seed,
        )
        common.require_writable(out)
        common.require_apart(out, file, proposal)
        with reporting() as progress:
            matrix = asked.admitted(file, settings, header, skip_rows, progress)
            made = asked.run(matrix, settings, progress, trace=True)
            truth = _truth(matrix, settings) if exact else None
            common.say(progress, "drawing")
            made.estimate.report(
                out,
                exact=truth,
                fit=made.fit,
                density=_densities(matrix, made.fit),
                source=f"{file.name}, seed {seed}",
                command=options.command(file, settings, header, skip_rows, made.estimate),
            )
        _interrupts.conclude()
        print(f"{common.one_line(made.estimate)}\nwritten to {out}", flush=True)
        if made.estimate.status == "unreliable":
            raise typer.Exit(common.UNRELIABLE)


def _truth(matrix: Any, settings: options.Settings) -> float | None:
    """The exact value; None where rounding leaves no such thing."""
    import determinax as dx

    ask = dx.log_volume if settings.volume else dx.log_abs_det
    found = ask(matrix, dx.Exact(), allow_unreliable=True)
    return float(found) if found.status == "exact" else None


def _densities(matrix: Any, fit: Any) -> dict[str, Any] | None:
    """For n = 2 and 3: the density that is best, and the one that was fitted."""
    import jax.numpy as jnp
    import numpy as np
    import scipy.sparse

    rows, n = matrix.shape
    if n not in (2, 3) or rows != n or np.iscomplexobj(matrix):
        return None
    dense = jnp.asarray(matrix.toarray() if scipy.sparse.issparse(matrix) else matrix, float)
    best = _Best(lambda s: -n * jnp.log(jnp.linalg.norm(dense @ s)), n)
    return {"the best density": best} | ({} if fit is None else {"the fitted one": fit.proposal})


class _Best:
    """A log-density of one point that knows its dimension."""

    def __init__(self, log_density: Any, n: int):
        self.log_density, self.n = log_density, n

    def __call__(self, s: Any) -> Any:
        return self.log_density(s)
