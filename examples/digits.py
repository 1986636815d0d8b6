"""The digits that examples learn from, and how they are shown."""

import math
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from jaxtyping import Array, PRNGKeyArray
from sklearn.datasets import load_digits


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

    def pixels(self, x: Array) -> list:
        """The other way, in levels from 0 to 16."""
        return np.clip(np.floor(x @ self.back + self.mean), 0, 16).astype(int).tolist()

    def bits(self, log_p: Any) -> Any:
        """Nats of a whitened digit as bits per pixel, where no component was left out."""
        return -(log_p + self.added) / (64 * math.log(2))

    def sample(self, key: PRNGKeyArray, num: int) -> Array:
        """To learn from."""
        first, second = jax.random.split(key)
        return self.whitened(second, jax.random.choice(first, self.train, (num,)))


class Logits:
    """The digits as standardised logits of noisy pixels: 1,437 to learn from, 360 to test on."""

    levels, squeeze = 17, 0.05  # the latter keeps the logit of a black pixel finite

    def __init__(self):
        pixels = np.random.default_rng(0).permutation(load_digits(return_X_y=True)[0])
        self.train, self.test = (jnp.asarray(p, jnp.float32) for p in np.split(pixels, [1437]))
        self.mean, self.deviation = jnp.zeros(64), jnp.ones(64)
        x = self.noisy(jax.random.key(0), self.train)
        self.mean, self.deviation = x.mean(axis=0), x.std(axis=0)

    def noisy(self, key: PRNGKeyArray, pixels: Array) -> Array:
        """With uniform noise on every pixel."""
        y = (pixels + jax.random.uniform(key, pixels.shape)) / self.levels
        y = self.squeeze + (1 - 2 * self.squeeze) * y
        return (jnp.log(y) - jnp.log1p(-y) - self.mean) / self.deviation

    def bits(self, log_p: Array, x: Array) -> Array:
        """Nats of such logits as bits per pixel."""
        y = jax.nn.sigmoid(x * self.deviation + self.mean)
        slope = jnp.log((1 - 2 * self.squeeze) / self.levels) - jnp.log(y) - jnp.log1p(-y)
        added = jnp.sum(slope - jnp.log(self.deviation), axis=-1)
        return -(log_p + added) / (64 * math.log(2))

    def pixels(self, x: Array) -> list:
        """The other way, in levels from 0 to 16."""
        y = (jax.nn.sigmoid(x * self.deviation + self.mean) - self.squeeze) / (1 - 2 * self.squeeze)
        return np.clip(np.floor(self.levels * y), 0, self.levels - 1).astype(int).tolist()

    def sample(self, key: PRNGKeyArray, num: int) -> Array:
        """To learn from."""
        first, second = jax.random.split(key)
        return self.noisy(second, jax.random.choice(first, self.train, (num,)))


def pictures(lines: Mapping[str, Any], path: pathlib.Path) -> None:
    """Twelve digits a line."""
    figure, axes = plt.subplots(
        len(lines), 12, figsize=(9, 0.85 * len(lines)), layout="constrained"
    )
    for line, (name, digits) in zip(np.atleast_2d(axes), lines.items(), strict=True):
        for axis, digit in zip(line, digits, strict=True):
            axis.imshow(np.reshape(digit, (8, 8)), cmap="gray_r", vmin=0, vmax=16)
            axis.set(xticks=[], yticks=[])
            axis.spines[:].set_visible(False)
        line[0].set_ylabel(name, rotation=0, ha="right", va="center", fontsize=8)
    figure.savefig(path, dpi=130)
