"""A density of digits by networks without any bound: encoder, decoder, and likelihoods from both sides.

Run with `python examples/free_form_digits.py` (with scikit-learn and matplotlib installed; some minutes
for each seed and way). `--dimensions 16` takes the first 16 principal components. Rows go to
docs/results/free_form_digits.jsonl, and a picture of samples beside them.

Both networks are plain residual ones; nothing keeps them invertible. The decoder's density is evaluated
at the solved point z with g(z) = x, by its exact Jacobian ("valid") and by 64 samples of the proposal.
"""

import argparse
import json
import math
import pathlib
import time

import equinox as eqx
import jax
import numpy as np
from digits import Digits, pictures
from jaxtyping import Array, PRNGKeyArray
from rivals import FreeFormFlow, exact_log_p, power_series_terms

import determinax as dx

WIDTH, BLOCKS, RECONSTRUCTION = 128, 3, 30.0
WAYS = ("recipe", "free-form flow")


class Network(eqx.Module):
    """Residual blocks of three layers; no weight is bounded."""

    blocks: list[eqx.nn.MLP]

    def __init__(self, n: int, key: PRNGKeyArray):
        keys = jax.random.split(key, BLOCKS)
        nets = [eqx.nn.MLP(n, n, WIDTH, 2, jax.nn.silu, key=k) for k in keys]
        small = lambda net: net.layers[-1].weight  # noqa: E731
        self.blocks = [eqx.tree_at(small, net, 0.1 * small(net)) for net in nets]

    def __call__(self, x: Array) -> Array:
        """One point through."""
        for block in self.blocks:
            x = x + block(x)
        return x


def start(n: int, seed: int) -> tuple[Network, Network, dx.Proposal]:
    """Encoder, decoder and proposal before training."""
    keys = jax.random.split(jax.random.key(seed), 3)
    proposal = dx.Proposal(dx.flows.conditional_linear(n, key=keys[2], hidden=(64,)))
    return Network(n, keys[0]), Network(n, keys[1]), proposal


def run(n: int, way: str, seed: int, steps: int) -> dict:
    """Train once, and look at held-out digits."""
    data = Digits(n)
    models = start(n, seed)
    options = {"key": jax.random.fold_in(jax.random.key(seed), 3), "steps": steps}
    if way == "recipe":
        f, g, q = models
        fit = dx.fit_free_form(f, g, data.sample, q, reconstruction=RECONSTRUCTION, **options)
    else:
        fit = dx.training.fit_model(FreeFormFlow(RECONSTRUCTION), models, data.sample, **options)
    row = {"n": n, "way": way, "seed": seed, "steps": steps, "version": dx.__version__}
    row["milliseconds"] = 1000 * fit.seconds / steps
    return row | held_out(fit.models, data, way)


def held_out(models, data: Digits, way: str) -> dict:
    """Valid likelihood, bounds and solved share of the test digits; pictures of samples."""
    f, g, q = models
    n = data.to.shape[1]
    x = data.whitened(jax.random.key(0), data.test)
    began = time.perf_counter()
    estimate = dx.log_likelihood(f, g, x, q, key=jax.random.key(1))
    value = np.asarray(estimate.log_likelihood)
    seconds = time.perf_counter() - began
    solved = np.isfinite(value)
    valid = np.asarray(exact_log_p(g, estimate.point))
    low, high = np.asarray(estimate.lower_bound), np.asarray(estimate.upper_bound)
    inside = (low <= valid) & (valid <= high)

    def figure(log_p: np.ndarray) -> float:
        """Nats in whitened coordinates, or bits per dimension of pixels."""
        mean = float(np.mean(log_p[solved]))
        return -mean if n < 64 else data.bits(mean)

    drawn = jax.vmap(g)(jax.random.normal(jax.random.key(2), (12, n)))
    row = {
        "valid": figure(valid),
        "valid_error": float(valid[solved].std() / solved.sum() ** 0.5 / (n * math.log(2))),
        "bound": figure(value) if way == "recipe" else None,
        "solved": float(solved.mean()),
        "bracketed": float(inside[solved].mean()) if way == "recipe" else None,
        "evaluation_seconds": seconds,
        "samples": data.pixels(drawn),
    }
    return row | {"series": power_series_terms(f, x[0])}


def main() -> None:
    parser = argparse.ArgumentParser(description="Free-form networks of digits.")
    parser.add_argument("--dimensions", type=int, default=64)
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=WAYS)
    parser.add_argument("--out", type=pathlib.Path, default="docs/results")
    arguments = parser.parse_args()
    path = arguments.out / "free_form_digits.jsonl"
    for seed in arguments.seeds:
        for way in arguments.ways:
            row = run(arguments.dimensions, way, seed, arguments.steps)
            with path.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print({k: v for k, v in row.items() if k not in ("samples", "series")})
    draw([json.loads(line) for line in path.read_text().splitlines()], arguments.out)


def draw(rows: list[dict], folder: pathlib.Path) -> None:
    """Samples of each way at n = 64, under twelve digits."""
    digits = {"digits": Digits(64).test[:12]}
    shown = digits | {row["way"]: np.array(row["samples"]) for row in rows if row["n"] == 64}
    pictures(shown, folder / "free_form_digits.png")


if __name__ == "__main__":
    main()
