"""The density that a map gives the uniform law has mean 1 under the uniform law."""

import numpy as np

from .registry import build, every_map, forward, inverse, points


def _assert_mean_is_one(x):
    error = x.std() / len(x) ** 0.5
    assert abs(x.mean() - 1) < 4 * error + 1e-12
    assert error < 0.05


def _scale(n):
    # as large as leaves 4,000 points a mean: where n is large, densities vary more
    return 0.3 if n <= 4 else 0.1 if n <= 12 else 0.05


@every_map
def test_density_has_mean_one_under_the_uniform_law(name, n):
    f = build(name, n, "float64", _scale(n))
    _assert_mean_is_one(np.exp(inverse(f, points(n, "float64"))[1]))


@every_map
def test_inverse_density_has_mean_one_under_its_own_law(name, n):
    f = build(name, n, "float64", _scale(n))
    _assert_mean_is_one(np.exp(forward(f, points(n, "float64"))[1]))
