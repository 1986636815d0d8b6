"""The command line, through a real process where exit codes and streams matter."""

import json
import subprocess
import sys

import jax
import numpy as np
import pytest
import scipy.sparse
from registry import near_isometry
from typer.testing import CliRunner

import determinax as dx
from determinax.cli import app


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def matrix_file(tmp_path):
    np.save(tmp_path / "a.npy", near_isometry(6))
    return tmp_path / "a.npy"


def run(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--method", "exact"],
        ["--method", "mc", "--samples", "5e3"],
        ["--method", "mc", "--samples", "6000", "--frames"],
        ["--method", "slq", "--samples", "200", "--depth", "6"],
        ["--max-matvecs", "6"],
    ],
    ids=str,
)
def test_estimate_as_json(matrix_file, options):
    result = run("estimate", matrix_file, "--json", "--seed", 3, *options)
    assert result.exit_code == 0
    data = json.loads(result.stdout)
    truth = np.linalg.slogdet(np.load(matrix_file))[1]
    assert data["seed"] == 3
    assert data["status"] in ("exact", "ok", "warn")
    assert abs(data["log_abs_det"] - truth) < 4 * data["standard_error"] + 1e-12


def test_a_seed_repeats_and_another_does_not(matrix_file):
    options = ["estimate", matrix_file, "--method", "mc", "--samples", "1000", "--json"]
    first, again, other = run(*options), run(*options), run(*options, "--seed", 1)
    assert first.stdout == again.stdout != other.stdout


def test_text_output(matrix_file):
    result = run("estimate", matrix_file)
    assert result.exit_code == 0
    assert "log|det| =" in result.stdout
    assert "6 products would give A itself" in result.stdout


def test_sparse_files_and_volumes(tmp_path):
    tall = scipy.sparse.csr_array(np.vstack([near_isometry(4), np.eye(4)]))
    scipy.sparse.save_npz(tmp_path / "tall.npz", tall)
    result = run("estimate", tmp_path / "tall.npz", "--volume", "--json")
    assert result.exit_code == 0
    gram = tall.toarray().T @ tall.toarray()
    assert json.loads(result.stdout)["log_abs_det"] == pytest.approx(np.linalg.slogdet(gram)[1] / 2)
    assert run("estimate", tmp_path / "tall.npz").exit_code == 2


def test_unreliable_exits_with_3_and_still_prints(tmp_path):
    np.save(tmp_path / "hard.npy", np.diag([1.0] * 9 + [1e-6]))
    result = run("estimate", tmp_path / "hard.npy", "--method", "mc", "--samples", "1000")
    assert result.exit_code == 3
    assert "unreliable" in result.stdout
    assert "too large" in result.stdout


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["missing.npy"], "no such file"),
        (["bad.csv"], "row 2 has 1 entries"),
        (["wide.csv"], "not square"),
        (["nan.csv"], "nan at (0, 1)"),
        (["good.csv", "--method", "mc", "--samples", "0"], "whole number"),
        (["good.csv", "--method", "mc", "--samples", "-5"], "whole number"),
        (["good.csv", "--max-matvecs", "-5"], "whole number"),
        (["good.csv", "--method", "mc", "--samples", "2.5"], "--samples must be a whole number"),
        (["good.csv", "--method", "slq", "--depth", "nan"], "whole number"),
        (["good.csv", "--samples", "9"], "--samples does not apply to --method auto: leave it out"),
        (["good.csv", "--method", "exact", "--samples", "9"], "use --method mc or vde or slq"),
        (["good.csv", "--method", "mc", "--depth", "30"], "use --method slq"),
        (["good.csv", "--method", "slq", "--frames"], "use --method mc"),
        (["good.csv", "--method", "mc", "--max-matvecs", "9"], "use --method auto"),
    ],
    ids=str,
)
def test_bad_input_exits_with_2_and_one_sentence(tmp_path, options, sentence):
    files = {"bad.csv": "1,2\n3\n", "wide.csv": "1,2\n", "nan.csv": "1,nan\n0,1\n"}
    for name, text in {**files, "good.csv": "1,2\n3,4\n"}.items():
        (tmp_path / name).write_text(text)
    result = run("estimate", tmp_path / options[0], *options[1:])
    assert result.exit_code == 2
    assert sentence in result.stderr
    assert result.stderr.startswith("determinax: ")
    assert len(result.stderr.strip().splitlines()) == 1
    assert result.stdout == ""


