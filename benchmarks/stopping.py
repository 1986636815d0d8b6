"""Coverage of the 95 % interval where sampling stops at a tolerance, over many keys.

python benchmarks/stopping.py [--write]
"""

import argparse
import pathlib

import jax
import jax.numpy as jnp
import numpy as np

import determinax as dx

PAGE = pathlib.Path(__file__).parent.parent / "docs" / "results" / "stopping.md"
NUM_KEYS, MOST = 400, 100_000


def near_isometry(n: int, size: float) -> np.ndarray:
    rng = np.random.default_rng(n)
    noise = rng.standard_normal((n, n)) / n**0.5
    return np.linalg.qr(rng.standard_normal((n, n)))[0] + size * noise


def row(n: int, size: float, tolerance: float) -> str:
    a = jnp.asarray(near_isometry(n, size))
    truth = np.linalg.slogdet(a)[1]
    method = dx.MonteCarlo(MOST, chunk_size=500)

    def one(key):
        return dx.log_abs_det(a, method, key=key, tolerance=tolerance)

    e = jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(1), NUM_KEYS))
    fixed = int(np.median(np.asarray(e.cost.forward))) // 500 * 500
    plain = jax.jit(
        jax.vmap(lambda key: dx.log_abs_det(a, dx.MonteCarlo(fixed, chunk_size=500), key=key))
    )(jax.random.split(jax.random.key(2), NUM_KEYS))
    shares = []
    for found in (e, plain):
        off = np.abs(np.asarray(found.log_abs_det) - truth)
        shares.append(np.mean(off <= 1.96 * np.asarray(found.standard_error)))
    bias = float(np.mean(np.asarray(e.log_abs_det) - truth))
    shown = " | ".join(
        f"{100 * s:.1f} ± {100 * (s * (1 - s) / NUM_KEYS) ** 0.5:.1f}" for s in shares
    )
    return f"| {n} | {size} | {tolerance} | {fixed:,} | {shown} | {bias:+.4f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the page, too")
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    lines = [
        "| n | noise | tolerance | products, median | covered, stopped, % | covered, fixed number, % "
        "| bias, nats |",
        "| ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    print("\n".join(lines), flush=True)
    for n, size in ((10, 0.2), (50, 0.1)):
        for tolerance in (0.02, 0.01, 0.005):
            lines.append(row(n, size, tolerance))
            print(lines[-1], flush=True)
    if options.write:
        PAGE.write_text(
            "# Stopping at a tolerance\n\nPlain Monte Carlo on an orthogonal matrix with Gaussian noise of "
            f"this relative size, {NUM_KEYS} keys a row, chunks of 500 directions, at most {MOST:,}. "
            "Covered: the share of runs whose 95 % interval holds the truth, where sampling stopped once "
            "the standard error was within the tolerance, and for the median number of products taken "
            "whatever happens. Made by "
            "`python benchmarks/stopping.py --write`.\n\n" + "\n".join(lines) + "\n"
        )


if __name__ == "__main__":
    main()
