"""Structured families: the projected secant update against path gradients, at equal products.

Run with `python benchmarks/structured.py`; the table goes to docs/results/structured.md.
"""

import argparse
import pathlib

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from rich.progress import track

import determinax as dx
from determinax import flows
from determinax.methods import log_weights

N = 32
BUDGETS = (1, 4, 16, 64)  # products in units of n
FAMILIES = {
    "diagonal": lambda: flows.Diagonal(N),
    "Kronecker, 4 and 8": lambda: flows.Kronecker(flows.Triangular(4), flows.Triangular(8)),
    "circulant": lambda: flows.Circulant((N,)),
    "diagonal and rank 4": lambda: flows.DiagonalLowRank(N, 4),
}
# how far from the family's start the operator is; a circulant one is singular further out
SIZES = {"circulant": 0.1}


def operator_of(name: str, missed: float, seed: int) -> np.ndarray:
    """The inverse of a random member, times I and a Gaussian matrix of this size."""
    factor, rng = FAMILIES[name](), np.random.default_rng(seed)
    parameters, rest = eqx.partition(factor, flows.trainable(factor))
    theta, unravel = ravel_pytree(parameters)
    moved = theta + SIZES.get(name, 0.5) * rng.normal(size=theta.shape)
    member = eqx.combine(unravel(moved), rest).multiply(jnp.eye(N))
    off = missed * rng.normal(size=(N, N)) / N**0.5
    return (np.eye(N) + off) @ np.linalg.inv(np.asarray(member))


def gap(a: np.ndarray, proposal: dx.Proposal) -> float:
    """KL(q || q*), from 10,000 fresh samples."""
    points, log_q = proposal.sample_columns(jax.random.key(9), 10_000)
    log_w = log_weights(dx.as_operator(a), points, log_q)
    return float(-jnp.mean(log_w) - np.linalg.slogdet(a)[1])


def secant(a: np.ndarray, factor: flows.AbstractFactor, budget: int, key: jax.Array) -> dx.Fit:
    return dx.fit_linear(
        a,
        key=key,
        structure=factor,
        block_size=min(N // 4, budget * N // 8),
        max_matvecs=budget * N,
        progress=False,
    )


def path(a: np.ndarray, factor: flows.AbstractFactor, budget: int, key: jax.Array) -> dx.Fit:
    batch = 8  # fewer are noisier, more take fewer steps: the better of those that were tried
    flow, steps = flows.ProjectiveLinear(factor), budget * N // (2 * batch)
    return dx.fit(a, flow, key=key, steps=steps, batch_size=batch, progress=False)


def line(name: str, missed: float, keys: int) -> str:
    cells = []
    for way in (secant, path):
        for budget in BUDGETS:
            gaps = []
            for seed in range(keys):
                a = operator_of(name, missed, seed)
                found = way(a, FAMILIES[name](), budget, jax.random.key(seed))
                gaps.append(gap(a, found.proposal))
            cells.append(f"{abs(np.median(gaps)):.2g}")
    start = dx.Proposal(flows.ProjectiveLinear(FAMILIES[name]()))
    before = np.median([gap(operator_of(name, missed, seed), start) for seed in range(keys)])
    return f"| {name} | {missed} | {before:.2g} | {' | '.join(cells)} |"


INTRODUCTION = """# Structured families: projected secant updates against path gradients

KL gaps in nats, median over {keys} keys, n = 32, after so many products (A and its transpose), n of which
would reveal the operator: it is the inverse of a random member of the family, times I + E with a Gaussian E
of the size in the second column (at 0 the family holds the optimum). `fit_linear(A, structure=factor)`
beside `fit(A, flows.ProjectiveLinear(factor))` with batches of 8. The projection takes memory of n^2 and
time of up to 64 products of the family with n columns: where that is too much, path gradients serve.
Made by `python benchmarks/structured.py`.

| family | E | at the start | {columns} |
| --- | --- | --- {rules}|
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=5)
    parser.add_argument("--out", type=pathlib.Path, default="docs/results/structured.md")
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    cells = [(name, missed) for name in FAMILIES for missed in (0.0, 0.2)]
    lines = [line(*cell, arguments.keys) for cell in track(cells, "fitting")]
    columns = [f"{way}, {b} n" for way in ("projected", "path") for b in BUDGETS]
    text = INTRODUCTION.format(
        keys=arguments.keys, columns=" | ".join(columns), rules="| --- " * len(columns)
    )
    text += "\n".join(lines) + "\n"
    arguments.out.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
