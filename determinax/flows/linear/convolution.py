"""Masked convolutions of images: triangular, so that the determinant is a product of diagonals."""

import itertools
import math
from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from ._base import AbstractFactor, check_size


class MaskedConvolution(AbstractFactor):
    r"""A convolution that sees, of each pixel's neighbours, only those before it in the order of rows.

    $y_p = (D_p + L_p)z_p + \sum_o K_{o,p}\,z_{p-o}$ over the offsets o of a window that come before the
    pixel, with diagonal $D_p > 0$ and strictly lower triangular $L_p$ of the channels. In the order of
    pixels it is a lower triangular matrix. It starts as the identity. With `shared` all pixels have one
    kernel; without, each has its own, so that a network may give it. Memory is linear in the pixels;
    `solve` goes through them one after the other.

    Vectors are flattened images, channels first, as `operators.convolution` has them.
    """

    log_diagonal: Float[Array, "channels *image"]
    below: Float[Array, "taps *image"]  # K by offset, row and column; then L
    image_shape: tuple[int, ...] = eqx.field(static=True)
    channels: int = eqx.field(static=True)
    size: int = eqx.field(static=True)
    n: int = eqx.field(static=True)

    def __init__(
        self,
        image_shape: Sequence[int],
        channels: int = 1,
        size: int = 3,
        *,
        shared: bool = False,
        dtype: DTypeLike = float,
    ):
        self.image_shape, self.channels, self.size = tuple(image_shape), channels, size
        self.n = channels * math.prod(self.image_shape)
        check_size(self.n)
        if size < 1 or size % 2 == 0:
            raise ValueError(f"a window has an odd number of pixels on a side, not {size}")
        where = (1,) * len(self.image_shape) if shared else self.image_shape
        taps = len(self._offsets()) * channels**2 + channels * (channels - 1) // 2
        self.log_diagonal = jnp.zeros((channels, *where), dtype)
        self.below = jnp.zeros((taps, *where), dtype)

    def multiply(self, z: Float[Array, "n *num"]) -> Float[Array, "n *num"]:
        """See `AbstractFactor`."""
        x = z.reshape(self.channels, *self.image_shape, -1)
        kernels, mix = self._parts()
        y = jnp.exp(self.log_diagonal)[..., None] * x
        axes = range(1, x.ndim - 1)
        half = self.size // 2
        padded = jnp.pad(x, [(0, 0), *((half, half) for _ in axes), (0, 0)])
        for kernel, offset in zip(kernels, self._offsets(), strict=True):
            starts = [half - o for o in offset]
            seen = padded[
                (
                    slice(None),
                    *(slice(s, s + m) for s, m in zip(starts, self.image_shape, strict=True)),
                )
            ]
            y = y + jnp.sum(kernel[..., None] * seen[None], axis=1)
        y = y + jnp.sum(mix[..., None] * x[None], axis=1)
        return y.reshape(z.shape)

    def solve(self, s: Float[Array, "n *num"]) -> Float[Array, "n *num"]:
        """See `AbstractFactor`: by forward substitution, a pixel a step."""
        half, num = self.size // 2, math.prod(self.image_shape)
        wide = tuple(m + 2 * half for m in self.image_shape)
        inside = np.ravel_multi_index(
            tuple(i + half for i in np.indices(self.image_shape).reshape(len(wide), -1)), wide
        )
        strides = np.cumprod((1, *wide[:0:-1]))[::-1]
        back = np.array([np.dot(o, strides) for o in self._offsets()], int)
        kernels, mix = self._parts()
        # pixels in front, to go through them
        kernels, mix, scale = (
            jnp.moveaxis(_over(a, self.image_shape), -1, 0)
            for a in (kernels, mix, jnp.exp(self.log_diagonal))
        )
        right = jnp.moveaxis(s.reshape(self.channels, num, -1), 1, 0)

        def step(known, inputs):
            at, kernel, mix, scale, rest = inputs
            seen = known[at - back]  # (offsets, channels, columns)
            rest = rest - jnp.einsum("oij,ojz->iz", kernel, seen)
            x = jnp.zeros_like(rest)
            for i in range(self.channels):
                x = x.at[i].set((rest[i] - mix[i] @ x) / scale[i])
            return known.at[at].set(x), x

        start = jnp.zeros((math.prod(wide), *right.shape[1:]), right.dtype)
        _, found = jax.lax.scan(step, start, (jnp.asarray(inside), kernels, mix, scale, right))
        return jnp.moveaxis(found, 0, 1).reshape(s.shape)

    def log_abs_det(self) -> Float[Array, ""]:
        """See `AbstractFactor`."""
        return jnp.sum(self.log_diagonal) * (self.n // self.log_diagonal.size)

    def _offsets(self) -> list[tuple[int, ...]]:
        """To the pixels before one, within the window."""
        half = self.size // 2
        sides = itertools.product(range(-half, half + 1), repeat=len(self.image_shape))
        return [o for o in sides if o > (0,) * len(self.image_shape)]

    def _parts(self) -> tuple[Array, Array]:
        """K as (offsets, channels, channels, *image), and L as (channels, channels, *image)."""
        c, offsets, where = self.channels, len(self._offsets()), self.below.shape[1:]
        kernels = self.below[: offsets * c * c].reshape(offsets, c, c, *where)
        rows, columns = np.tril_indices(c, -1)
        mix = jnp.zeros((c, c, *where), self.below.dtype)
        return kernels, mix.at[rows, columns].set(self.below[offsets * c * c :])


def _over(a: Array, image_shape: tuple[int, ...]) -> Array:
    """With one kernel for every pixel, pixels flat and last."""
    lead = a.shape[: a.ndim - len(image_shape)]
    return jnp.broadcast_to(a, (*lead, *image_shape)).reshape(*lead, -1)
