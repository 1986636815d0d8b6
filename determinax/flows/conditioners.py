"""Networks that turn some coordinates, and a context, into the parameters of the maps of others."""

import itertools
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float, PRNGKeyArray

from .base import as_column


class Conditioner(eqx.Module):
    r"""A ReLU network $\theta = \gamma\,\mathrm{net}(x, c)$ with a scalar gate $\gamma$ at 0.

    The gate makes every map start at the identity while its last layer stays random. Zeros in the
    last layer would do so too, but then all centres of a Moebius mixture would receive one and the
    same gradient for ever.

    Returns `(num_parameters, num_outputs, *num)`: parameters first, batch last. With no inputs at
    all it is one learned parameter vector. With `autoregressive` (as many inputs as outputs),
    output `i` sees the inputs before `i` only, by masks on the weights as in MADE.

    References: Germain et al. (2015), arXiv:1502.03509.
    """

    weights: list[Array]
    biases: list[Array]
    context_weight: Array | None
    gate: Array
    num_inputs: int = eqx.field(static=True)
    num_outputs: int = eqx.field(static=True)
    num_parameters: int = eqx.field(static=True)
    autoregressive: bool = eqx.field(static=True)

    def __init__(
        self,
        num_inputs: int,
        num_outputs: int,
        num_parameters: int,
        *,
        key: PRNGKeyArray,
        hidden: tuple[int, ...],
        context_size: int = 0,
        autoregressive: bool = False,
        dtype: DTypeLike = float,
    ):
        if not hidden or min(hidden) < 1:
            raise ValueError(f"hidden must be one or more layer sizes, not {hidden}")
        if num_inputs + context_size == 0:
            hidden = ()
        sizes = [num_inputs, *hidden, num_parameters * num_outputs]
        shapes = list(zip(sizes[1:], sizes[:-1], strict=True))
        counts = [a * (b + 1) for a, b in shapes] + [sizes[1] * context_size]
        # one draw for all: every further one would cost as much to compile
        draws = jax.random.uniform(key, (sum(counts),), dtype, -1, 1)
        parts = jnp.split(draws, np.cumsum(counts[:-1]))
        self.weights, self.biases = [], []
        for i, ((a, b), part) in enumerate(zip(shapes, parts[:-1], strict=True)):
            fan_in = max(1, b + (context_size if i == 0 else 0))
            self.weights.append((3 / fan_in) ** 0.5 * part[a:].reshape(a, b))
            self.biases.append(fan_in**-0.5 * part[:a])
        fan_in = max(1, num_inputs + context_size)
        self.context_weight = (
            (3 / fan_in) ** 0.5 * parts[-1].reshape(-1, context_size) if context_size else None
        )
        self.gate = jnp.zeros((), dtype)
        self.num_inputs = num_inputs
        self.num_outputs = num_outputs
        self.num_parameters = num_parameters
        self.autoregressive = autoregressive

    def __call__(
        self, x: Float[Array, "inputs *num"], context: Float[Array, "c *num"] | None = None
    ) -> Float[Array, "parameters outputs *num"]:
        """Parameters for all outputs."""
        weight, bias = self._last()
        out = _affine(weight, bias, self.trunk(x, context))
        return out.reshape(self.num_parameters, self.num_outputs, *out.shape[1:])

    def trunk(self, x: Array, context: Array | None = None) -> Array:
        """The last hidden layer."""
        layers = zip(self.weights[:-1], self.biases[:-1], self._masks()[:-1], strict=True)
        for i, (weight, bias, mask) in enumerate(layers):
            x = _affine(_masked(weight, mask), bias, x)
            if i == 0 and self.context_weight is not None and context is not None:
                x = x + as_column(jnp.tensordot(self.context_weight, context, 1), x)
            x = jax.nn.relu(x)
        return x

    def head(self, hidden: Array, i: Array) -> Float[Array, "parameters *num"]:
        """Parameters for output `i` alone, from the last hidden layer."""
        weight, bias = self._last()

        def rows(a):
            a = a.reshape(self.num_parameters, self.num_outputs, *a.shape[1:])
            return jax.lax.dynamic_index_in_dim(a, i, 1, keepdims=False)

        return _affine(rows(weight), rows(bias), hidden)

    def _last(self) -> tuple[Array, Array]:
        # the gate on the weights: a pass over the outputs would cost as much as a layer
        weight = _masked(self.weights[-1], self._masks()[-1])
        return self.gate * weight, self.gate * self.biases[-1]

    def _masks(self) -> list[np.ndarray | None]:
        if not self.autoregressive:
            return [None] * len(self.weights)
        d = self.num_outputs
        # a unit of degree m sees the inputs before m
        degrees = [np.arange(self.num_inputs) + 1]
        degrees += [np.arange(len(bias)) % d for bias in self.biases[:-1]]
        masks = [b[:, None] >= a[None, :] for a, b in itertools.pairwise(degrees)]
        outputs = np.tile(np.arange(d), self.num_parameters)
        return [*masks, outputs[:, None] >= degrees[-1][None, :]]


