"""The gradient of log|det J_g(z)| for a decoder: how far single estimates are off, and their mean.

    python benchmarks/gradient_variance.py [--steps 1500] [--keys 400]

Encoder, decoder and proposal of `examples/free_form_digits.py` (n = 64) are trained first. Then, at eight
held-out digits: the exact gradient with respect to all weights of the decoder; the proposal's, which holds
the proposal; Hutchinson's with exact solves, v'J^-1 dJ v; and the surrogate of free-form flows, which takes
the encoder's Jacobian for J^-1. The table goes to docs/results/gradient_variance.md.
"""

import argparse
import pathlib
import sys
from collections.abc import Callable

import equinox as eqx
import jax
import jax.flatten_util
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

sys.path.append(str(pathlib.Path(__file__).parents[1] / "examples"))

from digits import Digits
from free_form_digits import RECONSTRUCTION, start
from rivals import log_det

import determinax as dx

POINTS = 8


def estimators(f: Callable, q: dx.Proposal, x: Array) -> dict[str, tuple[int, Callable]]:
    """Products a digit and draw, and an estimate of log|det J_g(z)| of each digit to be differentiated."""

    def by_proposal(num: int) -> Callable:
        def of(g, z, key):
            s = dx.jacobian_surrogate(g, z, q, key=key, num_samples=num, context=x)
            return s.log_abs_det

        return of

    def by_trace(num: int, transposed_inverse: Callable) -> Callable:
        """The gradient of w'J_g v with w = J^-T v held: of whose inverse, the caller says."""

        def of(g, z, key):
            def one(x, z, v):
                v = v * (v.size / jnp.sum(v**2)) ** 0.5
                w = jax.lax.stop_gradient(transposed_inverse(g, x, z, v))
                return jnp.vdot(w, jax.jvp(g, (z,), (v,))[1])

            v = jax.random.normal(key, (num, *z.shape))
            return jnp.mean(jax.vmap(lambda v: jax.vmap(one)(x, z, v))(v), axis=0)

        return of

    def solved(g, x, z, v):
        return jnp.linalg.solve(jax.jacfwd(g)(z).T, v)

    def encoder(g, x, z, v):
        return jax.vjp(f, x)[1](v)[0]

    found: dict[str, tuple[int, Callable]] = {}
    for num in (1, 2, 4):
        found[f"proposal, {num}"] = (num, by_proposal(num))
        found[f"Hutchinson, exact solves, {num}"] = (64 + num, by_trace(num, solved))
        found[f"free-form surrogate, {num}"] = (2 * num, by_trace(num, encoder))
    return found


def spread(of: Callable, g: Callable, z: Array, exact: Array, num: int) -> tuple[float, ...]:
    """Of a single gradient, the mean's distance, and the standard error of that, in |exact|."""

    @eqx.filter_jit
    def sums(g, keys: PRNGKeyArray):
        def add(carry, key):
            grad = flat(eqx.filter_grad(lambda g: jnp.mean(of(g, z, key)))(g))
            return (carry[0] + grad, carry[1] + jnp.sum((grad - exact) ** 2)), None

        return jax.lax.scan(add, (jnp.zeros_like(exact), jnp.zeros(())), keys)[0]

    total, squares = sums(g, jax.random.split(jax.random.key(5), num))
    size = jnp.linalg.norm(exact)
    single = jnp.sqrt(squares / num) / size
    return (
        float(single),
        float(jnp.linalg.norm(total / num - exact) / size),
        float(single / num**0.5),
    )


def flat(tree: Callable) -> Array:
    """All weights in one vector."""
    return jax.flatten_util.ravel_pytree(eqx.filter(tree, eqx.is_inexact_array))[0]


INTRODUCTION = """# The gradient of a log-determinant, by few products

The decoder of `examples/free_form_digits.py` (n = 64) after {steps:,} steps, at eight held-out digits:
gradients of the mean of log|det J_g| over the eight, with respect to all {weights:,} weights. *One draw*
is the root mean square distance of one estimate from the exact gradient, as a share of that gradient's
length. *Mean* is the distance of the mean of {keys} draws, and beside it what that would be without a
bias. 64 products give J itself. Made by `python benchmarks/gradient_variance.py`.

| way | products a digit | one draw | mean | mean, if unbiased |
| --- | ---: | ---: | ---: | ---: |
"""

CLOSING = """
The proposal's gradient is that of the bound which decoder and proposal minimise together, log|det J| +
KL(q || q*). As a gradient of log|det J| alone it is off by that of the divergence, until the proposal is
the best one; then it is Hutchinson's. Hutchinson's has no bias, and needs the inverse of J. The surrogate
takes the encoder's Jacobian for that inverse, which is its bias. So here, where the proposal is a nat or
two from the best one, both of the others are nearer to the exact gradient for equal numbers of draws. But
they have no value: the same products of the proposal give an upper bound of -log p, which no gradient can
push below the truth.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description="The variance of gradients.")
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--keys", type=int, default=400)
    parser.add_argument("--out", type=pathlib.Path, default="docs/results/gradient_variance.md")
    arguments = parser.parse_args()
    data = Digits(64)
    f, g, q = start(64, 0)
    fit = dx.fit_free_form(
        f,
        g,
        data.sample,
        q,
        key=jax.random.key(1),
        steps=arguments.steps,
        reconstruction=RECONSTRUCTION,
    )
    f, g, q = fit.models
    x = data.whitened(jax.random.key(0), data.test[:POINTS])
    z = dx.log_likelihood(f, g, x, q, key=jax.random.key(1)).point
    exact = flat(
        eqx.filter_grad(lambda g: jnp.mean(jax.lax.map(lambda z: log_det(jax.jacfwd(g)(z)), z)))(g)
    )
    text = INTRODUCTION.format(steps=arguments.steps, weights=exact.size, keys=arguments.keys)
    for name, (products, of) in estimators(f, q, x).items():
        single, mean, noise = spread(of, g, z, exact, arguments.keys)
        text += f"| {name} | {products} | {single:.2f} | {mean:.3f} | {noise:.3f} |\n"
        print(text.splitlines()[-1], flush=True)
    arguments.out.write_text(text + CLOSING)


if __name__ == "__main__":
    main()
