"""The command line, within this process: what it computes, prints and refuses."""

import errno
import json
import os
import re

import jax
import numpy as np
import pytest
import scipy.sparse
from registry import near_isometry
from typer.testing import CliRunner

import determinax as dx
from determinax import files
from determinax._keys import stream
from determinax.cli import app, common
from determinax.cli.estimate import Method
from determinax.methods import METHODS


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
        ["--method", "lanczos", "--samples", "200", "--depth", "6"],
        ["--method", "slq", "--samples", "200", "--depth", "6"],
        ["--method", "deflated", "--directions", "5", "--samples", "2000"],
        ["--method", "deflated", "--samples", "2000"],
        ["--method", "probed"],
        ["--method", "probed", "--band", "5", "5"],
        ["--method", "vde"],
        ["--method", "vde", "--samples", "600", "--frames", "--max-matvecs", "40"],
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


FILES = {
    "bad.csv": "1,2\n3\n",
    "wide.csv": "1,2\n",
    "tall.csv": "1,2\n3,4\n5,6\n",
    "nan.csv": "1,nan\n0,1\n",
    "good.csv": "1,2\n3,4\n",
    "negative.csv": "-1,0\n0,-1\n",
}


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["missing.npy"], "no such file"),
        (["bad.csv"], "row 2 has 1 entries"),
        (["nan.csv"], "nan at (0, 1)"),
        (["good.csv", "--method", "mc", "--samples", "0"], "whole number"),
        (["good.csv", "--method", "mc", "--samples", "-5"], "whole number"),
        (["good.csv", "--max-matvecs", "-5"], "whole number"),
        (["good.csv", "--method", "mc", "--samples", "2.5"], "--samples must be a whole number"),
        (["good.csv", "--method", "slq", "--depth", "nan"], "whole number"),
        (["good.csv", "--samples", "9"], "--samples does not apply to --method auto: leave it out"),
        (["good.csv", "--method", "exact", "--samples", "9"], "use --method mc or vde or lanczos"),
        (["good.csv", "--method", "mc", "--depth", "30"], "use --method lanczos"),
        (["good.csv", "--method", "slq", "--frames"], "use --method mc"),
        (["good.csv", "--method", "mc", "--max-matvecs", "9"], "use --method auto"),
        (["good.csv", "--method", "mc", "--directions", "9"], "use --method deflated"),
        (["good.csv", "--band", "1", "1"], "use --method probed"),
        (["good.csv", "--method", "probed", "--band", "-1", "1"], "whole number from 0"),
        (["good.csv", "--spd"], "entries (0, 1) and (1, 0) differ: leave --spd out"),
        (["tall.csv", "--spd", "--volume"], "not square, so it is not symmetric: leave --spd out"),
        (["nan.csv", "--spd"], "nan at (0, 1)"),
        (["negative.csv", "--spd", "--method", "lanczos"], "values of the other sign"),
        (["good.csv", "--tolerance", "-1"], "--tolerance is a positive number"),
        (["good.csv", "--rtol", "0"], "--rtol is a positive number"),
        (["good.csv", "--skip-rows", "-1"], "--skip-rows must be a whole number from 0"),
        (["tall.csv"], "3x2 is not square, so it has no determinant: say --volume"),
        (["wide.csv"], "1x2 has more columns than rows, so its volume is 0: transpose it and say"),
        (["wide.csv", "--volume"], "1x2 has more columns than rows, so its volume is 0: transpose"),
    ],
    ids=str,
)
def test_bad_input_exits_with_2_and_one_sentence(tmp_path, options, sentence):
    for name, text in FILES.items():
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
    for word in ("demo", "Exit codes", "130 Ctrl-C", "--install-completion"):
        assert word in top.stdout
    for word in ("Examples", "matrix.npy", "--method", "Exit code"):
        assert word in command.stdout
    for name in Method:
        assert re.search(rf"^ +{name} +\w+", command.stdout, re.MULTILINE)
    assert "determinax 0" in run("--version").stdout


@pytest.mark.parametrize("command", ["estimate", "fit", "density", "sample", "reproduce"])
def test_examples_keep_their_lines(command):
    lines = [line.strip() for line in run(command, "--help").stdout.splitlines()]
    examples = [line for line in lines if line.startswith("determinax ")]
    assert len(examples) >= 2
    assert all(line.count("determinax") == 1 for line in examples)


@pytest.mark.slow  # `make demo` is the same
def test_the_command_line_has_every_method_of_the_library():
    # a page of the docs may have registered one of its own
    ours = {name for name, cls in METHODS.items() if cls.__module__.startswith("determinax.")}
    assert {str(method) for method in Method} == ours


