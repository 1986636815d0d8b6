import jax
import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest

from determinax import flows, plots
from determinax.proposals import Proposal

mpl.use("Agg")


@pytest.mark.parametrize("projection", ["mollweide", "orthographic"])
@pytest.mark.parametrize("source", [Proposal(flows.projective_linear(3)), lambda x: 3 * x[2]])
def test_spheres(tmp_path, projection, source):
    points = np.eye(3)
    axes = plots.density(source, n=3, projection=projection, points=points, title="a title")
    axes.figure.savefig(tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 5000
    plt.close("all")


def test_circles(tmp_path):
    for source in (Proposal(flows.projective_linear(2)), lambda x: x[0]):
        axes = plots.density(source, n=2, points=np.eye(2))
        axes.figure.savefig(tmp_path / "a.png")
    plt.close("all")


def test_pictures_are_normalised():
    """The mean over the sphere of what is drawn is 1."""
    axes = plots.density(lambda x: 2 * x[2], n=3)
    values = axes.collections[0].get_array().reshape(181, 361)
    weights = np.cos(np.linspace(-np.pi / 2, np.pi / 2, 181))[:, None] * np.ones(361)
    assert np.average(values, weights=weights) == pytest.approx(1, rel=1e-6)
    assert values.max() == pytest.approx(2 * np.exp(2) / np.sinh(2), rel=1e-2)
    plt.close("all")


def test_bad_arguments():
    with pytest.raises(ValueError, match="n = 2 and n = 3"):
        plots.density(lambda x: x[0])
    with pytest.raises(ValueError, match="mollweide"):
        plots.density(lambda x: x[0], n=3, projection="mercator")


def test_jit_is_not_confused_by_two_proposals():
    a, b = (Proposal(flows.cylinder(2, key=jax.random.key(i), hidden=(8,))) for i in range(2))
    points = np.eye(2)
    assert plots.evaluate(a, points).shape == plots.evaluate(b, points).shape == (2,)
