"""Maximum likelihood with an invertible residual network, and log-determinants from 1 product a digit.

Run with `python examples/digits_flow.py` (half an hour on two cores, with scikit-learn and matplotlib;
`--only exact` picks ways by their beginning). Rows and pictures go to docs/results/.

Every block x + g(x) is invertible since its weights are contracted. Ways to have its log|det J(x)|:

- exact: 64 Jacobian-vector products a digit;
- VDE: a proposal for every block learns along, on the very same products. "1 product" is 2 for every
  other digit: half the variance of two log-weights is what the model would be paid for making its own
  determinant hard to estimate, and is taken off;
- the power series of residual flows, three terms and a random number more.
"""

import argparse
import json
import pathlib
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from contractive import Blocks, contracted, network, through
from digits import Logits, pictures
from jaxtyping import Array, PRNGKeyArray
from rivals import log_det, power_series

import determinax as dx
from determinax.likelihood import standard_normal

N, BLOCKS, WIDTH, BATCH = 64, 6, 128, 128
RATES = {"model": 1e-3, "proposals": 5e-3}  # a proposal follows the model: it has to be faster


# ways to train: blocks, their proposals, digits and a key in, log|det J| of each digit out
def exact(blocks, proposals, x: Array, key: PRNGKeyArray) -> Array:
    """The whole Jacobian; proposals that nobody uses learn beside it: what is their gap?"""
    s = dx.jacobian_surrogate(blocks, x, proposals, key=key)
    jacobians = jax.vmap(jax.jacfwd(lambda x: through(blocks, x)))(x)
    return jax.vmap(log_det)(jacobians) - s.loss + jax.lax.stop_gradient(s.loss)


def variational(num: int, digits: int = BATCH) -> Callable:
    """With `num` products for so many of the digits."""

    def log_dets(blocks, proposals, x: Array, key: PRNGKeyArray) -> Array:
        x = x[:digits]
        s = dx.jacobian_surrogate(blocks, x, proposals, key=key, num_samples=num)
        # the second term is 0, and moves the proposals alone
        return s.corrected - (s.loss - jax.lax.stop_gradient(s.loss))

    return log_dets


# each with its products a digit
WAYS = {
    "exact": (exact, N),
    "VDE, 1 product": (variational(2, BATCH // 2), 1),
    "VDE, 4 products": (variational(4), 4),
    "power series": (power_series, 4),
}


class Loss(eqx.Module):
    """Minus the mean log-likelihood of a batch."""

    log_dets: Callable = eqx.field(static=True)

    def __call__(self, models: Any, x: Array, key: PRNGKeyArray) -> Array:
        """Of blocks and their proposals."""
        blocks = contracted(models[0])
        log_p = jax.vmap(lambda x: standard_normal(through(blocks, x)))(x)
        return -jnp.mean(log_p) - jnp.mean(self.log_dets(blocks, models[1], x, key))


def start(data: Logits) -> tuple[Blocks, dx.proposals.BlockProposals]:
    first, second = jax.random.split(jax.random.key(0))
    blocks = network(N, WIDTH, BLOCKS, first)
    # a diagonal and eight directions: as good here as any matrix, in three quarters of the time
    q = dx.block_proposals(contracted(blocks), data.sample, key=second, family="low rank")
    return blocks, q


def optimiser(steps: int) -> optax.GradientTransformation:
    rates: dict[Any, Any] = {
        k: optax.adam(optax.cosine_decay_schedule(r, steps)) for k, r in RATES.items()
    }
    return optax.multi_transform(rates, ("model", "proposals"))


@eqx.filter_jit
def held_out(models: Any, data: Logits, key: PRNGKeyArray) -> dict[str, Array]:
    """Of the test digits with fresh noise: bits by exact Jacobians, bits by 64 products and their gap."""
    blocks, proposals = contracted(models[0]), models[1]
    noise, key = jax.random.split(key)
    x = data.noisy(noise, data.test)
    truth = jax.lax.map(lambda x: log_det(jax.jacfwd(lambda x: through(blocks, x))(x)), x)
    log_p = jax.vmap(lambda x: standard_normal(through(blocks, x)))(x) + truth
    found = {"bits": jnp.mean(data.bits(log_p, x))}
    if proposals is not None:
        own = dx.log_likelihood(blocks, None, x, proposals, key=key).log_likelihood
        s = dx.jacobian_surrogate(blocks, x, proposals, key=key, num_samples=64)
        found |= {"own": jnp.mean(data.bits(own, x)), "gap": jnp.mean(s.loss - truth)}
    return found


def run(name: str, steps: int) -> dict[str, Any]:
    """Train once, and look at held-out digits."""
    data, (log_dets, products) = Logits(), WAYS[name]
    models = start(data)
    fit = dx.training.fit_model(
        Loss(log_dets),
        models if log_dets is not power_series else (models[0], None),
        data.sample,
        key=jax.random.key(1),
        steps=steps,
        batch_size=BATCH,
        optimiser=optimiser(steps),
        products=products,
        what=name,
    )
    # noise of the pixels moves a mean by half a percent: the same eight draws for every way
    looks = [held_out(fit.models, data, jax.random.key(i)) for i in range(8)]
    x = jax.random.normal(jax.random.key(2), (12, N))
    for block in contracted(fit.models[0])[::-1]:
        x = jax.vmap(block.inverse)(x)
    row = {"way": name, "steps": steps, "products": products, "version": dx.__version__}
    row |= {what: float(np.mean([look[what] for look in looks])) for what in looks[0]}
    return row | {"samples": data.pixels(x), "loss": fit.history["loss"].tolist()}


@dx.plots.style()
def draw(rows: list[dict[str, Any]], folder: pathlib.Path) -> None:
    figure, axes = plt.subplots(figsize=(6.5, 3.2))
    for row in rows:
        axes.plot(np.convolve(row["loss"], np.ones(100) / 100, "valid"), label=row["way"])
    axes.set(xlabel="training steps", ylabel="loss, nats of standardised logits")
    axes.legend()
    figure.savefig(folder / "digits_loss.png")
    shown = {"digits": Logits().test[:12]} | {row["way"]: row["samples"] for row in rows}
    pictures(shown, folder / "digits_samples.png")


def main() -> None:
    parser = argparse.ArgumentParser(description="Digits, with log-determinants from 1 product.")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--only", default="", help="ways whose name begins like this")
    parser.add_argument("--out", type=pathlib.Path, default="docs/results")
    arguments = parser.parse_args()
    path = arguments.out / "digits.jsonl"
    for name in (name for name in WAYS if name.startswith(arguments.only)):
        row = run(name, arguments.steps)
        with path.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print({k: v for k, v in row.items() if k not in ("samples", "loss")})
    draw([json.loads(line) for line in path.read_text().splitlines()], arguments.out)


if __name__ == "__main__":
    main()
