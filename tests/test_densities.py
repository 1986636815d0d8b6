"""The density of data in one call: what it finds, says, draws and writes."""

import json
from types import SimpleNamespace

import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
import safetensors.numpy
from typer.testing import CliRunner

import determinax as dx
from determinax import _nearby, _spheres
from determinax.cli import app
from determinax.densities import fit
from determinax.densities.verdict import duplicate_share

mpl.use("Agg")
TRUTH = dx.VonMisesFisher(np.array([[0.0, 0.6, 0.8], [0.8, -0.6, 0.0]]), np.array([10.0, 50.0]))


@pytest.fixture(scope="module")
def points():
    return np.asarray(TRUTH.sample(jax.random.key(0), 600))


@pytest.fixture(scope="module")
def found(points):
    return dx.density(points, key=jax.random.key(1), seconds=0, progress=False)


def test_two_bumps_are_found_and_nothing_richer(found):
    new = TRUTH.sample(jax.random.key(2), 5000)
    gap = np.mean(TRUTH.log_density(new) - found.log_density(new))
    assert gap < 0.03
    assert (found.status, list(found.parts)) == ("ok", ["2 bumps"])
    assert "2 bumps" in found.report()
    assert json.loads(json.dumps(found.to_dict()))["uniformity"] is None


def test_uniform_points_have_no_structure():
    points = dx.Uniform(3).sample(jax.random.key(0), 600)
    found = dx.density(points, key=jax.random.key(1), seconds=0, progress=False)
    assert (found.status, list(found.parts)) == ("no structure", ["uniform"])


def test_a_stack_is_taken_where_bumps_fall_short():
    angle = 2 * np.pi * np.arange(800) / 800
    ring = np.stack([np.cos(angle), np.sin(angle), 0.02 * np.sin(40 * angle)], axis=1)
    ring /= np.linalg.norm(ring, axis=1, keepdims=True)
    found = dx.density(ring, key=jax.random.key(1), seconds=0, progress=False)
    assert any(name.startswith("kernels") for name in found.parts)
    assert sum(found.parts.values()) == pytest.approx(1)
    scores = found.verdict.scores
    assert scores["this density"].mean > scores["uniform"].mean + 1


def test_no_flow_is_begun_without_the_time_to_compile_and_train_it(points, monkeypatch):
    """Each is given what is left, and none is begun where one would not end."""
    given = []

    def fit_samples(rows, *, max_seconds, **_):
        given.append(max_seconds)
        monkeypatch.setattr(fit.time, "perf_counter", lambda: 50.0 * len(given))
        return SimpleNamespace(proposal=TRUTH)

    monkeypatch.setattr(fit, "fit_samples", fit_samples)
    monkeypatch.setattr(fit.time, "perf_counter", lambda: 0.0)
    options = {"key": jax.random.key(1), "progress": False, "members": 4}
    few = dx.density(points, seconds=10, **options)
    assert not given
    assert "flows fitted: 0 of 4 in the 10 s that they were given; 30 s are the" in few.report()
    # the third would need 50 seconds like the others, and 40 are left
    some = dx.density(points, seconds=140, **options)
    assert given == [140, 90]
    assert some.report().endswith("flows fitted: 2 of 4 in the 140 s that they were given")
    assert (few.to_dict()["num_flows"], some.to_dict()["num_flows"]) == (0, 2)


def test_points_that_stand_twice_are_said():
    some = np.asarray(TRUTH.sample(jax.random.key(0), 100))
    found = dx.density(np.repeat(some, 3, 0), key=jax.random.key(1), seconds=0, progress=False)
    assert found.verdict.duplicates > 0.9
    assert any("also stand in the training set" in reason for reason in found.reasons)
    assert duplicate_share(some[:10], some[10:]) == 0


def test_a_region_holds_its_mass_and_the_uniform_one_its_area(found):
    new = TRUTH.sample(jax.random.key(3), 5000)
    region = found.region(0.9)
    assert region.contains(new).mean() == pytest.approx(0.9, abs=0.03)
    assert found.region(0.5).area < region.area < 4 * np.pi
    even = dx.Uniform(3).sample(jax.random.key(4), 20_000)
    assert region.contains(even).mean() == pytest.approx(region.share, abs=0.02)
    with pytest.raises(ValueError, match="between 0 and 1"):
        found.region(90)


