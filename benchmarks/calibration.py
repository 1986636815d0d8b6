"""What the verdict is worth: coverage, flags and false comfort of Monte Carlo over many seeds.

Run with `python benchmarks/calibration.py`; the tables go to docs/results/calibration.md.
"""

import argparse
import functools
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
from rich.progress import track

import determinax as dx

DIMENSIONS = (2, 5, 10, 20)
CONDITIONS = (1.5, 2.0, 3.0, 5.0, 10.0, 30.0)
SPIKES = (0.8, 0.6, 0.5, 0.3, 0.1, 0.01)  # one small singular value among ones, n = 20
SAMPLES = (1_000, 10_000)


def operator_of_condition(key: jax.Array, n: int, condition: jax.Array) -> jax.Array:
    """Random singular bases; singular values spaced evenly in their logarithm.

    A condition below 1 stands for a spike: one singular value of that size among ones.
    """
    left, right = (dx.sphere.frame(k, n) for k in jax.random.split(key))
    even = jnp.exp(jnp.linspace(-0.5, 0.5, n) * jnp.log(condition))
    values = jnp.where(condition < 1, jnp.ones(n).at[0].set(condition), even)
    return left @ jnp.diag(values) @ right.T


@functools.partial(jax.jit, static_argnums=(0, 1))
def estimates_of(n: int, method: dx.MonteCarlo, condition: jax.Array, keys: jax.Array):
    """The truth and the estimate for each key: a fresh operator and fresh directions."""

    def one(key):
        matrix_key, sample_key = jax.random.split(key)
        matrix = operator_of_condition(matrix_key, n, condition)
        truth = dx.log_abs_det(matrix, dx.Exact()).log_abs_det
        return truth, dx.log_abs_det(matrix, method, key=sample_key)

    return jax.lax.map(one, keys, batch_size=20)


def run(n: int, condition: float, num_samples: int, directions: str, seeds: int) -> list[dict]:
    """A row a seed."""
    method = dx.MonteCarlo(num_samples, directions)  # pyright: ignore[reportArgumentType]
    rows = []
    keys = jax.random.split(jax.random.fold_in(jax.random.key(2), n), seeds)
    truths, estimates = jax.device_get(estimates_of(n, method, jnp.asarray(condition), keys))
    for i in range(seeds):
        truth, estimate = float(truths[i]), estimates[i]
        interval = estimate.interval
        rows.append(
            {
                "n": n,
                "condition": condition,
                "num_samples": num_samples,
                "directions": directions,
                "status": estimate.status,
                "error": float(estimate.log_abs_det) - truth,
                "covered": interval is not None and interval[0] <= truth <= interval[1],
                "standard_error": float(estimate.standard_error),
                "pareto_k": estimate.pareto_k,
                "ess": float(estimate.effective_sample_size),
                "share": float(estimate.max_weight_share),
                "violated": estimate.certified_upper(0.05) < truth,
                "bound_gap": estimate.certified_upper(0.05) - truth,
            }
        )
    return rows


def percent(values) -> str:
    values = list(values)
    return f"{100 * np.mean(values):.1f} %" if values else "-"


def line(label: list[str], rows: list[dict]) -> str:
    ok = [r for r in rows if r["status"] in ("ok", "exact")]
    cells = [
        *label,
        percent(r["status"] in ("ok", "exact") for r in rows),
        percent(r["status"] == "warn" for r in rows),
        percent(r["status"] == "unreliable" for r in rows),
        f"{percent(r['covered'] for r in ok)} of {len(ok)}",
        str(sum(abs(r["error"]) > 1 for r in ok)),
        percent(r["violated"] for r in rows),
        f"{np.median([r['bound_gap'] for r in rows]):.3f}",
    ]
    return "| " + " | ".join(cells) + " |"


HEADER = (
    "| {} | ok | warn | unreliable | 95 % interval covers, given ok | off by > 1 nat, yet ok "
    "| certificate violated | certificate above truth (median, nats) |\n"
    "| --- | --- | --- | --- | --- | --- | --- | --- |"
)


READING = """\
Read it so: given `ok`, the interval covers as it should at every condition number and dimension;
no run was called ok and off by more than 1 nat; the certificate holds far more often than it
promises. The weak spot is in the third table: one singular value near 0.55 of all others puts the
weights' variance at the edge of the finite. Nearly all such runs are flagged, and the few in a
hundred that are called ok are those that missed the tail, whose intervals cover less often.
"""


def report(rows: list[dict], seeds: int) -> str:
    parts = [
        "# What the verdict is worth\n",
        f"Plain Monte Carlo, {seeds} seeds a cell (a fresh operator and a fresh key each), "
        f"operators with log-spaced singular values, n in {DIMENSIONS}, "
        f"{SAMPLES} samples, float64. "
        "Made by `python benchmarks/calibration.py`.\n",
        READING,
        "## All cells together\n",
        HEADER.format("directions"),
    ]
    for directions in ("independent", "frames"):
        chosen = [r for r in rows if r["directions"] == directions and r["condition"] > 1]
        parts.append(line([directions], chosen))
    for name, title in (("condition", "By condition number"), ("n", "By dimension")):
        parts += [f"\n## {title} (independent directions)\n", HEADER.format(name)]
        independent = [r for r in rows if r["directions"] == "independent" and r["condition"] > 1]
        for value in sorted({r[name] for r in independent}):
            chosen = [r for r in independent if r[name] == value]
            parts.append(line([f"{value:g}"], chosen))
    parts += [
        "\n## One small singular value among ones, n = 20 (independent directions)\n",
        HEADER.format("singular value, samples"),
    ]
    for value in SPIKES:
        for num in SAMPLES:
            chosen = [r for r in rows if (r["condition"], r["num_samples"]) == (value, num)]
            parts.append(line([f"{value:g}, {num:,}"], chosen))
    rows = [r for r in rows if r["condition"] > 1]
    cells = sorted({(r["n"], r["condition"], r["num_samples"]) for r in rows})
    for directions in ("independent", "frames"):
        title = f"\n## Every cell ({directions})\n"
        parts += [title, HEADER.format("n, condition, samples")]
        for n, condition, num in cells:
            cell = (n, condition, num, directions)
            chosen = [
                r
                for r in rows
                if (r["n"], r["condition"], r["num_samples"], r["directions"]) == cell
            ]
            parts.append(line([f"{n}, {condition:g}, {num:,}"], chosen))
    return "\n".join(parts) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=400)
    parser.add_argument("--out", type=pathlib.Path, default="docs/results/calibration.md")
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    cells = [
        (n, condition, num, directions)
        for directions in ("independent", "frames")
        for n in DIMENSIONS
        for condition in CONDITIONS
        for num in SAMPLES
    ]
    cells += [(20, value, num, "independent") for value in SPIKES for num in SAMPLES]
    rows = [row for cell in track(cells, "calibrating") for row in run(*cell, arguments.seeds)]
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(report(rows, arguments.seeds))
    print(arguments.out.read_text())


if __name__ == "__main__":
    main()
