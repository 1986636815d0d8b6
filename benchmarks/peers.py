"""Error against products, ours beside the neighbours': Lanczos quadrature, run by matfree.

Run with `python benchmarks/peers.py`; the page goes to docs/results/peers.md. Products with A and
with its transpose count alike, and so do the products of training and of pilot runs.
"""

import argparse
import pathlib
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
from rich.progress import track

import determinax as dx
from determinax.methods import AbstractMethod
from determinax.paper.matrices import FILTER, MATRICES

DEPTHS = (2, 5, 10, 20)
SHARES = {"n/4": 4, "n/2": 2}


class Problem(NamedTuple):
    """An operator and its log-volume."""

    name: str
    operator: Any
    n: int
    truth: float
    definite: bool = False


def dense(name: str, matrix: np.ndarray) -> Problem:
    r = np.linalg.qr(matrix, mode="r")
    return Problem(name, matrix, matrix.shape[1], float(np.sum(np.log(np.abs(np.diag(r))))))


def near_isometry(n: int) -> np.ndarray:
    """B with ||B^T B - I||_F = 1: an orthogonal matrix, a little bent."""
    rng = np.random.default_rng(n)
    q = np.linalg.qr(rng.normal(size=(n, n)))[0]
    e = rng.normal(size=(n, n))
    e = e + e.T
    values, vectors = np.linalg.eigh(np.eye(n) + e / np.linalg.norm(e))
    return q @ (vectors * np.sqrt(values)) @ vectors.T


def residual_jacobian(n: int) -> np.ndarray:
    """The Jacobian of x + W2 tanh(W1 x), four times, at a random point."""
    rng = np.random.default_rng(n)
    jacobian, x = np.eye(n), rng.normal(size=n)
    for _ in range(4):
        w1, w2 = rng.normal(size=(2, n, n)) / n**0.5
        inner = np.tanh(w1 @ x)
        jacobian = (np.eye(n) + 0.5 * w2 @ ((1 - inner**2)[:, None] * w1)) @ jacobian
        x = x + 0.5 * w2 @ inner
    return jacobian


def kernel(n: int) -> Problem:
    """RBF kernel on n points of the unit interval, with noise 0.01."""
    x = np.sort(np.random.default_rng(n).random(n))
    k = np.exp(-0.5 * ((x[:, None] - x) / 0.1) ** 2) + 0.01 * np.eye(n)
    tagged = lx.MatrixLinearOperator(jnp.asarray(k), lx.positive_semidefinite_tag)
    return Problem("RBF kernel 1-D, n = 1000", tagged, n, float(np.linalg.slogdet(k)[1]), True)


def convolution(side: int, truth: float) -> Problem:
    name = f"convolution {side}x{side}, the paper's filter"
    return Problem(name, dx.operators.convolution(FILTER, (side, side)), side**2, truth)


def problems() -> list[Problem]:
    rng = np.random.default_rng(0)
    return [
        dense("A1", MATRICES[0].matrix),
        dense("W", MATRICES[5].matrix),
        dense("near-isometry, n = 1000", near_isometry(1000)),
        convolution(16, 23.47149780896),
        convolution(32, 94.652802),
        kernel(1000),
        dense("Gaussian, n = 200", rng.normal(size=(200, 200))),
        dense("residual Jacobian, n = 256", residual_jacobian(256)),
        dense("tall 400x200", rng.normal(size=(400, 200))),
    ]


