r"""Projective linear maps $s = Mz/\|Mz\|$: the angular central Gaussian family.

$$\log\det = \log|\det M| - n\log\|Mz\|.$$

The family holds the best proposal for $\log|\det A|$: at $M = A^{-1}$ every weight is $1/|\det A|$.

Reference: Tyler (1987), Biometrika 74(3), on the angular central Gaussian law.
"""

import abc
import math
from collections.abc import Callable, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike, DTypeLike
from jaxtyping import Array, Float, Inexact, PRNGKeyArray

from .. import _checks, _linalg
from .base import AbstractSphereMap, Constant, as_column


class AbstractFactor(eqx.Module):
    """An invertible matrix with products, solves and a log-determinant that are all cheap."""

    n: eqx.AbstractVar[int]

    @abc.abstractmethod
    def multiply(self, z: Float[Array, "n *num"]) -> Float[Array, "n *num"]:
        r"""$Mz$."""

    @abc.abstractmethod
    def solve(self, s: Float[Array, "n *num"]) -> Float[Array, "n *num"]:
        r"""$M^{-1}s$."""

    @abc.abstractmethod
    def log_abs_det(self) -> Float[Array, ""]:
        r"""$\log|\det M|$."""


class Triangular(AbstractFactor):
    r"""A lower triangular matrix with diagonal $e^{\text{log\_diagonal}}$; zeros are the identity.

    Up to scale and a right rotation, which leave the density alone, every invertible matrix is one.
    """

    log_diagonal: Float[Array, " n"]
    below: Float[Array, "n n"]  # only what is strictly below the diagonal counts
    n: int = eqx.field(static=True)

    def __init__(self, n: int, *, dtype: DTypeLike = float):
        _check_size(n)
        _checks.require_memory(
            n * n * jnp.dtype(dtype).itemsize,
            f"a triangular M in {n:,} dimensions is an array of {n:,}x{n:,}",
            "take Diagonal(n) or DiagonalLowRank(n, rank)",
        )
        self.log_diagonal = jnp.zeros(n, dtype)
        self.below = jnp.zeros((n, n), dtype)
        self.n = n

    def matrix(self) -> Float[Array, "n n"]:
        r"""$M$ itself."""
        return jnp.tril(self.below, -1) + jnp.diag(jnp.exp(self.log_diagonal))

    def multiply(self, z: Float[Array, "n *num"]) -> Float[Array, "n *num"]:
        """See `AbstractFactor`."""
        scale = as_column(jnp.exp(self.log_diagonal), z)
        return scale * z + _product(jnp.tril(self.below, -1), z)

    def solve(self, s: Float[Array, "n *num"]) -> Float[Array, "n *num"]:
        """See `AbstractFactor`."""
        columns = s.reshape(self.n, -1)
        solved = _linalg.solve_triangular(self.matrix(), columns, lower=True)
        return solved.reshape(s.shape)

    def log_abs_det(self) -> Float[Array, ""]:
        """See `AbstractFactor`."""
        return jnp.sum(self.log_diagonal)


class Dense(AbstractFactor):
    r"""Any matrix, with a $\log|\det M|$ that whoever made it has kept account of.

    It is not trained by gradients: `fit_linear` updates it, matrix and determinant together. Use
    `Triangular` for gradients.
    """

    matrix: Constant
    log_scale: Constant  # log|det M|
    n: int = eqx.field(static=True)

    def __init__(self, matrix: Float[Array, "n n"], log_abs_det: Float[Array, ""] | None = None):
        if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or len(matrix) < 2:
            raise ValueError(
                f"a dense factor is a square matrix with n >= 2, not one of shape {matrix.shape}"
            )
        if log_abs_det is None:
            log_abs_det = _linalg.log_abs_det(matrix)
        self.matrix, self.n = Constant(matrix), len(matrix)
        self.log_scale = Constant(jnp.asarray(log_abs_det, matrix.dtype))

    def multiply(self, z: Float[Array, "n *num"]) -> Float[Array, "n *num"]:
        """See `AbstractFactor`."""
        return _product(self.matrix(), z)

    def solve(self, s: Float[Array, "n *num"]) -> Float[Array, "n *num"]:
        """See `AbstractFactor`."""
        return _linalg.solve(self.matrix(), s.reshape(self.n, -1)).reshape(s.shape)

    def log_abs_det(self) -> Float[Array, ""]:
        """See `AbstractFactor`."""
        return self.log_scale()


