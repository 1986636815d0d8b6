"""The command line on a pseudo-terminal of 80 columns, as a person has it."""

import dataclasses
import fcntl
import os
import pathlib
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time

LIMIT = 240.0  # seconds until a run counts as hung
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
# a session's leader that opens a terminal gets it as its own: Ctrl-C reaches it then
_OPEN = 'exec "$@" <"$TTY" >"$TTY" 2>"$TTY"'


@dataclasses.dataclass
class Ended:
    """A run that has ended: its exit code, what was on the screen, the seconds it took."""

    code: int
    raw: str
    seconds: float

    @property
    def screen(self) -> str:
        return _ESCAPES.sub("", self.raw).replace("\r", "\n")


class Terminal:
    """One run of the command line; leave the `with` block, and it is dead."""

    def __init__(self, *arguments: object, folder: pathlib.Path, **environment: str):
        self._screen, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        words = [sys.executable, "-m", "determinax.cli", *map(str, arguments)]
        environment = {**os.environ, "TERM": "xterm", "TTY": os.ttyname(slave), **environment}
        environment.pop("COLUMNS", None)
        self._began = time.monotonic()
        self._process = subprocess.Popen(
            ["sh", "-c", _OPEN, "sh", *words], cwd=folder, env=environment, start_new_session=True
        )
        self._slave, self._raw = slave, b""

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for descriptor in (self._screen, self._slave):
            os.close(descriptor)

    def wait(self, seconds: float) -> None:
        """Let it run for so long."""
        self._read(lambda: False, seconds)

    def wait_for_count(self, least: int) -> None:
        """Let it run until its bar has counted so far."""
        count = re.compile(r"([\d,]+) of [\d,]+")

        def has_counted() -> bool:
            text = _ESCAPES.sub("", self._raw.decode(errors="ignore"))
            return any(int(n.replace(",", "")) >= least for n in count.findall(text))

        self._read(has_counted)

    def wait_until_it_listens(self) -> None:
        """Python itself takes no SIGTERM: once the process does, it is our command line."""
        status = pathlib.Path(f"/proc/{self._process.pid}/status")

        def listens() -> bool:
            caught = re.search(r"SigCgt:\s*([0-9a-f]+)", status.read_text())
            name = status.with_name("comm").read_text().strip()
            return name != "sh" and bool(int(caught[1], 16) >> (signal.SIGTERM - 1) & 1)

        self._read(listens, step=0.002)

    def press_ctrl_c(self) -> None:
        os.write(self._screen, b"\x03")

    def terminate(self) -> None:
        self._process.terminate()

    def end(self) -> Ended:
        """Let it run to its end; one that takes too long is killed, and the test fails."""
        self._read(lambda: self._process.poll() is not None, LIMIT)
        assert self._process.poll() is not None, f"hung:\n{self._raw.decode()}"
        self.wait(0.01)  # what is still in the terminal
        raw = self._raw.decode(errors="replace")
        return Ended(self._process.returncode, raw, time.monotonic() - self._began)

    def _read(self, until, seconds: float = LIMIT, step: float = 0.02) -> None:
        stop = time.monotonic() + seconds
        while not until() and time.monotonic() < stop and self._process.poll() is None:
            if select.select([self._screen], [], [], step)[0]:
                self._raw += os.read(self._screen, 65536)
        while select.select([self._screen], [], [], 0)[0]:
            self._raw += os.read(self._screen, 65536)
