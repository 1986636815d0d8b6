"""Maximum likelihood with a contractive residual network, and log-determinants from 1 product.

Run with `python examples/digits_flow.py` (about an hour on one core, with
scikit-learn installed); `--only "VDE, 1"` picks runs by their beginning, `--steps` shortens them. Runs,
a table and pictures go to docs/results/; runs that are there already are not made again.

The model is a stack of residual blocks x + g(x) on the 8x8 digits that scikit-learn ships, with
scalings between them. Its Jacobian has no structure: log p(x) = log p(f(x)) + log|det J(x)| needs a
64 x 64 determinant for every digit and step. Three ways to have it:

- exact: 64 Jacobian-vector products a digit;
- VDE with k = 1, 2, 4 products: for every block a proposal q(s|x) = M(x)z/||M(x)z||, where x is what
  goes into the block, is trained along, on the very same products. The estimate errs upward by
  KL(q || q*), which a model could exploit: it would be paid for making its own determinant hard to
  estimate. So the gap is plotted along the training, beside that of proposals which learn from
  the exact run and have no say in it;
- the power series of residual flows (Chen et al. 2019): Hutchinson's trace of
  log(I + J_g) = J_g - J_g^2/2 + ..., three terms for certain and then a random number (Russian
  roulette). It needs blocks with a Lipschitz constant below 1. The other two do not, but every weight
  is contracted for all of them: that keeps the network invertible, and the estimate honest.
"""

import argparse
import functools
import json
import math
import pathlib
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import digits_page
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from digits_page import dequantised, load_digits, pixels_of
from jaxtyping import Array, Float, PRNGKeyArray
from rich.progress import track

from determinax import Exact, Proposal, flows, log_abs_det

N = 64
NUM_BLOCKS, WIDTH, LIPSCHITZ = 6, 128, 0.97
BATCH, EVERY, RATES = 128, 200, {"model": 1e-3, "proposal": 5e-3}
HIDDEN = (64,)
MIN_TERMS = 3  # of the power series, for certain; each more with probability 1/2


class Residual(eqx.Module):
    """x + g(x) behind a scaling; g is a network of three layers, each a contraction."""

    log_scale: Float[Array, " n"]
    shift: Float[Array, " n"]
    weights: list[Float[Array, "o i"]]
    biases: list[Float[Array, " o"]]

    def __init__(self, key: PRNGKeyArray):
        sizes = (N, WIDTH, WIDTH, N)
        keys = jax.random.split(key, 3)
        self.log_scale, self.shift = jnp.zeros(N), jnp.zeros(N)
        self.weights = [
            jax.random.normal(k, (o, i)) * i**-0.5 * (1.0 if o != N else 0.1)
            for k, i, o in zip(keys, sizes, sizes[1:], strict=False)
        ]
        self.biases = [jnp.zeros(o) for o in sizes[1:]]

    def scaled(self, x: Array) -> Array:
        """What comes before the residual part."""
        return x * jnp.exp(self.log_scale) + self.shift

    def g(self, x: Array) -> Array:
        """The contraction."""
        for w, b in zip(self.weights[:-1], self.biases[:-1], strict=True):
            x = w @ x + b
            x = x * jax.nn.sigmoid(x) / 1.1  # LipSwish
        return self.weights[-1] @ x + self.biases[-1]

    def __call__(self, x: Array) -> Array:
        """One digit through the block."""
        x = self.scaled(x)
        return x + self.g(x)

    def inverse(self, y: Array) -> Array:
        """By fixed-point iteration: g is a contraction."""
        x = jax.lax.fori_loop(0, 200, lambda _, x: y - self.g(x), y)
        return (x - self.shift) * jnp.exp(-self.log_scale)


class Model(eqx.Module):
    """Residual blocks one after the other."""

    blocks: list[Residual]

    def __init__(self, key: PRNGKeyArray):
        self.blocks = [Residual(k) for k in jax.random.split(key, NUM_BLOCKS)]

    def __call__(self, x: Array) -> Array:
        """One digit to noise."""
        for block in self.blocks:
            x = block(x)
        return x

    def inverse(self, y: Array) -> Array:
        """Noise to a digit."""
        for block in self.blocks[::-1]:
            y = block.inverse(y)
        return y

    def contracted(self) -> "Model":
        """With every weight matrix scaled down to a norm of at most 0.97."""
        weights = [[_contract(w) for w in block.weights] for block in self.blocks]
        return eqx.tree_at(lambda m: [block.weights for block in m.blocks], self, weights)