class ImageConditioner(eqx.Module):
    """A convolutional network of an image, whose outputs are parameters with the image's pixels.

    It takes the context as a flat image, channels first, and gives what `Conditioner` gives: one column
    of parameters, which starts at zero. `shapes` are those of the parameters: `(k, *image)`, or
    `(channels * pixels,)`, or that with a rank behind it.
    """

    weights: list[Array]
    biases: list[Array]
    image_shape: tuple[int, ...] = eqx.field(static=True)
    channels: int = eqx.field(static=True)
    shapes: tuple[tuple[int, ...], ...] = eqx.field(static=True)

    def __init__(
        self,
        image_shape: tuple[int, ...],
        channels: int,
        shapes: tuple[tuple[int, ...], ...],
        *,
        key: PRNGKeyArray,
        hidden: tuple[int, ...],
        size: int = 3,
        dtype: DTypeLike = float,
    ):
        self.image_shape, self.channels, self.shapes = tuple(image_shape), channels, shapes
        pixels = math.prod(image_shape)
        outputs = sum(math.prod(s) for s in shapes) // pixels
        sizes = [channels, *hidden]
        window = (size,) * len(image_shape)
        self.weights, self.biases = [], []
        for a, b, k in zip(sizes[1:], sizes[:-1], jax.random.split(key, len(hidden)), strict=True):
            deviation = (2 / (b * math.prod(window))) ** 0.5
            self.weights.append(deviation * jax.random.normal(k, (a, b, *window), dtype))
            self.biases.append(jnp.zeros(a, dtype))
        self.weights.append(jnp.zeros((outputs, sizes[-1], *window), dtype))
        self.biases.append(jnp.zeros(outputs, dtype))

    def __call__(
        self, x: Float[Array, "0"], context: Float[Array, " n"]
    ) -> Float[Array, "parameters 1"]:
        """Parameters for the image that is the context."""
        del x
        h = context.reshape(1, self.channels, *self.image_shape)
        last = len(self.weights) - 1
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            stride = (1,) * len(self.image_shape)
            h = jax.lax.conv_general_dilated(h, weight, stride, "SAME")
            h = h + bias.reshape(-1, *stride)
            h = h if i == last else jax.nn.silu(h)
        parts, start = [], 0
        for shape in self.shapes:
            num = math.prod(shape) // math.prod(self.image_shape)
            part = h[0, start : start + num]
            if len(shape) == 2 and shape[0] == self.channels * math.prod(self.image_shape):
                # a rank behind the pixels
                part = part.reshape(self.channels, shape[1], *self.image_shape)
                part = jnp.moveaxis(part, 1, -1)
            parts.append(part.reshape(-1))
            start += num
        return jnp.concatenate(parts)[:, None]


def _affine(weight: Array, bias: Array, x: Array) -> Array:
    out = jnp.tensordot(weight, x, 1)
    return out + as_column(bias, out)


def _masked(weight: Array, mask: np.ndarray | None) -> Array:
    return weight if mask is None else jnp.where(mask, weight, 0)
