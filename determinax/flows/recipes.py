"""Whole architectures by name."""

from collections.abc import Sequence
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, PRNGKeyArray

from .. import sphere
from .base import AbstractCircleMap, AbstractSphereMap, require_dimension, trainable
from .chain import Chain
from .conditional import ConditionalLinear
from .conditioners import ImageConditioner
from .cylinder import Circle, CylinderAutoregressive, CylinderCoupling
from .exponential import ExponentialMap, Polynomial, Radial
from .linear import (
    AbstractFactor,
    DiagonalLowRank,
    MaskedConvolution,
    Product,
    ProjectiveLinear,
    Transpose,
    Triangular,
)
from .moebius import MoebiusMixture
from .rotation import Rotation
from .splines import CircularSpline, IntervalSpline


def cylinder(
    n: int,
    *,
    key: PRNGKeyArray,
    num_flows: int = 8,
    circle: Literal["moebius", "spline"] = "moebius",
    num_centres: int = 12,
    num_bins: int = 16,
    conditioning: Literal["coupling", "autoregressive"] = "coupling",
    rotations: bool = True,
    hidden: tuple[int, ...] = (64, 64),
    circle_hidden: tuple[int, ...] | None = None,
    context_size: int = 0,
    weights: Literal["equal", "learned"] = "equal",
    dtype: DTypeLike | None = None,
) -> Chain:
    """Splines on the heights and Moebius maps (or a spline) on the circle: the paper's flow.

    The flow of choice for any density; starts at the identity. `rotations` puts a fixed random
    rotation after every layer, which mixes what a layer cannot reach, and the last undoes them all.
    Coupling needs `n >= 4`; at `n = 3` pass `conditioning="autoregressive"`; at `n = 2` there is
    the circle only and `conditioning` does not matter. `circle_hidden` sizes the circle's networks
    apart from the heights'.

    !!! example

        ```python
        flow = dx.flows.cylinder(5, key=key, num_flows=2)
        moved, log_det = flow.forward(dx.sphere.uniform(key, 5, 100))
        ```
    """
    require_dimension(n)
    _check_count("num_flows", num_flows)
    if conditioning not in ("coupling", "autoregressive"):
        raise ValueError(
            f'conditioning must be "coupling" or "autoregressive", not {conditioning!r}'
        )
    if n == 3 and conditioning == "coupling":
        raise ValueError(
            'n = 3 has one height, so nothing to couple; pass conditioning="autoregressive"'
        )
    if context_size < 0:
        raise ValueError(f"context_size must be 0 or more, not {context_size}")
    dtype = jnp.result_type(float) if dtype is None else dtype
    turn = _circle_map(circle, num_centres, num_bins, weights)
    interval = IntervalSpline(num_bins)
    options = {"hidden": tuple(hidden), "context_size": context_size, "dtype": dtype}
    kind = conditioning if n > 2 else "circle"
    if circle_hidden is not None:
        options["circle_hidden" if n > 2 else "hidden"] = tuple(circle_hidden)

    maps: list[AbstractSphereMap] = []
    turned = jnp.eye(n, dtype=dtype)
    for i, k in enumerate(jax.random.split(key, num_flows)):
        k1, k2 = jax.random.split(k)
        maps.append(_layer(kind, n, interval, turn, i % 2, k1, options))
        if rotations:
            matrix = turned.T if i == num_flows - 1 else _frame(k2, n, dtype)
            turned = matrix @ turned
            maps.append(Rotation(matrix))
    return Chain(maps)


def exponential_polynomial(
    n: int, *, key: PRNGKeyArray, num_flows: int = 1, dtype: DTypeLike | None = None
) -> Chain:
    """Exponential maps of quadratic potentials: smooth and broad, with few parameters.

    !!! example

        ```python
        flow = dx.flows.exponential_polynomial(3, key=key)
        ```
    """
    require_dimension(n)
    _check_count("num_flows", num_flows)
    dtype = jnp.result_type(float) if dtype is None else dtype
    keys = jax.random.split(key, num_flows)
    return Chain([ExponentialMap(Polynomial(n, key=k, dtype=dtype)) for k in keys])


def exponential_radial(
    n: int,
    *,
    key: PRNGKeyArray,
    num_flows: int = 6,
    num_centres: int = 5,
    dtype: DTypeLike | None = None,
) -> Chain:
    """Exponential maps of sums of radial bumps: densities with modes at learned places.

    !!! example

        ```python
        flow = dx.flows.exponential_radial(3, key=key, num_flows=2, num_centres=5)
        q = dx.Proposal(flow)
        ```
    """
    require_dimension(n)
    _check_count("num_flows", num_flows)
    dtype = jnp.result_type(float) if dtype is None else dtype
    keys = jax.random.split(key, num_flows)
    return Chain([ExponentialMap(Radial(n, num_centres, key=k, dtype=dtype)) for k in keys])


