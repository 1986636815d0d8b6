"""Directions that depend on something: the colours of a photograph, given the height in it.

Run with `python examples/directions_given.py` (a few minutes on two cores); `--steps` shortens. The
picture goes to docs/results/.

A colour without its brightness is a direction: (red, green, blue) over its length, a point of S^2. Its law
changes with the height in the photograph, from the sky to the ground. The photograph comes with
scikit-learn (`china.jpg`, by danielbuechele, CC BY 2.0). Pixels next to each other are alike, so whole
stripes of columns are held out: one in five for the verdict, one in five to decide when to stop.
"""

import argparse
import json
import pathlib
import time
from typing import NamedTuple

import jax
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_sample_image

import determinax as dx
from determinax._keys import stream

RESULTS = pathlib.Path(__file__).resolve().parent.parent / "docs" / "results"
STRIPE, STRIPES = 32, 5


class Pixels(NamedTuple):
    """Directions of colours, one a row, and heights: 1 at the top, -1 at the bottom."""

    directions: np.ndarray
    heights: np.ndarray


def photograph() -> np.ndarray:
    """Colours by rows and columns; noise of one step of the file undoes the rounding to whole numbers."""
    whole = np.asarray(load_sample_image("china.jpg"), float)
    return whole + np.random.default_rng(0).uniform(0, 1, whole.shape)


def chosen(picture: np.ndarray, stripes: tuple[int, ...], num: int, seed: int) -> Pixels:
    """Random pixels of some of the stripes."""
    rng = np.random.default_rng(seed)
    columns = np.flatnonzero(np.isin(np.arange(picture.shape[1]) // STRIPE % STRIPES, stripes))
    row, column = rng.integers(len(picture), size=num), rng.choice(columns, num)
    return Pixels(normalised(picture[row, column]), 1 - 2 * row / (len(picture) - 1))


def normalised(colours: np.ndarray) -> np.ndarray:
    """Without their brightness."""
    return colours / np.linalg.norm(colours, axis=-1, keepdims=True)


def fitted(picture: np.ndarray, num: int, members: int, steps: int | None) -> dx.training.SampleFit:
    """The density of colours given the height, an ensemble of flows."""
    own, validation = chosen(picture, (2, 3, 4), num, 1), chosen(picture, (1,), num // 4, 2)
    both = [np.concatenate(parts) for parts in zip(own, validation, strict=True)]
    held_out = np.arange(len(both[0])) >= num
    return dx.fit_samples(
        both[0],
        key=jax.random.key(0),
        context=both[1],
        validation=held_out,
        members=members,
        steps=steps,
    )


def verdict(fit: dx.training.SampleFit, picture: np.ndarray, num: int):
    """By stripes that nothing has seen, beside laws that know nothing of the height."""
    own, test = chosen(picture, (2, 3, 4), num, 1), chosen(picture, (0,), 2000, 3)
    key, context = jax.random.key(1), test.heights
    return dx.judge(fit.proposal, test.directions, own.directions, key=key, context=context)


def draw(fit: dx.training.SampleFit, picture: np.ndarray, path: pathlib.Path) -> None:
    """The photograph, its colours at one brightness, and colours drawn given the height alone."""
    small = picture[::4, ::4]
    heights = np.repeat(1 - 2 * np.arange(len(small)) / (len(small) - 1), small.shape[1])
    drawn = fit.proposal.sample(stream(jax.random.key(2), "drawn"), len(heights), heights[:, None])
    panels = {
        "the photograph": small / 256,
        "directions of its colours": normalised(small),
        "drawn, given the height alone": np.asarray(drawn).reshape(small.shape),
    }
    with dx.plots.style():
        figure, grid = plt.subplots(1, 3, figsize=(9.6, 2.6))
        for axes, (title, colours) in zip(grid, panels.items(), strict=True):
            axes.imshow(np.clip(colours, 0, 1))
            axes.set(title=title)
            axes.set_axis_off()
        figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description="Colours of a photograph, given the height.")
    parser.add_argument("--points", type=int, default=6000)
    parser.add_argument("--members", type=int, default=3)
    parser.add_argument("--steps", type=int, help="of each flow; by default until it stops rising")
    parser.add_argument("--out", type=pathlib.Path, default=RESULTS)
    options = parser.parse_args()
    start, picture = time.perf_counter(), photograph()
    fit = fitted(picture, options.points, options.members, options.steps)
    found = verdict(fit, picture, options.points)
    print(fit, found, f"{time.perf_counter() - start:.0f} s", sep="\n")
    options.out.mkdir(parents=True, exist_ok=True)
    scores = {name: list(score) for name, score in found.scores.items()}
    row = {"status": found.status, "p_value": found.p_value, "scores": scores}
    (options.out / "directions_given.json").write_text(json.dumps(row, indent=2) + "\n")
    draw(fit, picture, options.out / "directions_given.png")


if __name__ == "__main__":
    main()
