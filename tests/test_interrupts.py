"""Interrupts: none is lost, what was done can be had, and nothing is left half-written."""

import gc
import re
import signal
import subprocess
import sys
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from registry import near_isometry

import determinax as dx
from determinax import _checkpoint, _engine, _interrupts, flows
from determinax.training import _loop

A = near_isometry(4)
KEY = jax.random.key(0)
OPTIONS = {"key": KEY, "batch_size": 8, "learning_rate": 0.01, "steps": 350}


def fit(**options):
    return dx.fit(A, flows.projective_linear(4), **OPTIONS, **options)


def interrupt():
    signal.raise_signal(signal.SIGINT)


def interrupt_the_garbage_collector():
    """As JAX' own callback swallows what is raised while it runs."""

    def callback(phase, info):
        gc.callbacks.remove(callback)
        interrupt()

    gc.callbacks.append(callback)
    gc.collect()


swallowed = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
WAYS = [
    pytest.param(interrupt, id="raised"),
    pytest.param(interrupt_the_garbage_collector, id="swallowed", marks=swallowed),
]


def after(num, run, act):
    """The function, and after so many calls the act."""
    calls = 0

    def wrapped(*args):
        nonlocal calls
        calls += 1
        result = run(*args)
        if calls == num:
            act()
        return result

    return wrapped


@pytest.fixture(autouse=True)
def _handler_stays():
    before = signal.getsignal(signal.SIGINT)
    yield
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("act", WAYS)
def test_a_fit_that_is_interrupted_has_what_was_trained(act, monkeypatch, tmp_path):
    whole = fit()
    path = tmp_path / "run.checkpoint"
    monkeypatch.setattr(_loop, "_steps", after(4, _loop._steps, act))
    with pytest.raises(dx.FitInterrupted, match=r"interrupted after \d+ steps; what was") as caught:
        fit(checkpoint=path)
    monkeypatch.undo()
    partial = caught.value.fit
    done = len(partial.history["loss"])
    assert 0 < done < 350
    assert partial.num_matvecs == done * 16
    np.testing.assert_array_equal(partial.history["loss"], whole.history["loss"][:done])
    assert partial.proposal.n == 4
    # and the checkpoint goes on from there, though none was due
    started, run = [], _loop._steps
    monkeypatch.setattr(_loop, "_steps", lambda *args: started.append(int(args[-2])) or run(*args))
    resumed = fit(checkpoint=path, resume=True)
    assert done in started[:2]
    jax.tree.map(np.testing.assert_array_equal, resumed.proposal, whole.proposal)


@pytest.mark.parametrize("act", WAYS)
def test_a_linear_fit_that_is_interrupted_has_what_was_fitted(act, monkeypatch):
    options = {"key": KEY, "block_size": 1, "max_matvecs": 400}
    monkeypatch.setattr(_loop, "_steps", after(2, _loop._steps, act))
    with pytest.raises(dx.FitInterrupted) as caught:
        dx.fit_linear(A, **options)
    partial = caught.value.fit
    assert 0 < len(partial.history["loss"]) < 200
    assert partial.num_matvecs >= 2 * len(partial.history["loss"])
    monkeypatch.undo()
    monkeypatch.setattr(_loop, "_steps", after(2, _loop._steps, act))
    with pytest.raises(dx.FitInterrupted) as caught:
        dx.fit_linear(A, key=KEY, structure=flows.Diagonal(4), block_size=1)
    assert 1 <= len(caught.value.fit.history["loss"]) <= 3


@pytest.mark.parametrize("act", WAYS)
def test_an_estimate_ends_with_the_interrupt(act, monkeypatch):
    calls, run = [], after(2, _engine.compiled_advance, act)
    monkeypatch.setattr(_engine, "compiled_advance", lambda *args: calls.append(0) or run(*args))
    method = dx.MonteCarlo(1_000_000, chunk_size=1000)  # too long for one program
    with pytest.raises(KeyboardInterrupt):
        dx.log_abs_det(A, method, key=KEY)
    assert len(calls) == 2  # it did not go on to the end
    monkeypatch.undo()
    # nothing is left behind that would end the next one
    assert dx.log_abs_det(A, method, key=KEY).status == "ok"


def test_one_at_the_very_end_is_not_lost():
    with pytest.raises(KeyboardInterrupt), _interrupts.heeded(), pytest.raises(KeyboardInterrupt):
        interrupt()


def test_another_thread_leaves_signals_alone():
    results = []
    thread = threading.Thread(target=lambda: results.append(fit()))
    thread.start()
    thread.join()
    assert len(results[0].history["loss"]) == 350


@pytest.mark.parametrize("pace", [1, 7, 64, 1000])
def test_the_pace_changes_no_bit(pace, monkeypatch):
    whole, linear = fit(), dx.fit_linear(A, key=KEY, block_size=1)
    monkeypatch.setattr(_loop, "paced", lambda *_: pace)
    for paced, other in ((fit(), whole), (dx.fit_linear(A, key=KEY, block_size=1), linear)):
        for name, values in other.history.items():
            np.testing.assert_array_equal(paced.history[name], values)
        jax.tree.map(np.testing.assert_array_equal, paced.proposal, other.proposal)


