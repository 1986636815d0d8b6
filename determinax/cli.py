"""The command line: parse, call, print."""

import json
import os
import pathlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Annotated, NoReturn

import typer

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

BAD_INPUT, UNRELIABLE = 2, 3
# a float, so that 1e6 is a count
Count = float | None


class MethodName(StrEnum):
    """What `--method` takes."""

    auto = "auto"
    mc = "mc"
    exact = "exact"
    slq = "slq"
    vde = "vde"


class GradientName(StrEnum):
    """What `--gradient` takes."""

    path = "path"
    total = "total"
    forward = "forward"


class TargetName(StrEnum):
    """What `reproduce` makes."""

    table1 = "table1"
    table2 = "table2"
    figure1 = "figure1"
    figure2 = "figure2"
    figure3 = "figure3"
    all = "all"


class PresetName(StrEnum):
    """What `--preset` takes."""

    paper = "paper"
    best = "best"
    quick = "quick"


def main() -> None:
    """Run the command line."""
    app()


@app.callback(invoke_without_command=True)
def about(
    version: Annotated[bool, typer.Option("--version", help="Show the version and leave.")] = False,
) -> None:
    """Estimate log|det A| from matrix-vector products, with an error bar, a bound and a verdict.

    Try `determinax demo`, then `determinax estimate matrix.npy`.
    """
    if version:
        from determinax import __version__

        print(f"determinax {__version__}")
        raise typer.Exit


