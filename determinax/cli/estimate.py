"""`determinax estimate`."""

import json
import pathlib
from enum import StrEnum
from typing import Annotated, Any, NamedTuple

import typer

from determinax import _interrupts
from determinax._checks import require_bar
from determinax.cli import common
from determinax.cli.common import Count
from determinax.progress import Report, reporting


class Method(StrEnum):
    """What `--method` takes; the help of `estimate` says what each is."""

    auto = "auto"
    exact = "exact"
    mc = "mc"
    lanczos = "lanczos"
    vde = "vde"
    deflated = "deflated"
    probed = "probed"


_ALIASES = {"slq": Method.lanczos}

# which options each method takes
_TAKES = {
    "samples": (Method.mc, Method.vde, Method.lanczos, Method.deflated, Method.probed),
    "depth": (Method.lanczos,),
    "directions": (Method.deflated,),
    "band": (Method.probed,),
    "frames": (Method.mc, Method.vde),
    "proposal": (Method.vde,),
    "max-matvecs": (Method.auto, Method.vde),
}
# of proposals: a linear one that fits needs a single sample, and these show that it does
_FLOW_SAMPLES, _LINEAR_SAMPLES = 10_000, 100


class Settings(NamedTuple):
    """What was asked for, checked as far as that needs no JAX; None is the method's default."""

    method: Method
    samples: int | None
    depth: int | None
    directions: int | None
    band: tuple[int, int] | None
    frames: bool
    proposal: pathlib.Path | None
    max_matvecs: int | None
    volume: bool
    spd: bool
    tolerance: float | None
    rtol: float | None
    seed: int


def _method(name: str) -> Method:
    try:
        return _ALIASES.get(name) or Method(name)
    except ValueError:
        raise typer.BadParameter(f"{name!r} is not one of {', '.join(Method)}.") from None


def estimate(
    file: common.Matrix,
    method: Annotated[
        Method,
        typer.Option(
            parser=_method,
            metavar="METHOD",
            help="One of those above.",
            autocompletion=lambda: list(Method),
        ),
    ] = Method.auto,
    samples: Annotated[
        Count,
        typer.Option(
            help="Directions for mc (default 100,000), vde (10,000; 100 of a linear proposal), "
            "deflated (32) and probed (100); probes for lanczos (30)."
        ),
    ] = None,
    depth: Annotated[
        Count, typer.Option(help="Steps for each probe of lanczos (default 30).")
    ] = None,
    directions: Annotated[
        Count, typer.Option(help="Directions that deflated takes exactly (default n/2).")
    ] = None,
    band: Annotated[
        tuple[int, int] | None,
        typer.Option(
            help="For probed: how many diagonals below and above the main one may have entries; "
            "else it takes the zeros of the file.",
            metavar="BELOW ABOVE",
        ),
    ] = None,
    frames: Annotated[
        bool, typer.Option("--frames", help="mc and vde with orthonormal frames.")
    ] = False,
    proposal: Annotated[
        pathlib.Path | None, typer.Option(help="A proposal for vde, as `determinax fit` saves it.")
    ] = None,
    max_matvecs: Annotated[
        Count,
        typer.Option(help="The products that auto, or the fit of vde, may spend."),
    ] = None,
    volume: Annotated[
        bool, typer.Option("--volume", help="1/2 log det A^T A of a tall matrix.")
    ] = False,
    spd: Annotated[
        bool,
        typer.Option(
            "--spd", help="A is symmetric positive definite: lanczos takes half the products."
        ),
    ] = False,
    tolerance: Annotated[
        float | None,
        typer.Option(help="The standard error, in nats, that you are content with."),
    ] = None,
    rtol: Annotated[
        float | None, typer.Option(help="The same, as a share of the log-determinant's size.")
    ] = None,
    header: common.Header = None,
    skip_rows: common.SkipRows = 0,
    seed: common.Seed = 0,
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

    Exit code 0: exact, ok or warn; 3: unreliable; 2: bad input; 130: Ctrl-C.
    """
    with common.bad_input_exits():
        given = {
            "samples": samples,
            "depth": depth,
            "directions": directions,
            "band": band,
            "frames": frames or None,
            "proposal": proposal,
            "max-matvecs": max_matvecs,
        }
        _require_taken(method, given)
        require_bar("--tolerance", tolerance)
        require_bar("--rtol", rtol)
        settings = Settings(
            method=method,
            samples=common.whole(samples, "samples"),
            depth=common.whole(depth, "depth"),
            directions=common.whole(directions, "directions"),
            band=band,
            frames=frames,
            proposal=proposal,
            max_matvecs=common.whole(max_matvecs, "max-matvecs"),
            volume=volume,
            spd=spd,
            tolerance=tolerance,
            rtol=rtol,
            seed=seed,
        )
        with reporting() as report:
            matrix = common.read(file, header, skip_rows, report)
            common.require_shape(file, matrix, volume)
            if spd:
                _require_symmetric(file, matrix)
            result = _run(matrix, settings, report)
            text = _as_json(result, file, seed) if as_json else str(result)
        _interrupts.conclude()
        print(text, flush=True)
        if result.status == "unreliable":
            raise typer.Exit(common.UNRELIABLE)


def _require_taken(method: Method, given: dict[str, Any]) -> None:
    """Refuse an option that the method would ignore, and a proposal that is not there."""
    for option, value in given.items():
        if value is not None and method not in _TAKES[option]:
            raise ValueError(
                f"--{option} does not apply to --method {method}: leave it out, or use --method "
                + " or ".join(_TAKES[option])
            )
    proposal = given["proposal"]
    if proposal is not None and not proposal.exists():
        raise ValueError(f"{proposal}: no such file")
    if proposal is not None and given["max-matvecs"] is not None:
        raise ValueError("--max-matvecs does not apply to a proposal that is fitted already")


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


def _run(matrix: Any, settings: Settings, report: Report | None) -> Any:
    """The estimate, charged for what was spent on the way."""
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
    run = dx.log_volume if settings.volume else dx.log_abs_det
    result = run(
        operator,
        _configured(settings, fitted, min(matrix.shape)),
        key=stream(key, "estimate"),
        tolerance=settings.tolerance,
        rtol=settings.rtol,
    )
    if fitted is None:
        return result
    note = f"fitting spent {fitted.num_matvecs:,} of the products, in {fitted.seconds:.1f} s."
    return result.with_products(fitted.num_matvecs, fitted.num_transposed).with_notes(note)


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
