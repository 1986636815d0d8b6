"""Kills at random moments of `determinax fit --flow` and `determinax estimate`, for soak.py.

A run is killed and started again until it ends, with everything compiled or, one time in five, with
nothing. Fits and estimates with --checkpoint go on where they were, the others begin anew. What ends must
be what ends undisturbed, bit for bit: checkpoints, and the cache of compiled code, survive.
"""

import collections
import contextlib
import dataclasses
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import scipy.sparse

from determinax.storage import StorageError, read_tensors

ROOT = pathlib.Path(__file__).parents[1]
# seconds that an undisturbed run may take, and that a process may take to leave after its signal
RUN, LEAVE = 300, 60


@dataclasses.dataclass
class Row:
    """What was tried, how often, how it went, and what was wrong."""

    what: str
    tried: int = 0
    outcomes: collections.Counter = dataclasses.field(default_factory=collections.Counter)
    faults: list[str] = dataclasses.field(default_factory=list)
    seconds: float = 0.0

    def text(self) -> str:
        """As a line of the table."""
        went = ", ".join(f"{num:,} {how}" for how, num in sorted(self.outcomes.items()))
        return (
            f"| {self.what} | {self.tried:,} | {went} | {len(self.faults)} | {self.seconds:.0f} |"
        )


def environment(**more: str) -> dict[str, str]:
    """This one's, where children find this determinax."""
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), **more}


FIT = ["fit", "a.npy", "--save", "q.safetensors", "--flow", "--steps", "6000"]
FIT += ["--batch-size", "32", "--num-flows", "1"]
ESTIMATES = (
    ["estimate", "a.npy", "--method", "mc", "--samples", "1e7", "--checkpoint", "run.ck", "--json"],
    ["estimate", "a.npy", "--method", "slq", "--samples", "3e5", "--depth", "6", "--json"],
    ["estimate", "grid.npz", "--json"],
)
CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -9}
LIVES = 5  # of an estimate, before it may end
ENDED = 10**9  # steps of a fit that was killed when all was done