def test_what_was_saved_can_be_asked_for_its_region(found, tmp_path):
    found.save(tmp_path / "q")
    again = dx.region(dx.load(tmp_path / "q"), 0.9, key=jax.random.key(3))
    assert again.share == pytest.approx(found.region(0.9).share, rel=0.1)
    assert again.held == pytest.approx(0.9, abs=1e-3)
    assert str(again).startswith("90% of the mass on")
    assert "singled out" not in str(again)
    with pytest.raises(TypeError, match="a region is of a density"):
        dx.region("q", 0.9, key=jax.random.key(3))


def test_a_conditional_density_is_asked_for_one_context(tmp_path):
    parts = [dx.Proposal(opened(2.0)), dx.Proposal(opened(1.0)), dx.Uniform(2)]
    dx.save(dx.Mixture(parts, [0.5, 0.3, 0.2]), tmp_path / "q")
    q, point = dx.load(tmp_path / "q"), [0.6, 0.8]
    for context in (0.5, jnp.array([0.5])):
        own = q.given(context)
        np.testing.assert_allclose(own.log_density(point), q.log_density(point, 0.5), atol=1e-5)
    assert dx.region(own, 0.5, key=jax.random.key(1)).share < 0.5
    with pytest.raises(ValueError, match=r"ask q\.given\(context\)"):
        dx.region(q, 0.5, key=jax.random.key(1))
    for other in (own, dx.Uniform(2)):
        with pytest.raises(ValueError, match="takes no context"):
            other.given(0.5)


def test_a_region_of_the_uniform_law_holds_everything_and_says_so():
    region = dx.region(dx.Uniform(3), 0.9, key=jax.random.key(0))
    assert (region.held, region.share) == (1.0, 1.0)
    assert str(region).startswith("100% of the mass on 100.00% of the sphere")
    assert "no smaller region of 90% is singled out" in str(region)


def test_marginals_integrate_to_one(found, points):
    for name, marginal in found.marginals().items():
        assert np.sum(marginal.density * np.diff(marginal.edges)) == pytest.approx(1), name
    latitude = found.marginals(num_bins=6)["latitude"]
    counts, _ = np.histogram(dx.sphere.to_lonlat(points)[1], latitude.edges)
    assert np.allclose(latitude.density * 30, counts / len(points), atol=0.06)


def test_p_values_are_small_for_a_fit_that_lacks_a_mode_and_not_for_the_truth(points):
    one = dx.VonMisesFisher(TRUTH.centres().T[:1], TRUTH.concentrations()[:1])
    assert dx.goodness_of_fit(one, points, key=jax.random.key(5)) < 0.01
    assert dx.goodness_of_fit(TRUTH, points, key=jax.random.key(5)) > 0.01
    poles = np.concatenate([np.eye(3), -np.eye(3)] * 20)
    p = dx.uniformity(poles, key=jax.random.key(6))
    assert p.rayleigh > 0.5 > 0.01 > p.energy


def opened(angle):
    """A flow on the circle that turns everything by an angle, and bends it where it has a context."""
    spline = dx.flows.CircularSpline(4)
    made = dx.flows.Circle(spline, key=jax.random.key(0), hidden=(8,), context_size=1)
    return eqx.tree_at(lambda f: f.circle_net.gate, made, jnp.asarray(angle))


def test_a_verdict_on_a_conditional_flow_is_by_points_pulled_back():
    """Points of the flow itself come back as uniform ones; with contexts mixed up, they do not."""
    q = dx.Proposal(opened(2.0))
    context = np.linspace(-2, 2, 400)[:, None]
    rows = np.asarray(q.sample(jax.random.key(1), 400, context))
    options = {"key": jax.random.key(2)}
    right = dx.judge(q, rows[::2], rows[1::2], context=context[::2], **options)
    assert right.status == "ok"
    assert min(right.uniformity) > 0.01
    assert right.p_value > 0.01
    wrong = dx.judge(q, rows[::2], rows[1::2], context=context[::-2], **options)
    assert wrong.status == "overfit"
    assert min(wrong.uniformity) < 0.01
    assert wrong.p_value < 0.01
    assert "pulled back through the flow" in str(wrong)
    scores = list(right.scores)
    assert scores == ["this density", "uniform", "von Mises-Fisher, 1 bump", "kernels"]


