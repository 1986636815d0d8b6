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
            "exact: n products, then LU or QR; slq: stochastic Lanczos quadrature."
        ),
    ] = MethodName.auto,
    samples: Annotated[
        Count, typer.Option(help="Directions for mc (default 100,000), probes for slq (30).")
    ] = None,
    depth: Annotated[
        Count, typer.Option(help="Lanczos steps for each probe of slq (default 30).")
    ] = None,
    frames: Annotated[bool, typer.Option("--frames", help="mc with orthonormal frames.")] = False,
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

    Exit code 0: exact, ok or warn; 3: unreliable; 2: bad input.
    """
    with _bad_input_exits():
        _require_applies("samples", samples, method, MethodName.mc, MethodName.slq)
        _require_applies("depth", depth, method, MethodName.slq)
        _require_applies("frames", frames or None, method, MethodName.mc)
        _require_applies("max-matvecs", max_matvecs, method, MethodName.auto)
        jax = _set_up_jax()
        import determinax as dx
        from determinax.files import read_matrix

        matrix = read_matrix(file)
        chosen = {
            MethodName.auto: lambda: dx.Auto(
                None if max_matvecs is None else _whole(max_matvecs, "max-matvecs")
            ),
            MethodName.exact: dx.Exact,
            MethodName.mc: lambda: dx.MonteCarlo(
                100_000 if samples is None else _whole(samples, "samples"),
                "frames" if frames else "independent",
            ),
            MethodName.slq: lambda: dx.Lanczos(
                30 if samples is None else _whole(samples, "samples"),
                30 if depth is None else _whole(depth, "depth"),
            ),
        }[method]()
        run = dx.log_volume if volume else dx.log_abs_det
        result = run(matrix, chosen, key=jax.random.key(seed))
        if as_json:
            about = {"version": dx.__version__, "file": str(file), "seed": seed}
            print(json.dumps({**about, **result.to_dict()}, indent=2))
        else:
            print(result)
        if result.status == "unreliable":
            raise typer.Exit(UNRELIABLE)


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


def _require_applies(option: str, value: float | None, method: MethodName, *takers: MethodName):
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
    print(f"determinax: {sentence}", file=sys.stderr)
    raise typer.Exit(BAD_INPUT) from None


if __name__ == "__main__":
    main()
