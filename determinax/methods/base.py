"""What every method is: a configuration that turns an admitted operator into an `Estimate`."""

import abc
import math
from typing import Any

import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
from jaxtyping import PRNGKeyArray

from determinax.estimate import Estimate
from determinax.operators import Products
from determinax.progress import Report


class AbstractMethod(abc.ABC):
    """A method is configuration only: frozen, hashable, no arrays."""

    @abc.abstractmethod
    def estimate(
        self,
        operator: lx.AbstractLinearOperator,
        key: PRNGKeyArray | None,
        *,
        spent: Products,
        progress: Report | None = None,
    ) -> Estimate:
        """Estimate the log-volume of an admitted operator; `spent` products went before."""


def require_key(key: Any, method: str) -> PRNGKeyArray:
    """The key of a method that draws random directions."""
    if key is None:
        raise ValueError(f"{method} draws random directions: pass key=jax.random.key(0)")
    is_key = isinstance(key, jax.Array) and (
        jnp.issubdtype(key.dtype, jax.dtypes.prng_key) or key.dtype == jnp.uint32
    )
    if not is_key:
        raise TypeError(f"key is a JAX key such as jax.random.key(0), not {key!r}")
    return key


def whole_number(value: Any, name: str, *, least: int = 1) -> int:
    """A whole number of at least `least`, below 2^31; 1e4 counts as one, True and NaN do not."""
    number = isinstance(value, int | float | np.integer | np.floating)
    valid = number and not isinstance(value, bool) and math.isfinite(value)
    if not (valid and float(value).is_integer() and least <= value < 2**31):
        raise ValueError(
            f"{name} must be a whole number from {least} to {2**31 - 1}, not {value!r}"
        )
    return int(value)


def require_bar(name: str, bar: Any) -> None:
    """Refuse a bar for the standard error that is no positive number; None is no bar."""
    if bar is None:
        return
    number = isinstance(bar, int | float | np.integer | np.floating) and not isinstance(bar, bool)
    if not (number and 0 < bar < math.inf):
        raise ValueError(f"{name} is a positive number, the standard error to be met, not {bar!r}")
