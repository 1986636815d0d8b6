"""Ctrl-C and SIGTERM: no signal is lost, and no file is left half-written.

From Python, `heeded` wraps a long call. JAX swallows an interrupt that lands in its callback of the
garbage collector, so the signal is noted as well, and `check` raises it between two pieces of work.
One that comes while XLA compiles is only noted: raised there it would leave XLA compiling in the
background, and jaxlib crashes where the interpreter ends before that.

The command line calls `watch` instead, before anything heavy is imported. Its signals wake a thread, since
the main thread is deaf while XLA compiles; a write that is under way is finished, what wants to be done
`before_leaving` is done, and the process ends by `os._exit`, which tears nothing down.
"""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import NoReturn

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
# held while a file is written: whoever leaves takes it first, and never gives it back
_writing = threading.RLock()
# of the command line's two ways out, the end and a signal, the first to take this is the one
_leaving = threading.Lock()
_last_actions: list[Callable[[], object]] = []
_watched = _concluded = _heeding = _noted = False


# -- from Python --


@contextlib.contextmanager
def heeded() -> Iterator[None]:
    """Within, an interrupt is noted for `check`, and raised unless XLA compiles; a second one always is.

    In the main thread only, and only where Python's own handler, or another, would raise it.
    """
    global _heeding, _noted
    previous = signal.getsignal(signal.SIGINT)
    in_main = threading.current_thread() is threading.main_thread()
    if _watched or _heeding or not in_main or not callable(previous):
        yield
        return

    def note(number: int, frame: FrameType | None) -> None:
        global _noted
        is_second, _noted = _noted, True
        if is_second or not _is_compiling(frame):
            previous(number, frame)

    _heeding = True
    signal.signal(signal.SIGINT, note)
    try:
        yield
        check()
    except Exception:
        check()  # who catches the error would never hear of it
        raise
    finally:
        signal.signal(signal.SIGINT, previous)
        _heeding = _noted = False


def _is_compiling(frame: FrameType | None) -> bool:
    while frame is not None:
        code = frame.f_code
        if code.co_name.startswith("backend_compile") and "jax" in code.co_filename:
            return True
        frame = frame.f_back
    return False


def is_noted() -> bool:
    """Whether an interrupt waits for `check`."""
    return _noted


def check() -> None:
    """Raise the interrupt that was swallowed, if one was."""
    global _noted
    if _noted and threading.current_thread() is threading.main_thread():
        _noted = False
        raise KeyboardInterrupt


# -- on the command line --


@contextlib.contextmanager
def writing() -> Iterator[None]:
    """Within, the command line does not leave: what is being written is finished first."""
    with _writing:
        yield


@contextlib.contextmanager
def before_leaving(action: Callable[[], object]) -> Iterator[None]:
    """Within, a signal calls `action`, from another thread, before the command line leaves."""
    _last_actions.append(action)
    try:
        yield
    finally:
        _last_actions.remove(action)


def watch(farewell: Callable[[], str]) -> None:
    """Leave on Ctrl-C and SIGTERM, from now on, with the line `farewell()` on standard error.

    The exit code is 128 and the signal's number; a second signal leaves at once. A signal that is
    ignored already, as in `nohup`, stays so. Handlers that leave, as those of the command line's first
    moment, serve until the thread is there.
    """
    global _watched
    if os.name == "nt":  # where a signal cannot write to a pipe: KeyboardInterrupt has to do
        return
    _watched = True
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    threading.Thread(target=_wait, args=(reader, farewell), daemon=True).start()
    for number in _SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda *_: None)  # the thread sees to it


def conclude() -> None:
    """The work is done: unless a signal came before this, none changes how the command ends.

    A second one still leaves at once. Without `watch` it does nothing.
    """
    global _concluded
    if _watched and not _concluded:
        _leaving.acquire()
        _concluded = True


def leave(code: int) -> NoReturn:
    """End the process, with all that was printed out, unless a signal came first."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, AttributeError):  # closed, or never there
            stream.flush()
    conclude()
    os._exit(code)


def _wait(reader: int, farewell: Callable[[], str]) -> None:
    number = os.read(reader, 1)[0]
    threading.Thread(target=_depart, args=(number, farewell), daemon=True).start()
    number = os.read(reader, 1)[0]
    if os.isatty(2):
        os.write(2, b"\x1b[?25h")  # the cursor, which a bar had hidden
    os._exit(128 + number)


def _depart(number: int, farewell: Callable[[], str]) -> None:
    _leaving.acquire()
    _writing.acquire()
    for action in _last_actions[::-1]:
        with contextlib.suppress(Exception):  # a full disk must not keep us here
            action()
    with contextlib.suppress(Exception):
        over = "\r" if os.isatty(2) else ""  # the ^C that the terminal shows
        os.write(2, f"{over}{farewell()}\n".encode())
    os._exit(128 + number)
