"""Plain Monte Carlo against a vectorised NumPy loop, and its memory.

Run with `python benchmarks/monte_carlo.py`.

Speeds are ratios within this run: NumPy's loop and ours alternate, and the best of each counts.
Peak memory is that of a fresh process each.
"""

import argparse
import math
import resource
import subprocess
import sys
import time

import jax
import numpy as np

import determinax as dx


def numpy_loop(matrix: np.ndarray, num_samples: int, chunk: int, seed: int) -> float:
    """What one would write in NumPy: chunks of directions, log-weights, log of the mean."""
    n = len(matrix)
    rng = np.random.default_rng(seed)
    logs = []
    for _ in range(num_samples // chunk):
        s = rng.standard_normal((chunk, n))
        s /= np.linalg.norm(s, axis=1, keepdims=True)
        log_w = -n * np.log(np.linalg.norm(s @ matrix.T, axis=1))
        top = log_w.max()
        logs.append(top + np.log(np.mean(np.exp(log_w - top))))
    top = max(logs)
    return -(top + math.log(np.mean(np.exp(np.array(logs) - top))))


def seconds(run) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def speed(n: int, num_samples: int, dtype: str, repeats: int = 10) -> None:
    matrix = np.eye(n) + 0.2 * np.random.default_rng(0).standard_normal((n, n)) / n**0.5
    matrix = matrix.astype(dtype)
    method = dx.MonteCarlo(num_samples)

    def ours(seed):
        return dx.log_abs_det(matrix, method, key=jax.random.key(seed)).log_abs_det

    ours(0)  # compile
    best = {"ours": math.inf, "numpy": math.inf}
    for seed in range(repeats):
        best["ours"] = min(best["ours"], seconds(lambda s=seed: float(ours(s))))
        for chunk in (1024, 16384):  # NumPy's own best chunk counts
            run = seconds(lambda s=seed, c=chunk: numpy_loop(matrix, num_samples, c, s))
            best["numpy"] = min(best["numpy"], run)
    print(
        f"n = {n:4d}, {dtype}: {num_samples / best['ours'] / 1e6:6.2f} M samples/s, "
        f"NumPy {num_samples / best['numpy'] / 1e6:6.2f} M samples/s, "
        f"ratio {best['numpy'] / best['ours']:.2f}"
    )


def peak_memory(num_samples: int) -> float:
    """Peak resident MiB of a fresh process that draws so many samples."""
    command = [sys.executable, __file__, "--child", str(num_samples)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def child(num_samples: int) -> None:
    dx.log_abs_det(np.eye(10) * 2, dx.MonteCarlo(num_samples), key=jax.random.key(0))
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--child", type=int)
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    if arguments.child:
        child(arguments.child)
        return
    for dtype in ("float64", "float32"):
        speed(10, 2**21, dtype)
        speed(100, 2**18, dtype)
    few, many = peak_memory(100_000), peak_memory(10_000_000)
    print(
        f"peak memory: {few:.0f} MiB at 1e5 samples, {many:.0f} MiB at 1e7, ratio {many / few:.3f}"
    )


if __name__ == "__main__":
    main()