@pytest.mark.parametrize("pace", [1, 7, 64])
def test_a_stall_is_seen_at_any_pace(pace, monkeypatch):
    left, _, right = np.linalg.svd(np.random.default_rng(0).normal(size=(4, 4)))
    hard = left @ np.diag(np.geomspace(1, 1e-7, 4)) @ right
    monkeypatch.setattr(_loop, "paced", lambda *_: pace)
    result = dx.fit_linear(hard, key=KEY, block_size=2, max_matvecs=40_000)
    assert not result.converged
    assert len(result.history["loss"]) in (100, 200)


def test_the_pace_follows_the_clock():
    assert _loop.paced(1, 40.0) == 1  # it was compiled
    assert _loop.paced(1, 0.001) == 2
    assert _loop.paced(64, 0.001) == 128
    assert _loop.paced(100, 10.0) == 5


def test_convergence_is_seen_at_any_pace(monkeypatch):
    start = flows.ProjectiveLinear(flows.Dense(jnp.linalg.inv(A)))
    options = {"key": KEY, "steps": 1000, "batch_size": 8, "tolerance": 1e-3, "learning_rate": 1e-9}
    for pace in (1, 33, 100):
        monkeypatch.setattr(_loop, "paced", lambda *_, pace=pace: pace)
        result = dx.fit(A, start, **options)
        assert result.converged
        assert len(result.history["loss"]) == 100


def test_checkpoints_are_written_by_the_clock_too(monkeypatch, tmp_path):
    writes, real = [], _checkpoint.write
    monkeypatch.setattr(_checkpoint, "write", lambda *args: writes.append(real(*args)))
    fit(checkpoint=tmp_path / "slow")
    assert len(writes) == 1  # the last
    monkeypatch.setattr(_checkpoint, "_SECONDS", -1.0)
    fit(checkpoint=tmp_path / "often")
    assert len(writes) > 5


COMPILING = """
import os, signal, sys, threading, time
import jax, jax.numpy as jnp
from determinax import _interrupts

def is_compiling():
    frame = sys._current_frames()[threading.main_thread().ident]
    return _interrupts._is_compiling(frame)

def press():
    seen = 0
    while seen < 20:  # so long that it is no small one
        seen = seen + 1 if is_compiling() else 0
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)
    if sys.argv[1] == "2":
        while not _interrupts.is_noted():  # two that come while XLA is busy are one to Python
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

@jax.jit
def slow(x):
    for _ in range(200):
        x = jnp.sin(x) @ jnp.cos(x) + jnp.linalg.qr(x)[0]
    return x

threading.Thread(target=press, daemon=True).start()
with _interrupts.heeded():
    slow(jnp.eye(5)).block_until_ready()
    if sys.argv[1] == "2":
        time.sleep(60)
    print("compiled", flush=True)
"""


def test_one_that_comes_while_xla_compiles_waits_for_it():
    """Raised there, it would leave XLA compiling, and jaxlib would crash at the interpreter's end."""
    command = [sys.executable, "-c", COMPILING, "1"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert ended.stdout == "compiled\n"
    assert ended.stderr.strip().endswith("KeyboardInterrupt")
    assert ended.returncode == -signal.SIGINT
    # who insists is heard
    command[-1] = "2"
    ended = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert ended.stdout == ""
    assert "KeyboardInterrupt" in ended.stderr


SLOW_WRITE = """
import os, pathlib, signal, sys, time
from determinax import _interrupts, storage
_interrupts.watch(lambda: "gone")
real = os.fsync
def fsync(descriptor):
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(1.0)
    real(descriptor)
os.fsync = fsync
with _interrupts.before_leaving(lambda: os.write(1, b"last")):
    storage.write_atomically(pathlib.Path(sys.argv[1]), b"all of it")
    time.sleep(60)
"""


def test_a_write_that_is_under_way_is_finished(tmp_path):
    path = tmp_path / "file"
    command = [sys.executable, "-c", SLOW_WRITE, str(path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (143, "last", "gone\n")
    assert path.read_bytes() == b"all of it"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_the_command_line_heeds_signals_before_it_imports_anything():
    code = (
        "import os, re, signal, sys\n"
        "before, real = set(sys.modules), signal.signal\n"
        "def set_signal(number, handler):\n"
        "    print(number, sorted(set(sys.modules) - before))\n"
        "    real(number, handler)\n"
        "    if number == signal.SIGTERM: os.kill(os.getpid(), signal.SIGINT)\n"
        "signal.signal = set_signal\n"
        "from determinax.cli import main\n"
        "main()"
    )
    ended = subprocess.run(
        [sys.executable, "-u", "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    modules = "['determinax', 'determinax.cli']"
    assert ended.stdout == f"2 {modules}\n15 {modules}\n"
    assert (ended.returncode, ended.stderr) == (130, "determinax: interrupted\n")


@pytest.mark.parametrize("wait", [0.02, 0.035, 0.05, 0.08])
def test_a_signal_at_the_very_beginning_gives_no_traceback_of_ours(wait):
    code = "import re, sys; from determinax.cli import main; main()"  # as the installed script does
    command = [sys.executable, "-c", code, "--help"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    time.sleep(wait)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    # before `main` there is Python's own start, and what it takes to read two short files
    assert not re.search(
        r"determinax/_interr|cli/commands|typing\.py|threading\.py|contextlib\.py", said
    )
    assert process.returncode in (0, 130, -signal.SIGINT, 1)
