"""Error against products and seconds, ours beside the neighbours': matfree, imate and primate.

Run with `python benchmarks/peers.py`; the page goes to docs/results/peers.md. Products with A and
with its transpose count alike, and so do the products of training and of pilot runs.
`pip install -e '.[peers]'` installs the neighbours; those that are missing are left out. With
`--seconds 4` only seconds are measured again, over so many keys, and put into the rows that are kept.
"""

import argparse
import itertools
import json
import pathlib
import statistics
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import scipy.sparse.linalg
from peers_page import INTRODUCTION, SHARES, deflation, draw, moving_table, table
from rich.progress import track

import determinax as dx
from determinax.methods import AbstractMethod
from determinax.paper.matrices import FILTER, MATRICES

DEPTHS = (2, 5, 10, 20)


class Problem(NamedTuple):
    """An operator and its log-volume."""

    name: str
    operator: Any
    matrix: np.ndarray
    truth: float
    definite: bool = False

    @property
    def n(self) -> int:
        """So many products reveal it."""
        return self.matrix.shape[1]


def dense(name: str, matrix: np.ndarray) -> Problem:
    r = np.linalg.qr(matrix, mode="r")
    return Problem(name, matrix, matrix, float(np.sum(np.log(np.abs(np.diag(r))))))


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


def kernel(n: int, dimensions: int) -> Problem:
    """RBF kernel on n points of the unit cube, with noise 0.01."""
    x = np.random.default_rng(n).random((n, dimensions))
    squares = np.sum((x[:, None] - x) ** 2, axis=2)
    k = np.exp(-0.5 * squares / 0.1**2) + 0.01 * np.eye(n)
    tagged = lx.MatrixLinearOperator(jnp.asarray(k), lx.positive_semidefinite_tag)
    name = f"RBF kernel {dimensions}-D, n = {n}"
    return Problem(name, tagged, k, float(np.linalg.slogdet(k)[1]), True)


def convolution(side: int, truth: float) -> Problem:
    name = f"convolution {side}x{side}, the paper's filter"
    operator = dx.operators.convolution(FILTER, (side, side))
    return Problem(name, operator, np.asarray(operator.as_matrix()), truth)


def problems() -> list[Problem]:
    rng = np.random.default_rng(0)
    return [
        *(dense("A1..A5", item.matrix) for item in MATRICES[:5]),
        dense("W", MATRICES[5].matrix),
        dense("near-isometry, n = 1000", near_isometry(1000)),
        convolution(16, 23.47149780896),
        convolution(32, 94.652802),
        kernel(1000, 1),
        kernel(1000, 2),
        dense("Gaussian, n = 200", rng.normal(size=(200, 200))),
        dense("residual Jacobian, n = 256", residual_jacobian(256)),
        dense("tall 400x200", rng.normal(size=(400, 200))),
    ]


