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
from digits import Logits, pictures
from jaxtyping import Array, PRNGKeyArray
from rivals import log_det, power_series

import determinax as dx
from determinax.likelihood import standard_normal

N, BLOCKS, WIDTH, LIPSCHITZ, BATCH = 64, 6, 128, 0.97, 128
RATES = {"model": 1e-3, "proposals": 5e-3}  # a proposal follows the model: it has to be faster


class Residual(eqx.Module):
    """x + g(x) behind a scaling; g has three layers, each a contraction."""

    log_scale: Array
    shift: Array
    net: eqx.nn.MLP

    def __init__(self, key: PRNGKeyArray):
        self.log_scale, self.shift = jnp.zeros(N), jnp.zeros(N)
        net = eqx.nn.MLP(N, N, WIDTH, 2, lambda x: jax.nn.silu(x) / 1.1, key=key)
        last = lambda net: net.layers[-1].weight  # noqa: E731
        self.net = eqx.tree_at(last, net, 0.1 * last(net))

    def __call__(self, x: Array) -> Array:
        """One digit through the block."""
        x = x * jnp.exp(self.log_scale) + self.shift
        return x + self.net(x)

    def inverse(self, y: Array) -> Array:
        """By fixed-point iteration: g is a contraction."""
        x = jax.lax.fori_loop(0, 200, lambda _, x: y - self.net(x), y)
        return (x - self.shift) * jnp.exp(-self.log_scale)


def contracted(blocks: list[Residual]) -> list[Residual]:
    """With every weight matrix scaled down to a norm of at most 0.97."""
    return jax.tree.map(lambda a: _contracted(a) if eqx.is_array(a) and a.ndim == 2 else a, blocks)


def _contracted(w: Array) -> Array:
    def step(_, v):
        return w.T @ (w @ v) / jnp.linalg.norm(w @ v)

    v = jax.lax.stop_gradient(jax.lax.fori_loop(0, 20, step, jnp.ones(w.shape[1])))
    norm = jnp.linalg.norm(w @ v) / jnp.linalg.norm(v)
    return w / jnp.maximum(1, norm / LIPSCHITZ)


def through(blocks: list[Residual], x: Array) -> Array:
    for block in blocks:
        x = block(x)
    return x


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


def start(data: Logits) -> tuple[list[Residual], dx.proposals.BlockProposals]:
    first, second = jax.random.split(jax.random.key(0))
    blocks = [Residual(k) for k in jax.random.split(first, BLOCKS)]
    return blocks, dx.block_proposals(contracted(blocks), data.sample, key=second)


def optimiser(steps: int) -> optax.GradientTransformation:
    rates: dict[Any, Any] = {
        k: optax.adam(optax.cosine_decay_schedule(r, steps)) for k, r in RATES.items()
    }
    return optax.multi_transform(rates, ("model", "proposals"))


@eqx.filter_jit
def held_out(models: Any, data: Logits) -> tuple[Array, Array, Array]:
    """Of the test digits: bits by exact Jacobians and by 64 products, and the proposals' gap."""
    blocks, proposals = contracted(models[0]), models[1]
    x, key = data.noisy(jax.random.key(0), data.test), jax.random.key(1)
    truth = jax.lax.map(lambda x: log_det(jax.jacfwd(lambda x: through(blocks, x))(x)), x)
    log_p = jax.vmap(lambda x: standard_normal(through(blocks, x)))(x) + truth
    own = dx.log_likelihood(blocks, None, x, proposals, key=key).log_likelihood
    s = dx.jacobian_surrogate(blocks, x, proposals, key=key, num_samples=64)
    return data.bits(log_p, x), data.bits(own, x), s.loss - truth


def run(name: str, steps: int) -> dict[str, Any]:
    """Train once, and look at held-out digits."""
    data, (log_dets, products) = Logits(), WAYS[name]
    fit = dx.training.fit_model(
        Loss(log_dets),
        start(data),
        data.sample,
        key=jax.random.key(1),
        steps=steps,
        batch_size=BATCH,
        optimiser=optimiser(steps),
        products=products,
        what=name,
    )
    bits, own, gap = (float(jnp.mean(a)) for a in held_out(fit.models, data))
    x = jax.random.normal(jax.random.key(2), (12, N))
    for block in contracted(fit.models[0])[::-1]:
        x = jax.vmap(block.inverse)(x)
    row = {"way": name, "steps": steps, "products": products, "version": dx.__version__}
    row |= {"bits": bits, "own": own, "gap": gap, "samples": data.pixels(x)}
    return row | {"loss": fit.history["loss"].tolist()}


@dx.plots.style()
def draw(rows: list[dict[str, Any]], folder: pathlib.Path) -> None:
    figure, axes = plt.subplots(figsize=(6.5, 3.2))
    for row in rows:
        axes.plot(np.convolve(row["loss"], np.ones(100) / 100, "valid"), label=row["way"])
    axes.set(xlabel="training steps", ylabel="loss, nats of standardised logits")
    axes.legend()
    figure.savefig(folder / "digits_curves.png")
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
