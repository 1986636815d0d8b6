"""One Jacobian-vector product a sample: amortised proposals beside the power series of residual flows.

Run with `python benchmarks/jacobian.py`; the table goes to docs/results/jacobian.md.

A residual flow has blocks x + g(x) with Lipschitz constants below 1 (Chen et al., 2019,
arXiv:1906.02735) and estimates log|det(I + J)| = sum_k (-1)^(k+1) tr(J^k)/k with Hutchinson's probes.
A product is one pass of a vector through the Jacobian of all blocks, for either estimator.
"""

import argparse
import pathlib
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import determinax as dx
from determinax import flows
from determinax.training._optimisers import warm_cosine

N, HIDDEN, BLOCKS, LIPSCHITZ = 64, 128, 4, 0.9
NUM_X, NUM_KEYS = 200, 64
NUM_BASE = 100  # points, none of those above, whose mean Jacobian the proposals start from


class Block(NamedTuple):
    """The parameters of x + W2 lipswish(W1 x + b)."""

    first: jax.Array
    bias: jax.Array
    second: jax.Array

    def residual(self, x: jax.Array) -> jax.Array:
        """The block without its x."""
        hidden = self.first @ x + self.bias
        return self.second @ (hidden * jax.nn.sigmoid(hidden) / 1.1)


def normalised(blocks: list[Block]) -> list[Block]:
    """With all matrices scaled below the spectral norm."""

    def below(w):
        return w * jnp.minimum(1.0, LIPSCHITZ / jnp.linalg.norm(w, 2))

    return [Block(below(b.first), b.bias, below(b.second)) for b in blocks]


def network(key: jax.Array) -> list[Block]:
    def block(key):
        k1, k2, k3 = jax.random.split(key, 3)
        scale = 1.0 / (N**0.5 + HIDDEN**0.5)  # a spectral norm of about 1
        return Block(
            scale * jax.random.normal(k1, (HIDDEN, N)),
            0.5 * jax.random.normal(k2, (HIDDEN,)),
            scale * jax.random.normal(k3, (N, HIDDEN)),
        )

    return [block(k) for k in jax.random.split(key, BLOCKS)]


def forward(blocks: list[Block], x: jax.Array) -> jax.Array:
    for block in blocks:
        x = x + block.residual(x)
    return x


def data(key: jax.Array) -> Callable[[jax.Array, int], jax.Array]:
    """Ten clusters on planes of five dimensions, with a little noise around them."""
    k1, k2 = jax.random.split(key)
    centres = jax.random.normal(k1, (10, N))
    planes = 0.3 * jax.random.normal(k2, (10, N, 5))

    def sample(key, num):
        k1, k2, k3 = jax.random.split(key, 3)
        which = jax.random.randint(k1, (num,), 0, 10)
        inside = jnp.einsum("knd,kd->kn", planes[which], jax.random.normal(k2, (num, 5)))
        return centres[which] + inside + 0.1 * jax.random.normal(k3, (num, N))

    return sample


def trained(blocks: list[Block], sample: Callable, key: jax.Array, steps: int) -> list[Block]:
    """By maximum likelihood against a standard normal law, with exact log-determinants."""
    optimiser = optax.adam(2e-3)

    def loss(blocks, x):
        blocks = normalised(blocks)

        def one(x):
            jacobian = jax.jacfwd(lambda x: forward(blocks, x))(x)
            log_det = dx.log_abs_det(jacobian, dx.Exact()).log_abs_det
            return 0.5 * jnp.sum(forward(blocks, x) ** 2) - log_det

        return jnp.mean(jax.vmap(one)(x))

    def step(carry, key):
        blocks, state = carry
        gradient = jax.grad(loss)(blocks, sample(key, 32))
        updates, state = optimiser.update(gradient, state)
        return (optax.apply_updates(blocks, updates), state), None

    run = jax.jit(lambda carry, keys: jax.lax.scan(step, carry, keys)[0][0])
    return run((blocks, optimiser.init(blocks)), jax.random.split(key, steps))


def power_series(blocks, x, key, num_terms: int, survival: float | None = None):
    """Hutchinson's estimate with terms up to `num_terms`; with `survival`, roulette beyond two.

    Every term past the second is reached with probability `survival` after the one before, and is
    weighted by the inverse of how likely that was: without bias, had the sum no end.
    """
    total, weights = jnp.zeros(()), np.ones(num_terms)
    alive = jnp.ones(num_terms)
    if survival is not None:
        drawn = jax.random.uniform(jax.random.fold_in(key, 99), (num_terms,)) < survival
        alive = jnp.cumprod(jnp.where(jnp.arange(num_terms) < 2, True, drawn))
        weights = survival ** -np.maximum(np.arange(num_terms) - 1.0, 0)
    for i, block in enumerate(blocks):
        probe = jax.random.rademacher(jax.random.fold_in(key, i), (N,), x.dtype)
        residual, product = jax.linearize(block.residual, x)
        vector = probe
        for k in range(num_terms):
            vector = product(vector)
            total += alive[k] * weights[k] * (-1) ** k / (k + 1) * (vector @ probe)
        x = x + residual
    return total, jnp.sum(alive)


def spread_and_bias(estimates: np.ndarray, truth: np.ndarray) -> tuple[float, float]:
    """Of estimates (keys, points): the deviation at one x, and the mean error."""
    return float(np.sqrt(estimates.var(axis=0).mean())), float((estimates.mean(0) - truth).mean())