class Diagonal(AbstractFactor):
    r"""A diagonal matrix $e^{\text{log\_diagonal}}$: rows of A that differ in size."""

    log_diagonal: Float[Array, " n"]
    n: int = eqx.field(static=True)

    def __init__(self, n: int, *, dtype: DTypeLike = float):
        _check_size(n)
        self.log_diagonal, self.n = jnp.zeros(n, dtype), n

    def multiply(self, z: Float[Array, "n *num"]) -> Float[Array, "n *num"]:
        """See `AbstractFactor`."""
        return as_column(jnp.exp(self.log_diagonal), z) * z

    def solve(self, s: Float[Array, "n *num"]) -> Float[Array, "n *num"]:
        """See `AbstractFactor`."""
        return as_column(jnp.exp(-self.log_diagonal), s) * s

    def log_abs_det(self) -> Float[Array, ""]:
        """See `AbstractFactor`."""
        return jnp.sum(self.log_diagonal)


class DiagonalLowRank(AbstractFactor):
    r"""$M = D + UV^\top$ with diagonal $D$ and $U, V$ of `rank` columns, solved by Woodbury.

    $\log|\det M| = \log|\det D| + \log|\det(I + V^\top D^{-1} U)|$. It starts as the identity, with
    $V = 0$ and a random $U$: were both zero, neither would have a gradient.
    """

    log_diagonal: Float[Array, " n"]
    left: Float[Array, "n rank"]
    right: Float[Array, "n rank"]
    n: int = eqx.field(static=True)

    def __init__(
        self, n: int, rank: int, *, key: PRNGKeyArray | None = None, dtype: DTypeLike = float
    ):
        _check_size(n)
        if not 1 <= rank <= n:
            raise ValueError(f"a low-rank term in {n} dimensions has rank 1 to {n}, not {rank}")
        self.log_diagonal = jnp.zeros(n, dtype)
        key = jax.random.key(0) if key is None else key
        self.left = jax.random.normal(key, (n, rank), dtype) / n**0.5
        self.right = jnp.zeros((n, rank), dtype)
        self.n = n

    def multiply(self, z: Float[Array, "n *num"]) -> Float[Array, "n *num"]:
        """See `AbstractFactor`."""
        scale = as_column(jnp.exp(self.log_diagonal), z)
        return scale * z + _product(self.left, _product(self.right.T, z))

    def solve(self, s: Float[Array, "n *num"]) -> Float[Array, "n *num"]:
        """See `AbstractFactor`."""
        inverse = jnp.exp(-self.log_diagonal)
        x = as_column(inverse, s) * s
        inner = _product(self.right.T, x).reshape(self.right.shape[1], -1)
        inner = _linalg.solve(self._capacitance(), inner)
        correction = _product(inverse[:, None] * self.left, inner)
        return x - correction.reshape(s.shape)

    def log_abs_det(self) -> Float[Array, ""]:
        """See `AbstractFactor`."""
        return jnp.sum(self.log_diagonal) + _linalg.log_abs_det(self._capacitance())

    def _capacitance(self) -> Array:
        scaled = jnp.exp(-self.log_diagonal)[:, None] * self.left
        return jnp.eye(self.left.shape[1], dtype=scaled.dtype) + _product(self.right.T, scaled)


