"""The variance law: the spread of log-weights, measured and predicted, and the KL gap.

Run with `python benchmarks/variance_law.py`; figures go to docs/results/variance_law.md and .png.
"""

import pathlib

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import determinax as dx
from determinax import plots
from determinax.methods import log_weights

SIZES = (10, 100, 1000)
NORMS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
SAMPLES = 20_000


def measure(n: int, norm: float) -> dict:
    """C = B^T B with mean eigenvalue 1 and ||C - I||_F = norm; only its eigenvalues matter."""
    e = np.linspace(-1, 1, n)
    eigenvalues = 1 + norm * e / np.linalg.norm(e)
    z = dx.sphere.uniform(jax.random.key(n), n, SAMPLES)
    operator = dx.as_operator(jnp.diag(jnp.sqrt(jnp.asarray(eigenvalues))))
    log_w = np.asarray(log_weights(operator, z))
    spread, fourth = log_w.std(), np.mean((log_w - log_w.mean()) ** 4)
    return {
        "n": n,
        "norm": norm,
        "spread": spread,
        "spread_error": np.sqrt((fourth - spread**4) / SAMPLES) / (2 * spread),
        "gap": -log_w.mean() - 0.5 * np.sum(np.log(eigenvalues)),
        "gap_error": spread / SAMPLES**0.5,
        "law": law(n, norm),
    }


def law(n: int, norm: float) -> float:
    """The spread to first order in the norm."""
    return norm * (n / (n + 2) / 2) ** 0.5


@plots.style()
def main() -> None:
    jax.config.update("jax_enable_x64", True)
    rows = [measure(n, norm) for n in SIZES for norm in NORMS if norm < 0.55 * n**0.5]
    lines = [
        "# The variance law\n",
        f"Spread of log-weights and KL gap, {SAMPLES:,} samples a row, eigenvalues of B^T B spaced "
        "evenly around 1; ± one standard error. Predicted, to first order in the norm: spread = "
        "norm * sqrt(n / (n + 2) / 2), gap = spread^2 / 2. Made by `python benchmarks/variance_law.py`.\n",
        "| n | norm of B^T B - I | spread | predicted | KL gap | predicted |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for r in rows:
        lines.append(
            f"| {r['n']} | {r['norm']} | {r['spread']:.3g} ± {r['spread_error']:.1g} | {r['law']:.3g} | "
            f"{r['gap']:.2g} ± {r['gap_error']:.1g} | {r['law'] ** 2 / 2:.2g} |"
        )
    figure, ax = plt.subplots(figsize=(5, 3.2))
    for i, n in enumerate(SIZES):
        own = [r for r in rows if r["n"] == n]
        # side by side: error bars on top of each other cannot be told apart
        at = np.array([r["norm"] for r in own]) * 1.12 ** (i - 1)
        ratios = np.array([[r["spread"], r["spread_error"]] for r in own]).T
        ratios /= [r["law"] for r in own]
        ax.errorbar(at, *ratios, fmt="o", markersize=4, label=f"n = {n}")
    ax.axhline(1, color="k", linewidth=0.8)
    ax.set(xscale="log", xlabel="norm of B^T B - I", ylabel="spread of log-weights / predicted")
    ax.legend()
    out = pathlib.Path("docs/results/variance_law.md")
    figure.savefig(out.with_suffix(".png"))
    lines.append("\n![Spread over what is predicted, against the norm](variance_law.png)\n")
    out.write_text("\n".join(lines))
    print(out.read_text())


if __name__ == "__main__":
    main()
