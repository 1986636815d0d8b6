"""The digits, and the page about them: table, pictures and words, from the rows of `digits_flow.py`."""

import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from determinax import plots

LEVELS = 17
SQUEEZE = 0.05  # keeps the logit of a black pixel finite

TEXT = """# Digits by maximum likelihood

A residual network ({blocks} blocks, {width} units, {steps:,} steps of {batch} digits) on the 8x8 digits,
the same seed for every way to have log|det J|. Bits per dimension are of held-out digits, by exact
determinants for all; milliseconds are the median of 30 more steps, for all in one process. 64 products a
digit reveal J. Made by `python examples/digits_flow.py`.

{table}
![learning curves](digits_curves.png)
![samples](digits_samples.png)

## Does the model exploit the estimate?

In expectation the estimate is too large, by the gap KL(q || q*): as it stands, a likelihood with it in
looks too good by the gap, and its gradient pays the model for determinants that are hard to estimate.
Half the variance of a digit's log-weights is the gap to second order, so that is taken off; this needs
two products, so "1 product" is two for every other digit. And every block has a proposal of its own,
since log-determinants of blocks add up and are easier one by one. The third part is the network's: every
weight matrix is contracted to norm 0.97, for all ways, so that it is invertible by construction and not a
free-form one. The right-hand plot is the
test: the gap along the training, beside that of proposals which learn from the exact run and have no
say in it. Where the model exploited the estimate, its gap would leave that curve upwards.
"""


def load_digits() -> tuple[np.ndarray, np.ndarray]:
    """Training and held-out digits, integers from 0 to 16."""
    from sklearn.datasets import load_digits as load

    pixels = np.random.default_rng(0).permutation(load(return_X_y=True)[0])
    return pixels[:1437], pixels[1437:]


def dequantised(key: PRNGKeyArray, pixels: Array) -> tuple[Array, Array]:
    """Logits of pixels with uniform noise, and the log-density that this adds a digit."""
    y = (pixels + jax.random.uniform(key, pixels.shape)) / LEVELS
    y = SQUEEZE + (1 - 2 * SQUEEZE) * y
    slope = jnp.log((1 - 2 * SQUEEZE) / LEVELS) - jnp.log(y) - jnp.log1p(-y)
    return jnp.log(y) - jnp.log1p(-y), jnp.sum(slope, axis=-1)


def pixels_of(x: Array) -> Array:
    """The other way, in levels from 0 to 16."""
    y = (jax.nn.sigmoid(x) - SQUEEZE) / (1 - 2 * SQUEEZE)
    return jnp.clip(jnp.floor(LEVELS * y), 0, LEVELS - 1)


def table(runs: list[dict[str, Any]], seconds: dict[str, float]) -> str:
    base = next((r for r in runs if r["name"].startswith("exact")), runs[0])
    lines = [
        "| log-determinant | Jacobian products a digit and step | ms a step | held-out bits per "
        "dimension | to exact | gap of the proposal, nats |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for run in runs:
        bits, gap = run["curve"]["bits"][-1], run["curve"]["gap"][-1]
        worse = bits / base["curve"]["bits"][-1] - 1
        own = "-" if run["name"].startswith("power") else f"{gap:.2f}"
        lines.append(
            f"| {run['name'].split(',')[0]} | {run['products']:.3g} "
            f"| {1e3 * seconds[run['name']]:.0f} | {bits:.3f} | {worse:+.1%} | {own} |"
        )
    return "\n".join(lines) + "\n"


@plots.style()
def draw(runs: list[dict[str, Any]], path: pathlib.Path) -> None:
    """Held-out bits, as they are and beside the exact run's; and what one sample is off by."""
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(11, 3.4))
    exact = next((run for run in runs if run["name"].startswith("exact")), runs[0])
    for run, marker in zip(runs, "osD^v", strict=False):
        steps, curve = run["curve"]["step"], run["curve"]
        shown = {"marker": marker, "markevery": 2, "label": run["name"]}
        left.plot(steps, curve["bits"], **shown)
        middle.plot(steps, 100 * (np.divide(curve["bits"], exact["curve"]["bits"]) - 1), **shown)
        if run is exact:
            right.plot(
                steps, curve["gap"], "--", color="0.3", label="proposals beside the exact run"
            )
        elif not run["name"].startswith("power"):
            right.plot(steps, curve["gap"], **shown | {"color": left.lines[-1].get_color()})
    left.set(xlabel="training steps", ylabel="held-out bits per dimension, exact")
    middle.set(xlabel="training steps", ylabel="the same, above the exact run's, %")
    right.set(xlabel="training steps", ylabel="one sample above log|det|, nats", ylim=(0, None))
    shown, words = left.get_legend_handles_labels()
    shown, words = [*shown, right.lines[0]], [*words, right.lines[0].get_label()]
    figure.legend(shown, words, loc="outside upper center", ncols=3)
    figure.savefig(path)


@plots.style()
def draw_samples(rows: dict[str, Any], path: pathlib.Path) -> None:
    """Twelve digits a line."""
    figure, axes = plt.subplots(len(rows), 12, figsize=(9, 0.85 * len(rows)))
    for line, (name, digits) in zip(axes, rows.items(), strict=True):
        for axis, digit in zip(line, np.asarray(digits), strict=True):
            axis.imshow(digit.reshape(8, 8), cmap="gray_r", vmin=0, vmax=16)
            axis.set(xticks=[], yticks=[])
            axis.spines[:].set_visible(False)
        line[0].set_ylabel(name.split(" prod")[0], rotation=0, ha="right", va="center", fontsize=8)
    figure.savefig(path)
