"""Optimisers: always an `optax.GradientTransformation`, and the same object where settings are known."""

import functools
from typing import Any

import optax

from determinax._checks import positive_number
from determinax._digest import identity

# what is compiled for an optimiser is found again by its identity
_known: dict[str, optax.GradientTransformation] = {}
_KEPT = 256


def chosen(
    optimiser: optax.GradientTransformation | None, learning_rate: float | optax.Schedule | None
) -> optax.GradientTransformation:
    """The caller's optimiser, or Adam at a learning rate; settings known to be equal give one object."""
    if optimiser is None:
        if learning_rate is not None and not callable(learning_rate):
            learning_rate = positive_number(learning_rate, "learning_rate")
        return _adam(1e-3 if learning_rate is None else learning_rate)
    if not isinstance(optimiser, optax.GradientTransformation):
        raise TypeError(
            "optimiser is an optax.GradientTransformation, such as optax.adam(1e-3), not "
            f"{optimiser!r}" + (": call it" if callable(optimiser) else "")
        )
    if learning_rate is not None:
        raise ValueError("an optimiser has a learning rate of its own: leave learning_rate out")
    known = identity(optimiser)
    if known is None:  # it may compute anything
        return optimiser
    if len(_known) >= _KEPT:
        _known.clear()
    return _known.setdefault(known, optimiser)


@functools.lru_cache(maxsize=32)
def _adam(learning_rate: Any) -> optax.GradientTransformation:
    return optax.adam(learning_rate)


@functools.lru_cache(maxsize=32)
def warm_cosine(steps: int, peak: float = 5e-3) -> optax.Schedule:
    """A short rise to `peak`, then a cosine down to nothing."""
    rise = max(1, min(100, steps // 100))
    return optax.warmup_cosine_decay_schedule(peak / 10, peak, rise, max(steps, rise + 1))


def clipped(
    optimiser: optax.GradientTransformation | None,
    learning_rate: float | optax.Schedule | None,
    steps: int,
    attempt: int = 0,
) -> optax.GradientTransformation:
    """For data: the caller's, or Adam with bounded gradients, more slowly with every attempt."""
    if optimiser is not None or learning_rate is not None:
        return chosen(optimiser, learning_rate)
    return _clipped_adam(steps, 5e-3 / 2**attempt)


@functools.lru_cache(maxsize=32)
def _clipped_adam(steps: int, peak: float) -> optax.GradientTransformation:
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adam(warm_cosine(steps, peak)))
