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
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from jaxtyping import Array, PRNGKeyArray
from sklearn.datasets import load_digits

import determinax as dx
from determinax.likelihood import standard_normal

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


class Digits:
    """The 8 x 8 digits with fresh noise, whitened: 1,500 to learn from, 297 to test on."""

    def __init__(self, n: int):
        pixels = np.random.default_rng(0).permutation(load_digits(return_X_y=True)[0])
        self.train, self.test = (jnp.asarray(p, jnp.float32) for p in np.split(pixels, [1500]))
        noisy = pixels[:1500] + 0.5
        values, vectors = np.linalg.eigh(np.cov(noisy.T) + np.eye(64) / 12)
        order = np.argsort(values)[::-1][:n]
        self.mean = jnp.asarray(noisy.mean(axis=0), jnp.float32)
        self.to = jnp.asarray(vectors[:, order] / np.sqrt(values[order]), jnp.float32)
        self.back = jnp.asarray((vectors[:, order] * np.sqrt(values[order])).T, jnp.float32)
        # log-density that whitening adds a digit
        self.added = -0.5 * float(np.sum(np.log(values[order])))

    def whitened(self, key: PRNGKeyArray, pixels: Array) -> Array:
        """With uniform noise on every pixel."""
        return (pixels + jax.random.uniform(key, pixels.shape) - self.mean) @ self.to

    def sample(self, key: PRNGKeyArray, num: int) -> Array:
        """To learn from."""
        first, second = jax.random.split(key)
        return self.whitened(second, jax.random.choice(first, self.train, (num,)))


def free_form_flow(models, x: Array, key: PRNGKeyArray) -> Array:
    """Free-form flows (arXiv:2310.16624): the encoder's own likelihood, and the reconstruction."""
    f, g, _ = models

    def one(x, key):
        z, push = jax.linearize(f, x)
        image, back = jax.linearize(g, z)
        v = jax.random.normal(key, x.shape)
        v = v * (x.size**0.5 / jnp.linalg.norm(v))
        trace = v @ push(jax.lax.stop_gradient(back(v)))
        return -standard_normal(z) - trace + RECONSTRUCTION * jnp.sum((image - x) ** 2)

    return jnp.mean(jax.vmap(one)(x, jax.random.split(key, len(x))))


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
        fit = dx.training.fit_model(free_form_flow, models, data.sample, **options)
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
    valid = np.asarray(exact(g, estimate.point))
    low, high = np.asarray(estimate.lower_bound), np.asarray(estimate.upper_bound)
    inside = (low <= valid) & (valid <= high)

    def figure(log_p: np.ndarray) -> float:
        """Nats in whitened coordinates, or bits per dimension of pixels."""
        if n < 64:
            return float(-np.mean(log_p[solved]))
        return float(-(np.mean(log_p[solved]) + data.added) / (n * math.log(2)))

    drawn = jax.vmap(g)(jax.random.normal(jax.random.key(2), (12, n))) @ data.back + data.mean
    row = {
        "valid": figure(valid),
        "valid_error": float(valid[solved].std() / solved.sum() ** 0.5 / (n * math.log(2))),
        "bound": figure(value) if way == "recipe" else None,
        "solved": float(solved.mean()),
        "bracketed": float(inside[solved].mean()) if way == "recipe" else None,
        "evaluation_seconds": seconds,
        "samples": np.clip(np.floor(drawn), 0, 16).astype(int).tolist(),
    }
    return row | {"series": power_series(f, x[0])}


@eqx.filter_jit
def exact(g: Callable, z: Array) -> Array:
    """log p by the whole Jacobian of the decoder, at solved points."""
    return jax.lax.map(lambda z: standard_normal(z) - log_det(jax.jacfwd(g)(z)), z)


def log_det(jacobian: Array) -> Array:
    return dx.log_abs_det(jacobian, dx.Exact()).log_abs_det


def power_series(f: Callable, x: Array, terms: int = 16) -> list[float]:
    """tr (J - I)^k / k at one digit, k = 1, 2, ...: what residual flows sum up, if it converges."""
    difference = np.asarray(jax.jacfwd(f)(x), float) - np.eye(x.size)
    power, found = np.eye(x.size), []
    for k in range(1, terms + 1):
        power = power @ difference
        found.append(float((-1) ** (k + 1) * np.trace(power) / k))
    return found


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
    digits = {"digits": load_digits(return_X_y=True)[0][:12]}
    shown = digits | {row["way"]: np.array(row["samples"]) for row in rows if row["n"] == 64}
    pictures(shown, folder / "free_form_digits.png")


def pictures(lines: dict[str, np.ndarray], path: pathlib.Path) -> None:
    """Twelve digits a line."""
    figure, axes = plt.subplots(len(lines), 12, figsize=(9, 0.85 * len(lines)))
    for line, (name, digits) in zip(np.atleast_2d(axes), lines.items(), strict=True):
        for axis, digit in zip(line, digits, strict=True):
            axis.imshow(np.reshape(digit, (8, 8)), cmap="gray_r", vmin=0, vmax=16)
            axis.set(xticks=[], yticks=[])
        line[0].set_ylabel(name, rotation=0, ha="right", va="center", fontsize=8)
    figure.tight_layout(pad=0.4)
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    main()