class Kills:
    """Runs that are killed again and again, two at a time, until enough were."""

    def __init__(self, num: int, seed: int, until: float, folder: pathlib.Path):
        self.left, self.seed, self.until, self.folder = num, seed, until, folder
        self.rows = {s: Row(f"kills by {s.name}") for s in CODES}
        self.ends = {what: Row(f"{what}, ended after kills") for what in ("fit", "estimate")}
        self.lock, self.began = threading.Lock(), time.monotonic()
        # what undisturbed runs give, and how long they take with everything compiled
        self.truth = {}
        for command in (FIT, *ESTIMATES):
            for _ in range(2):
                started = time.monotonic()
                place, run = self._place(f"truth-{len(os.listdir(folder))}"), " ".join(command)
                code = self._start(place, command, "cache").wait()
                took = time.monotonic() - started
                if code not in (0, 3):
                    raise RuntimeError(f"{run}: {(place / 'err').read_text()}")
                self.truth[run] = self._result(place, command), took

    def run(self) -> list[Row]:
        """Kill until enough were, or the time is up."""
        threads = [threading.Thread(target=self._live, args=(i,)) for i in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for row in self.rows.values():
            row.seconds = (time.monotonic() - self.began) / len(self.rows)
        return [*self.rows.values(), *self.ends.values()]

    def _live(self, which: int) -> None:
        rng, story = np.random.default_rng([self.seed, which]), 0
        while self._goes_on():
            commands = [FIT, ESTIMATES[story % len(ESTIMATES)]]
            self._story(rng, f"{which}-{story}", commands[(which + story) % 2])
            story += 1

    def _goes_on(self) -> bool:
        return self.left > 0 and time.monotonic() < self.until

    def _story(self, rng, name: str, command: list[str]) -> None:
        """One run from its birth, through kills, to its end."""
        place, steps, lives = self._place(name), 0, 0
        while True:
            truth, seconds = self.truth[" ".join(command)]
            is_last = not self._goes_on() or (command is not FIT and lives == LIVES)
            goes_on = command is FIT or "--checkpoint" in command
            resume = ["--resume"] if goes_on and lives else []
            cache = "cache" if is_last or rng.random() < 0.8 else f"cold-{name}-{lives}"
            process = self._start(place, command + resume, cache)
            how = list(CODES)[int(rng.integers(len(CODES)))]
            delay = RUN if is_last else float(rng.uniform(0, 1.1 * seconds))
            started = time.monotonic()
            was_killed, code = self._kill(process, how, delay)
            error = (place / "err").read_text()
            if not was_killed:
                if not lives:  # a whole run: the machine may have less to do than it had
                    self.truth[" ".join(command)] = truth, time.monotonic() - started
                self._judge_end(self.ends[command[0]], place, command, code, error, truth)
                return
            if is_last:
                self.ends[command[0]].faults.append(f"{name}: no end within {RUN} s")
                return
            lives += 1
            with self.lock:
                self.left -= 1
                row = self.rows[how]
                row.tried += 1
                row.outcomes[f"in {command[0]}"] += 1
                fault = self._fault(how, code, error)
                now = self._steps(place) if command is FIT else 0
                if isinstance(now, str) or now < steps:
                    fault = now if isinstance(now, str) else f"{steps} steps were kept, now {now}"
                else:
                    steps = now
                if fault:
                    row.faults.append(f"{command[0]} {name}, life {lives}, {delay:.1f} s: {fault}")
            if now == ENDED:
                self._judge_end(self.ends[command[0]], place, command, 0, "", truth)
                return

    def _start(self, place: pathlib.Path, command: list[str], cache: str) -> subprocess.Popen:
        own = environment(XDG_CACHE_HOME=str(self.folder / cache))
        with (place / "out").open("w") as out, (place / "err").open("w") as err:
            full = [sys.executable, "-m", "determinax.cli", *command]
            return subprocess.Popen(full, stdout=out, stderr=err, cwd=place, env=own)

    def _kill(self, process: subprocess.Popen, how: signal.Signals, delay: float):
        """Whether the process was alive to be killed, and the code that it left with."""
        if how != signal.SIGKILL:
            _wait_for_handler(process)
        code = patiently(process, delay)
        if code is not None:
            return False, code
        process.send_signal(how)
        code = patiently(process, LEAVE)
        if code is None:
            process.kill()
            process.wait()
            return True, None
        # it may have ended, with a result, just before
        return code not in (0, 3), code

    def _fault(self, how: signal.Signals, code: int | None, error: str) -> str | None:
        if code is None:
            return f"did not leave within {LEAVE} s"
        if code != CODES[how]:
            return f"exit code {code}: {error[-200:]!a}"
        lines = error.splitlines()
        if how == signal.SIGKILL and lines:
            return f"said {error[-200:]!a}"
        said = len(lines) == 1 and lines[0].startswith("determinax: interrupted")
        return None if how == signal.SIGKILL or said else f"said {error[-200:]!a}"

    def _steps(self, place: pathlib.Path) -> int | str:
        """How many steps are kept; or what is wrong with the file that keeps them."""
        for name in ("q.safetensors.checkpoint", "q.safetensors.checkpoint.previous"):
            if (place / name).exists():
                try:
                    return len(read_tensors(place / name)[1]["history.loss"])
                except (StorageError, KeyError) as error:
                    return f"{name} is damaged: {error}"
        return ENDED if (place / "q.safetensors").exists() else 0

    def _judge_end(self, row: Row, place: pathlib.Path, command, code, error: str, truth) -> None:
        with self.lock:
            row.tried += 1
            if code not in (0, 3) or error:
                row.faults.append(f"{place.name}: exit code {code}: {error[-200:]!a}")
            elif self._result(place, command) != truth:
                row.faults.append(f"{place.name}: another result than undisturbed")
            else:
                row.outcomes["with the same bits"] += 1

    def _result(self, place: pathlib.Path, command: list[str]):
        if command is not FIT:
            return (place / "out").read_text()
        header, tensors = read_tensors(place / "q.safetensors")
        return header, {name: array.tobytes() for name, array in tensors.items()}

    def _place(self, name: str) -> pathlib.Path:
        place = self.folder / name
        place.mkdir()
        rng = np.random.default_rng(0)
        np.save(place / "a.npy", np.eye(6) + 0.2 * rng.standard_normal((6, 6)))
        scipy.sparse.save_npz(place / "grid.npz", grid(40))
        return place


def patiently(process: subprocess.Popen, seconds: float) -> int | None:
    """The exit code, or None if it takes longer: in short waits, so that a machine may sleep."""
    step = 0.1
    for _ in range(int(seconds / step)):
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(step)
    with contextlib.suppress(subprocess.TimeoutExpired):
        return process.wait(seconds % step)
    return None


def grid(side: int) -> scipy.sparse.csr_array:
    """The Laplacian of a square grid, and a tenth."""
    line = scipy.sparse.csr_array(2.05 * np.eye(side) - np.eye(side, k=1) - np.eye(side, k=-1))
    return scipy.sparse.csr_array(scipy.sparse.kronsum(line, line))


def _wait_for_handler(process: subprocess.Popen) -> None:
    """Until the process heeds SIGTERM: before, it is Python that starts, and nobody's to mend."""
    for _ in range(1000):
        try:
            status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
        except OSError:
            return
        caught = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
        if int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1 or process.poll() is not None:
            return
        time.sleep(0.01)
