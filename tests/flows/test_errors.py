"""Wrong arguments get one sentence that names the cure."""

import jax
import jax.numpy as jnp
import pytest

from determinax import flows

KEY = jax.random.key(0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n": 1}, "n >= 2"),
        ({"n": 3}, 'conditioning="autoregressive"'),
        ({"n": 4, "circle": "square"}, '"moebius" or "spline"'),
        ({"n": 4, "conditioning": "none"}, '"coupling" or "autoregressive"'),
        ({"n": 4, "num_flows": 0}, "num_flows must be 1 or more"),
        ({"n": 4, "num_bins": 0}, "at least one bin"),
        ({"n": 4, "num_centres": 0}, "at least one centre"),
        ({"n": 4, "weights": "random"}, '"equal" or "learned"'),
        ({"n": 4, "hidden": ()}, "one or more layer sizes"),
        ({"n": 4, "context_size": -1}, "context_size must be 0 or more"),
    ],
)
def test_cylinder_names_the_cure(options, message):
    with pytest.raises(ValueError, match=message):
        flows.cylinder(**options, key=KEY)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: flows.exponential_polynomial(1, key=KEY), "n >= 2"),
        (lambda: flows.exponential_radial(3, key=KEY, num_centres=0), "at least one centre"),
        (lambda: flows.exponential_radial(3, key=KEY, num_flows=0), "num_flows"),
        (lambda: flows.projective_linear(1), "n >= 2"),
        (lambda: flows.Rotation(jnp.ones((2, 3))), "square matrix"),
        (lambda: flows.Rotation(jnp.array([[1.0, 0.1], [0.0, 1.0]])), "orthonormal columns"),
        (lambda: flows.Householder(3, 4, key=KEY), "1 to 3 reflections"),
    ],
)
def test_other_maps_name_the_cure(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_points_and_contexts_of_the_wrong_shape_are_refused():
    plain = flows.Rotation.random(3, key=KEY)
    conditional = flows.cylinder(2, key=KEY, num_flows=1, hidden=(4,), context_size=2)
    with pytest.raises(ValueError, match="3 dimensions"):
        plain.forward(jnp.ones(4))
    with pytest.raises(ValueError, match="takes no context"):
        plain.forward(jnp.ones(3), jnp.ones(1))
    with pytest.raises(ValueError, match="needs a context"):
        conditional.forward(jnp.ones(2))
    with pytest.raises(ValueError, match="2 rows"):
        conditional.forward(jnp.ones(2), jnp.ones(3))
