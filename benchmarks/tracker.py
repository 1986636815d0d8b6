"""Operators that move: the tracker's error at 8 products a step, and Lanczos' beside it.

Run with `python benchmarks/tracker.py`; the table and figure go to docs/results/tracker.md and .png.
"""

import argparse
import pathlib
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from rich.progress import track

import determinax as dx
from determinax import plots
from determinax.training.secant import secant_update

STEPS, PRODUCTS = 500, 8
LANCZOS = dx.Lanczos(1, 4)  # 4 products each way, and one for the scale
WAYS = ("tracker", "block BFGS, forward", "block BFGS, with the transpose", "Lanczos")


class Problem(NamedTuple):
    """Where an operator starts, and how it moves."""

    start: jax.Array
    operator_of: Callable
    move: Callable  # parameters, key, gradient of the tracker's estimate -> parameters


def drifting(n: int, drift: float) -> Callable[[int], Problem]:
    def make(seed: int) -> Problem:
        rng = np.random.default_rng(seed)
        orthogonal = np.linalg.qr(rng.normal(size=(n, n)))[0]
        start = jnp.asarray(orthogonal + 0.3 * rng.normal(size=(n, n)) / n**0.5)

        def move(a, key, _):
            return a + drift * jnp.linalg.norm(a) * jax.random.normal(key, a.shape) / n

        return Problem(start, lambda a: a, move)

    return make


def convolution(channels: int, side: int, rate: float) -> Callable[[int], Problem]:
    """A convolution layer that learns to whiten images: SGD on 1/2 |Kx|^2 - log|det K|."""

    def make(seed: int) -> Problem:
        rng = np.random.default_rng(seed)
        kernel = np.zeros((channels, channels, 3, 3))
        kernel[:, :, 1, 1] = np.eye(channels)
        start = jnp.asarray(kernel + 0.05 * rng.normal(size=kernel.shape))
        blur = np.array([[0.1, 0.3, 0.1], [0.3, 1.0, 0.3], [0.1, 0.3, 0.1]])
        mix = np.eye(channels) + 0.3 * rng.normal(size=(channels, channels))
        colour = dx.operators.convolution(
            jnp.asarray(mix[:, :, None, None] * blur), (side, side), padding="circular"
        )

        def operator_of(kernel):
            return dx.operators.convolution(kernel, (side, side), padding="zero")

        def move(kernel, key, log_det_gradient):
            noise = jax.random.normal(key, (16, channels * side**2))
            images = jax.vmap(colour.mv)(noise)

            def energy(kernel):
                return 0.5 * jnp.mean(jnp.sum(jax.vmap(operator_of(kernel).mv)(images) ** 2, 1))

            return kernel - rate * (jax.grad(energy)(kernel) - log_det_gradient)

        return Problem(start, operator_of, move)

    return make


PROBLEMS = {
    "n = 64, drift 1 %": drifting(64, 0.01),
    "n = 256, drift 0.3 %": drifting(256, 0.003),
    "convolution under SGD, n = 128": convolution(2, 8, 2e-5),
}
# the same at faster rates, which want more products
RATES, MORE_PRODUCTS = (2e-5, 5e-5), (8, 16, 32)


def run(name: str, problem: Problem, seed: int, products: int = PRODUCTS) -> dict:
    """Errors of every way along one path of the operator, which the tracker's gradient may steer."""
    fit = dx.fit_linear(problem.operator_of(problem.start), key=jax.random.key(seed))
    tracker = dx.Tracker.from_fit(fit)
    factor = tracker.proposal.flow.factor  # pyright: ignore[reportAttributeAccessIssue]
    blocks = (factor.matrix(), factor.matrix())

    def body(carry, key):
        parameters, tracker, blocks = carry
        keys = jax.random.split(key, 5)

        def estimate(parameters):
            moved, e = tracker.step(problem.operator_of(parameters), keys[0], products)
            return e.log_abs_det, (moved, e)

        gradient, (tracker, e) = jax.grad(estimate, has_aux=True)(parameters)
        operator = dx.as_operator(problem.operator_of(parameters))
        truth = jnp.linalg.slogdet(operator.as_matrix())[1]
        forward, one = _block_step(operator, None, blocks[0], factor, keys[1], products)
        both, two = _block_step(
            operator, operator.transpose(), blocks[1], factor, keys[2], products // 2
        )
        lanczos = dx.log_abs_det(operator, LANCZOS, key=keys[3]).log_abs_det
        errors = jnp.stack([e.log_abs_det, one, two, lanczos]) - truth
        parameters = problem.move(parameters, keys[4], gradient)
        return (parameters, tracker, (forward, both)), (errors, e, truth)

    keys = jax.random.split(jax.random.key(seed + 1000), STEPS)
    scan = jax.jit(lambda carry, keys: jax.lax.scan(body, carry, keys))
    _, (errors, estimates, truth) = scan((problem.start, tracker, blocks), keys)
    errors = {way: np.asarray(errors[:, i]) for i, way in enumerate(WAYS)}
    return {
        "problem": name,
        "seed": seed,
        "errors": errors,
        "truth": np.asarray(truth),
        "error_bar": np.asarray(estimates.standard_error),
        "estimates": jax.device_get(estimates),
    }


def _block_step(operator, transpose, matrix, factor, key, k: int):
    """The estimate and update of `fit_linear` in blocks, whose determinant never changes."""
    z = dx.sphere.frame(key, matrix.shape[0], k, matrix.dtype)
    matrix, log_w = secant_update(operator, transpose, matrix, factor.log_abs_det(), z)
    return matrix, jnp.log(k) - jax.nn.logsumexp(log_w)


