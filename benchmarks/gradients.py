"""Path against total gradients, at equal products and at equal time: what is left of the divergence.

Run with `python benchmarks/gradients.py`; the table goes to docs/results/gradients.md.
"""

import argparse
import functools
import pathlib

import jax
import numpy as np
from rich.progress import track

import determinax as dx
from determinax.paper import matrix_named
from determinax.training.gradients import GradientKind as Gradient

MATRIX = matrix_named("A1")
FLOWS = {
    "projective linear": (functools.partial(dx.flows.projective_linear, 10), 2000),
    "cylinder, Moebius": (functools.partial(dx.flows.cylinder, 10, key=jax.random.key(0)), 500),
    "cylinder, spline": (
        functools.partial(dx.flows.cylinder, 10, key=jax.random.key(0), circle="spline"),
        500,
    ),
}


def fit(make, gradient: Gradient, steps: int) -> dx.Fit:
    return dx.fit(
        MATRIX.matrix.astype("float32"),
        make(dtype="float32"),
        key=jax.random.key(1),
        steps=steps,
        batch_size=512,
        gradient=gradient,
        progress=False,
    )


def line(name: str) -> list[str]:
    """Path gradients for so many steps, total ones for as many, and for as long as those took."""
    make, steps = FLOWS[name]
    seconds = {}
    gradients: tuple[Gradient, ...] = ("path", "total")
    for gradient in gradients:
        fit(make, gradient, 100)  # compiles
        seconds[gradient] = fit(make, gradient, 100).seconds / 100
    lines = []
    as_long = round(steps * seconds["path"] / seconds["total"])
    for gradient, taken in zip(("path", "total", "total"), (steps, steps, as_long), strict=True):
        found = fit(make, gradient, taken)
        last = found.history["loss"][-taken // 20 :].astype(float)
        gap, error = last.mean() - MATRIX.log_abs_det, last.std() / len(last) ** 0.5
        spread = found.history["spread"][-taken // 20 :].mean()
        lines.append(
            f"| {name} | {gradient} | {1e3 * seconds[gradient]:.2g} | {taken:,} "
            f"| {found.num_matvecs:,} | {gap:.2g} ± {error:.0g} | {spread:.2g} |"
        )
    return lines


INTRODUCTION = """# Path against total gradients

A1 (10 x 10), batches of 512, float32: path gradients, and total ones at equal products and at equal time,
where they get as many more steps as they are cheaper; a product costs next to nothing here. n = 10
products would reveal the matrix. Made by `python benchmarks/gradients.py`.

| flow | gradient | ms a step | steps | products | KL gap, nats | spread of log-weights |
| --- | --- | ---: | ---: | ---: | ---: | ---: |
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=pathlib.Path, default="docs/results/gradients.md")
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    lines = np.concatenate([line(name) for name in track(FLOWS, "training")])
    text = INTRODUCTION + "\n".join(lines) + "\n"
    arguments.out.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