def _contract(w: Array) -> Array:
    """Divided by its norm over 0.97, where that is above 1; the norm by power iteration."""

    def step(_, v):
        v = w.T @ (w @ v)
        return v / jnp.linalg.norm(v)

    start = jax.random.normal(jax.random.key(0), (w.shape[1],))
    v = jax.lax.stop_gradient(jax.lax.fori_loop(0, 20, step, start))
    return w / jnp.maximum(1, jnp.linalg.norm(w @ v) / LIPSCHITZ)


hold = jax.lax.stop_gradient


def hold_all(tree):
    return jax.tree.map(lambda a: hold(a) if eqx.is_array(a) else a, tree)


def log_prior(y: Array) -> Array:
    return -0.5 * jnp.sum(y**2) - 0.5 * N * math.log(2 * math.pi)


# a way to train: the model, a proposal for every block, one x and a key in; log|det J(x)| out, and in
# the same sum minus the proposals' losses, which add nothing to the value and move them alone

Proposals = list[flows.AbstractSphereMap]


def exact(model: Model, _, x: Array, __) -> Array:
    """The whole Jacobian, then its determinant."""
    return log_abs_det(jax.jacfwd(model)(x), Exact()).log_abs_det


def exact_followed(model: Model, proposals: Proposals, x: Array, key: PRNGKeyArray) -> Array:
    """The same, with proposals that learn along and that nobody uses: what is their gap?"""
    log_det = exact(model, None, x, None)
    for block, flow, k in zip(model.blocks, proposals, _keys(key), strict=True):
        x = hold(block.scaled(x))
        s, _, path = _directions(flow, x, k, 1)
        log_det -= _learn(_push(hold_all(block), x, s), path)
        x = x + block.g(x)
    return log_det


def variational(num: int) -> Callable:
    """With `num` products, 2 or more: half the variance of their log-weights is taken off.

    The mean of -log w is above log|det J| by about Var(log w)/2. A likelihood with that in it pays
    the model for determinants that are hard to estimate; without it, to second order, it does not.
    """

    def log_det_of(model: Model, proposals: Proposals, x: Array, key: PRNGKeyArray) -> Array:
        log_det = jnp.zeros(())
        for block, flow, k in zip(model.blocks, proposals, _keys(key), strict=True):
            x = block.scaled(x)
            s, log_q, path = _directions(flow, x, k, num)
            minus_log_w = N * _log_norms(_push(block, x, hold(s))) + log_q
            log_det += jnp.sum(block.log_scale) + jnp.mean(minus_log_w)
            log_det -= 0.5 * jnp.var(minus_log_w, ddof=1)
            # the same products once more, for the proposal's gradient: XLA computes them once
            log_det -= _learn(_push(hold_all(block), hold(x), s), path)
            x = x + block.g(x)
        return log_det

    return log_det_of


def _keys(key: PRNGKeyArray) -> PRNGKeyArray:
    return jax.random.split(key, NUM_BLOCKS)


def _push(block: Residual, x: Array, s: Array) -> Array:
    """(I + J_g(x))s, one product a column."""
    return s + jax.vmap(lambda v: jax.jvp(block.g, (x,), (v,))[1], in_axes=1, out_axes=1)(s)


def _directions(flow, x: Array, key: PRNGKeyArray, num: int) -> tuple[Array, Array, Array]:
    """Draws of the proposal, their log-densities, and these again with the parameters held."""
    s, log_q = Proposal(flow).given(hold(x)).sample_columns(key, num)
    path = Proposal(hold_all(flow)).given(hold(x)).log_density_columns(s)
    return s, hold(log_q), path


def _learn(images: Array, path: Array) -> Array:
    """The path gradient of the divergence, on a value of zero."""
    value = jnp.mean(N * _log_norms(images) + path)
    return value - hold(value)


