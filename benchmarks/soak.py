"""Broken files by the thousand, kills at random moments, and many calls beside busy loops.

    make soak MINUTES=30                     # 10,000 files, 200 kills, 50 calls of every method
    python benchmarks/soak.py --files 1000 --kills 0 --calls 0 --seed 7

- A broken file (tests/damage.py makes it) gives the truth or one sentence: no other exception, no crash, no
  warning, no more than a GiB of memory, no more than some seconds.
- SIGINT, SIGTERM and SIGKILL at random moments of `determinax fit --flow` and `determinax estimate`: exit
  codes 130, 143 and -9, one line on standard error (none for the last), steps that a checkpoint has stay
  there, and what goes on with --resume ends with the very bits of a run that nobody disturbed.
- Calls of every method return while two busy loops share the two cores.

It prints one table; `--write` makes it docs/results/soak.md. The exit code is 1 if anything failed.
"""

import argparse
import os
import pathlib
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import numpy as np
from kills import ROOT, Kills, Row, environment, grid

TESTS = str(ROOT / "tests")
# seconds that a worker may take to load, to read a broken file, and to make a call
START, FILE, CALL = 300, 20, 200
MEMORY = 2**30
WORDS = """# Broken files, kills and busy cores

`make soak` damages files of every kind that is read, kills fits and estimates at random moments, and
calls every method fifty times beside two busy loops. A file must give the truth or one sentence; a process
that gets SIGINT or SIGTERM must leave with the right code and one line, and what goes on with `--resume`
must end with the very bits of a run that nobody disturbed; every call must return.
"""
SHARES = {"files": 0.2, "kills": 0.55, "calls": 0.25}


# --- broken files -----------------------------------------------------------------------------


def files(num: int, seed: int, until: float) -> list[Row]:
    """In a process that may die: it is started again behind the file that killed it."""
    sys.path.insert(0, TESTS)
    from damage import KINDS  # pyright: ignore[reportMissingImports]

    rows, number = [Row(f"broken files, {kind}") for kind in KINDS], 0
    while number < num and time.monotonic() < until:
        for said in _worker(["files", seed, number, num], until, FILE):
            row = rows[number % len(KINDS)]
            row.tried += 1
            if said.startswith("fault "):
                row.faults.append(f"file {number}: {said[6:]}")
            else:
                row.outcomes[said.split()[0]] += 1
                row.seconds += float(said.split()[1])
            number += 1
    return rows


def _files_worker(seed: int, start: int, stop: int) -> None:
    sys.path.insert(0, TESTS)
    from damage import KINDS, Files  # pyright: ignore[reportMissingImports]

    with tempfile.TemporaryDirectory() as folder:
        broken = Files(pathlib.Path(folder), seed)
        assert broken.matrices
        assert broken.proposals
        assert broken.checkpoints
        _limit_memory()
        print("ready", flush=True)
        for number in range(start, stop):
            began = time.perf_counter()
            try:
                how = "read" if broken.check(KINDS[number % len(KINDS)], number) else "refused"
                print(how, time.perf_counter() - began, flush=True)
            except Exception as error:
                text = f"{type(error).__name__}: {error}".strip()
                print("fault", ascii(text)[1:300], flush=True)


def _limit_memory() -> None:
    import resource

    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[0])
    most = pages * os.sysconf("SC_PAGE_SIZE") + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _worker(arguments: list, until: float, silence: int) -> Iterator[str]:
    """What the worker says, line by line; a death or a silence is a fault of what it was at."""
    command = [sys.executable, __file__, "--worker", *map(str, arguments)]
    lines: queue.Queue[str | None] = queue.Queue()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) as worker:
        stdout = worker.stdout
        assert stdout is not None

        def listen() -> None:
            for line in stdout:
                lines.put(line.rstrip("\n"))
            lines.put(None)

        threading.Thread(target=listen, daemon=True).start()
        try:
            if _next(lines, START) != "ready":
                raise RuntimeError("the worker did not start: see what it printed")
            while time.monotonic() < until:
                said = _next(lines, silence)
                if said is None:
                    break
                yield said
        except queue.Empty:
            worker.kill()
            yield f"fault no answer within {silence} s"
            return
        finally:
            if time.monotonic() >= until:
                worker.kill()
        code = worker.wait()
        if code and time.monotonic() < until:
            yield f"fault the process died with code {code}"


def _next(lines: queue.Queue, seconds: int) -> str | None:
    """The next line; in short waits, so that a machine may sleep."""
    for _ in range(seconds):
        with suppress(queue.Empty):
            return lines.get(timeout=1)
    raise queue.Empty


# --- calls ------------------------------------------------------------------------------------


