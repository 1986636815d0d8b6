"""The everyday walk on a pseudo-terminal: help, estimate, fit, estimate again, a bad file, Ctrl-C."""

import os
import random
import re

import numpy as np
import pytest
import safetensors.numpy
from registry import near_isometry
from terminal import Terminal

pytestmark = pytest.mark.skipif(
    not os.path.exists("/proc/self/status"), reason="needs Linux' /proc"
)

FLOW = ["--flow", "--num-flows", "1", "--batch-size", "16"]
# seconds over which the moments are spread, where nothing is compiled yet
SPANS = {"help": 0.3, "bad file": 0.3, "flow": 40.0, "demo": 20.0, "reproduce": 20.0}
COMMANDS = {
    "help": ["--help"],
    "estimate": ["estimate", "a.npy", "--method", "mc", "--samples", "3e6"],
    "exact": ["estimate", "a.npy"],
    "fit": ["fit", "a.npy", "--save", "linear"],
    "flow": ["fit", "a.npy", "--save", "flow", *FLOW, "--steps", "100000"],
    "estimate with the proposal": ["estimate", "a.npy", "--method", "vde", "--proposal", "q"],
    "bad file": ["estimate", "bad.csv"],
    "demo": ["demo", "--out", "pictures"],
    "reproduce": ["reproduce", "table1", "--out", "results"],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """With a matrix, a bad file, a proposal, and a cache of what is compiled."""
    folder = tmp_path_factory.mktemp("walk")
    np.save(folder / "a.npy", near_isometry(6))
    (folder / "bad.csv").write_text("1,2\n3\n")
    assert run(folder, "fit", "a.npy", "--save", "q").code == 0
    return folder


def run(folder, *arguments):
    with Terminal(*arguments, folder=folder, XDG_CACHE_HOME=str(folder / "cache")) as terminal:
        return terminal.end()


def interrupted(folder, name, seconds, press=Terminal.press_ctrl_c, cache="cache", **environment):
    """A run that hears of us so long after it began to listen."""
    environment["XDG_CACHE_HOME"] = str(folder / cache)
    with Terminal(*COMMANDS[name], folder=folder, **environment) as terminal:
        terminal.wait_until_it_listens()
        terminal.wait(seconds)
        press(terminal)
        return terminal.end()


def require_tidy(ended):
    for word in ("Traceback", "Error in", "Segmentation", "Fatal", "Exception", "core dumped"):
        assert word not in ended.screen, ended.screen
    # the cursor is back
    assert ended.raw.count("\x1b[?25l") == ended.raw.count("\x1b[?25h")


def test_the_walk(folder):
    shown = run(folder, "--help")
    assert shown.code == 0
    assert "estimate" in shown.screen
    estimate = run(folder, "estimate", "a.npy")
    assert estimate.code == 0
    truth = np.linalg.slogdet(near_isometry(6))[1]
    assert float(re.search(r"log\|det\| +(\S+)", estimate.screen)[1]) == pytest.approx(truth)
    fit = run(folder, "fit", "a.npy", "--save", "linear")
    assert fit.code == 0
    assert "saved as linear" in fit.screen
    again = run(folder, "estimate", "a.npy", "--method", "vde", "--proposal", "linear")
    assert again.code == 0
    assert float(re.search(r"log\|det\| +(\S+)", again.screen)[1]) == pytest.approx(truth)
    bad = run(folder, "estimate", "bad.csv")
    assert bad.code == 2
    assert "row 2" in bad.screen
    for ended in (shown, estimate, fit, again, bad):
        require_tidy(ended)


@pytest.mark.parametrize("name", ["help", "estimate", "fit", "estimate with the proposal", "flow"])
def test_ctrl_c_at_some_moment(folder, name):
    """One of the twenty."""
    seconds = random.Random(name).uniform(0, min(3.0, SPANS.get(name, 3.0)))
    assert require_interrupted(interrupted(folder, name, seconds)) in (0, 130)


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_ctrl_c_at_twenty_moments(folder, name):
    rng, codes = random.Random(name), []
    for i in range(20):
        # nothing is compiled yet, and all of it is optimised: XLA compiles most of the time
        cold = {"cache": f"cache-{name}-{i}", "XLA_FLAGS": ""}
        ended = interrupted(folder, name, rng.uniform(0, SPANS.get(name, 6.0)), **cold)
        codes.append(require_interrupted(ended))
    print(name, codes)
    assert set(codes) <= {130, 2 if name == "bad file" else 0}
    assert codes.count(130) >= 5


def require_interrupted(ended):
    """Tidy, and with a line that says so unless it had ended before; the exit code."""
    require_tidy(ended)
    assert ("determinax: interrupted" in ended.screen) == (ended.code == 130)
    return ended.code


def test_sigterm_is_143(folder):
    for name, seconds in (("help", 0.0), ("estimate", 1.5), ("flow", 3.0)):
        ended = interrupted(folder, name, seconds, Terminal.terminate)
        require_tidy(ended)
        assert ended.code == 143
        assert "determinax: interrupted" in ended.screen


def test_a_second_ctrl_c_leaves_at_once(folder):
    def press_twice(terminal):
        terminal.press_ctrl_c()
        terminal.press_ctrl_c()

    ended = interrupted(folder, "flow", 1.0, press_twice)
    assert ended.code == 130
    assert "Traceback" not in ended.screen


def test_a_fit_that_was_interrupted_goes_on_to_the_same_bits(folder):
    np.save(folder / "small.npy", near_isometry(2))
    command = ["fit", "small.npy", *FLOW, "--steps", "3000"]
    assert run(folder, *command, "--save", "whole").code == 0
    cache = str(folder / "cache")
    for least in (1, 500):
        cut = [*command, "--save", "cut", "--resume"]
        with Terminal(*cut, folder=folder, XDG_CACHE_HOME=cache) as terminal:
            terminal.wait_for_count(least)
            terminal.press_ctrl_c()
            ended = terminal.end()
        assert require_interrupted(ended) == 130
        line = "go on with: determinax fit small.npy --flow .* --resume"
        assert re.search(line, ended.screen.replace("\n", ""))
        assert not (folder / "cut").exists()
    assert run(folder, *command, "--save", "cut", "--resume").code == 0
    first, second = (safetensors.numpy.load_file(folder / name) for name in ("whole", "cut"))
    assert first.keys() == second.keys()
    for name, values in first.items():
        np.testing.assert_array_equal(values, second[name])
    assert not list(folder.glob("*.checkpoint*"))