def _log_norms(vectors: Array) -> Array:
    return jnp.log(jnp.linalg.norm(vectors, axis=0))


def power_series(num_terms: int) -> Callable:
    """Residual flows' estimator; terms after the third weigh 2, 4, ... as half of all runs stop."""

    def log_det_of(model: Model, _, x: Array, key: PRNGKeyArray) -> Array:
        log_det = jnp.zeros(())
        for block, k in zip(model.blocks, _keys(key), strict=True):
            log_det += jnp.sum(block.log_scale)
            x = block.scaled(x)
            moved, pull = jax.vjp(block.g, x)
            v = jax.random.normal(k, (N,))
            row = v
            for term in range(1, num_terms + 1):
                (row,) = pull(row)
                weight = 2.0 ** max(0, term - MIN_TERMS)
                log_det += (-1) ** (term + 1) / term * weight * (row @ v)
            x = x + moved
        return log_det

    return log_det_of


class Way(NamedTuple):
    """A way to have log|det J|, and for how many digits of a batch it is asked."""

    log_det: Callable
    digits: int = BATCH


# 1 product a digit: 2 for every other one, since one alone has no variance to take off
WAYS = {
    "exact, 64 products": Way(exact_followed),
    "VDE, 1 product": Way(variational(2), BATCH // 2),
    "VDE, 2 products": Way(variational(2)),
    "VDE, 4 products": Way(variational(4)),
    "power series, 4 products in the mean": Way(exact),  # its terms are drawn every step
}
TIMED = {"exact": Way(exact), "power series": Way(power_series(4))}


def standardised(model: Model, x: Array) -> Model:
    """The first scaling takes the data to mean 0 and variance 1."""
    mean, deviation = x.mean(axis=0), x.std(axis=0)
    return eqx.tree_at(
        lambda m: (m.blocks[0].log_scale, m.blocks[0].shift),
        model,
        (-jnp.log(deviation), -mean / deviation),
    )


def train(
    name: str, steps: int, seed: int = 0, way: Way | None = None
) -> tuple[dict[str, Any], Model]:
    """One run: a curve of held-out bits per dimension by exact determinants, and the model.

    `way` None: the one of that name.
    """
    train_pixels, test_pixels = (jnp.asarray(p, jnp.float32) for p in load_digits())
    model_key, flow_key, key = jax.random.split(jax.random.key(seed), 3)
    model = standardised(Model(model_key), dequantised(key, train_pixels)[0])
    proposals = [flows.conditional_linear(N, key=k, hidden=HIDDEN) for k in _keys(flow_key)]
    both = (model, proposals)
    # the proposal follows the model, so it has to be the faster one
    rates = {name: optax.cosine_decay_schedule(rate, steps) for name, rate in RATES.items()}
    optimiser = optax.multi_transform(
        {name: optax.adam(rate) for name, rate in rates.items()}, ("model", "proposal")
    )
    state = optimiser.init(eqx.filter(both, eqx.is_inexact_array))
    rng = np.random.default_rng(seed)

    @eqx.filter_jit
    def step(both, state, key, way):
        batch_key, noise_key, way_key = jax.random.split(key, 3)
        chosen = jax.random.choice(batch_key, len(train_pixels), (BATCH,), replace=False)
        x, added = dequantised(noise_key, train_pixels[chosen])

        def mean_loss(both):
            model, proposals = both
            model = model.contracted()
            keys = jax.random.split(way_key, way.digits)
            of_each = jax.vmap(lambda x, k: way.log_det(model, proposals, x, k))
            log_det = jnp.mean(of_each(x[: way.digits], keys))
            return -jnp.mean(jax.vmap(log_prior)(jax.vmap(model)(x)) + added) - log_det

        loss, gradients = eqx.filter_value_and_grad(mean_loss)(both)
        updates, state = optimiser.update(gradients, state)
        return eqx.apply_updates(both, updates), state, loss

    @eqx.filter_jit
    def held_out(both, key):
        model, proposals = both[0].contracted(), both[1]
        x, added = dequantised(key, test_pixels)

        def one(inputs):
            x, key = inputs
            log_det, gap = jnp.zeros(()), jnp.zeros(())
            for block, flow, k in zip(model.blocks, proposals, _keys(key), strict=True):
                x = block.scaled(x)
                jacobian = jnp.eye(N) + jax.jacfwd(block.g)(x)
                truth = log_abs_det(jacobian, Exact()).log_abs_det
                s, log_q, _ = _directions(flow, x, k, 64)
                gap += jnp.mean(N * _log_norms(jacobian @ s) + log_q) - truth
                log_det += truth + jnp.sum(block.log_scale)
                x = x + block.g(x)
            return log_prior(x) + log_det, gap

        log_p, gaps = jax.lax.map(one, (x, jax.random.split(key, len(x))))
        return -jnp.mean(log_p + added) / (N * math.log(2)), jnp.mean(gaps)

    curve: dict[str, list[float]] = {"step": [], "bits": [], "gap": []}
    seconds, products = [], []
    draws_terms = way is None and name.startswith("power")
    way, compiled = way or WAYS[name], set()
    for i in track(range(steps), name):
        if draws_terms:
            terms = MIN_TERMS - 1 + min(int(rng.geometric(0.5)), 8)
            way = _series(terms)
            products.append(terms)
        began = time.perf_counter()
        both, state, loss = step(both, state, jax.random.fold_in(key, i), way)
        loss = float(loss)
        if way in compiled:
            seconds.append(time.perf_counter() - began)
        compiled.add(way)
        if not math.isfinite(loss):
            raise RuntimeError(f"{name}: the loss is {loss} at step {i}")
        if (i + 1) % EVERY == 0:
            bits, gap = held_out(both, jax.random.key(i))
            for what, value in zip(curve, (i + 1, bits, gap), strict=True):
                curve[what].append(float(value))
    count = np.mean(products) if products else float(name.split(", ")[1].split()[0])
    run = {"name": name, "steps": steps, "products": float(count), "curve": curve}
    return run | {"seconds_per_step": float(np.median(seconds))}, both[0].contracted()


@functools.cache  # one object for equal counts: what is compiled for it serves again
def _series(terms: int) -> Way:
    return Way(power_series(terms))


def seconds_a_step(names: list[str]) -> dict[str, float]:
    """All in one process, one after the other, since machines are busier at times."""
    ways = {name: TIMED.get(name.split(",")[0]) for name in names}
    return {name: train(name, 30, way=way)[0]["seconds_per_step"] for name, way in ways.items()}


def sample(model: Model, num: int = 12) -> list:
    """Digits drawn from the model."""
    y = jax.random.normal(jax.random.key(1), (num, N))
    return np.asarray(pixels_of(jax.vmap(model.inverse)(y))).tolist()


def main() -> None:
    parser = argparse.ArgumentParser(description="Digits, with log-determinants from 1 product.")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--only", default="", help="ways whose name begins like this")
    parser.add_argument("--out", type=pathlib.Path, default="docs/results")
    arguments = parser.parse_args()
    runs, samples = [], {}
    for name in WAYS:
        path = (
            arguments.out
            / f"digits-{name.split(' prod')[0].replace(',', '').replace(' ', '-')}.json"
        )
        known = path.exists() and json.loads(path.read_text())["steps"] == arguments.steps
        if not known and name.startswith(arguments.only):
            run, model = train(name, arguments.steps)
            path.write_text(json.dumps(run | {"samples": sample(model)}))
            known = True
        if known:
            run = json.loads(path.read_text())
            samples[name] = run.pop("samples")
            runs.append(run)
    text = digits_page.TEXT.format(
        blocks=NUM_BLOCKS,
        width=WIDTH,
        steps=arguments.steps,
        batch=BATCH,
        table=digits_page.table(runs, seconds_a_step(list(samples))),
    )
    (arguments.out / "digits.md").write_text(text)
    digits_page.draw(runs, arguments.out / "digits_curves.png")
    digits_page.draw_samples(
        {"digits": load_digits()[1][:12], **samples}, arguments.out / "digits_samples.png"
    )
    print(text)


if __name__ == "__main__":
    main()
