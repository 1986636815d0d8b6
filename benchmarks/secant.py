"""Fits from M = I by the secant update: products, spread and the error of one sample.

Run with `python benchmarks/secant.py`; the tables go to docs/results/secant.md.
"""

import argparse
import pathlib
import time

import jax
import matplotlib.pyplot as plt
import numpy as np
from rich.progress import track

import determinax as dx
from determinax import plots
from determinax.methods import log_weights
from determinax.paper.matrices import MATRICES

GAUSSIANS = (64, 256, 512)
WAYS = ("full frames", "blocks of n/4, with the transpose", "blocks of n/4, forward only")
# what the fit is allowed, in units of n
ALLOWED: dict[str, int] = {WAYS[0]: 2, WAYS[1]: 100, WAYS[2]: 400}
SHARES = (1, 2, 4, 8, 16)  # n/k


def problems() -> dict[str, np.ndarray]:
    found = {m.name: m.matrix for m in MATRICES if m.name != "cover"}
    for n in GAUSSIANS:
        found[f"Gaussian {n}"] = np.random.default_rng(n).normal(size=(n, n))
    return found


def fit(matrix: np.ndarray, way: str, key: jax.Array) -> dx.Fit:
    n = len(matrix)
    return dx.fit_linear(
        matrix,
        key=key,
        block_size=n if way == WAYS[0] else max(1, n // 4),
        transpose=way == WAYS[1],
        max_matvecs=ALLOWED[way] * n,
        tolerance=1e-11 if n < 256 else 1e-9,
        progress=False,
    )


def run(name: str, matrix: np.ndarray, way: str, seed: int) -> dict:
    """One fit, and 100 fresh log-weights."""
    fit_key, sample_key = jax.random.split(jax.random.key(seed))
    started = time.perf_counter()
    found = fit(matrix, way, fit_key)
    seconds = time.perf_counter() - started
    points, log_q = found.proposal.sample_columns(sample_key, 100)
    log_w = np.asarray(log_weights(dx.as_operator(matrix), points, log_q), dtype=float)
    truth = float(np.linalg.slogdet(matrix.astype(float))[1])
    return {
        "problem": name,
        "way": way,
        "n": len(matrix),
        "products": found.num_matvecs,
        "error": abs(float(np.expm1(-log_w[0] - truth))),
        "spread": float(np.std(log_w)),
        "seconds": seconds,
    }


def table(rows: list[dict]) -> list[str]:
    lines = [
        "| problem | keys | products / n, worst | error of \\|det\\| from one sample, worst | "
        "spread of log-weights, worst | seconds, median |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name in dict.fromkeys(r["problem"] for r in rows):
        own = [r for r in rows if r["problem"] == name]
        products = max(r["products"] / r["n"] for r in own)
        error, spread = (max(r[what] for r in own) for what in ("error", "spread"))
        seconds = np.median([r["seconds"] for r in own])
        lines.append(
            f"| {name} | {len(own)} | {products:.4g} | {error:.1e} | {spread:.1e} | {seconds:.2g} |"
        )
    return [*lines, ""]


@plots.style()
def convergence(path: pathlib.Path) -> list[str]:
    """Products until the spread is below 1e-11, against k/n, and the way there as a picture."""
    n = 64
    matrix = np.random.default_rng(n).normal(size=(n, n))
    lines = ["| n/k | products / n, with the transpose | forward only |", "| --- | --- | --- |"]
    figure, axes = plt.subplots(1, 2, figsize=(10, 3.6), sharey=True)
    for share in SHARES:
        cells = []
        for ax, transpose in zip(axes, (True, False), strict=True):
            found = dx.fit_linear(
                matrix,
                key=jax.random.key(1),
                block_size=n // share,
                transpose=transpose,
                max_matvecs=3000 * n,
                progress=False,
            )
            spread = found.history["spread"]
            steps = np.arange(1, len(spread) + 1)
            per_step = (n // share) * (2 if transpose else 1)
            ax.semilogy(
                steps * per_step / n, spread, label=f"k = n/{share}" if share > 1 else "k = n"
            )
            cells.append(
                f"{found.num_matvecs / n:.4g}" + ("" if spread[-1] < 1e-11 else " (stalled)")
            )
        lines.append(f"| {share} | {cells[0]} | {cells[1]} |")
    for ax, title in zip(axes, ("with the transpose", "forward only"), strict=True):
        ax.set(title=title, xlabel="products / n", ylim=(1e-13, 1e3), xscale="log")
    axes[0].set_ylabel("spread of fresh log-weights, nats")
    axes[1].legend(loc="lower left")
    figure.savefig(path)
    return [*lines, ""]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=20)
    parser.add_argument("--out", type=pathlib.Path, default="docs/results/secant.md")
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    cells = [(name, a, way) for way in WAYS for name, a in problems().items()]
    rows = []
    for name, a, way in track(cells, "fitting"):
        rows += [run(name, a, way, seed) for seed in range(arguments.keys)]
    single = [
        run(m.name, m.matrix.astype(np.float32), WAYS[0], seed)
        for m in MATRICES[:5]
        for seed in range(arguments.keys)
    ]
    parts = [
        "# The secant update from M = I\n",
        "The worst of all keys; 100 fresh log-weights each; a first call compiles. "
        "float64 unless it says otherwise. Made by `python benchmarks/secant.py`.\n",
    ]
    for way in WAYS:
        parts += [f"## {way[0].upper()}{way[1:]} (at most {ALLOWED[way]} n products)\n"]
        parts += table([r for r in rows if r["way"] == way])
    parts += ["## Full frames in float32\n", *table(single)]
    parts += ["## Products to a spread of 1e-11 against k/n (Gaussian 64, one key)\n"]
    parts += convergence(arguments.out.with_suffix(".png"))
    parts += ["![Spread against products](secant.png)\n"]
    arguments.out.write_text("\n".join(parts))
    print(arguments.out.read_text())


if __name__ == "__main__":
    main()
