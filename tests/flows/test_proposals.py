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
    rows = q.sample_and_log_density(KEY, 50)
    columns = jit(Proposal.sample_columns)(q, KEY, 50)
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


UNIFORM = Proposal(flows.projective_linear(3))
OFF = np.eye(3)
OFF[1] *= 0.9


@pytest.mark.parametrize(
    ("points", "sentence"),
    [
        (OFF, r"row 1 of the points has norm 0\.9, not 1: divide it by its norm"),
        (OFF[1], r"the point has norm 0\.9, not 1"),
        ([[1.0, 0.0, 0.0], [0.0, np.nan, 0.0]], "row 1 of the points holds NaN"),
        ([[1.0, 0.0, 0.0], [np.inf, 0.0, 0.0]], "row 1 of the points holds NaN, Inf"),
        (np.ones((3, 5)), r"shape \(3, 5\) are not rows in 3 dim.*row \(num, 3\), the transpose"),
        (np.ones(4), r"shape \(4,\) are not rows in 3 dimensions: pass one point \(3,\) or one a"),
        (np.ones((2, 2, 3)), "not rows in 3 dimensions"),
        (1.0, "not rows in 3 dimensions"),
        ([[1.0, 0.0], [0.0]], "an array of numbers, one unit vector a row, not a list"),
        ([["one", "two"]], "an array of numbers, one unit vector a row, not a list"),
        (np.eye(3) * 1j, "dtype complex128: pass real numbers"),
    ],
)
def test_points_that_are_refused(points, sentence):
    with pytest.raises((TypeError, ValueError), match=sentence):
        UNIFORM.log_density(points)


def test_lists_and_whole_numbers_are_points():
    assert UNIFORM.log_density([[1, 0, 0], [0, 0, -1]]).shape == (2,)
    assert UNIFORM.log_density([0.6, 0.8, 0.0]).shape == ()
    assert UNIFORM.log_density(np.zeros((0, 3))).shape == (0,)
    # as many digits as people type
    assert abs(UNIFORM.log_density([0.577, 0.577, 0.577])) < 2e-3


def test_inside_of_a_transformation_shapes_are_checked_and_values_are_not():
    for transform in (jax.jit, jax.vmap, lambda f: jax.vmap(jax.grad(lambda s: f(s).sum()))):
        moved = transform(lambda s: UNIFORM.log_density(s))(jnp.asarray(OFF))
        assert moved.shape[0] == 3
    with pytest.raises(ValueError, match="not rows in 3 dimensions"):
        jax.jit(lambda s: UNIFORM.log_density(s))(jnp.ones((3, 5)))
    # the library's own way, by columns, looks at nothing
    assert jnp.isfinite(UNIFORM.log_density_columns(jnp.asarray(OFF))).all()


def test_contexts_that_do_not_fit():
    q = Proposal(flows.cylinder(2, key=KEY, num_flows=1, hidden=(4,), context_size=3))
    points = np.eye(2)
    assert q.log_density(points.tolist(), [0.0, 1.0, 2.0]).shape == (2,)
    for shape in ((4,), (3, 2), (5, 3)):
        with pytest.raises(ValueError, match="is not one of 3 numbers, nor 2 of them, one a row"):
            q.log_density(points, np.ones(shape))
    with pytest.raises(ValueError, match="takes no context"):
        UNIFORM.log_density(np.eye(3), [1.0])


def test_a_second_call_compiles_nothing(caplog):
    q = Proposal(build("coupling-0-moebius", 4, "float32", 0.3))
    for compiles in (True, False):
        caplog.clear()
        with jax.log_compiles(), caplog.at_level("WARNING", "jax"):
            points, _ = q.sample_and_log_density(KEY, 7)
            q.log_density(points)
        assert ("Finished XLA compilation" in caplog.text) == compiles
