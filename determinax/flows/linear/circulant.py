"""Circular convolutions."""

import math
from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Inexact

from ... import _linalg
from ._base import AbstractFactor, check_size


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
        check_size(self.n)
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
