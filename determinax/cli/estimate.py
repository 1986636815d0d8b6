"""`determinax estimate`."""

import json
import pathlib
from typing import Annotated, Any, NamedTuple

import typer

from determinax import _interrupts
from determinax.cli import common, supervise
from determinax.cli import settings as options
from determinax.cli.common import Count
from determinax.cli.settings import Method, Settings
from determinax.progress import Report, reporting

# of proposals: a linear one that fits needs a single sample, and these show that it does
_FLOW_SAMPLES, _LINEAR_SAMPLES = 10_000, 200


def estimate(
    file: common.Matrix,
    method: options.MethodOption = Method.auto,
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
    header: common.Header = None,
    skip_rows: common.SkipRows = 0,
    seed: common.Seed = 0,
    checkpoint: Annotated[
        pathlib.Path | None,
        typer.Option(help="A file that a long run writes to now and then, to go on from."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from --checkpoint, if it is there.")
    ] = False,
    distributed: Annotated[
        bool,
        typer.Option(
            "--distributed", help="One of many processes, which Slurm or Open MPI has started."
        ),
    ] = False,
    coordinator: Annotated[
        str | None,
        typer.Option(help="With --distributed: HOST:PORT of process 0, where neither has."),
    ] = None,
    num_processes: Annotated[
        Count, typer.Option(help="With --coordinator: how many processes there are.")
    ] = None,
    process_id: Annotated[
        Count, typer.Option(help="With --coordinator: which one this is, from 0.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Estimate log|det A| of the matrix in FILE.

    **Methods**

        auto      what the matrix and the budget allow: exact where they do
        exact     a factorisation, after n products
        mc        Monte Carlo, for matrices near a multiple of a rotation
        lanczos   random probes and quadrature, for broad spectra
        vde       variational: by a proposal of `determinax fit`, or one fitted here
        deflated  some directions exactly, the rest by Monte Carlo
        probed    few products, where it is known which entries are zero

    **Examples**

        determinax estimate matrix.npy
        determinax estimate matrix.npy --method mc --samples 1e6
        determinax estimate kernel.npz --method lanczos --spd --tolerance 0.5
        determinax estimate sparse.npz --max-matvecs 500 --json
        determinax estimate tall.csv --header --volume
        determinax estimate matrix.npy --method vde --proposal q.safetensors
        srun determinax estimate matrix.npy --method mc --distributed --checkpoint run.ckpt

    Exit code 0: exact, ok or warn; 3: unreliable; 2: bad input; 4: another process has died; 130: Ctrl-C.
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
        if resume and checkpoint is None:
            raise ValueError("--resume needs the file to go on from: say --checkpoint FILE")
        if checkpoint is not None:
            common.require_writable(checkpoint)
            common.require_apart(checkpoint, file, proposal)
            common.resumable(checkpoint.exists)
        group = supervise.group_of(distributed, coordinator, num_processes, process_id)
        with reporting() as report:
            # before the others are joined: they need not wait for a file that cannot be read
            matrix = admitted(file, settings, header, skip_rows, report)
            with supervise.joined(group) as is_first:
                job = Job(checkpoint, resume, distributed)
                result = run(matrix, settings, report, job).estimate
                again = options.command(file, settings, header, skip_rows, result)
                text = _as_json(result, file, seed) if as_json else common.shown(result, again)
                status = result.status
        _interrupts.conclude()
        if is_first:
            supervise.say(text)
        if status == "unreliable":
            raise typer.Exit(common.UNRELIABLE)


class Job(NamedTuple):
    """Where a run keeps what it has, and whether it is one of many processes."""

    checkpoint: pathlib.Path | None = None
    resume: bool = False
    is_distributed: bool = False

    def options(self) -> dict[str, Any]:
        """For `log_abs_det`."""
        import jax

        mesh = jax.make_mesh((jax.device_count(),), ("devices",)) if self.is_distributed else None
        return {"checkpoint": self.checkpoint, "resume": self.resume, "mesh": mesh}


def estimated(
    file: pathlib.Path,
    settings: Settings,
    header: bool | None = None,
    skip_rows: float = 0,
    report: Report | None = None,
) -> Any:
    """The estimate for the matrix in a file."""
    return run(admitted(file, settings, header, skip_rows, report), settings, report).estimate


def admitted(
    file: pathlib.Path,
    settings: Settings,
    header: bool | None,
    skip_rows: float,
    report: Report | None,
) -> Any:
    """The matrix in the file, which has a determinant."""
    matrix = common.read(file, header, skip_rows, report)
    common.require_shape(file, matrix, settings.volume)
    if settings.spd:
        _require_symmetric(file, matrix)
    return matrix


def _require_symmetric(file: pathlib.Path, matrix: Any) -> None:
    """Look before the tag is believed; whether it is positive, the methods that rely on it see."""
    import numpy as np
    import scipy.sparse

    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"{file}: not square, so it is not symmetric: leave --spd out")
    matrix = matrix.astype(np.result_type(matrix.dtype, np.float64))
    matrix = scipy.sparse.csr_array(matrix) if scipy.sparse.issparse(matrix) else matrix
    defect = abs(matrix - matrix.conj().T)
    if defect.max() > 1e-8 * abs(matrix).max():  # a NaN is the door's to refuse
        i, j = np.unravel_index(int(defect.argmax()), matrix.shape)
        raise ValueError(
            f"{file}: not symmetric, entries ({i}, {j}) and ({j}, {i}) differ: leave --spd out"
        )


_ALONE = Job()


class Run(NamedTuple):
    """The estimate, charged for what was spent on the way, and the fit of its proposal if there was one."""

    estimate: Any
    fit: Any


def run(
    matrix: Any,
    settings: Settings,
    report: Report | None,
    job: Job = _ALONE,
    *,
    trace: bool = False,
) -> Run:
    """What was asked for."""
    jax = common.set_up_jax(report)
    import determinax as dx
    from determinax._keys import stream

    common.say(report, "estimating")
    key = jax.random.key(settings.seed)
    operator = _tagged(matrix) if settings.spd else matrix
    fitted = None
    if settings.method == Method.vde and settings.proposal is None:
        fitted = dx.fit_linear(operator, key=stream(key, "fit"), max_matvecs=settings.max_matvecs)
    if settings.method == Method.probed and settings.band is None:
        operator = _sparse(matrix)
    ask = dx.log_volume if settings.volume else dx.log_abs_det
    result = ask(
        operator,
        _configured(settings, fitted, min(matrix.shape)),
        key=stream(key, "estimate"),
        tolerance=settings.tolerance,
        rtol=settings.rtol,
        trace=trace,
        **job.options(),
    )
    if fitted is None:
        return Run(result, None)
    note = f"fitting spent {fitted.num_matvecs:,} of the products."
    spent = result.with_products(fitted.num_matvecs, fitted.num_transposed)
    return Run(spent.with_notes(note), fitted)


def _configured(settings: Settings, fitted: Any, n: int) -> Any:
    """The method, as it was asked for."""
    import determinax as dx

    samples, kind = settings.samples, "frames" if settings.frames else "independent"
    match settings.method:
        case Method.auto:
            return dx.Auto(settings.max_matvecs)
        case Method.exact:
            return dx.Exact()
        case Method.mc:
            return dx.MonteCarlo(samples or 100_000, kind)
        case Method.lanczos:
            return dx.Lanczos(samples or 30, settings.depth or 30)
        case Method.vde:
            proposal = fitted.proposal if fitted else dx.load(settings.proposal or "")
            if not isinstance(proposal, dx.Proposal):
                raise ValueError(
                    f"{settings.proposal}: a {type(proposal).__name__} of data: --proposal takes what "
                    "`determinax fit` saves"
                )
            is_linear = isinstance(proposal.flow, dx.flows.ProjectiveLinear)
            default = _LINEAR_SAMPLES if is_linear else _FLOW_SAMPLES
            return dx.Variational(proposal, samples or default, kind)
        case Method.deflated:
            return dx.Deflated(settings.directions or max(1, n // 2), dx.MonteCarlo(samples or 32))
        case Method.probed:
            return dx.Probed(samples or 100, settings.band)


def _tagged(matrix: Any) -> Any:
    """The operator with a tag that says positive definite."""
    import lineax as lx

    import determinax as dx

    operator: Any = dx.as_operator(matrix)
    if isinstance(operator, dx.operators.RealEmbedding):  # of a complex matrix: tag what is inside
        operator = operator.inner
    if isinstance(operator, lx.MatrixLinearOperator):  # it stays the explicit matrix that it is
        return lx.MatrixLinearOperator(operator.matrix, lx.positive_semidefinite_tag)
    return lx.TaggedLinearOperator(operator, lx.positive_semidefinite_tag)


def _sparse(matrix: Any) -> Any:
    import scipy.sparse

    return scipy.sparse.csr_array(matrix)


def _as_json(result: Any, file: pathlib.Path, seed: int) -> str:
    from determinax import __version__

    about = {"version": __version__, "file": str(file), "seed": seed}
    return json.dumps({**about, **result.to_dict()}, indent=2)
