"""Proposals sample and weigh alike, by rows and by columns, with and without a context."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from determinax import flows
from determinax.proposals import Proposal

from .registry import build, jit

KEY = jax.random.key(3)


@jit
def _sample(q, num, context=None):
    return q.sample_and_log_density(KEY, num, context)


@jit
def _log_density(q, points, context=None):
    return q.log_density(points, context)


def test_samples_carry_their_own_density():
    q = Proposal(build("coupling-0-moebius", 4, "float64", 0.3))
    points, log_density = _sample(q, 50)
    assert points.shape == (50, 4)
    np.testing.assert_allclose(_log_density(q, points), log_density, atol=1e-10)
    np.testing.assert_allclose(_log_density(q, points[0]), log_density[0], atol=1e-10)


def test_rows_are_columns_transposed():
    q = Proposal(build("coupling-0-moebius", 4, "float32", 0.3))
    rows = _sample(q, 50)
    columns = jit(lambda q: q.sample_columns(KEY, 50))(q)
    assert columns[0].dtype == jnp.float32
    np.testing.assert_array_equal(rows[0], columns[0].T)
    np.testing.assert_array_equal(rows[1], columns[1])


@pytest.mark.parametrize("n", [2, 3, 4])
def test_a_context_may_be_shared_or_one_a_point(n):
    conditioning = "autoregressive" if n == 3 else "coupling"
    f = flows.cylinder(
        n, key=KEY, num_flows=2, hidden=(8,), conditioning=conditioning, context_size=3
    )
    f = jax.tree.map(lambda a: a + 0.3 if a.ndim == 1 else a, f)  # open the stacked gates
    q = Proposal(f)
    contexts = jax.random.normal(KEY, (5, 3))
    points, log_density = _sample(q, 5, contexts)
    np.testing.assert_allclose(_log_density(q, points, contexts), log_density, atol=1e-9)
    for i in range(5):
        shared = _log_density(q, points, contexts[i])
        np.testing.assert_allclose(shared[i], log_density[i], atol=1e-9)
    assert not np.allclose(shared[:-1], log_density[:-1])