def run(name: str, blocks: list[Block], sample: Callable, steps: int, seed: int) -> list[dict]:
    def f(x):
        return forward(blocks, x)

    key = jax.random.key(seed)
    x = sample(jax.random.fold_in(key, 1), NUM_X)
    jacobians = np.asarray(jax.jit(jax.vmap(jax.jacfwd(f)))(x), float)
    truth = np.linalg.slogdet(jacobians)[1]
    keys = jax.random.split(jax.random.fold_in(key, 2), NUM_KEYS)
    rows = []

    def add(estimator, products, trained_on, estimates):
        spread, bias = spread_and_bias(np.asarray(estimates, float), truth)
        rows.append(
            {"network": name, "estimator": estimator, "products": float(products)}
            | {"trained_on": trained_on, "spread": spread, "bias": bias, "truth": truth}
            | {"jacobians": jacobians}
        )

    for terms, survival in ((1, None), (2, None), (4, None), (8, None), (12, 0.5)):
        each = jax.jit(
            lambda keys, t=terms, p=survival: jax.lax.map(
                lambda k: jax.vmap(lambda x, k: power_series(blocks, x, k, t, p))(
                    x, jax.random.split(k, NUM_X)
                ),
                keys,
            )
        )
        estimates, products = each(keys)
        kind = f"power series to term {terms}" if survival is None else "power series, roulette"
        add(kind, np.mean(products), 0, estimates)

    def sampled(proposal, num_samples):
        def one(proposal, key):
            e = dx.jacobian_log_abs_det(f, x, proposal, key=key, num_samples=num_samples)
            return e.log_abs_det

        return jax.jit(lambda q, keys: jax.lax.map(lambda k: one(q, k), keys))(proposal, keys)

    add("uniform directions", 1, 0, sampled(None, 1))
    others = sample(jax.random.fold_in(key, 3), NUM_BASE)
    mean = np.asarray(jax.jit(jax.vmap(jax.jacfwd(f)))(others), float).mean(0)
    base, for_base = flows.Dense(jnp.asarray(np.linalg.inv(mean), "float32")), NUM_BASE * N
    one_for_all = dx.Proposal(flows.ProjectiveLinear(base))
    add("one M for all x: the inverse of the mean", 1, for_base, sampled(one_for_all, 1))
    for part, rank in (("diagonal + rank 8", 8), ("triangular", None)):
        flow = flows.conditional_linear(
            N, key=key, rank=rank, base=base, hidden=(128,), dtype="float32"
        )
        fit = dx.fit_jacobian(
            f, sample, flow, key=key, steps=steps, learning_rate=warm_cosine(steps, 3e-3)
        )
        for num in (1, 4):
            estimates = sampled(fit.proposal, num)
            add(f"amortised M(x), {part}", num, for_base + fit.num_matvecs, estimates)
    return rows


def table(rows: list[dict]) -> list[str]:
    lines = [
        "| network | estimator | products a sample | standard deviation at one x | of the power "
        "series' | mean error | trained on |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        series = [
            r
            for r in rows
            if r["network"] == row["network"]
            and "to term" in r["estimator"]
            and r["products"] == row["products"]
        ]
        share = f"{row['spread'] / series[0]['spread']:.3f}" if series else ""
        cost = f"{row['trained_on']:,} products" if row["trained_on"] else ""
        lines.append(
            f"| {row['network']} | {row['estimator']} | {row['products']:.3g} | {row['spread']:.3f} | "
            f"{share} | {row['bias']:+.3f} | {cost} |"
        )
    return [*lines, ""]


def describe(rows: list[dict]) -> list[str]:
    lines = []
    for name in dict.fromkeys(r["network"] for r in rows):
        row = next(r for r in rows if r["network"] == name)
        values = np.linalg.svd(row["jacobians"], compute_uv=False)
        mean = row["jacobians"].mean(0)
        varies = np.linalg.norm(row["jacobians"] - mean, axis=(1, 2)).mean() / np.linalg.norm(mean)
        lines.append(
            f"- {name}: log|det J(x)| = {row['truth'].mean():.2f} ± {row['truth'].std():.2f} over x, "
            f"singular values {values.min():.2f} .. {values.max():.2f}, J(x) differs from its mean by "
            f"{varies:.0%} of its norm"
        )
    return [*lines, ""]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=600, help="of fit_jacobian")
    parser.add_argument("--likelihood-steps", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=pathlib.Path, default="docs/results/jacobian.md")
    arguments = parser.parse_args()
    keys = jax.random.split(jax.random.key(arguments.seed), 3)
    sample, start = data(keys[0]), network(keys[1])
    learned = trained(start, sample, keys[2], arguments.likelihood_steps)
    rows = []
    for name, blocks in (("at random", start), ("trained", learned)):
        rows += run(name, normalised(blocks), sample, arguments.steps, arguments.seed)
    parts = [
        "# One Jacobian-vector product a sample\n",
        f"A residual network on R^{N}: {BLOCKS} blocks x + g(x), {HIDDEN} hidden units, spectral norms of "
        f"all matrices at most {LIPSCHITZ}; at random, and after {arguments.likelihood_steps} steps of "
        "maximum likelihood (exact log-determinants) on ten clusters. Estimates of log|det J(x)| at "
        f"{NUM_X} points that were not trained on, {NUM_KEYS} keys, float32. A product takes a vector "
        "through the Jacobian of all blocks; the power series draws Rademacher probes for each block. "
        f"n = {N} products reveal J(x); the mean Jacobian, which every M starts from, is that of "
        f"{NUM_BASE} other points. Made by `python benchmarks/jacobian.py --steps "
        f"{arguments.steps}`.\n",
        *describe(rows),
        *table(rows),
        "The power series' deviation is that of Hutchinson's probe: more terms take away its bias, not "
        "its noise (and probes in place of terms take away noise, not bias). The estimate from "
        "weights errs upward, by half the variance of the log-weights for "
        "one sample, and less for more.\n",
    ]
    arguments.out.write_text("\n".join(parts))
    print(arguments.out.read_text())


if __name__ == "__main__":
    main()