def test_a_verdict_on_a_conditional_ensemble_is_by_its_own_samples():
    """A mixture has no one way back: points are compared with what it draws given their contexts."""
    q = dx.Mixture([dx.Proposal(opened(2.0)), dx.Proposal(opened(1.0))])
    context = np.linspace(-2, 2, 400)
    rows = np.asarray(q.sample(jax.random.key(1), 400, context[:, None]))
    options = {"key": jax.random.key(2)}
    right = dx.judge(q, rows[::2], rows[1::2], context=context[::2], **options)
    assert (right.status, right.uniformity) == ("ok", None)
    assert right.p_value > 0.01
    assert "energy test between held-out points and its samples" in str(right)
    for mixed in (context[::-2], 0 * context[::2]):
        wrong = dx.judge(q, rows[::2], rows[1::2], context=mixed, **options)
        assert wrong.status != "ok"
        assert wrong.p_value < 0.01
    with pytest.raises(ValueError, match="not one row of numbers for each of 400 points"):
        dx.goodness_of_fit(q, rows, context=context[:7], **options)


def test_a_verdict_on_a_law_that_is_too_narrow_and_on_one_that_lacks_a_mode(points):
    narrow = dx.VonMisesFisher(TRUTH.centres().T, 3 * TRUTH.concentrations())
    one = dx.VonMisesFisher(TRUTH.centres().T[:1], 1.0)
    options = {"key": jax.random.key(2)}
    found = [dx.judge(q, points[:200], points[200:], **options) for q in (TRUTH, narrow, one)]
    assert [v.status for v in found] == ["ok", "overfit", "underfit"]
    assert found[0].uniformity is None
    even = np.asarray(dx.Uniform(3).sample(jax.random.key(3), 400))
    found = [dx.judge(dx.Uniform(3), p[:200], p[200:], **options) for p in (points, even)]
    assert [v.status for v in found] == ["underfit", "no structure"]


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda p: dx.judge("q", p, p, key=jax.random.key(0)), "on a density, such as fit.prop"),
        (lambda p: dx.judge(TRUTH, p, p, key=None), "pass key="),
        (lambda p: dx.judge(TRUTH, p, 2 * p, key=jax.random.key(0)), "row 0 of the points has"),
        (lambda p: dx.density(p[:5], key=jax.random.key(0)), "5 points are too few"),
        (lambda p: dx.density(p, key=jax.random.key(0), validation=0.0), "validation is above 0"),
        (lambda p: dx.density(2 * p, key=jax.random.key(0)), "row 0 of the points has norm 2"),
        (lambda p: dx.density(p * np.nan, key=jax.random.key(0)), "holds NaN"),
        (lambda p: dx.density(p.T, key=jax.random.key(0)), "by columns: pass the transpose"),
        (lambda p: dx.density(p[[0] * 20], key=jax.random.key(0)), "20. stand at one place"),
        (lambda p: dx.density(p, key=jax.random.key(0), validation="x"), "a share, such as 0.1"),
        (lambda p: dx.density(p, key=jax.random.key(0), floor=0), "above 0, not 0"),
        (lambda p: dx.density(p, key=jax.random.key(0), floor=np.nan), "above 0, not nan"),
        (lambda p: dx.density(p, key=jax.random.key(0), seconds=-1), "of 0 or more, not -1"),
        (lambda p: dx.density(p, key=None), "pass key="),
        (lambda p: dx.goodness_of_fit(TRUTH, p[:, :2], key=jax.random.key(0)), "3 dimensions"),
        (lambda p: dx.goodness_of_fit("q", p, key=jax.random.key(0)), "of a density"),
        (lambda p: dx.sphere.from_lonlat(["east"], [1.0]), "longitudes are numbers, in degrees"),
    ],
)
def test_bad_input(points, call, sentence):
    with pytest.raises((TypeError, ValueError), match=sentence):
        call(points)


