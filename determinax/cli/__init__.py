"""The command line: parse, call, print. It imports what a command needs, and nothing before."""

# nothing more before `main` heeds Ctrl-C: what `typing` takes to import would be a time without an ear
import os
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any, NoReturn

    from determinax.cli.commands import app as app


def main() -> "NoReturn":
    """Run the command line, and leave."""
    if os.name != "nt":
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, _leave_at_once)
    from determinax import _interrupts

    _interrupts.watch(_farewell)
    if hasattr(signal, "SIGPIPE"):  # a reader that has gone, such as `head`, ends us without a word
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    _interrupts.leave(_exit_code())


def _leave_at_once(number: int, frame: "FrameType | None") -> None:
    """Until `watch` heeds signals, when nothing has begun."""
    del frame
    over = "\r" if os.isatty(2) else ""  # the ^C that the terminal shows
    os.write(2, f"{over}determinax: interrupted\n".encode())
    os._exit(128 + number)


def _exit_code() -> int:
    """Run a command, and say how it went."""
    try:
        from determinax.cli.commands import app
    except ModuleNotFoundError as error:
        name, extra = error.name, "paper" if error.name == "matplotlib" else "cli"
        print(
            f"determinax: the command line needs {name}: pip install 'determinax[{extra}]'",
            file=sys.stderr,
        )
        return 2

    try:
        try:
            app()
        finally:
            if sys.stdout:
                sys.stdout.flush()
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else 0
    except OSError as error:  # what was printed could not be
        print(f"determinax: standard output: {(error.strerror or '').lower()}", file=sys.stderr)
        return 2
    except BaseException:  # ours to mend, and the user's to report
        import traceback

        traceback.print_exc()
        return 1
    return 0


def _farewell() -> str:
    common: Any = sys.modules.get("determinax.cli.common")  # without it, nothing has begun
    go_on = getattr(common, "how_to_go_on", None)
    command = go_on() if go_on else None
    return "determinax: interrupted" + (f"; go on with: {command}" if command else "")


def __getattr__(name: str) -> "Any":
    if name == "app":  # late: typer takes longer to import than a signal may wait
        from determinax.cli.commands import app

        return app
    raise AttributeError(f"module 'determinax.cli' has no attribute {name!r}")
