"""The kind "convolution": a layer of stride 1 on flattened images."""

import math
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from jaxtyping import Array, Inexact

from determinax.operators._callable import TransposedLinearOperator
from determinax.operators._door import inexact
from determinax.operators._probing import (
    Outline,
    banded_outline,
    banded_pattern,
    outline,
    round_turns,
    turns,
)
from determinax.operators._traits import AbstractOwnOperator, OperatorError, own_kind, pattern

Padding = Literal["zero", "circular"]


@own_kind
class ConvolutionLinearOperator(AbstractOwnOperator):
    """A convolution layer (cross-correlation, stride 1) on flattened images; see `convolution`."""

    kernel: Inexact[Array, "out in *window"]
    image_shape: tuple[int, ...] = eqx.field(static=True)
    padding: Padding = eqx.field(static=True)

    def mv(self, vector: Array) -> Array:
        """The product with one flattened image, channels first."""
        window = self.kernel.shape[2:]
        image = vector.reshape(1, self.kernel.shape[1], *self.image_shape)
        # even windows reach one further to the right, as "SAME" does
        reach = [((k - 1) // 2, k // 2) for k in window]
        if self.padding == "circular":
            image = jnp.pad(image, [(0, 0), (0, 0), *reach], mode="wrap")
            reach = [(0, 0)] * len(window)
        return jax.lax.conv_general_dilated(
            image, self.kernel, (1,) * len(window), reach, precision=jax.lax.Precision.HIGHEST
        ).reshape(-1)

    def transpose(self) -> TransposedLinearOperator:
        """The transposed convolution."""
        return TransposedLinearOperator(self)

    def in_structure(self) -> jax.ShapeDtypeStruct:
        """The structure of a vector that it takes."""
        size = self.kernel.shape[1] * math.prod(self.image_shape)
        return jax.ShapeDtypeStruct((size,), self.kernel.dtype)

    def out_structure(self) -> jax.ShapeDtypeStruct:
        """The structure of a vector that it gives."""
        size = self.kernel.shape[0] * math.prod(self.image_shape)
        return jax.ShapeDtypeStruct((size,), self.kernel.dtype)


@pattern.register(ConvolutionLinearOperator)
def _(operator: ConvolutionLinearOperator) -> Any:
    """Each pixel of each channel sees the window around it, in all channels."""
    found = np.ones((1, 1))
    for axis in _axes(operator):
        band = banded_pattern(*axis, circular=operator.padding == "circular")
        found = scipy.sparse.kron(found, band, format="csr")  # else small images store their zeros
    channels = np.ones(operator.kernel.shape[:2])
    return scipy.sparse.csr_array(scipy.sparse.kron(channels, found, format="csr"))


@outline.register(ConvolutionLinearOperator)
def _(operator: ConvolutionLinearOperator) -> Outline:
    entries, colours = math.prod(operator.kernel.shape[:2]), operator.kernel.shape[1]
    for axis in _axes(operator):
        band = banded_outline(*axis, circular=operator.padding == "circular")
        entries, colours = entries * band.entries, colours * band.colours
    return Outline(entries, colours)


def _axes(operator: ConvolutionLinearOperator) -> list[tuple[int, int, int]]:
    """Of each of the image's: its size, and how far the window reaches to either side."""
    # even windows reach one further to the right, as the operator does
    windows = zip(operator.image_shape, operator.kernel.shape[2:], strict=True)
    return [(size, (window - 1) // 2, window // 2) for size, window in windows]


@turns.register(ConvolutionLinearOperator)
def _(operator: ConvolutionLinearOperator) -> np.ndarray:
    """Pixels take turns in each direction of the window, around a circular image in blocks."""
    found = np.arange(operator.kernel.shape[1])
    for size, below, above in _axes(operator):
        width = min(below, size - 1) + 1 + min(above, size - 1)
        circular = operator.padding == "circular"
        axis = round_turns(size, width) if circular else np.arange(size) % width
        found = found[..., None] * (int(np.max(axis)) + 1) + axis
    return found.ravel()


def convolution(
    kernel: Any, image_shape: tuple[int, ...], padding: Padding = "zero"
) -> ConvolutionLinearOperator:
    """A convolution layer of stride 1 that keeps the image's size, as an operator.

    **Arguments:**

    - `kernel`: one channel: the window itself, e.g. `(3, 3)`; many channels: `(out, in, 3, 3)`.
    - `image_shape`: the image without channels, e.g. `(32, 32)`; one and three dimensions work too.
    - `padding`: `"zero"` or `"circular"`.

    As in deep learning this is a cross-correlation: the kernel is not flipped (the flipped one is
    the transpose for zero padding and has the same determinant).
    """
    kernel = inexact(kernel, "convolution kernel")
    sizes = image_shape if isinstance(image_shape, tuple | list | np.ndarray) else (image_shape,)
    shape = tuple(_positive(size, "image_shape") for size in sizes)
    if padding not in ("zero", "circular"):
        raise OperatorError(f'padding is "zero" or "circular", not {padding!r}')
    if kernel.ndim == len(shape):
        kernel = kernel[None, None]
    if kernel.ndim != len(shape) + 2:
        raise OperatorError(
            f"a kernel of shape {kernel.shape} does not fit an image of shape {shape}: give the "
            f"window alone ({len(shape)} axes) or (out, in, *window) ({len(shape) + 2} axes)"
        )
    if padding == "circular" and any(k > s for k, s in zip(kernel.shape[2:], shape, strict=True)):
        raise OperatorError(
            f"a circular window of {kernel.shape[2:]} is larger than the image {shape}"
        )
    return ConvolutionLinearOperator(kernel, shape, padding)


def _positive(value: Any, name: str) -> int:
    number = isinstance(value, int | float | np.integer | np.floating)
    valid = number and not isinstance(value, bool) and math.isfinite(value)
    if not (valid and float(value).is_integer() and value >= 1):
        raise OperatorError(f"{name} holds positive whole numbers, not {value}")
    return int(value)
