"""What is shared, and what a run goes on from, is what computes the same."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from determinax._digest import fingerprint, identity
from determinax.training._optimisers import chosen

RATE = 0.1


def _sine():
    return optax.sgd(lambda s: 0.1 * jnp.sin(1 + s))


def _cosine():
    return optax.sgd(lambda s: 0.1 * jnp.cos(1 + s))


def _nested(rate):
    code = f"lambda s: (lambda: {rate})()"
    return optax.sgd(eval(code, {}))


class Schedule:
    def __init__(self, rate):
        self.rate = rate

    def __call__(self, step):
        return self.rate


class Mine:
    def __init__(self, rate):
        self.rate = rate

    def init(self, params):
        return optax.EmptyState()

    def update(self, updates, state, params=None):
        return jax.tree.map(lambda u: -self.rate * u, updates), state

    def optimiser(self):
        return optax.GradientTransformation(self.init, self.update)


UNLIKE = {
    "names": (_sine, _cosine),
    "nested code": (lambda: _nested(0.1), lambda: _nested(1e-6)),
    "objects": (lambda: optax.sgd(Schedule(0.1)), lambda: optax.sgd(Schedule(1e-6))),
    "methods": (lambda: Mine(0.1).optimiser(), lambda: Mine(1e-6).optimiser()),
    "settings": (lambda: optax.adam(0.1), lambda: optax.adam(1e-6)),
}


@pytest.mark.parametrize("name", UNLIKE)
def test_an_optimiser_is_never_swapped_for_another_one(name):
    first, second = (make() for make in UNLIKE[name])
    assert chosen(first, None) is first
    assert chosen(second, None) is second
    assert fingerprint(first) != fingerprint(second)


def test_equal_optimisers_are_one_where_all_is_known():
    for make in (
        lambda: optax.adam(0.03),
        lambda: optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(0.02)),
        lambda: optax.sgd(optax.cosine_decay_schedule(0.1, 100)),
        _sine,
    ):
        assert chosen(make(), None) is chosen(make(), None)


def test_what_may_change_until_it_is_used_is_not_known_exactly():
    rates = [0.1]
    for unknown in (
        lambda s: RATE,
        lambda s: rates[0],
        Schedule(0.1),
        [1],
        np.ones(2),
        jax.jit(jnp.sin),
    ):
        assert identity(unknown) is None
    assert identity((1, "two", jnp.ones(3), lambda s: 2 * jnp.sin(s))) is not None


def test_variables_and_functions_that_a_function_names_are_in_its_fingerprint():
    def made(rate):
        scope = {"jnp": jnp, "rate": rate}
        exec("def inner(s): return rate * s\ndef outer(s): return inner(jnp.sin(s))", scope)
        return scope["outer"]

    assert fingerprint(made(1.5)) == fingerprint(made(1.5))
    assert fingerprint(made(1.5)) != fingerprint(made(2.5))


def test_a_function_that_calls_itself_has_a_fingerprint():
    def down(n):
        return 0 if n == 0 else down(n - 1)

    assert fingerprint(down) == fingerprint(down)


def test_constants_within_a_program_are_in_its_fingerprint():
    def made(scale):
        inner = jax.jit(lambda x: jnp.asarray(scale * np.arange(3.0)) * x)
        return jax.make_jaxpr(inner)(jnp.ones(3))

    assert fingerprint(made(1.0)) == fingerprint(made(1.0))
    assert fingerprint(made(1.0)) != fingerprint(made(2.0))
