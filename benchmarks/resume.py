"""Kill a training run with SIGKILL at random moments; does it resume, and to the same bits?

    python benchmarks/resume.py [--kills 50] [--out docs/results/resume.md]

A run is a process of its own that writes a checkpoint every hundred steps, of a state large enough
that writing takes a good part of its time. It is killed at a random moment of its training, started
again to go on, and its result compared with that of a run that nobody disturbed, byte for byte.
"""

import argparse
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from rich.progress import track

STEPS, N = 3000, 64


def worker(folder: pathlib.Path) -> None:
    """Train, with a word on standard output when the first steps are done."""
    import jax
    import numpy as np

    import determinax as dx
    from determinax.training import loop

    jax.config.update("jax_enable_x64", True)
    rng = np.random.default_rng(0)
    matrix = np.linalg.qr(rng.normal(size=(N, N)))[0] + 0.02 * rng.normal(size=(N, N))
    read, write = loop.read_checkpoint, loop.write_checkpoint

    def tell_start(*args):
        found = read(*args)
        print(len(found[1]["loss"]) if found else 0, flush=True)
        return found

    def tell(*args):
        print("writing", flush=True)
        write(*args)
        print("written", flush=True)

    loop.read_checkpoint, loop.write_checkpoint = tell_start, tell
    fit = dx.fit(
        matrix,
        dx.flows.projective_linear(N),
        key=jax.random.key(0),
        steps=STEPS,
        batch_size=64,
        checkpoint=folder / "run.checkpoint",
        checkpoint_every=100,
        resume=True,
        progress=False,
    )
    dx.save(fit.proposal, folder / "q.safetensors")
    np.save(folder / "loss.npy", fit.history["loss"])


def start(folder: pathlib.Path) -> tuple[subprocess.Popen, int]:
    """The worker, up to its first checkpoint of this life, and the step that it began at."""
    command = [sys.executable, __file__, "--worker", str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    step = int(process.stdout.readline())
    process.stdout.readline()
    return process, step


def killed(folder: pathlib.Path, seconds: float) -> str | None:
    """What a worker says that lives so long past its first checkpoint; None where it had ended."""
    process, _ = start(folder)
    time.sleep(seconds)
    os.kill(process.pid, signal.SIGKILL)
    said, _ = process.communicate()
    return said if process.returncode == -signal.SIGKILL else None


def result(folder: pathlib.Path) -> tuple[bytes, bytes]:
    """What has to be equal."""
    return (folder / "q.safetensors").read_bytes(), (folder / "loss.npy").read_bytes()


def main() -> None:
    """Kill, resume, compare, count."""
    parser = argparse.ArgumentParser(
        description="Kill a training run at random moments, resume, compare."
    )
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--worker", type=pathlib.Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(options.worker)
        return
    random.seed(0)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "whole").mkdir()
        process, _ = start(folder / "whole")
        began = time.perf_counter()
        process.communicate()
        duration = time.perf_counter() - began
        whole = result(folder / "whole")

        steps, equal, while_writing = [], 0, 0
        for i in track(range(options.kills), "killing"):
            own, said = folder / str(i), None
            while said is None:
                shutil.rmtree(own, ignore_errors=True)
                own.mkdir()
                said = killed(own, random.uniform(0, 0.9 * duration))
            # what `start` has read already was the beginning of the first
            while_writing += said.strip().endswith("writing") or not said
            process, step = start(own)
            process.communicate()
            steps.append(step if process.returncode == 0 else -1)
            equal += process.returncode == 0 and result(own) == whole
    steps.sort()
    text = (
        f"{options.kills} kills at random moments of a training run of {STEPS:,} steps "
        f"({while_writing} while a checkpoint was being written): {sum(s >= 0 for s in steps)} "
        f"resumed, {sum(s == 0 for s in steps)} of them from the start, since no checkpoint was "
        f"complete, the others from steps {next(s for s in steps if s > 0):,} to {steps[-1]:,}; "
        f"{equal} ended with the bits of the run that nobody disturbed.\n"
    )
    print(text)
    if options.out:
        options.out.write_text(f"# Killed and resumed\n\n`python benchmarks/resume.py`: {text}")


if __name__ == "__main__":
    main()
