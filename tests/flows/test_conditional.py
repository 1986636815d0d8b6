"""Linear maps whose matrix depends on a context."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from determinax import flows
from determinax.proposals import Proposal

from .registry import build, jit, points

KEY = jax.random.key(0)


def test_it_starts_at_the_global_matrix():
    base = flows.Dense(jnp.asarray(np.random.default_rng(0).normal(size=(4, 4))))
    s, contexts = points(4, "float64", 6), jax.random.normal(KEY, (3, 6))
    for options in ({}, {"rank": 2}):
        f = flows.conditional_linear(4, key=KEY, context_size=3, base=base, **options)
        expected = flows.ProjectiveLinear(base).forward(s)
        moved = jit(lambda f, s, c: f.forward(s, c))(f, s, contexts)
        for got, right in zip(moved, expected, strict=True):
            np.testing.assert_allclose(got, right, atol=1e-12)


@pytest.mark.parametrize(
    "name", ["conditional-triangular", pytest.param("conditional-low-rank", marks=pytest.mark.slow)]
)
def test_contexts_may_be_shared_or_one_a_point(name):
    f, s = build(name, 10, "float64", 0.3).flow, points(10, "float64", 6)
    contexts = jax.random.normal(KEY, (3, 6))
    q = Proposal(f)
    moved, log_q = jit(lambda q: q.push(s, context=contexts))(q)
    back = jit(lambda q: q.log_density_columns(moved, contexts))(q)
    np.testing.assert_allclose(back, log_q, atol=1e-9)
    given = jit(lambda q, context: q.given(context).push(s))
    for i in range(6):
        one, log_one = given(q, contexts[:, i])
        np.testing.assert_allclose(one[:, i], moved[:, i], atol=1e-12)
        np.testing.assert_allclose(log_one[i], log_q[i], atol=1e-11)
    assert not np.allclose(one[:, :-1], moved[:, :-1], atol=1e-3)


def test_wrong_arguments_name_the_cure():
    with pytest.raises(ValueError, match="make them equal"):
        flows.ConditionalLinear(flows.Diagonal(3), flows.Diagonal(4), context_size=1, key=KEY)
    with pytest.raises(ValueError, match="context_size must be 1 or more"):
        flows.conditional_linear(3, key=KEY, context_size=0)
    part = flows.Dense(jnp.eye(3))
    with pytest.raises(ValueError, match="no parameters for a network"):
        flows.ConditionalLinear(part, part, context_size=1, key=KEY)
    with pytest.raises(ValueError, match="not one of 3 numbers"):
        Proposal(flows.conditional_linear(3, key=KEY)).given(jnp.ones(2))


def test_a_rescaled_context_is_the_map_at_the_other_context():
    f, s = build("conditional-triangular", 10, "float64", 0.3).flow, points(10, "float64", 6)
    contexts = jax.random.normal(KEY, (3, 6))
    shift, scale = jnp.array([2000.0, 0.0, -3.0]), jnp.array([30.0, 1e-3, 1.0])
    g = flows.RescaledContext(f, shift, scale)
    years = scale[:, None] * contexts + shift[:, None]
    for one, other in (
        (g.forward(s, years), f.forward(s, contexts)),
        (g.inverse(s, years), f.inverse(s, contexts)),
    ):
        for got, right in zip(one, other, strict=True):
            np.testing.assert_allclose(got, right, atol=1e-9)
    one = g.forward(s, years[:, 0])[0][:, 0]
    np.testing.assert_allclose(one, g.forward(s, years)[0][:, 0], atol=1e-9)
    with pytest.raises(ValueError, match="not 3 numbers each"):
        flows.RescaledContext(f, shift[:2], scale)