def projective_linear(n: int, *, dtype: DTypeLike | None = None) -> ProjectiveLinear:
    r"""$s = Mz/\|Mz\|$ with triangular $M$: holds the best proposal for $|\det A|$.

    !!! example

        ```python
        q = dx.Proposal(dx.flows.projective_linear(10))
        ```
    """
    require_dimension(n)
    return ProjectiveLinear(Triangular(n, dtype=jnp.result_type(float) if dtype is None else dtype))


def conditional_linear(
    n: int,
    *,
    key: PRNGKeyArray,
    context_size: int | None = None,
    rank: int | None = None,
    base: AbstractFactor | None = None,
    hidden: tuple[int, ...] = (64, 64),
    dtype: DTypeLike | None = None,
) -> ConditionalLinear:
    r"""$s = M(c)z/\|M(c)z\|$ with $M(c) = M_0 R(c)$: a proposal for the Jacobian at every point c.

    R is triangular, which holds the best M for every c; with `rank` it is a diagonal and a term of
    low rank, for large n. Starts at $M_0$ (`base`, the trainable identity by default). The context is
    a point of $\mathbb{R}^n$ by default.

    !!! example

        ```python
        flow = dx.flows.conditional_linear(10, key=key)
        dx.Proposal(flow).sample(key, 5, jnp.zeros(10))
        ```
    """
    require_dimension(n)
    dtype = jnp.result_type(float) if dtype is None else dtype
    first, second = jax.random.split(key)
    part: AbstractFactor = Triangular(n, dtype=dtype)
    if rank is not None:
        part = DiagonalLowRank(n, rank, key=first, dtype=dtype)
    return ConditionalLinear(
        Triangular(n, dtype=dtype) if base is None else base,
        part,
        context_size=n if context_size is None else context_size,
        key=second,
        hidden=hidden,
    )


def conditional_convolution(
    image_shape: Sequence[int],
    channels: int = 1,
    *,
    key: PRNGKeyArray,
    size: int = 3,
    rank: int = 0,
    hidden: tuple[int, ...] = (32, 32),
    dtype: DTypeLike | None = None,
) -> ConditionalLinear:
    r"""$s = M(x)z/\|M(x)z\|$ for the Jacobian of an image network at x, in memory linear in the pixels.

    $M(x) = L\,U\,R(x)$: masked convolutions with one kernel for all pixels, from either side, and one
    whose kernel at each pixel comes from a convolutional network on x; with `rank` also a diagonal and
    a term of low rank from it. The determinant is a product of diagonals. It starts as the identity.

    **Arguments:**

    - `image_shape`, `channels`: of x, a flat image with the channels first.
    - `size`: of the windows; `hidden`: channels of the network's hidden layers.

    !!! example

        ```python
        flow = dx.flows.conditional_convolution((8, 8), 3, key=key)  # n = 192
        ```
    """
    shape = tuple(image_shape)
    dtype = jnp.result_type(float) if dtype is None else dtype
    first, second = jax.random.split(key)
    shared = [MaskedConvolution(shape, channels, size, shared=True, dtype=dtype) for _ in range(2)]
    part: AbstractFactor = MaskedConvolution(shape, channels, size, dtype=dtype)
    if rank:
        part = Product([part, DiagonalLowRank(part.n, rank, key=first, dtype=dtype)])
    leaves = jax.tree.leaves(eqx.filter(part, trainable(part)))
    network = ImageConditioner(
        shape,
        channels,
        tuple(leaf.shape for leaf in leaves),
        key=second,
        hidden=tuple(hidden),
        dtype=dtype,
    )
    base = Product([shared[0], Transpose(shared[1])])
    return ConditionalLinear(base, part, context_size=part.n, key=second, network=network)


# jitted: drawing array by array would compile dozens of small functions
@eqx.filter_jit
def _layer(kind: str, n: int, interval, turn, parity: int, key, options) -> AbstractSphereMap:
    if kind == "circle":
        return Circle(turn, key=key, **options)
    if kind == "coupling":
        return CylinderCoupling(n, interval, turn, parity=parity, key=key, **options)
    return CylinderAutoregressive(n, interval, turn, key=key, **options)


@eqx.filter_jit
def _frame(key, n: int, dtype) -> Array:
    return sphere.frame(key, n, dtype=dtype)


def _circle_map(circle: str, num_centres: int, num_bins: int, weights) -> AbstractCircleMap:
    if circle == "moebius":
        return MoebiusMixture(num_centres, weights)
    if circle == "spline":
        return CircularSpline(num_bins)
    raise ValueError(f'circle must be "moebius" or "spline", not {circle!r}')


def _check_count(name: str, value: int) -> None:
    if value < 1:
        raise ValueError(f"{name} must be 1 or more, not {value}")