def methods(problem: Problem, budget: int) -> dict[str, AbstractMethod]:
    """All that fit the budget."""
    found: dict[str, AbstractMethod] = {
        "Monte Carlo": dx.MonteCarlo(budget),
        "Monte Carlo, one frame": dx.MonteCarlo(budget, "frames"),
    }
    if budget >= 8:
        samples = max(2, budget // 8)
        found["deflated, Monte Carlo"] = dx.Deflated(budget - samples, dx.MonteCarlo(samples))
    cost = 1 if problem.definite else 2
    for depth in DEPTHS:
        probes = (budget - 1) // (cost * depth)
        if probes >= 1:
            found[f"Lanczos, depth {depth}"] = dx.Lanczos(probes, depth)
    for depth in (10,):
        # half of the budget for directions, half for the complement
        probes = (budget // 2 - 1) // (2 * depth)
        if probes >= 1:
            inner = dx.Lanczos(probes, depth)
            found[f"deflated, Lanczos {depth}"] = dx.Deflated(budget // 2, inner)
    if isinstance(problem.operator, dx.operators.ConvolutionLinearOperator):
        found["probed"] = dx.Probed()
    found["Auto"] = dx.Auto(budget)
    return found


def run(problem: Problem, name: str, method: AbstractMethod, budget: int, seed: int) -> dict:
    started = time.perf_counter()
    e = dx.log_volume(problem.operator, method, key=jax.random.key(seed), progress=False)
    error = abs(float(e.log_abs_det) - problem.truth)
    chosen = e.notes[-1].split(":")[0].removeprefix("Auto chose ") if name == "Auto" else ""
    return {
        "problem": problem.name,
        "method": name,
        "budget": budget,
        "products": e.num_matvecs,
        "error": error,
        "status": e.status,
        "chosen": chosen,
        "seconds": time.perf_counter() - started,
    }


def moving(seeds: int, n: int = 64, products: int = 16, steps: int = 40, drift: float = 0.01):
    """A drifting operator of condition number 3, so many products a step; errors of the last half."""
    rows = []
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        frames = [np.linalg.qr(rng.normal(size=(n, n)))[0] for _ in range(2)]
        a = frames[0] * np.exp(np.linspace(-0.5, 0.5, n) * np.log(3)) @ frames[1]
        fit = dx.fit_linear(a, key=jax.random.key(seed), progress=False)
        for step in range(steps):
            a = a @ (np.eye(n) + drift * rng.normal(size=(n, n)) / n**0.5)
            key = jax.random.fold_in(jax.random.key(seed), step)
            truth = float(np.linalg.slogdet(a)[1])
            options: dict[str, Any] = {"max_matvecs": products, "progress": False}
            fit = dx.fit_linear(a, key=key, start=fit, block_size=products // 2, **options)
            values = {"projective linear, carried": float(fit.history["log_abs_det"][0])}
            if step >= steps // 2:
                others: dict[str, AbstractMethod] = {"Monte Carlo": dx.MonteCarlo(products)}
                for depth in (2, 4, 7):
                    probes = (products - 1) // (2 * depth)
                    others[f"Lanczos, depth {depth}"] = dx.Lanczos(probes, depth)
                for name, method in others.items():
                    e = dx.log_abs_det(a, method, key=key, progress=False)
                    values[name] = float(e.log_abs_det)
                rows += [
                    {"method": name, "error": abs(v - truth), "budget": products}
                    for name, v in values.items()
                ]
    return rows


def quartiles(errors: list[float]) -> str:
    low, middle, high = np.percentile(errors, [25, 50, 75])
    return f"{middle:.2g} ({low:.1g} to {high:.1g})"


def families(own: list[dict], kind: Callable[[str], bool]) -> tuple[str, float, str] | None:
    """The best of a kind by its median: name, median, median and quartiles."""
    found = {}
    for row in own:
        if kind(row["method"]):
            found.setdefault(row["method"], []).append(row["error"])
    if not found:
        return None
    name = min(found, key=lambda name: np.median(found[name]))
    return name, float(np.median(found[name])), quartiles(found[name])


KINDS: dict[str, Callable[[str], bool]] = {
    "Monte Carlo": lambda m: m.startswith("Monte Carlo"),
    "deflated": lambda m: m.startswith("deflated"),
    "probed": lambda m: m == "probed",
    "Lanczos, best depth": lambda m: m.startswith("Lanczos"),
    "Auto": lambda m: m == "Auto",
}


def table(rows: list[dict], share: str) -> list[str]:
    lines = [
        "| problem | products | " + " | ".join(KINDS) + " | Auto / best | Auto chose |",
        "| --- " * (len(KINDS) + 4) + "|",
    ]
    for name in dict.fromkeys(r["problem"] for r in rows):
        own = [r for r in rows if r["problem"] == name and r["share"] == share]
        best = {kind: families(own, test) for kind, test in KINDS.items()}
        fixed = min(b[1] for kind, b in best.items() if b and kind != "Auto")
        auto = best["Auto"]
        ratio = f"{auto[1] / fixed:.2g}" if auto and auto[1] > 1e-6 else "1"
        cells = [b[2] if b else "-" for b in best.values()]
        chosen = sorted({r["chosen"] for r in own if r["chosen"]})
        lines.append(
            f"| {name} | {own[0]['budget']} | {' | '.join(cells)} | {ratio} | {', '.join(chosen)} |"
        )
    return [*lines, ""]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--only", default="", help="problems whose name contains this")
    parser.add_argument("--out", type=pathlib.Path, default="docs/results/peers.md")
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    rows = []
    for problem in track([p for p in problems() if arguments.only in p.name], "comparing"):
        for share, divisor in SHARES.items():
            budget = problem.n // divisor
            for name, method in methods(problem, budget).items():
                for seed in range(arguments.seeds):
                    rows.append({**run(problem, name, method, budget, seed), "share": share})
    text = INTRODUCTION.format(seeds=arguments.seeds)
    for share in SHARES:
        text += f"\n## {share} products\n\n" + "\n".join(table(rows, share))
    carried = moving(max(2, arguments.seeds // 4)) if not arguments.only else []
    if carried:
        text += "\n## A slowly moving operator\n\n" + MOVING
        for name in dict.fromkeys(r["method"] for r in carried):
            errors = [r["error"] for r in carried if r["method"] == name]
            text += f"| {name} | {quartiles(errors)} |\n"
    arguments.out.write_text(text)
    print(text)


INTRODUCTION = """# Beside the neighbours

Median error of log|det| in nats over {seeds} keys, with quartiles, at equal products: those with A and
with its transpose, of pilots and of checks, all count. Lanczos quadrature is what the neighbours do;
it is run by matfree here, at the best of depths 2, 5, 10 and 20 in hindsight, which nobody knows
beforehand. imate, primate and CoLA are not part of this run. With n products `Exact()` and
`Deflated(n)` are exact on all of these. Made by `python benchmarks/peers.py`.
"""

MOVING = """n = 64, condition number 3, 1 % drift a step, 16 products a step (for the carried proposal
8 and 8 transposed, of which the 8 forward ones give the estimate before they update the proposal).

| method | median error (quartiles) |
| --- | --- |
"""


if __name__ == "__main__":
    main()