class Kronecker(AbstractFactor):
    r"""$M = L \otimes R$: it acts on a vector as $L X R^\top$ on the matrix X of its entries.

    $\log|\det M| = n_R \log|\det L| + n_L \log|\det R|$.
    """

    left: AbstractFactor
    right: AbstractFactor
    n: int = eqx.field(static=True)

    def __init__(self, left: AbstractFactor, right: AbstractFactor):
        self.left, self.right, self.n = left, right, left.n * right.n

    def multiply(self, z: Float[Array, "n *num"]) -> Float[Array, "n *num"]:
        """See `AbstractFactor`."""
        return self._apply(self.left.multiply, self.right.multiply, z)

    def solve(self, s: Float[Array, "n *num"]) -> Float[Array, "n *num"]:
        """See `AbstractFactor`."""
        return self._apply(self.left.solve, self.right.solve, s)

    def log_abs_det(self) -> Float[Array, ""]:
        """See `AbstractFactor`."""
        return self.right.n * self.left.log_abs_det() + self.left.n * self.right.log_abs_det()

    def _apply(self, left, right, x):
        rows = left(x.reshape(self.left.n, self.right.n, -1))
        columns = right(jnp.swapaxes(rows, 0, 1))
        return jnp.swapaxes(columns, 0, 1).reshape(x.shape)


class Circulant(AbstractFactor):
    r"""A circular convolution of images with any number of axes and channels, by the FFT.

    The Fourier transform makes it a small `channels x channels` matrix for every frequency. The
    kernel is as large as the image and starts as the identity; its entry 0 is the centre. Vectors
    are flattened images, channels first, as `operators.convolution` has them.
    """

    kernel: Float[Array, "channels channels *image"]
    n: int = eqx.field(static=True)

    def __init__(self, image_shape: Sequence[int], channels: int = 1, *, dtype: DTypeLike = float):
        shape = tuple(image_shape)
        self.n = channels * math.prod(shape)
        _check_size(self.n)
        centre = jnp.zeros(shape, dtype).at[(0,) * len(shape)].set(1)
        identity = jnp.eye(channels, dtype=dtype)
        self.kernel = identity.reshape(channels, channels, *(1,) * len(shape)) * centre

    def multiply(self, z: Float[Array, "n *num"]) -> Float[Array, "n *num"]:
        """See `AbstractFactor`."""
        return self._apply(jnp.matmul, z)

    def solve(self, s: Float[Array, "n *num"]) -> Float[Array, "n *num"]:
        """See `AbstractFactor`."""
        return self._apply(jax.vmap(_linalg.solve), s)

    def log_abs_det(self) -> Float[Array, ""]:
        """See `AbstractFactor`."""
        return jnp.sum(jax.vmap(_linalg.log_abs_det)(self.spectrum()))

    def spectrum(self) -> Inexact[Array, "frequencies channels channels"]:
        """One matrix for every frequency."""
        axes = tuple(range(2, self.kernel.ndim))
        waves = jnp.fft.fftn(self.kernel, axes=axes)
        return jnp.moveaxis(waves.reshape(*self.kernel.shape[:2], -1), -1, 0)

    def _apply(self, each_frequency, x):
        shape = self.kernel.shape[1:]
        axes = tuple(range(1, len(shape)))
        waves = jnp.fft.fftn(x.reshape(*shape, -1), axes=axes)
        waves = jnp.moveaxis(waves.reshape(shape[0], -1, waves.shape[-1]), 1, 0)
        moved = jnp.moveaxis(each_frequency(self.spectrum(), waves), 0, 1)
        image = jnp.fft.ifftn(moved.reshape(*shape, -1), axes=axes)
        return image.real.reshape(x.shape)


class Product(AbstractFactor):
    r"""$M = M_1 M_2 \cdots$: the last factor acts first."""

    factors: tuple[AbstractFactor, ...]
    n: int = eqx.field(static=True)

    def __init__(self, factors: Sequence[AbstractFactor]):
        sizes = {f.n for f in factors}
        if len(sizes) != 1:
            raise ValueError(f"a product needs factors of one size, not of sizes {sorted(sizes)}")
        self.factors, self.n = tuple(factors), sizes.pop()

    def multiply(self, z: Float[Array, "n *num"]) -> Float[Array, "n *num"]:
        """See `AbstractFactor`."""
        for factor in self.factors[::-1]:
            z = factor.multiply(z)
        return z

    def solve(self, s: Float[Array, "n *num"]) -> Float[Array, "n *num"]:
        """See `AbstractFactor`."""
        for factor in self.factors:
            s = factor.solve(s)
        return s

    def log_abs_det(self) -> Float[Array, ""]:
        """See `AbstractFactor`."""
        return jnp.sum(jnp.stack([f.log_abs_det() for f in self.factors]))