def methods(problem: Problem, budget: int) -> dict[str, AbstractMethod]:
    """Ours, all that fit the budget; and matfree's, which `Lanczos` runs."""
    found: dict[str, AbstractMethod] = {
        "Monte Carlo": dx.MonteCarlo(budget),
        "Monte Carlo, frames": dx.MonteCarlo(budget, "frames"),
    }
    samples = max(1, budget // 8)
    directions = problem.n if budget == problem.n else budget - samples
    found["deflated"] = dx.Deflated(directions, dx.MonteCarlo(samples))
    for depth, probes in lanczos_splits(problem, budget - 1):  # one for the scale of A
        found[f"matfree, depth {depth}"] = dx.Lanczos(probes, depth)
    if isinstance(problem.operator, dx.operators.ConvolutionLinearOperator):
        found["probed"] = dx.Probed()
    # with n products it is exact: nothing to compare
    if budget < problem.n:
        found["Auto"] = dx.Auto(budget)
    return found


def lanczos_splits(problem: Problem, budget: int) -> list[tuple[int, int]]:
    """Depths, each with the probes that it leaves."""
    cost = 1 if problem.definite else 2
    splits = [(depth, budget // (cost * depth)) for depth in DEPTHS if depth <= problem.n]
    return [(depth, probes) for depth, probes in splits if probes >= 1]


def imate(problem: Problem, depth: int, probes: int, seed: int) -> float | None:
    """Matrices only; on those that are not square it hangs."""
    try:
        import imate as package  # pyright: ignore[reportMissingImports]
    except ImportError:
        return None
    m, n = problem.matrix.shape
    if m != n:
        return None
    counts = {"min_num_samples": probes, "max_num_samples": probes, "lanczos_degree": depth}
    gram = not problem.definite
    value = package.logdet(problem.matrix, gram=gram, method="slq", seed=seed, **counts)
    return float(value) / (2 if gram else 1)


def primate(problem: Problem, depth: int, probes: int, seed: int) -> float | None:
    """The trace of log A^T A, through SciPy's LinearOperator."""
    try:
        import primate.estimators  # pyright: ignore[reportMissingImports]
        import primate.operators  # pyright: ignore[reportMissingImports]
        import primate.trace  # pyright: ignore[reportMissingImports]
    except ImportError:
        return None
    a, definite = problem.matrix, problem.definite
    linear_operator: Any = scipy.sparse.linalg.LinearOperator  # its stub takes two arguments only
    gram = (lambda x: a @ x) if definite else lambda x: a.T @ (a @ x)
    operator = linear_operator((problem.n, problem.n), matvec=gram, dtype=float)
    logarithm = primate.operators.MatrixFunction(operator, fun=np.log, deg=depth)
    count = primate.estimators.CountCriterion(probes)
    with np.errstate(all="ignore"):
        value = primate.trace.hutch(logarithm, converge=count, batch=probes, seed=seed)
    return float(value) / (1 if definite else 2)


NEIGHBOURS = {"imate": imate, "primate": primate}


def run(problem: Problem, name: str, method: AbstractMethod, seed: int) -> dict:
    started = time.perf_counter()
    e = dx.log_volume(problem.operator, method, key=jax.random.key(seed), progress=False)
    return {
        "method": name,
        "products": e.num_matvecs,
        "error": abs(float(e.log_abs_det) - problem.truth),
        "chosen": e.notes[-1].split(":")[0].removeprefix("Auto chose ") if name == "Auto" else "",
        "seconds": time.perf_counter() - started,
    }


def run_neighbours(problem: Problem, budget: int, seed: int) -> list[dict]:
    rows = []
    for name, neighbour in NEIGHBOURS.items():
        for depth, probes in lanczos_splits(problem, budget):
            started = time.perf_counter()
            value = neighbour(problem, depth, probes, seed)
            if value is None:
                continue
            products = depth * probes * (1 if problem.definite else 2)
            # no number is worse than any number
            error = abs(value - problem.truth) if np.isfinite(value) else np.inf
            seconds = time.perf_counter() - started
            row = {"method": f"{name}, depth {depth}", "products": products, "error": error}
            rows.append(row | {"chosen": "", "seconds": seconds})
    return rows


def compare(problem: Problem, seeds: int) -> list[dict]:
    """Every method at every budget, over the seeds."""
    rows = []
    for share, divisor in SHARES.items():
        budget = max(2, problem.n // divisor)
        about = {"problem": problem.name, "share": share, "budget": budget, "n": problem.n}
        for seed in range(seeds):
            found = [run(problem, *item, seed) for item in methods(problem, budget).items()]
            if problem.name not in LONG or seed < max(1, seeds // 4):
                found += run_neighbours(problem, budget, seed)
            rows += [about | row for row in found]
    return rows


def compare_all(chosen: list[Problem], seeds: int, path: pathlib.Path) -> list[dict]:
    """Problem after problem; rows go to a file at once, and those that are there are not made again."""
    known = [json.loads(line) for line in path.open()] if path.exists() else []
    rows = []
    for index, problem in enumerate(track(chosen, "comparing")):
        num = seeds * MORE_KEYS.get(problem.name, 1)
        about = {"index": index, "problem": problem.name, "seeds": num}
        own = [row for row in known if about.items() <= row.items()]
        if not own:
            own = [about | row for row in compare(problem, num)]
            with path.open("a") as file:
                file.writelines(json.dumps(row) + "\n" for row in own)
            jax.clear_caches()  # compiled functions fill what a process may map
        rows += own
    return rows


def time_again(chosen: list[Problem], keys: int, path: pathlib.Path) -> None:
    """New seconds in the rows that are kept: medians of calls after the first, which compiles."""
    seen: dict[tuple, list[float]] = {}
    for problem in chosen:
        for row in compare(problem, keys):
            seen.setdefault(_which(row), []).append(row["seconds"])
    medians = {which: statistics.median(own[1:] or own) for which, own in seen.items()}
    rows = [json.loads(line) for line in path.open()]
    for row in rows:
        row["seconds"] = medians.get(_which(row), row["seconds"])
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def _which(row: dict) -> tuple[str, str, str]:
    return row["problem"], row["share"], row["method"]


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
                for depth in (1, 2, 4, 8):  # these divide: 16 products, and one for the scale of A
                    others[f"matfree, depth {depth}"] = dx.Lanczos(products // (2 * depth), depth)
                for name, method in others.items():
                    e = dx.log_abs_det(a, method, key=key, progress=False)
                    values[name] = float(e.log_abs_det)
                problem = Problem("moving", a, a, truth)
                for (name, neighbour), depth in itertools.product(NEIGHBOURS.items(), (2, 4, 8)):
                    value = neighbour(problem, depth, products // (2 * depth), step)
                    if value is not None:
                        values[f"{name}, depth {depth}"] = value
                rows += [
                    {"method": name, "error": abs(v - truth), "budget": products}
                    for name, v in values.items()
                ]
    return rows


# where the neighbours' take minutes, and lose by far
LONG = (
    "convolution 32x32, the paper's filter",
    "RBF kernel 1-D, n = 1000",
    "RBF kernel 2-D, n = 1000",
)
# where errors are close to each other, more keys tell them apart
MORE_KEYS = {"near-isometry, n = 1000": 3}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--only", default="", help="problems whose name contains this")
    parser.add_argument("--seconds", type=int, help="measure only seconds, over so many keys")
    parser.add_argument("--out", type=pathlib.Path, default="docs/results/peers.md")
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    chosen = [p for p in problems() if arguments.only in p.name]
    path = arguments.out.with_suffix(".jsonl")
    if arguments.seconds:
        return time_again(chosen, arguments.seconds, path)
    rows = compare_all(chosen, arguments.seeds, path)
    text = INTRODUCTION.format(
        seeds=arguments.seeds, more=arguments.seeds * max(MORE_KEYS.values())
    )
    for share in SHARES:
        text += f"\n## {share} products\n\n" + "\n".join(table(rows, share))
    text += deflation(rows)
    if not arguments.only:
        text += "\n## A slowly moving operator\n\n"
        text += moving_table(moving(max(2, arguments.seeds // 4)))
    for against in ("products", "seconds"):
        draw(rows, against, arguments.out.with_name(f"{arguments.out.stem}_{against}.png"))
    arguments.out.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
