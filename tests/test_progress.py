"""Every method reports on its way, and the bar appears on a terminal only."""

import contextlib
import re
import time

import jax
import jax.numpy as jnp
import pytest
import scipy.sparse

import determinax as dx
from determinax import _shell, progress
from determinax.methods import auto


@pytest.mark.parametrize(
    ("method", "n", "what", "total"),
    [
        (dx.Exact(), 600, "Exact", 600),
        (dx.Lanczos(20, 2), 5, "Lanczos", 20),
        (dx.MonteCarlo(20, chunk_size=10), 5, "MonteCarlo", 20),
    ],
    ids=str,
)
def test_methods_report(method, n, what, total, monkeypatch):
    started, done = [], []
    report = progress.Report(lambda *a: started.append(a), lambda *a: done.append(a[0]))
    operator = dx.as_operator(lambda x: 2 * x, jnp.zeros(n))
    monkeypatch.setattr(_shell, "reporting", lambda wanted: contextlib.nullcontext(report))
    e = _shell.estimate(operator, method, jax.random.key(0))
    assert started == [(total, what, "")]
    assert done == sorted(done)
    assert len(done) >= 1
    assert total / 2 <= done[-1] <= total
    assert abs(e.log_abs_det - n * jnp.log(2)) < 1e-9


@pytest.mark.parametrize(
    ("operator", "method", "what"),
    [
        (scipy.sparse.eye_array(50) * 2.0, dx.Auto(), "factorising a sparse 50 x 50"),
        (scipy.sparse.eye_array(50) * 2.0, dx.Exact(), "factorising a sparse 50 x 50"),
        (2.0 * jnp.eye(50), dx.Exact(), "factorising 50 x 50"),
        (scipy.sparse.eye_array(50) * 2.0, dx.Probed(), "probing 50 entries of a pattern, about"),
    ],
)
def test_factorisations_say_what_they_do(operator, method, what, monkeypatch):
    """Nothing was shown for as long as they took."""
    heard = []
    report = progress.Report(lambda *_: None, lambda *_: None, heard.append)
    monkeypatch.setattr(_shell, "reporting", lambda wanted: contextlib.nullcontext(report))
    _shell.estimate(dx.as_operator(operator), method, jax.random.key(0))
    assert heard[0].startswith(what)


@pytest.mark.parametrize("budget", [40, 400])
def test_auto_says_what_it_costs_before_it_starts(budget, monkeypatch):
    heard, notes = [], []
    report = progress.Report(lambda *a: heard.append(a), lambda *a: notes.append(a), heard.append)
    monkeypatch.setattr(_shell, "reporting", lambda wanted: contextlib.nullcontext(report))
    monkeypatch.setattr(auto, "_FRAME_ENTRIES", 0)  # a frame would be a single chunk
    operator = dx.as_operator(lambda x: jnp.roll(x, 1) + 1e-3 * x, jnp.zeros(60_000))
    _shell.estimate(operator, dx.Auto(budget), jax.random.key(0))
    said = heard[0] if budget == 40 else heard[0][2]
    # what a terminal of 80 columns shows of it
    words = rf"Auto chose MonteCarlo: {budget - 8} products, about [\d.e+-]+ s and [\d.,]+ [MG]B; "
    assert re.match(words, said[:70])
    assert budget == 40 or notes[0][1] == said


class Screen:
    """What is drawn on a terminal of 80 columns."""

    def __init__(self, capsys):
        self._capsys, self._raw = capsys, ""

    @property
    def text(self):
        self._raw += self._capsys.readouterr().err
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self._raw)

    def wait_for(self, *words):
        stop = time.monotonic() + 60
        while not all(word in self.text for word in words):
            assert time.monotonic() < stop, self.text[-1000:]
            time.sleep(0.01)


@pytest.fixture
def screen(monkeypatch, capsys):
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    monkeypatch.setenv("FORCE_COLOR", "1")  # to rich a terminal
    monkeypatch.setenv("COLUMNS", "80")
    return Screen(capsys)


def test_a_long_note_leaves_room_for_bar_count_and_time(screen):
    with progress.reporting(True) as report:
        report.start(2_000_000, "fitting a proposal for Jacobians (path gradients)")
        screen.wait_for("0 of 2,000,000", "compiling")
        for done in (500_000, 1_000_000):
            report.advance(done, "loss 3.1416, KL gap about 0.0025, " + "and so on " * 20)
            screen.wait_for(f"{done:,} of", "loss 3.1416")
        screen.wait_for("0:00:0")  # the time that is left
    lines = re.split(r"[\r\n]+", screen.text)
    assert max(map(len, lines)) <= 80
    assert any("fitting a prop" in x and "━━" in x and "1,000,000 of 2,000,000" in x for x in lines)


def test_a_phase_without_a_count_has_a_spinner_that_turns(screen):
    with progress.reporting(True) as report:
        report.working("factorising 5,000 x 5,000")
        screen.wait_for("factorising 5,000 x 5,000 0:00:")
        time.sleep(0.5)
    frames = set(re.findall(r"([⠁-⣿]|[-\\|/]) factorising", screen.text))
    assert len(frames) >= 3


def test_it_turns_while_xla_compiles(screen):
    """XLA lets other threads run."""

    def step(x, _):
        return jnp.sin(x) @ jnp.cos(x) + jnp.linalg.qr(x)[0], None

    def slow(x):
        for _ in range(150):
            x, _ = step(x, None)
        return x

    lowered = jax.jit(slow).lower(jnp.eye(5))
    with progress.reporting(True) as report:
        report.working("compiling")
        screen.wait_for("compiling")
        before = len(screen.text)
        lowered.compile()
        drawn = screen.text[before:].count("compiling")
    assert drawn >= 2


def test_what_is_quick_draws_nothing(screen, monkeypatch):
    monkeypatch.setattr(progress, "PATIENCE", 60.0)
    with progress.reporting(True) as report:
        report.start(1000, "Monte Carlo")
        report.advance(500, "half")
    assert screen.text == ""


def test_a_run_inside_of_another_uses_its_bar(screen):
    with progress.reporting(True) as outer:
        with progress.reporting(True) as inner:
            assert inner is outer
        with progress.reporting(False) as silent:
            assert silent is None
    with progress.reporting(True) as later:
        assert later is not outer


def test_nobody_is_told_in_a_pipe(capsys):
    with progress.reporting() as report:
        assert report is None
    assert capsys.readouterr() == ("", "")