@pytest.mark.parametrize(
    "error", [jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: 9 GB\nat"), dx.OperatorError("9 GB")]
)
def test_a_product_that_fails_is_one_sentence(matrix_file, monkeypatch, error):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(dx, "log_abs_det", fail)
    result = run("estimate", matrix_file)
    assert result.exit_code == 2
    assert result.stderr.startswith("determinax: ")
    assert result.stderr.endswith("9 GB\n")


def test_help_teaches():
    top, command = run("--help"), run("estimate", "--help")
    assert top.exit_code == command.exit_code == 0
    assert "demo" in top.stdout
    for word in ("Examples", "matrix.npy", "--method", "Exit code"):
        assert word in command.stdout
    assert "determinax 0" in run("--version").stdout


def test_in_a_pipe_there_is_no_bar_and_the_cache_fills(matrix_file, tmp_path):
    command = [sys.executable, "-m", "determinax.cli", "estimate", str(matrix_file)]
    result = subprocess.run(
        [*command, "--method", "mc"], capture_output=True, text=True, check=True
    )
    assert "log|det| =" in result.stdout
    assert result.stderr == ""
    assert "\x1b" not in result.stdout
    assert any((tmp_path / "cache" / "determinax").iterdir())


@pytest.mark.slow  # `make demo` is the same
def test_demo_shows_all_seven_matrices_and_a_picture(tmp_path):
    result = run("demo", "--samples", "1000", "--out", tmp_path / "demo")
    assert result.exit_code == 0
    assert (tmp_path / "demo" / "sphere.png").stat().st_size > 10_000
    for name in ("A1", "A2", "A3", "A4", "A5", "W", "cover", "Lanczos", "unreliable", "523.334"):
        assert name in result.stdout


def test_fit_then_estimate_with_the_proposal(matrix_file, tmp_path):
    saved = tmp_path / "q.safetensors"
    small = ["--steps", "20", "--batch-size", "64", "--num-flows", "1", "--gradient", "total"]
    result = run("fit", matrix_file, "--save", saved, *small)
    assert result.exit_code == 0
    assert "20 steps" in result.stdout
    assert dx.load(saved).n == 6
    options = ["--method", "vde", "--proposal", saved, "--samples", "2000", "--json"]
    data = json.loads(run("estimate", matrix_file, *options).stdout)
    truth = np.linalg.slogdet(np.load(matrix_file))[1]
    assert abs(data["log_abs_det"] - truth) < 4 * data["standard_error"]
    assert data["lower_bound"] < truth + 4 * data["lower_bound_standard_error"]
    both = run("estimate", matrix_file, *options, "--steps", "10")
    assert both.exit_code == 2
    assert "trained already" in both.output
    # a run that has ended leaves nothing behind that another could trip over
    assert not list(tmp_path.glob("*.checkpoint*"))
    longer = [*small[2:], "--steps", "30", "--resume"]
    assert run("fit", matrix_file, "--save", saved, *longer).exit_code == 0


def test_a_proposal_goes_with_vde_only(matrix_file, tmp_path):
    result = run("estimate", matrix_file, "--method", "mc", "--proposal", tmp_path / "q")
    assert result.exit_code == 2
    assert "--proposal does not apply" in result.output
    result = run("estimate", matrix_file, "--method", "vde", "--proposal", tmp_path / "q")
    assert result.exit_code == 2
    assert "no such file" in result.output