def test_what_cannot_be_asked(found):
    for mass in (0, 1, np.nan, "half"):
        with pytest.raises(ValueError, match="mass"):
            found.region(mass)
    with pytest.raises(ValueError, match="num_bins must be a whole number"):
        found.marginals(num_bins=0)


def test_two_places_and_no_more_are_not_blamed_on_flows(recwarn):
    """Points that stand again and again: nothing on the terminal but the verdict's own words."""
    found = dx.density(
        np.repeat(np.eye(3)[:2], 30, 0), key=jax.random.key(1), seconds=0, progress=False
    )
    assert found.verdict.duplicates == 1
    assert "flows" not in " ".join(found.reasons)
    assert not [w for w in recwarn if "cluster" in str(w.message)]


def test_one_held_out_point_has_no_error_and_json_no_nan(points):
    found = dx.density(points[:10], key=jax.random.key(1), seconds=0, progress=False)
    assert json.loads(json.dumps(found.to_dict(), allow_nan=False))["num_held_out"] == 1
    assert "held-out points are too few to judge by: 1" in found.reasons


# -- pictures, the command line --


def run(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


def test_from_a_file_to_a_map_and_to_new_points(tmp_path, monkeypatch, points):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    lon, lat = (np.asarray(a) for a in dx.sphere.to_lonlat(points))
    lines = [f"{a:.4f},{b:.4f}" for a, b in zip(lat, lon, strict=True)]
    (tmp_path / "events.csv").write_text("\n".join(["latitude,longitude", *lines, ","]))
    q, globe = tmp_path / "q.safetensors", tmp_path / "globe.html"
    ended = run(
        *("density", tmp_path / "events.csv", "--lonlat", "--seconds", "0", "--json"),
        *("--map", globe, "--save", q, "--drop-missing"),
    )
    assert ended.exit_code == 0, ended.output
    printed = json.loads(ended.stdout)
    assert (printed["status"], printed["num_dropped"]) == ("ok", 1)
    assert ended.stderr == "dropped: 1 row without a place\n"
    assert printed["floor"] == pytest.approx(np.deg2rad(0.01))
    assert set(printed["held_out"]["uniform"]) == {"mean", "standard_error"}
    assert "data:image/png;base64," in globe.read_text()
    # 32 bits, which sessions of either kind can load
    assert {a.dtype.name for a in safetensors.numpy.load_file(q).values()} == {"float32"}
    ended = run("sample", q, "50", "--lonlat")
    header, *rows = ended.stdout.splitlines()
    drawn = np.array([[float(x) for x in row.split(",")] for row in rows])
    assert (header, drawn.shape) == ("longitude,latitude", (50, 2))
    assert np.all(TRUTH.log_density(dx.sphere.from_lonlat(*drawn.T)) > -15)
    assert run("sample", q, "5", "--out", tmp_path / "new.csv").exit_code == 0
    assert (tmp_path / "new.csv").read_text().startswith("x1,x2,x3\n")
    assert run("sample", q, "5", "--out", tmp_path / "new.npy").exit_code == 0
    assert np.load(tmp_path / "new.npy").shape == (5, 3)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["density", "none.csv", "--lonlat"], "no such file"),
        (["density", "a.csv", "--columns", "1,2"], "say --lonlat, too"),
        (["density", "a.csv", "--lonlat", "--map", "a.gif"], "maps are .png"),
        (["density", "a.csv", "--lonlat", "--floor", "0"], "--floor is a width above 0"),
        (["density", "a.csv", "--lonlat"], "the latitude of row 1 is 95"),
        (["density", "none.csv", "--lonlat", "--save", "q.npy"], "are saved as .safetensors"),
        (["density", "a.csv", "--drop-missing"], "say --lonlat, too"),
        (["density", "-"], "standard input is a table of places"),
        (["sample", "none.safetensors", "5"], "no such file"),
        (["sample", "a.csv", "5", "--out", "a.npz"], "written as .csv, .txt or .npy"),
    ],
)
def test_the_command_line_refuses(tmp_path, monkeypatch, arguments, sentence):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.csv").write_text("lon,lat\n1,2\n3,95\n")
    ended = run(*arguments)
    assert (ended.exit_code, ended.stderr.count("\n")) == (2, 1)
    assert sentence in ended.stderr


