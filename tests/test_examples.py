"""The examples run from a shell, shortened, and reach what they should by then."""

import json
import pathlib
import subprocess
import sys

import pytest

EXAMPLES = pathlib.Path(__file__).parent.parent / "examples"
pytestmark = pytest.mark.slow


def run(name: str, out: pathlib.Path, *options: str) -> None:
    command = [sys.executable, str(EXAMPLES / name), "--out", str(out), *options]
    subprocess.run(command, check=True, capture_output=True)


def test_digits_are_learned_from_one_product_each(tmp_path):
    run("digits_flow.py", tmp_path, "--steps", "200", "--only", "VDE, 1")
    (row,) = [json.loads(line) for line in (tmp_path / "digits.jsonl").open()]
    assert row["bits"] < 2.48
    assert 0 < row["gap"] < 1.5
    assert (tmp_path / "digits_loss.png").stat().st_size > 5000


def test_a_convolution_is_tracked_while_it_learns(tmp_path):
    run("moving_convolution.py", tmp_path, "--steps", "100")
    page = (tmp_path / "moving_convolution.md").read_text()
    (row,) = [line for line in page.splitlines() if line.startswith("| tracker |")]
    # in the last fifth, which a proposal that learns nothing misses by 1.3 nats
    assert float(row.split("|")[4]) < 0.15
    assert (tmp_path / "moving_convolution.png").stat().st_size > 5000


def test_densities_on_the_sphere(tmp_path):
    run("tori_and_spheres.py", tmp_path, "--steps", "300", "--models", "0")
    (row,) = [json.loads(line) for path in tmp_path.glob("*.jsonl") for line in path.open()]
    assert row["kl"] < 0.1


def test_colours_are_likelier_given_the_height(tmp_path):
    run("directions_given.py", tmp_path, *["--steps", "300", "--members", "2", "--points", "3000"])
    scores = json.loads((tmp_path / "directions_given.json").read_text())["scores"]
    # kernels know nothing of the height; seen: 5.79 and 5.43
    assert scores["this density"][0] > scores["kernels"][0] + 0.1
    assert (tmp_path / "directions_given.png").stat().st_size > 5000
