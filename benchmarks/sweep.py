"""A sweep of 200 matrices: two workers over one, cold and warm, by both executors; and under fire.

python benchmarks/sweep.py              # speed
python benchmarks/sweep.py --kills      # 20 workers and 5 whole sweeps are killed
"""

import argparse
import contextlib
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

# each 0.03 to 0.1 s on one core; under fire they take longer, so that there is time for all kills
N, SAMPLES, LONGER = 100, 50_000, 150_000
# seconds after which a worker counts as started: Dask gives up on one that dies before
SETTLED = 3.0
# Dask looks at every worker's stack each 10 ms and at its loop each 20: an eighth of two busy cores
LEAN = {
    "DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED": "False",
    "DASK_DISTRIBUTED__ADMIN__TICK__INTERVAL": "500ms",
}


def make(folder: pathlib.Path, num: int) -> None:
    rng = np.random.default_rng(0)
    folder.mkdir()
    for i in range(num):
        q = np.linalg.qr(rng.standard_normal((N, N)))[0]
        np.save(folder / f"{i:03d}.npy", q + 0.05 * rng.standard_normal((N, N)) / N**0.5)


def command(
    matrices: pathlib.Path, out: pathlib.Path, *options: str, samples: int = SAMPLES
) -> list[str]:
    method = ["--method", "mc", "--samples", str(samples)]
    program = [sys.executable, "-m", "determinax.cli", "sweep", f"{matrices}/*.npy"]
    return [*program, "--out", str(out), *method, *options]


def environment(cache: pathlib.Path) -> dict[str, str]:
    own = {k: v for k, v in os.environ.items() if not k.startswith("JAX_")}
    return own | {"XDG_CACHE_HOME": str(cache)}


def start(argv: list[str], cache: pathlib.Path) -> subprocess.Popen:
    out = subprocess.DEVNULL
    return subprocess.Popen(argv, env=environment(cache), start_new_session=True, stdout=out)


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def rate(out: pathlib.Path, argv: list[str], cache: pathlib.Path, skip: int) -> float:
    """Matrices a second, from line number `skip` to the last: no start and no end is in it."""
    out.unlink(missing_ok=True)
    process = start(argv, cache)
    seen = [(0, time.perf_counter())]
    while process.poll() is None:
        num = out.read_bytes().count(b"\n") if out.exists() else 0
        if num > seen[-1][0]:
            seen.append((num, time.perf_counter()))
        time.sleep(0.01)
    assert process.returncode == 0, process.returncode
    first = next(one for one in seen if one[0] >= skip)
    if len(values(out)) > seen[-1][0]:
        seen.append((len(values(out)), time.perf_counter()))
    return (seen[-1][0] - first[0]) / (seen[-1][1] - first[1])


def whole(out: pathlib.Path, argv: list[str], cache: pathlib.Path) -> float:
    """Seconds from the start of the command to its end."""
    out.unlink(missing_ok=True)
    began = time.perf_counter()
    assert start(argv, cache).wait() == 0
    return time.perf_counter() - began


def values(out: pathlib.Path) -> dict[str, float]:
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    found = {line["file"]: line["log_abs_det"] for line in lines}
    assert len(found) == len(lines), "a line is doubled"
    return found


@contextlib.contextmanager
def dask(num: int, folder: pathlib.Path, cache: pathlib.Path) -> Iterator[tuple[str, int]]:
    """A scheduler and `num` workers with one thread each, as `dask worker` starts them."""
    address, env = folder / f"scheduler-{num}.json", environment(cache) | LEAN | {"NPROC": "1"}
    options = ["--scheduler-file", str(address)]
    quiet: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": folder}
    run = [sys.executable, "-m", "dask"]
    local = ["--host", "127.0.0.1"]
    head = [*run, "scheduler", *options, *local, "--port", "0", "--no-dashboard"]
    one_thread = ["--nthreads", "1", "--memory-limit", "0", "--no-dashboard"]
    work = [*run, "worker", *options, *local, "--nworkers", str(num), *one_thread]
    started = []
    try:
        for argv in (head, work):
            started.append(subprocess.Popen(argv, env=env, start_new_session=True, **quiet))
            while not address.exists() or not address.read_text():
                time.sleep(0.05)
        yield json.loads(address.read_text())["address"], started[1].pid
    finally:
        for process in started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        address.unlink(missing_ok=True)


