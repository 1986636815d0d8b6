"""Many processes over loopback: the same bits, clean output, and one sentence for whatever dies."""

import contextlib
import json
import os
import signal
import socket
import time

import jax
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


def test_a_process_whose_file_cannot_be_read_says_so_before_it_waits(tmp_path):
    (tmp_path / "c.npy").write_bytes(b"no matrix")
    began = time.monotonic()
    done = processes.finish(
        estimate(tmp_path, 0, f"127.0.0.1:{free_port()}", samples="1e4", name="c.npy"), 50
    )
    assert done.returncode == 2
    assert "c.npy" in done.stderr
    assert "waiting" not in done.stderr
    assert time.monotonic() - began < 40


def test_a_process_whose_peers_are_late_says_for_whom_it_waits(tmp_path):
    address = f"127.0.0.1:{free_port()}"
    alone = estimate(tmp_path, 0, address, samples="1e4")
    try:
        assert alone.stderr.readline() == f"determinax: waiting for 2 processes at {address}\n"
    finally:
        processes.end(alone)


@pytest.mark.parametrize("number", [0, 1])
def test_a_process_whose_peers_never_come_ends_with_a_sentence(number):
    address = f"127.0.0.1:{free_port()}"
    code = (
        "import determinax as dx\n"
        f"dx.distributed.initialize({address!r}, 2, {number}, initialization_timeout=2)"
    )
    done = processes.finish(processes.start("-c", code), 60)
    assert (done.returncode, done.stdout) == (2, "")
    first, last = done.stderr.splitlines()
    assert first == f"determinax: waiting for 2 processes at {address}"
    assert last == f"determinax: waited 2 s for 2 processes at {address}: start them all"


SLURM = {
    "SLURM_JOB_ID": "8193",
    "SLURM_STEP_NODELIST": "localhost",
    "SLURM_NTASKS": "2",
    "SLURM_PROCID": "1",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_NUM_NODES": "1",
}
OPEN_MPI = {
    "OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://10.96.0.1,10.148.0.1:34911",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_LOCAL_RANK": "3",
}


def test_slurm_and_open_mpi_are_found_by_their_variables():
    assert dx.distributed.cluster({}) is None
    assert dx.distributed.cluster(SLURM) == ("localhost:61441", 2, 1, True)
    assert dx.distributed.cluster(OPEN_MPI) == ("10.96.0.1:62624", 4, 3, True)
    for nodes, host in {
        "node[007-015,020],other": "node007",
        "node[1,7-15]": "node1",
        "node3,host2": "node3",
    }.items():
        found = dx.distributed.cluster(SLURM | {"SLURM_STEP_NODELIST": nodes})
        assert found.coordinator_address == f"{host}:61441"
    # a name that is the loopback's here is of no use to the other nodes
    assert not dx.distributed.cluster(SLURM | {"SLURM_STEP_NUM_NODES": "2"}).binds
    six = OPEN_MPI | {"OMPI_MCA_orte_hnp_uri": "1314521088.0;tcp6://[fe80::1,2620::2]:43370"}
    assert dx.distributed.cluster(six).coordinator_address.startswith("[fe80::1]:")


@pytest.mark.parametrize(("variables", "host"), [(SLURM, "localhost"), (OPEN_MPI, "10.96.0.1")])
def test_the_address_that_was_detected_is_the_only_one_that_is_listened_on(
    variables, host, monkeypatch
):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    seen = {}
    monkeypatch.setattr(jax.distributed, "initialize", lambda *a, **o: seen.update(o, given=a))
    monkeypatch.setattr(jax.config, "update", lambda *_: None)
    dx.distributed.initialize()
    address = dx.distributed.cluster(variables).coordinator_address
    assert address.startswith(f"{host}:")
    assert seen["coordinator_bind_address"] == seen["given"][0] == address


@pytest.mark.slow
def test_two_processes_find_each_other_by_what_slurm_says(tmp_path):
    np.save(tmp_path / "a.npy", near_isometry(20, 0.1))
    command = ["-m", "determinax.cli", "estimate", tmp_path / "a.npy", "--method", "mc", "--json"]
    command += ["--samples", "1e4", "--distributed"]
    job = str(os.getpid())  # which tells the port
    started = []
    for i in range(2):
        names = SLURM | {"SLURM_JOB_ID": job, "SLURM_PROCID": str(i), "SLURM_LOCALID": str(i)}
        started.append(processes.start(*command, env=processes.environment(1, **names)))
    first, second = [processes.finish(process, 200) for process in started]
    assert first.returncode == second.returncode == 0, first.stderr
    assert json.loads(first.stdout)["status"] == "ok"
    assert second.stdout == ""


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
            (line,) = said(err)
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