def methods() -> dict[str, Callable]:
    """A call of every method, for a key."""
    import jax
    import jax.numpy as jnp
    import lineax as lx

    import determinax as dx

    jax.config.update("jax_enable_x64", True)
    rng = np.random.default_rng(0)
    dense = jnp.asarray(np.eye(40) + 0.05 * rng.standard_normal((40, 40)))
    sparse = grid(30)
    tagged = lx.TaggedLinearOperator(dx.as_operator(sparse), lx.positive_semidefinite_tag)
    proposal = dx.fit_linear(dense, key=jax.random.key(1), progress=False).proposal

    def of(operator, method):
        return lambda key: float(dx.log_abs_det(operator, method, key=key).log_abs_det)

    return {
        "Exact": of(dense, dx.Exact()),
        "MonteCarlo": of(dense, dx.MonteCarlo(1000)),
        "MonteCarlo, frames": of(dense, dx.MonteCarlo(1000, "frames")),
        "Lanczos": of(tagged, dx.Lanczos(num_probes=5, depth=100)),
        "Deflated": of(dense, dx.Deflated(10, dx.Lanczos(4, 10))),
        "Probed": of(sparse, dx.Probed()),
        "Variational": of(dense, dx.Variational(proposal, 200, "frames")),
        "Auto": of(dense, dx.Auto(36)),
        "Auto, sparse": of(sparse, dx.Auto()),
        "fit_linear": lambda key: dx.fit_linear(dense, key=key, progress=False).seconds,
    }


def _calls_worker(name: str, num: int) -> None:
    import jax

    call = methods()[name]
    print("ready", flush=True)
    for i in range(num):
        assert np.isfinite(call(jax.random.fold_in(jax.random.key(0), i)))
        print(i, flush=True)


def calls(num: int, until: float) -> list[Row]:
    """Each method in a process of its own, beside two busy loops."""
    names = ["Exact", "MonteCarlo", "MonteCarlo, frames", "Lanczos", "Deflated", "Probed"]
    names += ["Variational", "Auto", "Auto, sparse", "fit_linear"]
    rows = []
    with _busy(2):
        for name in names:
            row, began = Row(f"calls of {name}"), time.monotonic()
            for said in _worker(["calls", name, num], until, CALL):
                if said.startswith("fault "):
                    row.faults.append(f"call {row.tried}: {said[6:]}")
                else:
                    row.tried += 1
                    row.outcomes["returned"] += 1
            row.seconds = time.monotonic() - began
            rows.append(row)
    return rows


@contextmanager
def _busy(num: int) -> Iterator[None]:
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(num)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


# --- one table --------------------------------------------------------------------------------


def table(rows: list[Row], arguments: argparse.Namespace, seconds: float) -> str:
    failed = sum(len(row.faults) for row in rows)
    head = (
        f"`python benchmarks/soak.py --files {arguments.files} --kills {arguments.kills} --calls "
        f"{arguments.calls} --minutes {arguments.minutes:g} --seed {arguments.seed}`: "
        f"{seconds / 60:.0f} minutes, {failed} failed."
    )
    lines = [
        "| what | tried | how it went | failed | seconds |",
        "| --- | ---: | --- | ---: | ---: |",
    ]
    lines += [row.text() for row in rows]
    faults = [f"- {row.what}: {fault}" for row in rows for fault in row.faults[:20]]
    return "\n".join([head, "", *lines, *([""] if faults else []), *faults])


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--calls", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", action="store_true", help="make docs/results/soak.md")
    parser.add_argument("--worker", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        kind, *rest = arguments.worker
        _files_worker(*map(int, rest)) if kind == "files" else _calls_worker(rest[0], int(rest[1]))
        return 0
    # a shell's background job ignores SIGINT, and so would all that it starts
    signal.signal(signal.SIGINT, signal.default_int_handler)
    began, rows = time.monotonic(), []

    def until(*parts: str) -> float:
        return began + 60 * arguments.minutes * sum(SHARES[part] for part in parts)

    rows += files(arguments.files, arguments.seed, until("files"))
    if arguments.kills:
        with tempfile.TemporaryDirectory() as folder:
            end = until("files", "kills")
            rows += Kills(arguments.kills, arguments.seed, end, pathlib.Path(folder)).run()
    rows += calls(arguments.calls, until(*SHARES)) if arguments.calls else []
    text = table(
        [row for row in rows if row.tried or row.faults], arguments, time.monotonic() - began
    )
    print(text)
    if arguments.write:
        (ROOT / "docs" / "results" / "soak.md").write_text(f"{WORDS}\n{text}\n")
    return int(any(row.faults for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())
