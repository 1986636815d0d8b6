"""A parent that watches one process of a distributed run: whatever happens to it becomes one sentence.

JAX ends a process whose peers have died by an abort, with a stack trace, from any thread. So the work is
done in a child, whose output goes to a file; the parent prints its result, or the sentence. Each watches
the other: a child that stops is killed, and a parent that dies or stops takes its child along.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import IO, NamedTuple, NoReturn

import typer

from determinax import _interrupts
from determinax.cli import common
from determinax.cli.common import Count

# that a process of a distributed run has died
DIED = 4
# file descriptors of the child: where it hears its parent, and where its result goes
_VARIABLE = "DETERMINAX_CHILD"
# seconds between two looks; of silence until somebody counts as stopped; to leave after SIGTERM
_LOOK, _SILENCE, _LEAVING = 0.2, 8.0, 5.0
_WAITING = "determinax: waiting for "
_ENDS = (0, 1, common.BAD_INPUT, common.UNRELIABLE)


def is_child() -> bool:
    """Whether this process is the one that works."""
    return _VARIABLE in os.environ


# -- the parent --


def run_in_child() -> NoReturn:
    """Run this very command in a child, print what it found, and leave with its exit code, or `DIED`."""
    common.expect_broken_pipes()
    heard, pulse = os.pipe()
    os.set_blocking(pulse, False)
    found, result = os.pipe()
    with tempfile.TemporaryFile() as said:
        child = subprocess.Popen(
            [sys.executable, "-m", "determinax.cli", *sys.argv[1:]],
            env=os.environ | {_VARIABLE: f"{heard},{result}"},
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            pass_fds=(heard, result),
            start_new_session=True,
        )
        os.close(heard)
        os.close(result)
        with _interrupts.before_leaving(lambda: _end(child)):
            code = _watched(child, pulse, said)
        with os.fdopen(found) as text:
            printed = text.read()
        if code not in _ENDS:
            _interrupts.conclude()  # waits for ever where a signal came first: that says its own
            _farewell()
            raise typer.Exit(DIED)
        _interrupts.conclude()
        _pass_on(said, code)
        print(printed, end="", flush=True)
        raise typer.Exit(code)


def _watched(child: subprocess.Popen, pulse: int, said: IO[bytes]) -> int:
    """The child's exit code, once it has ended; a child that has stopped is killed."""
    stopped, heard = None, False
    while True:
        heard = heard or _waits(said)
        with contextlib.suppress(BrokenPipeError, BlockingIOError):
            os.write(pulse, b".")
        number, status = os.waitpid(child.pid, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
        if number and os.WIFSTOPPED(status):
            stopped = time.monotonic()
        elif number and os.WIFCONTINUED(status):
            stopped = None
        elif number:
            child.returncode = os.waitstatus_to_exitcode(status)
            return child.returncode
        if stopped is not None and time.monotonic() - stopped > _SILENCE:
            child.kill()
            stopped = None
        time.sleep(_LOOK)


def _waits(said: IO[bytes]) -> bool:
    """Whether the child has said for whom it waits, which is passed on at once."""
    text = os.pread(said.fileno(), 2**16, 0).decode(errors="replace")  # the child writes at its end
    found = [line for line in text.splitlines(keepends=True) if line.startswith(_WAITING)]
    if not found or not found[0].endswith("\n"):
        return False
    print(found[0], end="", file=sys.stderr, flush=True)
    return True


def _end(child: subprocess.Popen) -> None:
    """Let the child write what it has, if it can."""
    child.terminate()
    until = time.monotonic() + _LEAVING
    while time.monotonic() < until and child.poll() is None:
        time.sleep(_LOOK)
    child.kill()


def _farewell() -> None:
    go_on = common.how_to_go_on()
    print(
        "determinax: a process of this run has died or stopped, and the others have ended with it"
        + (f"; go on with: {go_on}" if go_on else ""),
        file=sys.stderr,
        flush=True,
    )


def _pass_on(said: IO[bytes], code: int) -> None:
    """What the child said itself: its sentences, and all of it where it ended by a bug."""
    said.seek(0)
    for line in said.read().decode(errors="replace").splitlines():
        if code == 1 or (line.startswith("determinax:") and not line.startswith(_WAITING)):
            print(line, file=sys.stderr, flush=True)


# -- the child --

_result: int | None = None


class Group(NamedTuple):
    """The processes that this one is to join."""

    coordinator: str | None
    num: int | None
    number: int | None


def group_of(
    distributed: bool, coordinator: str | None, num_processes: Count, process_id: Count
) -> Group | None:
    """The group that the options name; None without `--distributed`.

    The process that the user has started never gets further: it watches a child that does.
    """
    if not distributed:
        if coordinator is not None or num_processes is not None or process_id is not None:
            raise ValueError("--coordinator, --num-processes and --process-id want --distributed")
        return None
    num, number = (
        common.whole(num_processes, "num-processes"),
        common.whole(process_id, "process-id", least=0),
    )
    if not is_child():
        run_in_child()
    global _result
    _result = follow_parent()
    return Group(coordinator, num, number)


@contextlib.contextmanager
def joined(wanted: Group | None) -> Iterator[bool]:
    """Within, this process is one of the run's; whether it is the first, which speaks for all."""
    if wanted is None:
        yield True
        return
    from determinax import distributed as group

    common.set_up_jax(None)
    group.initialize(*wanted)
    try:
        yield group.is_first()
    except group.PeerLost:
        os._exit(DIED)  # at once: JAX would wait for the others
    except group.Different:
        group.shutdown()  # all say so, and nobody has died
        raise
    group.shutdown()


def say(text: str) -> None:
    """Print a result: where a parent watches, through it, so that nothing else gets into it."""
    if _result is None:
        print(text, flush=True)
    else:
        os.write(_result, f"{text}\n".encode())


def follow_parent() -> int:
    """From now on end with the parent; where the result has to be written, as a file descriptor."""
    heard, result = (int(word) for word in os.environ[_VARIABLE].split(","))
    threading.Thread(target=_follow, args=(heard,), daemon=True).start()
    return result


def _follow(heard: int) -> None:
    silent = 0
    while silent < 2:  # one more look, for a machine that slept
        ready, _, _ = select.select([heard], [], [], _SILENCE if not silent else 1.0)
        silent = 0 if ready else silent + 1
        if ready and not os.read(heard, 4096):
            break
    os.kill(os.getpid(), signal.SIGKILL)
