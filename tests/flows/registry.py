"""Every sphere map, once. A new map is one entry here and inherits every property test."""

from collections.abc import Callable
from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

from determinax import flows

DIMENSIONS = (2, 3, 4, 10, 33)
SCALES = (0.1, 0.5, 2.0)  # moderate is up to 0.5


@dataclass(frozen=True)
class Entry:
    make: Callable  # (n, key, dtype) -> map
    least_n: int = 2
    most_n: int = 33


def _layer(conditioning, circle, weights="equal"):
    def make(n, key, dtype):
        turn = flows.MoebiusMixture(5, weights) if circle == "moebius" else flows.CircularSpline(6)
        interval = flows.IntervalSpline(6)
        options = {"key": key, "hidden": (8,), "dtype": dtype}
        if conditioning == "circle":
            return flows.Circle(turn, **options)
        if conditioning == "autoregressive":
            return flows.CylinderAutoregressive(n, interval, turn, **options)
        return flows.CylinderCoupling(n, interval, turn, parity=conditioning, **options)

    return make


def _recipe(**options):
    def make(n, key, dtype):
        conditioning = "autoregressive" if n == 3 else "coupling"
        return flows.cylinder(
            n, key=key, hidden=(8, 8), num_bins=8, dtype=dtype, conditioning=conditioning, **options
        )

    return make


REGISTRY = {
    "circle-moebius": Entry(_layer("circle", "moebius"), most_n=2),
    "circle-moebius-learned": Entry(_layer("circle", "moebius", "learned"), most_n=2),
    "circle-spline": Entry(_layer("circle", "spline"), most_n=2),
    "coupling-0-moebius": Entry(_layer(0, "moebius"), least_n=4),
    "coupling-1-spline": Entry(_layer(1, "spline"), least_n=4),
    "autoregressive-spline": Entry(_layer("autoregressive", "spline"), least_n=3),
    "autoregressive-moebius-learned": Entry(
        _layer("autoregressive", "moebius", "learned"), least_n=3
    ),
    "recipe-cylinder": Entry(_recipe(num_flows=4, num_centres=3)),
    "recipe-cylinder-odd": Entry(_recipe(num_flows=3, circle="spline", rotations=False), most_n=10),
    "rotation": Entry(lambda n, key, dtype: flows.Rotation.random(n, key=key, dtype=dtype)),
    "householder": Entry(lambda n, key, dtype: flows.Householder(n, key=key, dtype=dtype)),
    "householder-2": Entry(lambda n, key, dtype: flows.Householder(n, 2, key=key, dtype=dtype)),
    "projective-linear": Entry(
        lambda n, key, dtype: flows.ProjectiveLinear(flows.Triangular(n, dtype=dtype))
    ),
}

CASES = [
    (name, n)
    for name, entry in REGISTRY.items()
    for n in DIMENSIONS
    if entry.least_n <= n <= entry.most_n
]
every_map = pytest.mark.parametrize(("name", "n"), CASES, ids=[f"{a}-{n}" for a, n in CASES])
every_dtype = pytest.mark.parametrize("dtype", ["float32", "float64"])


def build(name: str, n: int, dtype: str, scale: float):
    """The map with random parameters of the given size added to its initial ones."""
    f = REGISTRY[name].make(n, jax.random.key(n), jnp.dtype(dtype))
    params, rest = eqx.partition(f, flows.trainable(f))
    leaves, tree = jax.tree.flatten(params)
    keys = jax.random.split(jax.random.key(7 * n + 1), max(1, len(leaves)))
    leaves = [leaf + _noise(k, leaf, scale) for k, leaf in zip(keys, leaves, strict=False)]
    return eqx.combine(jax.tree.unflatten(tree, leaves), rest)


def _noise(key, leaf, scale):
    fan_in = leaf.shape[-1] if leaf.ndim > 1 else 1
    noise = jax.random.normal(key, leaf.shape) / fan_in**0.5  # drawn alike for both dtypes
    return (scale * noise).astype(leaf.dtype)


@eqx.filter_jit
def forward(f, s):
    return f.forward(s)


@eqx.filter_jit
def inverse(f, s):
    return f.inverse(s)
