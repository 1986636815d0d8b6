r"""Directions: uniform points, orthonormal frames, longitude and latitude on the unit sphere $S^{n-1}$.

Points are columns, the batch is the last axis: an `(n, num)` array is what a matrix multiplies,
and XLA's CPU backend reduces fast over the first axis.

```python
s = dx.sphere.uniform(key, 10, 100)    # 100 unit vectors, columns
```
"""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, ArrayLike, DTypeLike, Float, PRNGKeyArray

from determinax import _linalg

# how far a norm may be from 1: what a few printed digits round away
_OFF = 1e-3


def _normal(key: PRNGKeyArray, shape: tuple[int, int], dtype: DTypeLike) -> Float[Array, "n num"]:
    # one device draws them: the layout of bits that splits over devices costs a fifth more
    with jax.threefry_partitionable(False):
        z = _draw(shape)(key)
    return z.astype(dtype)


@functools.cache
def _draw(shape: tuple[int, int]) -> Callable[[PRNGKeyArray], Float[Array, "n num"]]:
    """Normal numbers of a key; for all keys of a `vmap` at once."""

    def one(key):
        # float32 draws, twice as fast: a grid of 2^23 equally likely values for each coordinate
        # moves a mean by some 1e-7 of itself, below the noise of any sample that fits in a lifetime
        return jax.random.normal(key, shape, jnp.float32)

    def kept(keys, draw):
        # always true, which XLA does not know: so it has to keep what the branch gives. Else it may
        # draw anew for the norm, round differently there, and points are off by float32's epsilon
        first = keys if keys.ndim == 0 else keys[0]
        always = jax.lax.population_count(jax.random.bits(first, dtype=jnp.uint32)) <= 32
        nothing = jnp.zeros((*keys.shape, *shape), jnp.float32)
        return jax.lax.cond(always, draw, lambda _: nothing, keys)

    single = jax.custom_batching.custom_vmap(lambda key: kept(key, one))
    # a branch that depends on each key would be no branch under `vmap`
    many = jax.custom_batching.custom_vmap(lambda keys: kept(keys, jax.vmap(one)))
    single.def_vmap(lambda size, batched, keys: (many(keys), True))

    @many.def_vmap
    def rule(size: int, batched: list[bool], keys: PRNGKeyArray):
        return many(keys.reshape(-1)).reshape(*keys.shape, *shape), True

    return single


def uniform(key: PRNGKeyArray, n: int, num: int, dtype: DTypeLike = float) -> Float[Array, "n num"]:
    r"""`num` independent uniform points on $S^{n-1}$, as columns.

    $S^0 = \{-1, 1\}$ for `n = 1`.
    """
    return _uniform(key, n, num, dtype)


# compiled here, once: `cond` and loops outside of `jit` are compiled anew every time
@functools.partial(jax.jit, static_argnums=(1, 2, 3))
def _uniform(key: PRNGKeyArray, n: int, num: int, dtype: DTypeLike) -> Float[Array, "n num"]:
    z = _normal(key, (n, num), dtype)
    return z / jnp.linalg.norm(z, axis=0)


def frame(
    key: PRNGKeyArray, n: int, k: int | None = None, dtype: DTypeLike = float
) -> Float[Array, "n k"]:
    r"""A uniform (Haar) orthonormal frame of `k <= n` directions, as columns; full by default.

    Each column alone is uniform on $S^{n-1}$; together they spread out more evenly than
    independent points, which is what cancels the first-order noise of a determinant estimate.
    """
    k = n if k is None else k
    if not 1 <= k <= n:
        raise ValueError(f"a frame in {n} dimensions has 1 to {n} directions, not {k}")
    return _frame(key, n, k, dtype)


@functools.partial(jax.jit, static_argnums=(1, 2, 3))
def _frame(key: PRNGKeyArray, n: int, k: int, dtype: DTypeLike) -> Float[Array, "n k"]:
    z = _normal(key, (n, k), dtype)
    return _gram_schmidt(z) if n <= _SMALL else _householder(z)


# up to here Gram-Schmidt is at least as fast as LAPACK
_SMALL = 32


def _gram_schmidt(z: Float[Array, "n k"]) -> Float[Array, "n k"]:
    def step(j, q):
        v = z[:, j]
        for _ in range(2):  # twice is enough, for orthogonality to rounding
            v = v - q @ (q.T @ v)
        return q.at[:, j].set(v / jnp.linalg.norm(v))

    return jax.lax.fori_loop(0, z.shape[1], step, jnp.zeros_like(z))


def _householder(z: Float[Array, "n k"]) -> Float[Array, "n k"]:
    q, r = _linalg.qr(z)
    # LAPACK fixes the signs of R's diagonal by its own rule; undo that, else q is not Haar
    return q * jnp.where(jnp.diagonal(r) < 0, -1, 1).astype(z.dtype)


def log_area(n: int) -> float:
    r"""The logarithm of the area of $S^{n-1}$: $\log(2\pi^{n/2}/\Gamma(n/2))$, so $\log 4\pi$ at n = 3."""
    return math.log(2) + n / 2 * math.log(math.pi) - math.lgamma(n / 2)


