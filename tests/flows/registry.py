"""Every sphere map, once. A new map is one entry here and inherits every property test."""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse

from determinax import flows
from determinax.flows.banded import eliminate

DIMENSIONS = (2, 3, 4, 10, 33)
FROM_3, FROM_4 = DIMENSIONS[1:], DIMENSIONS[2:]
MODERATE = (0.1, 0.3)  # sizes of random parameters
EXTREME = 1.0
SCALES = (*MODERATE, EXTREME)


@dataclass(frozen=True)
class Entry:
    make: Callable  # (n, key, dtype) -> map
    dimensions: tuple[int, ...] = DIMENSIONS


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


def _projective(factor):
    return lambda n, key, dtype: flows.ProjectiveLinear(factor(n, dtype=dtype))


def _dense(n, dtype):
    noise = np.random.default_rng(n).normal(size=(n, n)) / n**0.5
    return flows.Dense(jnp.asarray(np.eye(n) + 0.1 * noise, dtype))


def _kronecker(n, dtype):
    return flows.Kronecker(flows.Triangular(2, dtype=dtype), flows.Diagonal(n // 2, dtype=dtype))


def _banded(n, dtype):
    """Two diagonals below, one above, rows and columns shuffled: the order must be found."""
    rng = np.random.default_rng(n)
    matrix = np.triu(np.tril(0.05 * rng.normal(size=(n, n)), 1), -2) + np.diag(
        1.1 - 0.2 * rng.random(n)
    )
    shuffle = rng.permutation(n)
    return eliminate(scipy.sparse.csr_array(matrix[np.ix_(shuffle, shuffle)]), dtype).factor


def _product(n, dtype):
    band = flows.Inverse(_banded(n, dtype))
    return flows.Product([flows.Triangular(n, dtype=dtype), band, flows.Diagonal(n, dtype=dtype)])


def _conditional(rank=None, base=None):
    def make(n, key, dtype):
        f = flows.conditional_linear(
            n,
            key=key,
            context_size=3,
            rank=rank,
            base=base and base(n, dtype=dtype),
            hidden=(8,),
            dtype=dtype,
        )
        return flows.Given(f, jnp.array([0.5, -1.0, 0.2], dtype))

    return make


def _conditional_convolution(n, key, dtype):
    image = (n // 4, 2)
    f = flows.conditional_convolution(image, 2, key=key, rank=1, hidden=(4,), dtype=dtype)
    return flows.Given(f, jnp.linspace(-1, 1, n, dtype=dtype))


REGISTRY = {
    "circle-moebius": Entry(_layer("circle", "moebius"), (2,)),
    "circle-moebius-learned": Entry(_layer("circle", "moebius", "learned"), (2,)),
    "circle-spline": Entry(_layer("circle", "spline"), (2,)),
    "coupling-0-moebius": Entry(_layer(0, "moebius"), FROM_4),
    "coupling-1-spline": Entry(_layer(1, "spline"), FROM_4),
    "autoregressive-spline": Entry(_layer("autoregressive", "spline"), FROM_3),
    "autoregressive-moebius-learned": Entry(_layer("autoregressive", "moebius", "learned"), FROM_3),
    "recipe-cylinder": Entry(_recipe(num_flows=4, num_centres=3), (2, 3, 10)),
    "recipe-cylinder-odd": Entry(_recipe(num_flows=3, circle="spline", rotations=False), (10,)),
    "rotation": Entry(lambda n, key, dtype: flows.Rotation.random(n, key=key, dtype=dtype)),
    "householder": Entry(lambda n, key, dtype: flows.Householder(n, key=key, dtype=dtype)),
    "householder-2": Entry(
        lambda n, key, dtype: flows.Householder(n, 2, key=key, dtype=dtype), (4,)
    ),
    "projective-linear": Entry(
        lambda n, key, dtype: flows.ProjectiveLinear(flows.Triangular(n, dtype=dtype))
    ),
    "projective-dense": Entry(_projective(_dense)),
    "projective-diagonal": Entry(_projective(flows.Diagonal)),
    "projective-low-rank": Entry(
        _projective(lambda n, dtype: flows.DiagonalLowRank(n, 2, dtype=dtype))
    ),
    "projective-kronecker": Entry(_projective(_kronecker), (4, 10)),
    "projective-circulant": Entry(
        _projective(lambda n, dtype: flows.Circulant((n,), dtype=dtype)), (2, 3, 10)
    ),
    "projective-circulant-2d": Entry(
        _projective(lambda n, dtype: flows.Circulant((2, n // 4), 2, dtype=dtype)), (4, 12)
    ),
    "projective-banded": Entry(_projective(_banded)),
    "projective-product": Entry(_projective(_product), (3, 10)),
    "conditional-triangular": Entry(_conditional(base=_dense), (3, 10)),
    "conditional-low-rank": Entry(_conditional(rank=2), (2, 10)),
    "projective-convolution": Entry(
        _projective(lambda n, dtype: flows.MaskedConvolution((n // 4, 2), 2, dtype=dtype)), (4, 12)
    ),
    "conditional-convolution": Entry(_conditional_convolution, (8, 12)),
    "exponential-polynomial": Entry(
        lambda n, key, dtype: flows.ExponentialMap(flows.Polynomial(n, key=key, dtype=dtype))
    ),
    "exponential-radial": Entry(
        lambda n, key, dtype: flows.ExponentialMap(flows.Radial(n, 3, key=key, dtype=dtype)),
        (2, 3, 10),
    ),
    "recipe-exponential-radial": Entry(
        lambda n, key, dtype: flows.exponential_radial(
            n, key=key, num_flows=3, num_centres=1, dtype=dtype
        ),
        (3,),
    ),
}

# compiling is what takes time: each map runs at its least n and these, the rest in `make test-slow`
_FAST = {
    ("coupling-0-moebius", 10),
    ("recipe-cylinder", 3),
    ("projective-linear", 10),
    ("householder", 10),
    ("rotation", 4),
    ("exponential-polynomial", 4),
    ("exponential-radial", 3),
}


def _is_slow(name: str, n: int) -> bool:
    first = REGISTRY[name].dimensions[0]
    return (name, n) not in _FAST and (n != first or first == 10)


CASES = [(name, n) for name, entry in REGISTRY.items() for n in entry.dimensions]


def case(name: str, n: int, *more, slow: bool = False):
    """A test's parameters: a map's tests run in one process, which so compiles it once."""
    slow = slow or _is_slow(name, n)
    marks = [pytest.mark.xdist_group(f"{name}-{n}")] + [pytest.mark.slow] * slow
    return pytest.param(name, n, *more, id="-".join(map(str, (name, n, *more))), marks=marks)


# float32 is compiled anew: one map of each kind, the rest in `make test-slow`
_FLOAT32 = {
    "circle-moebius",
    "coupling-1-spline",
    "autoregressive-moebius-learned",
    "projective-linear",
    "exponential-radial",
}


every_map = pytest.mark.parametrize(("name", "n"), [case(name, n) for name, n in CASES])
every_map_in_float32 = pytest.mark.parametrize(
    ("name", "n"), [case(name, n, slow=name not in _FLOAT32) for name, n in CASES]
)
every_map_and_dtype = pytest.mark.parametrize(
    ("name", "n", "dtype"),
    [
        case(name, n, dtype, slow=dtype == "float32" and name not in _FLOAT32)
        for name, n in CASES
        for dtype in ("float32", "float64")
    ],
)
every_dtype = pytest.mark.parametrize("dtype", ["float32", "float64"])


@functools.cache
def build(name: str, n: int, dtype: str, scale: float):
    """The map with random parameters of the given size added to its initial ones."""
    f = _make(name, n, dtype)
    params, rest = eqx.partition(f, flows.trainable(f))
    rng = np.random.default_rng(7 * n + 1)  # draws alike for both dtypes
    return eqx.combine(jax.tree.map(lambda a: a + _noise(rng, a, scale), params), rest)


@functools.cache
def _make(name: str, n: int, dtype: str):
    # one jitted call; and both dtypes from the same numbers, so that they can be compared
    f = eqx.filter_jit(REGISTRY[name].make)(n, jax.random.key(n), jnp.dtype("float64"))
    return jax.tree.map(lambda a: a.astype(dtype) if eqx.is_inexact_array(a) else a, f)


def _noise(rng, leaf, scale):
    fan_in = leaf.shape[-1] if leaf.ndim > 1 else 1
    return (scale * rng.normal(size=leaf.shape) / fan_in**0.5).astype(leaf.dtype)


def points(n: int, dtype: str, num: int = 4000):
    """Uniform points, as columns: one number for all tests, which so share what they compile."""
    z = np.random.default_rng(100 + n).normal(size=(n, num))
    return jnp.asarray(z / np.linalg.norm(z, axis=0), dtype)


# compile time is most of what these tests take
jit = functools.partial(eqx.filter_jit, compiler_options={"xla_backend_optimization_level": 0})


@jit
def forward(f, s):
    return f.forward(s)


@jit
def inverse(f, s):
    return f.inverse(s)
