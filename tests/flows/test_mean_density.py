"""The density that a map gives the uniform law has mean 1 under the uniform law."""

import jax.numpy as jnp
import numpy as np

from determinax.proposals import Proposal

from .registry import build, every_map, points


@every_map
def test_density_has_mean_one(name, n):
    num = 20_000
    f = build(name, n, "float64", 0.1)
    density = np.exp(Proposal(f).log_density_columns(points(n, "float64", num)))
    error = density.std() / num**0.5
    assert abs(density.mean() - 1) < 4 * error + 1e-12
    assert error < 0.05


@every_map
def test_inverse_weights_have_mean_one(name, n):
    """For samples of q, 1/q has mean 1 too."""
    num = 20_000
    f = build(name, n, "float64", 0.1)
    weight = jnp.exp(f.forward(points(n, "float64", num))[1])
    error = weight.std() / num**0.5
    assert abs(weight.mean() - 1) < 4 * error + 1e-12
    assert error < 0.05
