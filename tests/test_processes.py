"""Many processes over loopback: the same bits, clean output, and one sentence for whatever dies."""

import contextlib
import json
import os
import signal
import socket
import time

import numpy as np
import processes
import pytest
from methods import CASES
from on_devices import FITS, MANY
from registry import near_isometry

import determinax as dx

SENTENCE = (
    "determinax: a process of this run has died or stopped, and the others have ended with it"
)
DIED = 4


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def together(tmp_path, names, num, num_devices, seconds):
    """What so many processes with so many devices each find."""
    path, address = tmp_path / f"{num}x{num_devices}.json", f"127.0.0.1:{free_port()}"
    script, env = processes.TESTS / "on_devices.py", processes.environment(num_devices)
    words = [json.dumps(word) for word in (names, str(path), address, num)]
    started = [processes.start(script, "together", *words, i, env=env) for i in range(num)]
    for done in [processes.finish(process, seconds) for process in started]:
        assert done.returncode == 0, done.stderr[-3000:]
    num_seen, found = json.loads(path.read_text())
    assert num_seen == num * num_devices
    return found


def test_two_processes_with_two_devices_give_the_same_bits(tmp_path):
    alone = together(tmp_path, ["MonteCarlo, rest"], 1, 1, 300)
    assert together(tmp_path, ["MonteCarlo, rest"], 2, 2, 300) == alone


@pytest.mark.slow
def test_every_method_on_processes_times_devices(tmp_path):
    names = [*MANY, *CASES, *FITS]
    alone = together(tmp_path, names, 1, 1, 600)
    for num, num_devices in ((2, 1), (2, 2), (1, 4)):
        found = together(tmp_path, names, num, num_devices, 900)
        assert [name for name in names if found[name] != alone[name]] == []


def estimate(tmp_path, number, address, *options, num=2, samples="4e7", name="a.npy"):
    """`determinax estimate --distributed`, process `number` of `num`; 1 runs alone."""
    if not (tmp_path / "a.npy").exists():
        np.save(tmp_path / "a.npy", near_isometry(20, 0.1))
    # a chunk is small: rounds are short, checkpoints many
    command = ["-m", "determinax.cli", "estimate", tmp_path / name, "--method", "mc", "--json"]
    command += ["--samples", samples, *options]
    if num > 1:
        command += ["--distributed", "--coordinator", address]
        command += ["--num-processes", num, "--process-id", number]
    env = processes.environment(2, XDG_CACHE_HOME=str(tmp_path / "cache"))
    return processes.start(*command, env=env)


def test_processes_that_were_given_different_matrices_refuse_in_one_sentence(tmp_path):
    address = f"127.0.0.1:{free_port()}"
    np.save(tmp_path / "b.npy", near_isometry(30, 0.1))
    started = [
        estimate(tmp_path, i, address, samples="1e4", name=name)
        for i, name in enumerate(["a.npy", "b.npy"])
    ]
    for done in [processes.finish(process, 200) for process in started]:
        assert (done.returncode, done.stdout) == (2, ""), done.stderr
        (line,) = said(done.stderr)
        assert line.startswith("determinax: process 1 was given something else than process 0")


def said(err):
    """The lines on standard error, but for what is said while a process waits for others."""
    return [line for line in err.splitlines() if "waiting for" not in line]


def child_of(process):
    found = os.popen(f"pgrep -P {process.pid} -f determinax.cli").read().split()
    return int(found[0])


def wait_for(path, started, seconds=200):
    until = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < until
        assert all(process.poll() is None for process in started), [
            p.communicate() for p in started
        ]
        time.sleep(0.05)


@contextlib.contextmanager
def under_way(tmp_path):
    """Two processes, past their first checkpoint; all that they started is killed afterwards."""
    address, path = f"127.0.0.1:{free_port()}", tmp_path / "run.ckpt"
    started = [estimate(tmp_path, i, address, "--checkpoint", path) for i in range(2)]
    children = []
    try:
        wait_for(path, started)
        children = [child_of(process) for process in started]
        yield started, children
    finally:
        for pid in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in started:
            processes.end(process)


DEATHS = {
    "a worker is killed": (1, "child", signal.SIGKILL),
    "the coordinator is killed": (0, "child", signal.SIGKILL),
    "a worker stops": (1, "child", signal.SIGSTOP),
    "the coordinator stops": (0, "child", signal.SIGSTOP),
    "a worker's parent is killed": (1, "parent", signal.SIGKILL),
    "a worker's parent stops": (1, "parent", signal.SIGSTOP),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", DEATHS)
def test_a_death_is_one_sentence_and_one_exit_code_and_the_run_goes_on_elsewhere(tmp_path, name):
    number, who, how = DEATHS[name]
    with under_way(tmp_path) as (started, children):
        began = time.monotonic()
        os.kill(children[number] if who == "child" else started[number].pid, how)
        heard = [p for i, p in enumerate(started) if who == "child" or i != number]
        for process in heard:
            out, err = process.communicate(timeout=60)
            seconds = time.monotonic() - began
            assert process.returncode == DIED, (out, err)
            assert out == ""
            (line,) = err.splitlines()
            assert line.startswith(SENTENCE + "; go on with: determinax estimate")
            assert seconds < 30
            print(f"{name}: {seconds:.1f} s")


@pytest.mark.slow
def test_a_checkpoint_of_two_processes_goes_on_in_one_with_the_same_bits(tmp_path):
    with under_way(tmp_path) as (started, children):
        os.kill(children[1], signal.SIGKILL)
        for process in started:
            process.communicate(timeout=60)
    path = tmp_path / "run.ckpt"
    assert path.exists()
    options = ("--checkpoint", path, "--resume")
    resumed = processes.finish(estimate(tmp_path, 0, None, *options, num=1), 300)
    whole = processes.finish(estimate(tmp_path, 0, None, num=1), 300)
    assert resumed.returncode == whole.returncode == 0, resumed.stderr
    assert resumed.stdout == whole.stdout


@pytest.mark.slow
def test_sigterm_ends_a_run_with_its_own_exit_code(tmp_path):
    with under_way(tmp_path) as (started, _):
        began = time.monotonic()
        for process in started:
            process.send_signal(signal.SIGTERM)
        for process in started:
            _, err = process.communicate(timeout=30)
            assert process.returncode == 143
            assert err.startswith("determinax: interrupted; go on with: determinax estimate")
        assert time.monotonic() - began < 15


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("host:1",), "coordinator_address goes with num_processes and process_id"),
        (("host", 2, 0), "coordinator_address is host:port, not 'host'"),
        (("host:1", 2, 2), "process_id 2 is not below num_processes, 2"),
        (("host:1", 0, 0), "num_processes must be a whole number from 1"),
    ],
)
def test_what_does_not_fit_together_is_said(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        dx.distributed.initialize(*arguments)
