"""A density of colour patches by free-form convolutional networks, with convolutional proposals.

Run with `python examples/patches_flow.py` (with scikit-learn and matplotlib; some minutes for each side).
`--sides 4 8 16` are n = 48, 192, 768. Rows go to docs/results/patches.jsonl, and pictures of samples beside
them. Encoder and decoder are residual convolutional networks without any bound; the proposal's matrix
is made of masked convolutions, so that memory is linear in the pixels.
"""

import argparse
import json
import math
import pathlib
import resource

import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from jaxtyping import Array, PRNGKeyArray
from rivals import FreeFormFlow, exact_log_p
from sklearn.datasets import load_sample_images

import determinax as dx

BLOCKS, HIDDEN, RECONSTRUCTION, BATCH = 2, 24, 300.0, 64
WAYS = ("recipe", "free-form flow")


class Network(eqx.Module):
    """Residual blocks of three convolutions; no weight is bounded."""

    blocks: list[list[eqx.nn.Conv2d]]
    side: int = eqx.field(static=True)

    def __init__(self, side: int, key: PRNGKeyArray):
        sizes = (3, HIDDEN, HIDDEN, 3)
        keys = jax.random.split(key, (BLOCKS, 3))
        self.blocks = [
            [
                eqx.nn.Conv2d(i, o, 3, padding=1, key=k)
                for k, i, o in zip(row, sizes, sizes[1:], strict=False)
            ]
            for row in keys
        ]
        last = lambda net: [block[-1].weight for block in net.blocks]  # noqa: E731
        self.side = side
        small = [0.1 * w for w in last(self)]
        self.blocks = eqx.tree_at(last, self, small).blocks

    def __call__(self, x: Array) -> Array:
        """One flat patch through."""
        image = x.reshape(3, self.side, self.side)
        for block in self.blocks:
            moved = image
            for layer in block[:-1]:
                moved = jax.nn.silu(layer(moved))
            image = image + block[-1](moved)
        return image.reshape(-1)


class Patches:
    """Patches of two photographs with fresh noise, decorrelated, their heavy tails drawn in by asinh.

    Tested on the photographs' right fifth.
    """

    def __init__(self, side: int):
        rng = np.random.default_rng(0)
        images = [np.moveaxis(i, -1, 0) for i in load_sample_images().images]
        cut = 4 * images[0].shape[2] // 5
        self.train = self._cut([i[:, :, :cut] for i in images], side, 20_000, rng)
        self.test = self._cut([i[:, :, cut:] for i in images], side, 100, rng)
        noisy = np.asarray(self.train) + 0.5
        values, vectors = np.linalg.eigh(np.cov(noisy.T) + np.eye(noisy.shape[1]) / 12)
        # symmetric: a decorrelated patch still looks like a patch
        self.mean = jnp.asarray(noisy.mean(axis=0), jnp.float32)
        self.to = jnp.asarray(vectors / np.sqrt(values) @ vectors.T, jnp.float32)
        self.back = jnp.asarray(vectors * np.sqrt(values) @ vectors.T, jnp.float32)
        self.scaled = -0.5 * float(np.sum(np.log(values)))

    def bits(self, log_p: Array, x: Array) -> Array:
        """Nats of transformed patches x as bits per dimension of pixels."""
        added = self.scaled - jnp.sum(jnp.log(jnp.cosh(x)), axis=-1)
        return -(log_p + added) / (x.shape[-1] * math.log(2))

    def pixels(self, x: Array) -> list:
        """The other way, in levels from 0 to 255."""
        return np.clip(np.floor(jnp.sinh(x) @ self.back + self.mean), 0, 255).astype(int).tolist()

    @staticmethod
    def _cut(images: list[np.ndarray], side: int, num: int, rng: np.random.Generator) -> Array:
        rows = []
        for _ in range(num):
            image = images[rng.integers(len(images))]
            i, j = (rng.integers(m - side) for m in image.shape[1:])
            rows.append(image[:, i : i + side, j : j + side].reshape(-1))
        return jnp.asarray(np.stack(rows), jnp.float32)

    def whitened(self, key: PRNGKeyArray, pixels: Array) -> Array:
        """With uniform noise on every level."""
        noisy = pixels + jax.random.uniform(key, pixels.shape)
        return jnp.arcsinh((noisy - self.mean) @ self.to)

    def sample(self, key: PRNGKeyArray, num: int) -> Array:
        """To learn from."""
        first, second = jax.random.split(key)
        return self.whitened(second, jax.random.choice(first, self.train, (num,)))


def start(side: int) -> tuple[Network, Network, dx.Proposal]:
    """Encoder, decoder and proposal before training."""
    keys = jax.random.split(jax.random.key(0), 3)
    flow = dx.flows.conditional_convolution((side, side), 3, key=keys[2], size=5)
    return Network(side, keys[0]), Network(side, keys[1]), dx.Proposal(flow)


def run(side: int, way: str, steps: int) -> dict:
    """Train once, and look at 100 patches of another part of the photographs."""
    data, n = Patches(side), 3 * side * side
    models = start(side)
    options = {"key": jax.random.key(1), "steps": steps, "batch_size": BATCH}
    if way == "recipe":
        f, g, q = models
        fit = dx.fit_free_form(f, g, data.sample, q, reconstruction=RECONSTRUCTION, **options)
    else:
        fit = dx.training.fit_model(FreeFormFlow(RECONSTRUCTION), models, data.sample, **options)
    f, g, q = fit.models
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    x = data.whitened(jax.random.key(0), data.test)
    estimate = dx.log_likelihood(f, g, x, q, key=jax.random.key(1))
    value, solved = (np.asarray(a) for a in (estimate.log_likelihood, estimate.residual <= 1e-5))
    valid = np.asarray(exact_log_p(g, estimate.point))
    inside = (estimate.lower_bound <= valid) & (valid <= estimate.upper_bound)

    def bits(log_p: np.ndarray) -> float:
        return float(np.mean(np.asarray(data.bits(jnp.asarray(log_p), x))[solved]))

    return {
        "n": n,
        "way": way,
        "steps": steps,
        "version": dx.__version__,
        "valid": bits(valid),
        "bound": bits(value) if way == "recipe" else None,
        "solved": float(solved.mean()),
        "bracketed": float(np.mean(np.asarray(inside)[solved])) if way == "recipe" else None,
        "milliseconds_with_compilation": 1000 * fit.seconds / steps,
        "peak_megabytes": peak,
        "samples": data.pixels(jax.vmap(g)(jax.random.normal(jax.random.key(2), (12, n)))),
    }


def draw(row: dict, path: pathlib.Path) -> None:
    """Twelve samples."""
    side = math.isqrt(row["n"] // 3)
    figure, axes = plt.subplots(1, 12, figsize=(9, 0.9))
    for axis, patch in zip(axes, row["samples"], strict=True):
        axis.imshow(np.moveaxis(np.reshape(patch, (3, side, side)), 0, -1))
        axis.set(xticks=[], yticks=[])
    figure.tight_layout(pad=0.3)
    figure.savefig(path, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(description="Free-form networks of patches.")
    parser.add_argument("--sides", type=int, nargs="+", default=[4, 8, 16])
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=WAYS)
    parser.add_argument("--out", type=pathlib.Path, default="docs/results")
    arguments = parser.parse_args()
    for side in arguments.sides:
        for way in arguments.ways:
            row = run(side, way, arguments.steps)
            if way == "recipe":
                draw(row, arguments.out / f"patches_{side}.png")
            row.pop("samples")
            with (arguments.out / "patches.jsonl").open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(row)


if __name__ == "__main__":
    main()
