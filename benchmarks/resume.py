"""Kill a training run with SIGKILL at random moments; does it resume, and to the same bits?

    python benchmarks/resume.py [--kills 50] [--out docs/results/resume.md]

A run is a process of its own that writes a checkpoint every hundred steps, of a state large enough
that writing takes a good part of its time. It is killed at a random moment of its training, started
again to go on, killed again up to ten times, and at last its parameters and losses are compared with
those of a run that nobody disturbed, bit for bit.
"""

import argparse
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

import numpy as np
import safetensors.numpy

STEPS, N = 3000, 64


def worker(folder: pathlib.Path) -> None:
    """Train, with a word on standard output when the first steps are done."""
    import jax

    import determinax as dx
    from determinax import _checkpoint

    jax.config.update("jax_enable_x64", True)
    rng = np.random.default_rng(0)
    matrix = np.linalg.qr(rng.normal(size=(N, N)))[0] + 0.02 * rng.normal(size=(N, N))
    read, write = _checkpoint.read, _checkpoint.write

    def tell_start(*args):
        found = read(*args)
        print(len(found.history["loss"]) if found else 0, flush=True)
        return found

    def tell(*args):
        print("writing", flush=True)
        write(*args)
        print("written", flush=True)

    _checkpoint.read, _checkpoint.write = tell_start, tell
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


def killed(folder: pathlib.Path, seconds: float) -> tuple[int, str] | None:
    """Where a worker began, and what it said that lived so long past its first checkpoint.

    None where it had ended before.
    """
    process, step = start(folder)
    time.sleep(seconds)
    process.send_signal(signal.SIGKILL)
    said, _ = process.communicate()
    return (step, said) if process.returncode == -signal.SIGKILL else None


def result(folder: pathlib.Path) -> dict[str, bytes]:
    """What has to be equal. The order of a file's header is not: safetensors hashes it."""
    arrays = safetensors.numpy.load_file(folder / "q.safetensors")
    arrays["loss"] = np.load(folder / "loss.npy")
    return {name: array.tobytes() for name, array in arrays.items()}


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

        steps, kills, while_writing, runs, equal = [], 0, 0, 0, 0
        while kills < options.kills:
            own = folder / str(runs)
            own.mkdir()
            for _ in range(min(10, options.kills - kills)):
                found = killed(own, random.uniform(0, duration / 10))
                if found is None:
                    break
                steps.append(found[0])
                kills += 1
                # what `start` has read already was the beginning of the first
                while_writing += found[1].strip().endswith("writing") or not found[1]
            process, step = start(own)
            process.communicate()
            steps.append(step)
            runs += 1
            equal += process.returncode == 0 and result(own) == whole
            print(f"{kills} kills, {equal} of {runs} runs equal", flush=True)
    lives = [step for step in steps if step]
    text = (
        f"{kills} kills at random moments of {runs} training runs of {STEPS:,} steps "
        f"({while_writing} while a checkpoint was being written). {len(lives)} lives went on from a "
        f"checkpoint, at steps {min(lives):,} to {max(lives):,}, {len(steps) - len(lives)} began at the "
        f"start, the first of every run among them; {equal} of {runs} runs ended with the bits of the "
        "run that nobody disturbed.\n"
    )
    print(text)
    if options.out:
        options.out.write_text(f"# Killed and resumed\n\n`python benchmarks/resume.py`: {text}")


if __name__ == "__main__":
    main()
