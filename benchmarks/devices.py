"""Samples a second on two devices over one device on one core, and what a mesh of one device costs.

    python benchmarks/devices.py                 # the ratios, both tables
    python benchmarks/devices.py --rounds 11     # more turns

Programs of each kind take turns, so that a busy minute of the machine meets all of them. What two cores
can give at most is measured beside: two programs at once, each on a core of its own, that share nothing.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from typing import IO, Any

# directions: each call takes one to two seconds on a core
SAMPLES = {("mc", 100): 2**20, ("mc", 1000): 2**16, ("vde", 100): 2**20, ("vde", 1000): 2**15}
NAMES = {"mc": "MonteCarlo", "vde": "Variational"}


def work(method: str, n: int, kind: str) -> None:
    """A line of standard input, a run; the seconds it took go to standard output."""
    if kind in ("first", "second"):  # before JAX counts the cores
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[kind == "second"]})
    import jax
    import jax.numpy as jnp
    import numpy as np

    import determinax as dx

    rng = np.random.default_rng(0)
    q = np.linalg.qr(rng.standard_normal((n, n)))[0]
    a = jnp.asarray(q + 0.05 * rng.standard_normal((n, n)) / n**0.5, jnp.float32)
    num = SAMPLES[method, n]
    proposal = dx.Proposal(dx.flows.projective_linear(n))
    chosen = dx.MonteCarlo(num) if method == "mc" else dx.Variational(proposal, num)
    mesh = None if kind == "plain" else jax.make_mesh((jax.device_count(),), ("devices",))

    def once() -> float:
        began = time.perf_counter()
        found = dx.log_abs_det(a, chosen, key=jax.random.key(0), mesh=mesh, progress=False)
        jax.block_until_ready(found.log_abs_det)
        return time.perf_counter() - began

    once()
    print(once(), flush=True)
    for _ in sys.stdin:
        print(once(), flush=True)


def started(method: str, n: int, kind: str, num_devices: int) -> subprocess.Popen[str]:
    flags = f"--xla_force_host_platform_device_count={num_devices}"
    argv = [sys.executable, __file__, "--work", method, str(n), kind]
    # threads of OpenBLAS spin for a while after a solve, on the cores that devices want
    env = os.environ | {
        "XLA_FLAGS": flags,
        "JAX_PLATFORMS": "cpu",
        "OPENBLAS_NUM_THREADS": "1",
    }
    pipe: Any = subprocess.PIPE
    return subprocess.Popen(argv, stdin=pipe, stdout=pipe, env=env, text=True)


def in_turns(teams: list[list[subprocess.Popen[str]]], rounds: int) -> list[list[float]]:
    """Seconds of each team's runs: one team after the other, the programs of a team at once."""
    for program in {id(p): p for team in teams for p in team}.values():
        _read(program.stdout)
    seconds: list[list[float]] = [[] for _ in teams]
    for _ in range(rounds):
        for team, found in zip(teams, seconds, strict=True):
            for program in team:
                assert program.stdin is not None
                program.stdin.write("go\n")
                program.stdin.flush()
            found.append(max(_read(program.stdout) for program in team))
    for program in {id(p): p for team in teams for p in team}.values():
        assert program.stdin is not None
        program.stdin.close()
        program.wait()
    return seconds


def _read(stream: IO[str] | None) -> float:
    assert stream is not None
    return float(stream.readline())


def ratios(first: list[float], second: list[float]) -> tuple[float, float, float]:
    """Median, least and largest of the ratios within a round."""
    found = [a / b for a, b in zip(first, second, strict=True)]
    return statistics.median(found), min(found), max(found)


def main(rounds: int, cases: list[tuple[str, int]]) -> None:
    print(
        "|method|n|samples/s: 1 device on 1 core|2 devices on 2 cores|over one|range|"
        f"two programs over one|range|a mesh of one device over none|range|\n{'|---' * 10}|"
    )
    for method, n in cases:
        kinds = [("first", 1), ("second", 1), ("two", 2), ("mesh", 1), ("plain", 1)]
        first, second, *others = [started(method, n, *kind) for kind in kinds]
        teams = [[first], [first, second], *([other] for other in others)]
        one, pair, two, mesh, plain = in_turns(teams, rounds)
        num = SAMPLES[method, n]
        gain, most, overhead = ratios(one, two), ratios(one, pair), ratios(mesh, plain)
        cells = [
            NAMES[method],
            f"{n:,}",
            f"{num / statistics.median(one):,.0f}",
            f"{num / statistics.median(two):,.0f}",
            f"{gain[0]:.2f}",
            f"{gain[1]:.2f} to {gain[2]:.2f}",
            f"{2 * most[0]:.2f}",
            f"{2 * most[1]:.2f} to {2 * most[2]:.2f}",
            f"{overhead[0]:.3f}",
            f"{overhead[1]:.3f} to {overhead[2]:.3f}",
        ]
        print("|", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", nargs=3)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--methods", nargs="+", default=["mc", "vde"])
    parser.add_argument("--sizes", nargs="+", type=int, default=[100, 1000])
    arguments = parser.parse_args()
    if arguments.work:
        work(arguments.work[0], int(arguments.work[1]), arguments.work[2])
    else:
        main(arguments.rounds, [(m, n) for m in arguments.methods for n in arguments.sizes])
