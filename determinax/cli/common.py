"""What the commands share: options, checks that need no JAX, and one sentence for what goes wrong."""

import contextlib
import importlib.util
import pathlib
import shlex
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Annotated, Any, NoReturn

import typer

from determinax._checks import cache_folder, reason, whole_number
from determinax._checks import require_folder as require_folder
from determinax._checks import require_writable as require_writable
from determinax.progress import Report

BAD_INPUT, UNRELIABLE = 2, 3

# a float, so that 1e6 is a count
Count = float | None
Matrix = Annotated[pathlib.Path, typer.Argument(help="A matrix: .npy .npz .mtx .csv .txt")]
Seed = Annotated[int, typer.Option(help="The random seed.", min=0, max=2**32 - 1)]
Header = Annotated[
    bool | None,
    typer.Option(
        "--header/--no-header", help="Whether the first row of a .csv or .txt holds names."
    ),
]
SkipRows = Annotated[
    float, typer.Option("--skip-rows", help="Rows of a .csv or .txt file to pass over at its top.")
]


def whole(value: Count, option: str, *, least: int = 1) -> int | None:
    """The count that an option gives; None where it was left out."""
    return None if value is None else whole_number(value, f"--{option}", least=least)


# -- files --


def read(file: pathlib.Path, header: bool | None, skip_rows: float, report: Report | None) -> Any:
    """The matrix in the file."""
    num_rows = whole_number(skip_rows, "--skip-rows", least=0)
    if not file.exists():  # said before NumPy and SciPy are there
        raise ValueError(f"{file}: no such file")
    say(report, f"reading {file.name}")
    from determinax.files import read_matrix

    return read_matrix(file, header=header, skip_rows=num_rows)


def require_shape(file: pathlib.Path, matrix: Any, volume: bool) -> None:
    """Refuse what has no determinant, in the words of the command line."""
    if matrix.ndim != 2:
        return  # the door's to say
    m, n = matrix.shape
    if m < n:
        raise ValueError(
            f"{file}: {m}x{n} has more columns than rows, so its volume is 0: transpose it"
            + ("" if volume else " and say --volume")
        )
    if m > n and not volume:
        raise ValueError(f"{file}: {m}x{n} is not square, so it has no determinant: say --volume")


def require_apart(written: pathlib.Path | None, *read: pathlib.Path | None) -> None:
    """Refuse to write over what is read."""
    if written is None or not written.exists():
        return
    for path in filter(None, read):
        if path.exists() and written.samefile(path):
            raise ValueError(f"{written}: is read, and would be written over: name another file")


# -- libraries --


def require_matplotlib(what: str, extra: str) -> None:
    """Refuse to begin what would end without its pictures."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ValueError(f"{what} needs matplotlib: pip install 'determinax[{extra}]'")


# -- JAX --


def set_up_jax(report: Report | None) -> Any:
    """64-bit, and compiled code kept between runs where it can be."""
    say(report, "loading JAX")
    import jax

    jax.config.update("jax_enable_x64", True)
    cache = cache_folder()
    if cache is not None:
        jax.config.update("jax_compilation_cache_dir", str(cache))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
        # an entry that was cut short, or a full disk: it is compiled again, and that is all
        warnings.filterwarnings("ignore", message=".*persistent compilation cache")
    return jax


# -- other processes --


def expect_broken_pipes() -> None:
    """From now on a pipe that breaks is an error to be handled: the process behind it may have died."""
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)


# -- what is said --


def say(report: Report | None, what: str) -> None:
    """Show what is being done, where somebody watches."""
    if report:
        report.working(what)


def shown(result: Any, command: str) -> str:
    """An estimate as text; laid out for the eye where that is a terminal's, with a next command."""
    if not (sys.stdout and sys.stdout.isatty()):
        return str(result)
    from determinax import _terminal

    return "\n".join(_terminal.lines(result, command))


def one_line(result: Any) -> str:
    """The first line of an estimate."""
    return str(result).splitlines()[0]


# asked when a signal ends the command: whether there is something to go on from
_is_resumable: Callable[[], bool] = bool


def resumable(is_resumable: Callable[[], bool]) -> None:
    """From now on a signal's last line says how to go on, if there is something to go on from."""
    global _is_resumable
    _is_resumable = is_resumable


def how_to_go_on() -> str | None:
    """The command that goes on with this one; None where there is none."""
    if not _is_resumable():
        return None
    arguments = [word for word in sys.argv[1:] if word != "--resume"]
    return shlex.join(["determinax", *arguments, "--resume"])


@contextlib.contextmanager
def bad_input_exits() -> Iterator[None]:
    """One sentence on standard error and exit code 2, instead of a traceback."""
    try:
        yield
    except (ValueError, TypeError, ArithmeticError, MemoryError) as error:
        _leave(error)
    except OSError as error:
        name = f"{error.filename}: " if error.filename else ""
        _leave(ValueError(f"{name}{reason(error)}"))
    except RuntimeError as error:
        # JAX's own, by name: importing JAX for its class would slow every --help
        if type(error).__name__ != "JaxRuntimeError":
            raise
        _leave(error)


def _leave(error: Exception) -> NoReturn:
    sentence = next(iter(str(error).splitlines()), "out of memory")
    print(f"determinax: {sentence}", file=sys.stderr)
    raise typer.Exit(BAD_INPUT) from None