def table(rows: list[dict]) -> list[str]:
    lines = [
        "| problem | way | products a step | median error | in the first, second, ... fifth 100 steps "
        "| mean (signed) |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name in PROBLEMS:
        own = [r for r in rows if r["problem"] == name]
        for way in WAYS:
            errors = np.stack([r["errors"][way] for r in own])
            fifths = ", ".join(f"{np.median(np.abs(e)):.3f}" for e in np.split(errors, 5, axis=1))
            products = 9 if way == "Lanczos" else PRODUCTS
            lines.append(
                f"| {name} | {way} | {products} | {np.median(np.abs(errors)):.3f} | {fifths} | "
                f"{errors.mean():+.3f} |"
            )
    return [*lines, ""]


def coverage(rows: list[dict]) -> list[str]:
    lines = [
        "| problem | log\\|det\\| moves from .. to (first seed) | median standard error | errors "
        "within 1.96 of it |",
        "| --- | --- | --- | --- |",
    ]
    for name in PROBLEMS:
        own = [r for r in rows if r["problem"] == name]
        z = np.stack([r["errors"]["tracker"] / r["error_bar"] for r in own])[:, 10:]
        truth = own[0]["truth"]
        lines.append(
            f"| {name} | {truth[0]:.2f} .. {truth[-1]:.2f} | "
            f"{np.median([r['error_bar'] for r in own]):.3f} | {np.mean(np.abs(z) < 1.96):.1%} |"
        )
    return [*lines, ""]


def faster() -> list[str]:
    """What the convolution takes at a faster rate."""
    lines = [
        "| rate | products a step | median error in the first, second, ... fifth 100 steps | median "
        "standard error | steps that are off by 0.5 | of these ok, warn, unreliable |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for rate in RATES:
        for products in MORE_PRODUCTS:
            row = run("", convolution(2, 8, rate)(0), 0, products)
            fifths = np.split(np.abs(row["errors"]["tracker"]), 5)
            shown = ", ".join(f"{np.median(e):.3f}" for e in fifths)
            bar = np.median(row["error_bar"])
            off = np.flatnonzero(np.abs(row["errors"]["tracker"]) > 0.5)
            said = [row["estimates"][i].status for i in off]
            counts = ", ".join(str(said.count(s)) for s in ("ok", "warn", "unreliable"))
            lines.append(f"| {rate:g} | {products} | {shown} | {bar:.3f} | {len(off)} | {counts} |")
    return [*lines, ""]


@plots.style()
def picture(rows: list[dict], path: pathlib.Path, window: int = 20) -> None:
    """The median size of the error over windows of steps, with its quartiles."""
    figure, axes = plt.subplots(1, len(PROBLEMS), figsize=(10, 3), sharey=True)
    for ax, name in zip(axes, PROBLEMS, strict=True):
        row = next(r for r in rows if r["problem"] == name)
        for way in ("tracker", "Lanczos"):
            errors = np.abs(row["errors"][way])
            errors = errors[: len(errors) // window * window].reshape(-1, window)
            low, middle, high = np.percentile(errors, [25, 50, 75], axis=1)
            steps = window * (np.arange(len(errors)) + 0.5)
            (line,) = ax.plot(steps, middle, label=way)
            ax.fill_between(steps, low, high, color=line.get_color(), alpha=0.2, lw=0)
        ax.set(title=name, xlabel="steps", yscale="log")
    axes[0].set_ylabel("error of log|det|, nats")
    axes[0].legend(title=f"median and quartiles of {window} steps", loc="center right")
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=pathlib.Path, default="docs/results/tracker.md")
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    cells = [(name, seed) for name in PROBLEMS for seed in range(arguments.seeds)]
    rows = [run(name, PROBLEMS[name](seed), seed) for name, seed in track(cells, "tracking")]
    picture(rows, arguments.out.with_suffix(".png"))
    parts = [
        "# Operators that move\n",
        f"{STEPS} steps after `fit_linear`, {arguments.seeds} seeds; errors in nats. The operators that "
        "drift are orthogonal plus 0.3 Gaussian/sqrt(n), moved every step by a Gaussian of 1 % (0.3 %) of "
        "their norm. The convolution (two channels, 3 x 3, zero-padded 8 x 8 images) learns to whiten "
        "images by SGD on 1/2 |Kx|^2 - log|det K|, with the gradient of the tracker's own estimate. "
        "Lanczos starts from nothing every step, which is all it can. Made by "
        f"`python benchmarks/tracker.py --seeds {arguments.seeds}`.\n",
        *table(rows),
        "Block BFGS is the update of `fit_linear` for frames of fewer than n directions: 8 forward, or 4 "
        "each way. Broyden's update, the tracker's, uses where products point as well as how long they "
        "are: it needs no transpose, and has 8 fresh directions to estimate from.\n",
        "## The convolution, faster (one seed)\n",
        *faster(),
        "An operator that moves too fast for its products is lost, log|det| is then too large by far more "
        "than the standard error, and it is the verdict that says so: take more products, or fit again.\n",
        "## The tracker's error bar\n",
        *coverage(rows),
        "The first ten steps are left out: there the verdict is not `ok` yet.\n",
        "![Error against step](tracker.png)\n",
    ]
    arguments.out.write_text("\n".join(parts))
    print(arguments.out.read_text())


if __name__ == "__main__":
    main()