def test_demo_shows_all_seven_matrices_and_a_picture(tmp_path):
    result = run("demo", "--samples", "1000", "--out", tmp_path / "demo")
    assert result.exit_code == 0
    assert (tmp_path / "demo" / "sphere.png").stat().st_size > 10_000
    assert "KL 0.00" in result.stdout.replace("\n", " ")
    for name in ("A1", "A2", "A3", "A4", "A5", "W", "cover", "Lanczos", "unreliable", "523.334"):
        assert name in result.stdout


def test_fit_then_estimate_with_the_proposal(matrix_file, tmp_path):
    saved = tmp_path / "q.safetensors"
    result = run("fit", matrix_file, "--save", saved)
    assert result.exit_code == 0
    assert "12 products" in result.stdout  # 2n
    options = ["--method", "vde", "--proposal", saved, "--json"]
    data = json.loads(run("estimate", matrix_file, *options).stdout)
    truth = np.linalg.slogdet(np.load(matrix_file))[1]
    assert abs(data["log_abs_det"] - truth) < 1e-10
    assert data["num_matvecs"] <= 400  # and those of the lower bound
    both = run("estimate", matrix_file, *options, "--max-matvecs", "10")
    assert both.exit_code == 2
    assert "fitted already" in both.output


def test_vde_without_a_proposal_fits_a_linear_one(matrix_file):
    data = json.loads(run("estimate", matrix_file, "--method", "vde", "--json").stdout)
    truth = np.linalg.slogdet(np.load(matrix_file))[1]
    assert abs(data["log_abs_det"] - truth) < 1e-10
    assert data["num_matvecs"] <= 12 + 400
    assert any("fitting spent 12 of the products" in reason for reason in data["reasons"])