def speed(folder: pathlib.Path, num: int, executors: list[str], samples: int) -> None:
    matrices, out, cache = folder / "matrices", folder / "out.jsonl", folder / "cache"
    print(
        "| executor | workers | cold s | warm s | warm matrices/s | over one |\n|---|---|---|---|---|---|"
    )
    for executor in executors:
        alone = 0.0
        for num_workers in (1, 2):
            with contextlib.ExitStack() as stack:
                options = ["--workers", str(num_workers)]
                if executor == "dask":
                    address, _ = stack.enter_context(dask(num_workers, folder, cache))
                    options = ["--scheduler", address]
                argv = command(matrices, out, *options, samples=samples)
                shutil.rmtree(cache, ignore_errors=True)
                cold = whole(out, argv, cache)
                warm = whole(out, argv, cache)
                each = rate(out, argv, cache, skip=num // 10)
            alone = alone or each
            row = [executor, num_workers, f"{cold:.1f}", f"{warm:.1f}", f"{each:.2f}"]
            print("| " + " | ".join(map(str, row)), end=f" | {each / alone:.2f} |\n", flush=True)


def descendants(pid: int) -> list[int]:
    """Of a process, by what the kernel tells of all of them."""
    parents = {}
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has gone meanwhile
            number, _, rest = stat.read_text().partition(" ")
            parents[int(number)] = int(rest.rpartition(")")[2].split()[1])
    found = {pid}
    while grown := {p for p, parent in parents.items() if parent in found} - found:
        found |= grown
    return sorted(found - {pid})


def is_worker(pid: int) -> bool:
    """Whether it works, and has been there for a while."""
    with contextlib.suppress(OSError):
        words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        began = int(fields[19]) / os.sysconf("SC_CLK_TCK")
        age = float(pathlib.Path("/proc/uptime").read_text().split()[0]) - began
        return b"spawn_main" in words and age > SETTLED
    return False


def under_fire(folder: pathlib.Path, num: int, executors: list[str]) -> None:
    """Random kills of workers and of whole sweeps: every line once, every value as undisturbed."""
    matrices, cache, rng = folder / "matrices", folder / "cache", random.Random(0)
    calm = folder / "calm.jsonl"
    assert start(command(matrices, calm, "--workers", "2", samples=LONGER), cache).wait() == 0
    for executor in executors:
        out = folder / f"{executor}.jsonl"
        killed, sweeps, began = 0, 0, time.perf_counter()
        with contextlib.ExitStack() as stack:
            options, nanny = ["--workers", "2"], 0
            if executor == "dask":
                address, nanny = stack.enter_context(dask(2, folder, cache))
                options = ["--scheduler", address]
            argv = command(matrices, out, *options, "--resume", samples=LONGER)
            process = start(argv, cache)
            while process.poll() is None:
                time.sleep(rng.uniform(0.1, 0.6))
                num_lines = out.read_bytes().count(b"\n") if out.exists() else 0
                victims = [p for p in descendants(nanny or process.pid) if is_worker(p)]
                if killed < 20 and victims and num_lines >= killed * num // 25:
                    kill(rng.choice(victims))
                    killed += 1
                if sweeps < 5 and num_lines >= (sweeps + 1) * num // 6:
                    kill(process.pid)
                    process.wait()
                    sweeps += 1
                    process = start(argv, cache)
        assert process.returncode == 0
        same = values(out) == values(calm)
        seconds = time.perf_counter() - began
        print(
            f"{executor}: {killed} workers and {sweeps} sweeps killed; {len(values(out))} lines, none "
            f"doubled, values {'equal' if same else 'DIFFER'}; {seconds:.0f} s",
            flush=True,
        )
        assert same
        assert (killed, sweeps, len(values(out))) == (20, 5, num)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", action="store_true")
    parser.add_argument("--num", type=int, default=200)
    parser.add_argument("--samples", type=int, default=SAMPLES)
    parser.add_argument("--executors", nargs="+", default=["processes", "dask"])
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        make(pathlib.Path(name) / "matrices", arguments.num)
        if arguments.kills:
            under_fire(pathlib.Path(name), arguments.num, arguments.executors)
        else:
            speed(pathlib.Path(name), arguments.num, arguments.executors, arguments.samples)