def from_lonlat(
    longitude: Float[ArrayLike, "*num"], latitude: Float[ArrayLike, "*num"]
) -> Float[Array, "*num 3"]:
    """Unit vectors, one a row, of longitudes (-360 to 360) and latitudes (-90 to 90) in degrees.

    !!! example

        ```python
        dx.sphere.from_lonlat([0.0, 90.0], [0.0, 0.0])    # [[1, 0, 0], [0, 1, 0]]
        ```
    """
    lon, lat = _degrees(longitude, "longitude", 360), _degrees(latitude, "latitude", 90)
    if lon.shape != lat.shape:
        raise ValueError(
            f"{lon.shape} longitudes and {lat.shape} latitudes are not pairs: pass as many of each"
        )
    lon, lat = jnp.deg2rad(lon), jnp.deg2rad(lat)
    flat = jnp.cos(lat)
    return jnp.stack([flat * jnp.cos(lon), flat * jnp.sin(lon), jnp.sin(lat)], axis=-1)


def to_lonlat(
    points: Float[ArrayLike, "num 3"] | Float[ArrayLike, " 3"],
) -> tuple[Float[Array, "*num"], Float[Array, "*num"]]:
    """Longitude (-180 to 180) and latitude (-90 to 90) in degrees of unit vectors, one a row, or of one.

    !!! example

        ```python
        longitude, latitude = dx.sphere.to_lonlat(q.sample(key, 1000))
        ```
    """
    x, y, z = jnp.moveaxis(unit_rows(points, 3), -1, 0)
    # by the arc tangent: the arc sine of a z next to 1 has half of its digits only
    lat = jnp.arctan2(z, jnp.sqrt(x * x + y * y))
    return jnp.rad2deg(jnp.arctan2(y, x)), jnp.rad2deg(lat)


def _degrees(values: ArrayLike, name: str, most: float) -> Array:
    try:
        array = jnp.asarray(values)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name}s are numbers, in degrees, not {values!r:.40}") from error
    if not (jnp.issubdtype(array.dtype, jnp.floating) or jnp.issubdtype(array.dtype, jnp.integer)):
        raise TypeError(f"{name}s have dtype {array.dtype}: pass real numbers, in degrees")
    if not isinstance(array, Tracer):
        bad = np.flatnonzero(~(np.abs(np.asarray(array)) <= most))
        if bad.size:
            row = "" if array.ndim == 0 else f" of row {bad[0]}"
            raise ValueError(
                f"the {name}{row} is {np.ravel(array)[bad[0]]:g}, not a number of degrees from "
                f"-{most} to {most}"
            )
    return array


def unit_matrix(points: Float[ArrayLike, "num n"], what: str = "points") -> np.ndarray:
    """Points, one a row, as a NumPy array of norms 1 in double precision; refused like `unit_rows`."""
    try:
        shape = unit_rows(points).shape
    except ValueError:
        _refuse_columns(np.asarray(points))
        raise
    if len(shape) != 2 or shape[0] == 0 or shape[1] < 2:
        raise ValueError(
            f"{what} of shape {shape} are not rows: pass one unit vector a row (num, n), n >= 2"
        )
    rows = np.asarray(points, float)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def _refuse_columns(points: np.ndarray) -> None:
    """Unit vectors that are columns have rows of all kinds of norms: say what is wrong instead."""
    if points.ndim == 2 and (np.abs(np.linalg.norm(points, axis=0) - 1) < _OFF).all():
        raise ValueError(
            f"points of shape {points.shape} have norm 1 by columns: pass the transpose, one a row"
        )


def unit_rows(
    points: Float[ArrayLike, "num n"] | Float[ArrayLike, " n"], n: int | None = None
) -> Float[Array, "num n"] | Float[Array, " n"]:
    """Points, one a row, or one point, as an array; refused unless they have n entries and norm 1.

    Without `n`, as many entries as they have.

    Inside of `jit`, `vmap` and `grad` there are no values to look at, so shapes alone are checked.
    """
    try:
        rows = jnp.asarray(points)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"points are an array of numbers, one unit vector a row, not a {type(points).__name__} "
            "that NumPy cannot make one of"
        ) from error
    if not (jnp.issubdtype(rows.dtype, jnp.floating) or jnp.issubdtype(rows.dtype, jnp.integer)):
        raise TypeError(f"points have dtype {rows.dtype}: pass real numbers, one unit vector a row")
    n = rows.shape[-1] if n is None and rows.ndim else n
    if rows.ndim not in (1, 2) or rows.shape[-1] != n:
        cure = f"pass one point ({n},) or one a row (num, {n})"
        if rows.shape[:1] == (n,):
            cure += ", the transpose of this"
        raise ValueError(f"points of shape {rows.shape} are not rows in {n} dimensions: {cure}")
    if not isinstance(rows, Tracer) and rows.size:
        _require_norm_one(rows)
    return rows


def _require_norm_one(rows: Array) -> None:
    index, norm = _worst(rows)
    if not abs(float(norm) - 1) < _OFF:
        name = "the point" if rows.ndim == 1 else f"row {int(index)} of the points"
        if not jnp.isfinite(norm):
            raise ValueError(f"{name} holds NaN, Inf or what is too large: pass unit vectors")
        raise ValueError(f"{name} has norm {float(norm):.4g}, not 1: divide it by its norm")


@jax.jit
def _worst(rows: Array) -> tuple[Array, Array]:
    """The row whose norm is farthest from 1, and that norm."""
    norms = jnp.atleast_1d(jnp.linalg.norm(rows, axis=-1))
    off = jnp.abs(norms - 1)
    index = jnp.argmax(jnp.where(jnp.isnan(off), jnp.inf, off))
    return index, norms[index]
