import jax
import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest

from determinax import flows, plots
from determinax.paper import demo
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


def drawn(axes):
    return (axes.collections or axes.images)[0]


@pytest.mark.parametrize("projection", ["mollweide", "orthographic"])
def test_pictures_are_normalised(projection):
    """Bare log-densities too: exp(2 z) has the mean sinh(2)/2 over the sphere, and e^2 on top."""
    axes = plots.density(lambda x: 7 + 2 * x[2], n=3, projection=projection, view=(90.0, 0.0))
    top = np.nanmax(drawn(axes).get_array())
    assert top == pytest.approx(2 * np.exp(2) / np.sinh(2), rel=1e-4)
    plt.close("all")


def test_colours_can_be_shared():
    low, high = (lambda x: x[2]), (lambda x: 3 * x[2])
    axes = [plots.density(source, n=3, vmin=0, vmax=6) for source in (low, high)]
    assert [drawn(a).get_clim() for a in axes] == [(0, 6), (0, 6)]
    assert len(axes[0].figure.axes) == 2
    alone = plots.density(low, n=3, colorbar=False)
    assert len(alone.figure.axes) == 1
    plt.close("all")


@pytest.mark.parametrize("projection", ["mollweide", "orthographic"])
def test_differences_are_centred_at_zero(projection):
    source, uniform = (lambda x: 2 * x[2]), Proposal(flows.projective_linear(3))
    shown = drawn(plots.difference(source, uniform, projection=projection, view=(0.0, 0.0)))
    low, high = shown.get_clim()
    assert low == -high
    assert high == pytest.approx(2 * np.exp(2) / np.sinh(2) - 1, rel=0.02)
    assert np.nanmin(shown.get_array()) < 0
    same = drawn(plots.difference(source, source, limit=0.5))
    assert same.get_clim() == (-0.5, 0.5)
    assert not np.any(same.get_array())
    plt.close("all")


def test_globes_have_a_graticule():
    axes = plots.density(lambda x: x[2], n=3, projection="orthographic", view=(90.0, 0.0))
    parallels = [line for line in axes.lines if np.isfinite(line.get_xdata()).all()]
    radii = {round(float(np.hypot(*line.get_data()).mean()), 2) for line in parallels}
    assert {0.5, 0.87} <= radii  # 60 and 30 degrees, seen from the pole
    plt.close("all")


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: plots.density(lambda x: x[0]), "pass n=2 or n=3 with it"),
        (lambda: plots.density(lambda x: x[0], n=3, projection="mercator"), "mollweide"),
        (lambda: plots.density(Proposal(flows.projective_linear(3)), n=2), "leave n out"),
        (lambda: plots.difference(Proposal(flows.projective_linear(4)), len), "not for n = 4"),
    ],
)
def test_bad_arguments(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call()


def test_more_dimensions_have_no_picture_and_no_misleading_cure():
    for source, n in ((Proposal(flows.projective_linear(5)), None), (lambda x: x[0], 5)):
        with pytest.raises(ValueError, match="not for n = 5") as caught:
            plots.density(source, n=n)
        assert "pass n" not in str(caught.value)


def test_jit_is_not_confused_by_two_proposals():
    a, b = (Proposal(flows.cylinder(2, key=jax.random.key(i), hidden=(8,))) for i in range(2))
    points = np.eye(2)
    assert plots.evaluate(a, points).shape == plots.evaluate(b, points).shape == (2,)


def test_the_demo_shows_target_and_fit_in_the_same_colours():
    figure = demo._picture(Proposal(flows.projective_linear(3)), "a title")
    target, fit, between = (drawn(a) for a in figure.axes[:3])
    assert target.get_clim() == fit.get_clim()
    assert target.get_clim()[0] == 0
    assert between.get_clim() == (-1, 1)
    assert len(figure.axes) == 5  # a bar for each scale
    plt.close("all")
