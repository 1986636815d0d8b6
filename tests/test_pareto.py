"""The tail index of the weights, in JAX, beside that of arviz."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arviz_stats.base import array_stats

from determinax._pareto import pareto_k


@pytest.mark.parametrize("k", [0.2, 0.5, 0.9])
def test_pareto_k_finds_the_shape_of_a_pareto_tail(k):
    rng = np.random.default_rng(0)
    log_w = k * rng.exponential(size=100_000)  # w = u^-k
    tail = jnp.asarray(np.sort(log_w)[-950:][::-1])
    assert abs(pareto_k(tail) - k) < 0.1


def arviz_k(tail):
    """arviz' own, made to pick our tail: it takes a fifth of what it is given where draws are few."""
    weights = np.exp(tail - tail[0])
    padded = np.concatenate([np.full(4 * (len(tail) - 1), weights[-1]), weights[:-1]])
    fit = array_stats.pareto_khat(padded[None], r_eff=200 / len(padded), tail="right")
    return float(np.asarray(fit))


def test_pareto_k_is_that_of_arviz():
    rng, worst, found = np.random.default_rng(1), 0.0, jax.jit(pareto_k)
    for num in (6, 30, 299) * 15:  # three programs
        shape = rng.uniform(0.05, 1.2)
        tail = np.sort(shape * rng.exponential(size=num + 1))[::-1]
        worst = max(worst, abs(float(found(jnp.asarray(tail))) - arviz_k(tail)))
    assert worst < 1e-12


def test_pareto_k_agrees_with_arviz_on_the_whole_sample():
    log_w = np.random.default_rng(1).standard_normal(10_000)
    _, expected = array_stats.psislw(-log_w)
    tail = jnp.asarray(np.sort(log_w)[-301:][::-1])
    assert float(pareto_k(tail)) == pytest.approx(float(expected), rel=1e-6)


def test_pareto_k_has_nothing_to_say_of_few_or_equal_weights():
    assert np.isnan(pareto_k(jnp.zeros(100)))
    assert np.isnan(pareto_k(jnp.arange(5.0)[::-1]))
