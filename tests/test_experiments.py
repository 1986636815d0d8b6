"""The paper's experiments: presets are the authors', rows are complete, tables come from rows."""

import dataclasses
import json

import jax
import lineax as lx
import numpy as np
import pytest

import determinax as dx
from determinax.paper import MATRICES, experiments, matrix_named, report, reproduce
from determinax.proposals import Proposal

pytestmark = pytest.mark.xdist_group("experiments")  # they share what is trained
FEW = (100, 1000)
TINY = {
    "flow": "cylinder",
    "num_flows": 1,
    "num_bins": 2,
    "num_centres": 2,
    "hidden": (4,),
    "batch_size": 16,
}


def test_the_paper_preset_has_the_authors_flow_and_settings():
    expected = {
        "preset": "paper",
        "matrix": "A1",
        "steps": 10_000,
        "flow": "cylinder",
        "gradient": "path",
        "batch_size": 1024,
        "learning_rate": 1e-3,
        "weight_decay": 1e-2,
        "num_flows": 8,
        "circle": "moebius",
        "num_centres": 12,
        "num_bins": 16,
        "conditioning": "coupling",
        "rotations": False,
        "hidden": [128],
        "circle_hidden": [64],
        "dtype": "float32",
        "seed": 0,
    }
    assert experiments.configure("paper", "A1").settings() == expected
    convolution = {"matrix": "W", "steps": 40_000, "gradient": "total"}
    assert experiments.configure("paper", "W").settings() == expected | convolution
    cover = {"matrix": "cover", "num_flows": 6, "num_bins": 32, "gradient": "total"}
    cover |= {"circle": "spline", "conditioning": "autoregressive"}
    assert experiments.configure("paper", "cover").settings() == expected | cover
    with pytest.raises(ValueError, match="paper, best or quick"):
        experiments.configure("fast", "A1")  # pyright: ignore[reportArgumentType]


def test_the_papers_flow_trains():
    config = dataclasses.replace(
        experiments.configure("paper", "A1"), steps=100, learning_rate=0.02, **TINY
    )
    fit = experiments.train(config, progress=False)
    assert fit.history["loss"][-20:].mean() < fit.history["loss"][:20].mean()
    assert fit.proposal.flow.n == 10


def test_the_quick_preset_has_no_error_left_to_speak_of(monkeypatch):
    monkeypatch.setattr(experiments, "NUM_SAMPLES", (100,))
    rows, _ = experiments.run(experiments.configure("quick", "A1"), progress=False)
    assert abs(rows[0]["kl_gap"]) < 0.005
    assert rows[0]["products"] == 1000 * 256 * 2
    errors = {
        method: np.mean([row["error"] for row in rows if row.get("method") == method])
        for method in ("vde", "mc")
    }
    assert errors["vde"] < 0.01
    assert errors["mc"] > 0.5


def test_estimates_come_from_prefixes_of_one_stream(monkeypatch):
    monkeypatch.setattr(experiments, "NUM_SAMPLES", (100, 2000))
    matrix = np.diag([1.0, 1.2, 0.9, 1.1])
    operator = lx.MatrixLinearOperator(jax.numpy.asarray(matrix))
    first, last = experiments.evaluate(operator, None, jax.random.key(0))
    assert (first["num_samples"], last["num_samples"]) == (100, 2000)
    assert first["standard_error"] > 2 * last["standard_error"]
    assert abs(last["log_abs_det"] - np.log(1.2 * 0.9 * 1.1)) < 4 * last["standard_error"]
    uniform = Proposal(dx.flows.projective_linear(4))
    _, moved = experiments.evaluate(operator, uniform, jax.random.key(0))
    assert abs(moved["log_abs_det"] - last["log_abs_det"]) < 1e-12


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """A table and the figures reproduced once, with training that is far too short."""
    out = tmp_path_factory.mktemp("results")
    real = experiments.configure

    def configure(preset, matrix, seed=0):
        return dataclasses.replace(real(preset, matrix, seed), steps=100, batch_size=16)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(experiments, "configure", configure)
        patch.setattr(experiments, "NUM_SAMPLES", FEW)
        patch.setattr(report, "SAMPLES", FEW)
        patch.setattr(experiments, "NUM_KEYS", 2)
        reproduce.reproduce("table2", "quick", out, resume=False)
        for target in ("table2", "figure1", "figure2", "figure3"):
            reproduce.reproduce(target, "quick", out, resume=True)
    return out


def test_rows_tables_and_figures(results):
    rows = [json.loads(line) for line in (results / "quick-W.jsonl").read_text().splitlines()]
    (training,) = [row for row in rows if row["kind"] == "training"]
    assert training["products"] == 100 * 16 * 2
    assert training["config"]["seed"] == 0
    assert {"determinax", "jax"} <= training["versions"].keys()
    estimates = [row for row in rows if row["kind"] == "estimate"]
    assert len(estimates) == 2 * len(FEW) * 2
    truth = matrix_named("W").log_abs_det
    for row in estimates:
        assert row["error"] == pytest.approx(abs(np.expm1(row["log_abs_det"] - truth)))
    assert "num_flows" not in training["config"]  # it has none
    figures = [f"figure{i}.{kind}" for i in (1, 2, 3) for kind in ("png", "svg")]
    for name in ("table2.md", *figures):
        assert (results / f"quick-{name}").stat().st_size > 500
    table = (results / "quick-table2.md").read_text()
    assert "7.7327" in table
    assert "1.1 %" in table
    exact = [json.loads(r) for r in (results / "projective-W.jsonl").read_text().splitlines()]
    assert max(row["error"] for row in exact) < 1e-11
    assert max(row["products"] for row in exact) <= 2 * 16 + 2
    assert "| projective linear |" in table
    assert "40,960,000" in table
    assert not list(results.glob("*.checkpoint*"))


def test_rows_of_other_settings_are_not_taken(results):
    rows = experiments.read_rows([results / "quick-W.jsonl"])
    made_by = dataclasses.replace(experiments.configure("quick", "W"), steps=100, batch_size=16)
    assert made_by.made(rows)
    assert not dataclasses.replace(made_by, seed=1).made(rows)
    assert not experiments.configure("paper", "W").made(rows)


def test_tables_are_made_from_rows_alone(results, monkeypatch):
    monkeypatch.setattr(report, "SAMPLES", FEW)
    names = ("quick-W.jsonl", "projective-W.jsonl")
    rows = experiments.read_rows([results / name for name in names])
    for row in rows:
        if row["kind"] == "estimate" and row["method"] == "vde":
            row["error"] = 0.25
    assert "25 ± 0 %" in report.table2(rows)
    dense = [row | {"matrix": "A1"} for row in rows]
    table = report.table1(dense)
    assert "25 ± 0 %" in table
    assert "523.3344" in table
    assert "0.109" in table


def test_figure_1_shows_a_learned_density_beside_the_best():
    flow = dx.flows.cylinder(
        3, key=jax.random.key(0), num_flows=1, conditioning="autoregressive", circle="spline"
    )
    points, _ = Proposal(flow).sample_and_log_density(jax.random.key(1), 50)
    optimum = report.optimal_log_density(MATRICES[-1].matrix)
    figure = report.figure1(Proposal(flow), optimum, np.asarray(points))
    assert [axes.get_title() for axes in figure.axes[:1]] == ["optimal density"]


def test_unknown_targets_are_refused(tmp_path):
    with pytest.raises(ValueError, match="table1"):
        reproduce.reproduce("table9", "quick", tmp_path, resume=False)  # pyright: ignore