@app.command()
def estimate(
    file: Annotated[pathlib.Path, typer.Argument(help="A matrix: .npy .npz .mtx .csv .txt")],
    method: Annotated[
        MethodName,
        typer.Option(
            help="auto: exact where the budget allows, else the best; mc: Monte Carlo; "
            "exact: n products, then LU or QR; slq: stochastic Lanczos quadrature; "
            "vde: variational, with a proposal from `determinax fit` or trained on the spot."
        ),
    ] = MethodName.auto,
    samples: Annotated[
        Count,
        typer.Option(
            help="Directions for mc (default 100,000) and vde (10,000), probes for slq (30)."
        ),
    ] = None,
    depth: Annotated[
        Count, typer.Option(help="Lanczos steps for each probe of slq (default 30).")
    ] = None,
    frames: Annotated[
        bool, typer.Option("--frames", help="mc and vde with orthonormal frames.")
    ] = False,
    proposal: Annotated[
        pathlib.Path | None, typer.Option(help="A proposal for vde, as `determinax fit` saves it.")
    ] = None,
    steps: Annotated[
        Count, typer.Option(help="Training steps of vde without a proposal (default 1,000).")
    ] = None,
    max_matvecs: Annotated[Count, typer.Option(help="The products that auto may spend.")] = None,
    volume: Annotated[
        bool, typer.Option("--volume", help="1/2 log det A^T A of a tall matrix.")
    ] = False,
    seed: Annotated[int, typer.Option(help="The random seed.", min=0, max=2**32 - 1)] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Estimate log|det A| of the matrix in FILE.

    **Examples**

        determinax estimate matrix.npy
        determinax estimate matrix.npy --method mc --samples 1e6
        determinax estimate sparse.npz --max-matvecs 500 --json
        determinax estimate tall.csv --volume
        determinax estimate matrix.npy --method vde --proposal q.safetensors

    Exit code 0: exact, ok or warn; 3: unreliable; 2: bad input.
    """
    with _bad_input_exits():
        sampling = (MethodName.mc, MethodName.vde)
        _require_applies("samples", samples, method, *sampling, MethodName.slq)
        _require_applies("depth", depth, method, MethodName.slq)
        _require_applies("frames", frames or None, method, *sampling)
        _require_applies("proposal", proposal, method, MethodName.vde)
        _require_applies("steps", steps, method, MethodName.vde)
        if steps is not None and proposal is not None:
            raise ValueError("--steps does not apply to a proposal that is trained already")
        _require_applies("max-matvecs", max_matvecs, method, MethodName.auto)
        jax = _set_up_jax()
        import determinax as dx
        from determinax.files import read_matrix

        matrix = read_matrix(file)
        directions = "frames" if frames else "independent"
        trained = None
        if method == MethodName.vde and proposal is None:
            trained = _fit(
                matrix, seed=seed, steps=1000 if steps is None else _whole(steps, "steps")
            )
        chosen = {
            MethodName.auto: lambda: dx.Auto(
                None if max_matvecs is None else _whole(max_matvecs, "max-matvecs")
            ),
            MethodName.exact: dx.Exact,
            MethodName.mc: lambda: dx.MonteCarlo(
                100_000 if samples is None else _whole(samples, "samples"),
                directions,
            ),
            MethodName.vde: lambda: dx.Variational(
                trained.proposal if trained else dx.load(proposal or ""),
                10_000 if samples is None else _whole(samples, "samples"),
                directions,
            ),
            MethodName.slq: lambda: dx.Lanczos(
                30 if samples is None else _whole(samples, "samples"),
                30 if depth is None else _whole(depth, "depth"),
            ),
        }[method]()
        run = dx.log_volume if volume else dx.log_abs_det
        # a key apart from the one that trained
        result = run(matrix, chosen, key=jax.random.fold_in(jax.random.key(seed), 1))
        if trained:
            note = f"training spent {trained.num_matvecs:,} of the products, in {trained.seconds:.0f} s."
            result = result.with_products(trained.num_matvecs, trained.num_transposed)
            result = result.with_notes(note)
        if as_json:
            about = {"version": dx.__version__, "file": str(file), "seed": seed}
            print(json.dumps({**about, **result.to_dict()}, indent=2))
        else:
            print(result)
        if result.status == "unreliable":
            raise typer.Exit(UNRELIABLE)


@app.command()
def fit(
    file: Annotated[pathlib.Path, typer.Argument(help="A matrix: .npy .npz .mtx .csv .txt")],
    save: Annotated[pathlib.Path, typer.Option(help="Where the trained proposal goes.")],
    steps: Annotated[float, typer.Option(help="Training steps.")] = 2000,
    batch_size: Annotated[float, typer.Option(help="Products a step (as many transposed).")] = 1024,
    num_flows: Annotated[int, typer.Option(help="Layers of the flow.", min=1)] = 8,
    gradient: Annotated[
        GradientName,
        typer.Option(help="path: least noise; total: the paper's; forward: needs no transpose."),
    ] = GradientName.path,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on where a run that was stopped left off.")
    ] = False,
    seed: Annotated[int, typer.Option(help="The random seed.", min=0, max=2**32 - 1)] = 0,
) -> None:
    """Train a flow on the sphere to be a proposal for |det A|, and save it.

    **Examples**

        determinax fit matrix.npy --save q.safetensors
        determinax fit matrix.npy --save q.safetensors --steps 1e4
        determinax fit matrix.npy --save q.safetensors --steps 1e4 --resume   (it was stopped)
        determinax estimate matrix.npy --method vde --proposal q.safetensors
    """
    with _bad_input_exits():
        _set_up_jax()
        import determinax as dx
        from determinax.files import read_matrix
        from determinax.training.checkpoint import remove

        checkpoint = save.with_name(save.name + ".checkpoint")
        result = _fit(
            read_matrix(file),
            seed=seed,
            steps=_whole(steps, "steps"),
            batch_size=_whole(batch_size, "batch-size"),
            num_flows=num_flows,
            gradient=gradient.value,
            checkpoint=checkpoint,
            resume=resume,
        )
        dx.save(result.proposal, save)
        remove(checkpoint)
        print(result)
        print(f"saved as {save}")


def _fit(matrix, *, seed: int, steps: int, num_flows: int = 8, **options):
    import jax

    import determinax as dx

    flow_key, key = jax.random.split(jax.random.key(seed))
    n = dx.as_operator(matrix).in_size()
    flow = dx.flows.cylinder(
        n,
        key=flow_key,
        num_flows=num_flows,
        conditioning="autoregressive" if n == 3 else "coupling",
        dtype="float32",
    )
    return dx.fit(matrix, flow, key=key, steps=steps, **options)


@app.command()
def reproduce(
    target: Annotated[TargetName, typer.Argument(help="A table or a figure, or all of them.")],
    preset: Annotated[
        PresetName,
        typer.Option(
            help="paper: the authors' flow and settings, hours; best: ours; quick: minutes."
        ),
    ] = PresetName.quick,
    out: Annotated[pathlib.Path, typer.Option(help="Where rows, tables and figures go.")] = (
        pathlib.Path("results")
    ),
    resume: Annotated[
        bool, typer.Option("--resume", help="Use rows that exist, and go on with stopped runs.")
    ] = False,
    seed: Annotated[int, typer.Option(help="The random seed.", min=0, max=2**32 - 1)] = 0,
) -> None:
    """Reproduce a table or a figure of the paper (Passenheim and Hoogeboom, 2020).

    **Examples**

        determinax reproduce table1
        determinax reproduce all --preset paper --out results --resume
    """
    with _bad_input_exits():
        _set_up_jax()
        from determinax.paper.reproduce import reproduce as make

        make(target.value, preset.value, out, resume, seed)


@app.command()
def demo(
    samples: Annotated[float, typer.Option(help="Directions for Monte Carlo.")] = 100_000,
    seed: Annotated[int, typer.Option(help="The random seed.", min=0, max=2**32 - 1)] = 0,
    out: Annotated[pathlib.Path, typer.Option(help="Where the picture goes.")] = pathlib.Path(
        "demo"
    ),
) -> None:
    """Every method on the paper's seven matrices, beside the truth and the paper's figures.

    Then a flow on the sphere is fitted to a density for a few seconds, and its picture saved.
    """
    with _bad_input_exits():
        _set_up_jax()
        from determinax.paper import demo as show

        show.run(_whole(samples, "samples"), seed, out)


def _require_applies(option: str, value: object, method: MethodName, *takers: MethodName):
    """Refuse an option that the method would ignore."""
    if value is not None and method not in takers:
        raise ValueError(
            f"--{option} does not apply to --method {method}: leave it out, or use --method "
            + " or ".join(takers)
        )


def _whole(value: float, option: str) -> int:
    from determinax.methods.base import whole_number

    return whole_number(value, f"--{option}")


def _set_up_jax():
    """64-bit, and compiled code kept between runs."""
    import jax

    jax.config.update("jax_enable_x64", True)
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
    jax.config.update("jax_compilation_cache_dir", str(cache / "determinax"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
    return jax


@contextmanager
def _bad_input_exits() -> Iterator[None]:
    """One sentence on standard error and exit code 2, instead of a traceback."""
    try:
        yield
    except (ValueError, TypeError, OverflowError, MemoryError) as error:
        _leave(error)
    except RuntimeError as error:
        # JAX's own, by name: importing JAX for its class would slow every --help
        if type(error).__name__ != "JaxRuntimeError":
            raise
        _leave(error)


def _leave(error: Exception) -> NoReturn:
    sentence = next(iter(str(error).splitlines()), "out of memory")
    # the functions' cures, by the names that they have here
    sentence = sentence.replace("use log_volume", "say --volume")
    sentence = sentence.replace("pass its transpose to log_volume", "transpose it and say --volume")
    print(f"determinax: {sentence}", file=sys.stderr)
    raise typer.Exit(BAD_INPUT) from None


if __name__ == "__main__":
    main()