def test_regions_are_outlined_where_the_density_is_at_their_level(found, points):
    axes = dx.plots.density(found, points=points, log=True, regions=(0.9,))
    (lines,) = [c for c in axes.collections if hasattr(c, "levels")]
    assert lines.levels[0] == pytest.approx(found.region(0.9).log_level, abs=0.1)
    edge = np.concatenate(lines.get_paths()[0].to_polygons())
    there = dx.sphere.from_lonlat(*np.rad2deg(edge).T)
    assert np.allclose(found.log_density(there), lines.levels[0], atol=0.2)
    with pytest.raises(ValueError, match="can be sampled"):
        dx.plots.density(lambda x: x[0], n=3, regions=(0.5,))
    plt.close("all")


def test_sums_over_nearby_bumps_are_the_sums_over_all(monkeypatch):
    """Narrow ones by pairs, wide ones by a spline: to the digits of a colour."""
    rng = np.random.default_rng(0)
    centres = np.asarray(dx.Uniform(3).sample(jax.random.key(0), 300))
    bumps = dx.VonMisesFisher(centres, 1 / np.deg2rad(10 ** rng.uniform(-1, 1.5, 300)) ** 2)
    q = dx.Mixture([bumps, dx.Uniform(3)], [0.9, 0.1])
    points = np.concatenate([centres, dx.Uniform(3).sample(jax.random.key(1), 2000)])
    exact = np.exp(q.log_density(points))
    monkeypatch.setattr(_nearby, "_MANY", 0)
    np.testing.assert_allclose(_nearby.density_at(q, points.T), exact, rtol=2e-3)


def test_a_globe_says_what_its_colours_are(found, points, tmp_path):
    dx.plots.save_map(found, tmp_path / "a.html", points=points)
    text = (tmp_path / "a.html").read_text()
    assert "<h1" in text
    assert "A density on the sphere, of 600 points" in text
    assert "times the uniform density (logarithmic)" in text
    assert "devicePixelRatio" in text
    with pytest.raises(ValueError, match=r"see plots\.pairs"):
        dx.plots.save_map(dx.Uniform(4), tmp_path / "a.html")


def test_a_sphere_is_first_seen_from_where_the_mass_is():
    east = dx.VonMisesFisher([[0.0, 0.8, 0.6]], 20.0)
    data = _spheres.as_data([_spheres.on_sphere(east, "")], [""])
    assert (data["yaw"], data["pitch"]) == pytest.approx((np.pi / 2, np.arcsin(0.6)), abs=0.01)
    even = _spheres.as_data([_spheres.on_sphere(dx.Uniform(3), "")], [""])
    assert (even["yaw"], even["pitch"]) == (-1.0, 0.35)


def test_maps_have_degrees_and_lines_unlike_events(found):
    axes = dx.plots.density(found, log=True, regions=(0.5, 0.9))
    assert axes.get_yticklabels()[0].get_text() == "-60°"
    (lines,) = [c for c in axes.collections if hasattr(c, "levels")]
    # events are white: no line is near it in green, which the eye sees best
    assert max(colour[1] for colour in lines.get_edgecolor()) < 0.7
    plt.close("all")


def test_pairs_show_coordinates_and_angles_to_modes():
    centres = np.eye(6)[:3]
    figure = dx.plots.pairs(dx.VonMisesFisher(centres, 40.0), points=centres)
    titles = [axes.get_title() for axes in figure.axes]
    assert [t for t in titles if t] == [f"degrees from mode {k}" for k in (1, 2, 3)]
    assert figure.axes[0].get_xlim() == (-1.02, 1.02)
    plt.close("all")