class Inverse(AbstractFactor):
    r"""$M = R^{-1}$ for a factor R: what fits A becomes what proposes for it."""

    factor: AbstractFactor
    n: int = eqx.field(static=True)

    def __init__(self, factor: AbstractFactor):
        self.factor, self.n = factor, factor.n

    def multiply(self, z: Float[Array, "n *num"]) -> Float[Array, "n *num"]:
        """See `AbstractFactor`."""
        return self.factor.solve(z)

    def solve(self, s: Float[Array, "n *num"]) -> Float[Array, "n *num"]:
        """See `AbstractFactor`."""
        return self.factor.multiply(s)

    def log_abs_det(self) -> Float[Array, ""]:
        """See `AbstractFactor`."""
        return -self.factor.log_abs_det()


class Preconditioner(AbstractFactor):
    """M as the functions that a user has; it cannot be stored, nor inverted without `inverse`."""

    function: Callable[[Array], Array]  # one vector in, one out
    inverse: Callable[[Array], Array] | None
    log_scale: Constant
    n: int = eqx.field(static=True)

    def __init__(
        self,
        function: Callable[[Array], Array],
        log_abs_det: ArrayLike,
        n: int,
        inverse: Callable[[Array], Array] | None = None,
    ):
        _check_size(n)
        self.function, self.inverse, self.n = function, inverse, n
        self.log_scale = Constant(jnp.asarray(log_abs_det, float))

    def multiply(self, z: Float[Array, "n *num"]) -> Float[Array, "n *num"]:
        """See `AbstractFactor`."""
        return _columnwise(self.function, z)

    def solve(self, s: Float[Array, "n *num"]) -> Float[Array, "n *num"]:
        """See `AbstractFactor`."""
        if self.inverse is None:
            raise ValueError("this preconditioner has no inverse: give it as inverse=")
        return _columnwise(self.inverse, s)

    def log_abs_det(self) -> Float[Array, ""]:
        """See `AbstractFactor`."""
        return self.log_scale()


class ProjectiveLinear(AbstractSphereMap):
    r"""$s = Mz/\|Mz\|$ for a factor $M$.

    ```python
    q = dx.Proposal(dx.flows.ProjectiveLinear(dx.flows.Dense(np.linalg.inv(A))))
    ```
    """

    factor: AbstractFactor
    context_size: int = eqx.field(static=True)
    n: int = eqx.field(static=True)

    @property
    def is_linear(self) -> bool:
        """See `AbstractSphereMap`."""
        return True

    def __init__(self, factor: AbstractFactor):
        self.factor = factor
        self.n, self.context_size = factor.n, 0

    def _forward(self, s, context):
        return project(self.factor.multiply(s), self.factor.log_abs_det())

    def _inverse(self, s, context):
        return project(self.factor.solve(s), -self.factor.log_abs_det())


def project(x: Array, log_abs_det: Array) -> tuple[Array, Array]:
    r"""The direction of $x = Mz$ for a unit vector z, and the log-determinant of $z \mapsto x/\|x\|$."""
    norm = jnp.linalg.norm(x, axis=0)
    return x / norm, log_abs_det - x.shape[0] * jnp.log(norm)


def _product(matrix: Array, x: Array) -> Array:
    return jnp.tensordot(matrix, x, 1, precision=jax.lax.Precision.HIGHEST)


def _columnwise(function, x: Array) -> Array:
    columns = jax.vmap(function, in_axes=-1, out_axes=-1)(x.reshape(x.shape[0], -1))
    return columns.reshape(x.shape)


def _check_size(n: int) -> None:
    if n < 2:
        raise ValueError(f"a projective map needs a sphere with n >= 2, not n = {n}")
