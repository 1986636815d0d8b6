"""The command line as a process: pipes, full disks, homes that are read-only, the shell."""

import os
import signal
import subprocess
import sys

import numpy as np
import pytest
from registry import near_isometry

from determinax.cli.estimate import Method


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def matrix_file(tmp_path):
    np.save(tmp_path / "a.npy", near_isometry(6))
    return tmp_path / "a.npy"


def command_line(*arguments, **options):
    words = [sys.executable, "-m", "determinax.cli", *map(str, arguments)]
    return subprocess.run(words, text=True, timeout=240, check=False, **options)


def test_in_a_pipe_there_is_no_bar_and_the_cache_fills(matrix_file, tmp_path):
    result = command_line("estimate", matrix_file, "--method", "mc", capture_output=True)
    assert result.returncode == 0
    assert "log|det| =" in result.stdout
    assert result.stderr == ""
    assert "\x1b" not in result.stdout
    assert any((tmp_path / "cache" / "determinax").iterdir())


def test_a_home_that_cannot_be_written_to_is_no_matter(matrix_file):
    environment = {k: v for k, v in os.environ.items() if k != "XDG_CACHE_HOME"}
    for home in ("/dev/null", "/proc"):
        ended = command_line(
            "estimate", matrix_file, capture_output=True, env={**environment, "HOME": home}
        )
        assert (ended.returncode, ended.stderr) == (0, "")


def test_a_reader_that_has_gone_is_no_error(matrix_file):
    reader, writer = os.pipe()
    os.close(reader)
    ended = command_line("estimate", matrix_file, stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (-signal.SIGPIPE, "")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs Linux' /dev/full")
def test_output_that_cannot_be_written_is_one_sentence(matrix_file):
    for arguments in (["estimate", matrix_file], ["--help"], ["--version"]):
        with open("/dev/full", "w") as full:
            ended = command_line(*arguments, stdout=full, stderr=subprocess.PIPE)
        assert ended.returncode == 2
        assert ended.stderr.startswith("determinax: ")
        assert ended.stderr.endswith("no space left on device\n")
        assert ended.stderr.count("\n") == 1


def test_the_shell_completes_methods():
    words = {"_DETERMINAX_COMPLETE": "complete_bash", "COMP_CWORD": "3"}
    words["COMP_WORDS"] = "determinax estimate --method "
    code = "import sys; sys.argv = ['determinax']; from determinax.cli import main; main()"
    ended = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **words},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stdout.split()) == (0, list(Method))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["demo"], "demo needs matplotlib: pip install 'determinax[paper]'"),
        (["reproduce", "table1"], "reproduce needs matplotlib: pip install 'determinax[paper]'"),
        (
            ["density", "a.npy", "--seconds", "0", "--map", "map.png"],
            "--map needs matplotlib: pip install 'determinax[plots]'",
        ),
    ],
)
def test_without_matplotlib_pictures_are_refused_before_the_work(words, said, tmp_path):
    np.save(tmp_path / "a.npy", np.tile(np.eye(3), (4, 1)))
    code = "import sys; sys.modules['matplotlib'] = None; from determinax.cli import main; main()"
    command = [sys.executable, "-c", code, *words]
    ended = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (2, "", f"determinax: {said}\n")
    assert [path.name for path in tmp_path.iterdir()] == ["a.npy"]
