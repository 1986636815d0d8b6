"""A convolution layer learns to whiten images while its log-determinant is tracked.

Run with `python examples/moving_convolution.py` (a minute or two); table and picture go to
docs/results/.

The layer y = Kx is a 3x3 zero-padded convolution, trained by maximum likelihood of Gaussian noise,
SGD on |Kx|^2/2 - log|det K|, so that log|det K| and its gradient are wanted at every step. The tracker
knows nothing of convolutions: it multiplies K with 16 vectors a step, estimates with the proposal
that it has, takes the gradient of that estimate (a backward pass through the same products, about as
dear), and improves the proposal with them too. The neighbours' estimator, Lanczos quadrature, starts
from nothing at every step, with about as many products; no gradient is taken of it here.
What knows the stencil needs no estimate at all: `Probed()` reads K off 9 products, exactly.
"""

import argparse
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from jaxtyping import Array

import determinax as dx

SIDE, BATCH, STEPS, RATE, PRODUCTS = 12, 64, 1000, 1e-5, 16
OTHERS = {
    "Monte Carlo": dx.MonteCarlo(PRODUCTS),
    "Lanczos, 4 probes, depth 2": dx.Lanczos(4, 2),
    "Lanczos, 2 probes, depth 4": dx.Lanczos(2, 4),
    "Lanczos, 1 probe, depth 8": dx.Lanczos(1, 8),
}


def layer(kernel: Array):
    """The convolution as an operator."""
    return dx.operators.convolution(kernel[None, None], (SIDE, SIDE), padding="zero")


def images(key: jax.Array) -> Array:
    """Noise, blurred: neighbouring pixels agree."""
    blur = jnp.array([[0.1, 0.3, 0.1], [0.3, 1.0, 0.3], [0.1, 0.3, 0.1]])
    blurred = dx.operators.convolution(blur[None, None], (SIDE, SIDE), padding="circular")
    return jax.vmap(blurred.mv)(jax.random.normal(key, (BATCH, SIDE**2)))


def train(steps: int) -> tuple[dict[str, np.ndarray], dict[str, int]]:
    """Errors of every estimator along the training, the truth, the loss; and products a step."""
    kernel = jnp.zeros((3, 3)).at[1, 1].set(1.0)
    kernel += 0.05 * jax.random.normal(jax.random.key(0), (3, 3))
    tracker = dx.Tracker.from_fit(dx.fit_linear(layer(kernel), key=jax.random.key(1)))

    def energy(kernel, x):
        return 0.5 * jnp.mean(jnp.sum(jax.vmap(layer(kernel).mv)(x) ** 2, axis=1))

    def step(carry: Any, key: jax.Array):
        kernel, tracker = carry
        x_key, tracker_key, other_key = jax.random.split(key, 3)

        def loss(kernel):
            moved, estimate = tracker.step(layer(kernel), tracker_key, num_matvecs=PRODUCTS)
            return energy(kernel, images(x_key)) - estimate.log_abs_det, (moved, estimate)

        (value, (tracker, estimate)), gradient = jax.value_and_grad(loss, has_aux=True)(kernel)
        truth = jnp.linalg.slogdet(layer(kernel).as_matrix())[1]
        seen = {"truth": truth, "loss": value, "tracker": estimate.log_abs_det - truth}
        spent = {"tracker": estimate.num_matvecs}
        for name, method in OTHERS.items():
            other = dx.log_abs_det(layer(kernel), method, key=other_key)
            seen[name], spent[name] = other.log_abs_det - truth, other.num_matvecs
        return (kernel - RATE * gradient, tracker), (seen, spent)

    scan = jax.jit(lambda carry, keys: jax.lax.scan(step, carry, keys))
    _, (seen, spent) = scan((kernel, tracker), jax.random.split(jax.random.key(2), steps))
    return (
        {name: np.asarray(values) for name, values in seen.items()},
        {name: int(values[0]) for name, values in spent.items()},
    )


def table(seen: dict[str, np.ndarray], spent: dict[str, int]) -> str:
    lines = [
        "| estimator | products a step | median error, nats | in the last fifth | mean (signed) |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for name in ("tracker", *OTHERS):
        errors = seen[name]
        late = errors[-len(errors) // 5 :]
        lines.append(
            f"| {name} | {spent[name]} | {np.median(np.abs(errors)):.3f} "
            f"| {np.median(np.abs(late)):.3f} | {errors.mean():+.3f} |"
        )
    return "\n".join(lines) + "\n"


@dx.plots.style()
def draw(seen: dict[str, np.ndarray], path: pathlib.Path) -> None:
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2))
    left.plot(seen["truth"] + seen["tracker"], color="C0", lw=0.8, label="tracker")
    left.plot(seen["truth"], color="k", lw=1, ls="--", label="exact")
    left.set(xlabel="training steps", ylabel="log|det K|, nats")
    window = max(1, len(seen["truth"]) // 20)
    for name in ("tracker", *OTHERS):
        errors = np.abs(seen[name])[: len(seen[name]) // window * window].reshape(-1, window)
        right.plot(window * (np.arange(len(errors)) + 0.5), np.median(errors, axis=1), label=name)
    right.set(xlabel="training steps", ylabel="median error of log|det K|, nats", yscale="log")
    left.legend()
    right.legend()
    figure.savefig(path)


TEXT = """# A convolution that learns

{n} pixels, {steps:,} steps of SGD on |Kx|^2/2 - log|det K|; log|det K| goes from {first:.2f} to
{last:.2f}, the loss from {before:.2f} to {after:.2f}. Of the products, {n} would reveal K, and 9 do where
the stencil is known. The training follows the tracker's gradient, a backward pass through its
{products} products that costs about as much again; the others are asked for the value alone. Made by
`python examples/moving_convolution.py`.

{table}
![the determinant and the errors](moving_convolution.png)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description="A convolution layer, tracked while it learns.")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--out", type=pathlib.Path, default="docs/results")
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    seen, spent = train(arguments.steps)
    text = TEXT.format(
        n=SIDE**2,
        steps=arguments.steps,
        first=seen["truth"][0],
        last=seen["truth"][-1],
        before=seen["loss"][:20].mean(),
        after=seen["loss"][-20:].mean(),
        products=spent["tracker"],
        table=table(seen, spent),
    )
    (arguments.out / "moving_convolution.md").write_text(text)
    draw(seen, arguments.out / "moving_convolution.png")
    print(text)


if __name__ == "__main__":
    main()