def test_a_flow_is_trained_and_leaves_no_checkpoint(matrix_file, tmp_path):
    saved = tmp_path / "q.safetensors"
    small = ["--flow", "--batch-size", "64", "--num-flows", "1", "--gradient", "total"]
    result = run("fit", matrix_file, "--save", saved, *small, "--steps", "20")
    assert result.exit_code == 0
    assert "20 steps" in result.stdout
    assert dx.load(saved).n == 6
    options = ["--method", "vde", "--proposal", saved, "--samples", "2000", "--json"]
    data = json.loads(run("estimate", matrix_file, *options).stdout)
    truth = np.linalg.slogdet(np.load(matrix_file))[1]
    assert abs(data["log_abs_det"] - truth) < 4 * data["standard_error"]
    assert data["lower_bound"] < truth + 4 * data["lower_bound_standard_error"]
    # a run that has ended leaves nothing behind that another could trip over
    assert not list(tmp_path.glob("*.checkpoint*"))
    longer = [*small, "--steps", "30", "--resume"]
    assert run("fit", matrix_file, "--save", saved, *longer).exit_code == 0


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--steps", "9"], "--steps is for a flow that is trained: leave it out, or say --flow"),
        (["--batch-size", "9"], "--batch-size is for a flow"),
        (["--num-flows", "2"], "--num-flows is for a flow"),
        (["--gradient", "path"], "--gradient is for a flow"),
        (["--resume"], "--resume is for a flow"),
        (["--flow", "--max-matvecs", "9"], "--max-matvecs is for the linear fit"),
        (["--flow", "--batch-size", "1"], "--batch-size must be a whole number from 2"),
    ],
    ids=str,
)
def test_a_fit_refuses_what_does_not_apply(matrix_file, tmp_path, options, sentence):
    result = run("fit", matrix_file, "--save", tmp_path / "q", *options)
    assert result.exit_code == 2
    assert sentence in result.stderr
    assert not (tmp_path / "q").exists()


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (
            ["fit", "MATRIX", "--save", "missing/q"],
            "missing: nothing can be written there: no such",
        ),
        (["fit", "MATRIX", "--save", "folder"], "folder: is a folder: name a file in it"),
        (["fit", "MATRIX", "--save", "file/q"], "file: nothing can be written there: not a dir"),
        (["fit", "MATRIX", "--save", "/proc/q"], "/proc: nothing can be written there"),
        (["fit", "MATRIX", "--save", "pipe"], "pipe: is no ordinary file, which could be replaced"),
        (["demo", "--out", "file/q"], "file/q: nothing can be written there: not a directory"),
        (["demo", "--out", "/proc/q"], "/proc/q: nothing can be written there"),
        (["reproduce", "table1", "--out", "file"], "file: nothing can be written there: file exi"),
    ],
    ids=str,
)
def test_where_results_go_is_seen_to_before_the_work(
    matrix_file, tmp_path, monkeypatch, command, sentence
):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(common, "set_up_jax", lambda _: pytest.fail("the work began"))
    result = run(*(matrix_file if word == "MATRIX" else word for word in command))
    assert result.exit_code == 2
    assert sentence in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_a_disk_that_fills_up_is_one_sentence(matrix_file, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    result = run("fit", matrix_file, "--save", tmp_path / "q")
    assert result.exit_code == 2
    assert result.stderr.endswith("q: cannot be written: no space left on device\n")
    assert [p.name for p in tmp_path.iterdir() if p.is_file()] == ["a.npy"]


def test_a_proposal_goes_with_vde_only(matrix_file, tmp_path):
    result = run("estimate", matrix_file, "--method", "mc", "--proposal", tmp_path / "q")
    assert result.exit_code == 2
    assert "--proposal does not apply" in result.output
    result = run("estimate", matrix_file, "--method", "vde", "--proposal", tmp_path / "q")
    assert result.exit_code == 2
    assert "no such file" in result.output


def test_the_caller_s_bar_decides(tmp_path):
    np.save(tmp_path / "a.npy", near_isometry(6) @ np.diag([1e-3, 1e-2, 0.1, 1, 10, 100]))
    options = ["estimate", tmp_path / "a.npy", "--method", "lanczos", "--samples", "30"]
    assert run(*options).exit_code == 3
    assert run(*options, "--tolerance", "9").exit_code == 0
    assert run(*options, "--rtol", "9").exit_code == 0


@pytest.mark.parametrize("kind", [np.asarray, scipy.sparse.csr_array, lambda a: a.astype(complex)])
def test_spd_halves_the_products_of_lanczos(tmp_path, kind):
    root = near_isometry(6)
    matrix = kind(root @ root.T)
    if scipy.sparse.issparse(matrix):
        scipy.sparse.save_npz(file := tmp_path / "a.npz", matrix)
    else:
        np.save(file := tmp_path / "a.npy", matrix)
    options = ["--method", "lanczos", "--samples", "40", "--json"]
    plain = json.loads(run("estimate", file, *options).stdout)
    tagged = json.loads(run("estimate", file, *options, "--spd").stdout)
    truth = 2 * np.linalg.slogdet(root)[1]
    for data in (plain, tagged):
        assert abs(data["log_abs_det"] - truth) < 4 * data["standard_error"]
    if not np.iscomplexobj(matrix):
        assert tagged["num_matvecs"] - 4 <= plain["num_matvecs"] // 2 + 1
    # and others take it too
    exact = json.loads(run("estimate", file, "--json", "--spd").stdout)
    assert abs(exact["log_abs_det"] - truth) < 1e-10


def test_header_and_rows_to_skip_reach_the_reader(tmp_path, monkeypatch):
    (tmp_path / "a.csv").write_text("1,2\n3,4\n")
    seen = []

    def read(path, **options):
        seen.append(options)
        return np.eye(2)

    monkeypatch.setattr(files, "read_matrix", read)
    assert run("estimate", tmp_path / "a.csv", "--header", "--skip-rows", "2").exit_code == 0
    assert run("estimate", tmp_path / "a.csv", "--no-header").exit_code == 0
    assert run("fit", tmp_path / "a.csv", "--save", tmp_path / "q").exit_code == 0
    assert seen == [
        {"header": True, "skip_rows": 2},
        {"header": False, "skip_rows": 0},
        {"header": None, "skip_rows": 0},
    ]


def test_training_and_estimating_never_share_a_key():
    """Under threefry split(key)[i] is fold_in(key, i)."""
    key = jax.random.key(3)
    streams = [stream(key, name, i) for name in ("fit", "flow", "estimate") for i in range(3)]
    keys = [*streams, key]
    for parent in (key, *streams):
        keys += [jax.random.fold_in(parent, i) for i in range(50)]
    seen = {jax.random.key_data(k).tobytes() for k in keys}
    assert len(seen) == len(keys)


def test_the_command_line_uses_those_streams(matrix_file, monkeypatch):
    used = {}

    def keep(name):
        real = getattr(dx, name)

        def wrapped(*args, key, **options):
            used[name] = jax.random.key_data(key).tolist()
            return real(*args, key=key, **options)

        monkeypatch.setattr(dx, name, wrapped)

    keep("fit_linear")
    keep("log_abs_det")
    assert run("estimate", matrix_file, "--method", "vde", "--seed", "7").exit_code == 0
    key = jax.random.key(7)
    for name, of in (("fit_linear", "fit"), ("log_abs_det", "estimate")):
        assert used[name] == jax.random.key_data(stream(key, of)).tolist()
