"""What `estimate` and `sweep` take: the options, and the settings that they make, checked without JAX."""

import pathlib
import shlex
from enum import StrEnum
from typing import Annotated, Any, NamedTuple

import typer

from determinax._checks import require_bar
from determinax.cli.common import Count, whole


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


def named(name: str) -> Method:
    """The method of this name."""
    try:
        return _ALIASES.get(name) or Method(name)
    except ValueError:
        raise typer.BadParameter(f"{name!r} is not one of {', '.join(Method)}.") from None


MethodOption = Annotated[
    Method,
    typer.Option(
        parser=named,
        metavar="METHOD",
        help="One of those above.",
        autocompletion=lambda: list(Method),
    ),
]
Samples = Annotated[
    Count,
    typer.Option(
        help="Directions for mc (default 100,000), vde (10,000; 200 of a linear proposal), "
        "deflated (32) and probed (100); probes for lanczos (30)."
    ),
]
Depth = Annotated[Count, typer.Option(help="Steps for each probe of lanczos (default 30).")]
Directions = Annotated[
    Count, typer.Option(help="Directions that deflated takes exactly (default n/2).")
]
Band = Annotated[
    tuple[int, int] | None,
    typer.Option(
        help="For probed: how many diagonals below and above the main one may have entries; "
        "else it takes the zeros of the file.",
        metavar="BELOW ABOVE",
    ),
]
Frames = Annotated[bool, typer.Option("--frames", help="mc and vde with orthonormal frames.")]
ProposalFile = Annotated[
    pathlib.Path | None, typer.Option(help="A proposal for vde, as `determinax fit` saves it.")
]
MaxMatvecs = Annotated[
    Count, typer.Option(help="The products that auto, or the fit of vde, may spend.")
]
Volume = Annotated[bool, typer.Option("--volume", help="1/2 log det A^T A of a tall matrix.")]
Spd = Annotated[
    bool,
    typer.Option(
        "--spd", help="A is symmetric positive definite: lanczos takes half the products."
    ),
]
Tolerance = Annotated[
    float | None,
    typer.Option(help="The standard error, in nats, that you are content with."),
]
Rtol = Annotated[
    float | None, typer.Option(help="The same, as a share of the log-determinant's size.")
]


def checked(
    *,
    method: Method,
    samples: Count,
    depth: Count,
    directions: Count,
    band: tuple[int, int] | None,
    frames: bool,
    proposal: pathlib.Path | None,
    max_matvecs: Count,
    volume: bool,
    spd: bool,
    tolerance: float | None,
    rtol: float | None,
    seed: int,
) -> Settings:
    """The settings, or a sentence about what does not go together."""
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
    return Settings(
        method=method,
        samples=whole(samples, "samples"),
        depth=whole(depth, "depth"),
        directions=whole(directions, "directions"),
        band=band,
        frames=frames,
        proposal=proposal,
        max_matvecs=whole(max_matvecs, "max-matvecs"),
        volume=volume,
        spd=spd,
        tolerance=tolerance,
        rtol=rtol,
        seed=seed,
    )


def command(
    file: pathlib.Path, settings: Settings, header: bool | None, skip_rows: float, result: Any
) -> str:
    """What the next step about a result is an addition to: its options stay, as far as they apply."""
    from determinax._advice import next_step

    step = next_step(result)
    added = [] if step is None else shlex.split(step.options)
    method = Method(added[added.index("--method") + 1]) if added else settings.method
    words = ["determinax", "estimate", str(file)]
    for option, values in _written(settings, header, skip_rows).items():
        name = option.removeprefix("--")
        if option in added or (name in _TAKES and method not in _TAKES[name]):
            continue
        if step is not None and _is_spent(name, settings.method, "--samples" in added):
            continue
        words += [option, *values]
    return shlex.join(words)


def _is_spent(name: str, method: Method, has_samples: bool) -> bool:
    """Whether the cure does without an option: a proposal that does not fit is to be fitted anew.

    Frames belong to the number of samples: fewer than a hundred of them tell nothing.
    """
    if name == "frames":
        return True
    return not has_samples and method == Method.vde and name in ("proposal", "max-matvecs")


def _written(settings: Settings, header: bool | None, skip_rows: float) -> dict[str, list[str]]:
    """The options as they are written, without the method, its samples and its depth."""
    flags = {
        "--volume": settings.volume,
        "--spd": settings.spd,
        "--frames": settings.frames,
        "--header": header is True,
        "--no-header": header is False,
    }
    values = {
        "--tolerance": settings.tolerance,
        "--rtol": settings.rtol,
        "--max-matvecs": settings.max_matvecs,
        "--directions": settings.directions,
        "--proposal": settings.proposal,
        "--skip-rows": int(skip_rows) or None,
        "--seed": settings.seed or None,
    }
    band = {} if settings.band is None else {"--band": [str(width) for width in settings.band]}
    given = {option: [str(value)] for option, value in values.items() if value is not None}
    return {option: [] for option, is_on in flags.items() if is_on} | given | band


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
