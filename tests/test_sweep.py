"""Many matrices: a line each, whatever dies; none lost, none doubled."""

import concurrent.futures as cf
import json
import multiprocessing
import os
import pickle
import signal
import time
from typing import Any

import jax
import numpy as np
import processes
import pytest
from registry import near_isometry

import determinax as dx
from determinax import _lines, _workers
from determinax._workers import Task, completed


class Killed(cf.Executor):
    """Loses the workers of every task so many times, and whatever waits beside it."""

    def __init__(self, times):
        self.times, self.seen = times, []

    def submit(self, fn, /, *args, **kwargs):
        future = cf.Future()
        self.seen.append(args[0])
        if args[0] < self.times:
            future.set_exception(cf.BrokenExecutor("killed"))
        else:
            future.set_result(fn(*args, **kwargs))
        return future


def found(executor, num=5):
    return [(task.name, result) for task, result in completed(_tasks(num), executor)]


def _tasks(num):
    return [Task(str(i), pow, (i, 2)) for i in range(num)]


def test_what_loses_its_worker_is_given_to_another_and_comes_once():
    assert sorted(found(Killed(3))) == [(str(i), i**2) for i in range(5)]


def test_what_kills_every_worker_ends_with_a_sentence():
    executor = Killed(99)
    (name, lost), *others = found(executor, 1)
    assert name == "0"
    assert not others
    assert executor.seen == list(range(10))
    assert str(lost) == "its worker was killed 10 times: does it need more memory than there is?"


def test_an_executor_that_has_broken_is_named():
    class Broken(cf.Executor):
        def submit(self, fn, /, *args, **kwargs):
            raise cf.BrokenExecutor

    with pytest.raises(RuntimeError, match="has lost a worker and takes no more tasks: go on with"):
        found(Broken())


def test_futures_are_not_held_once_they_are_done():
    futures = []

    class Kept(cf.ThreadPoolExecutor):
        def submit(self, fn, /, *args, **kwargs):
            future = super().submit(fn, *args, **kwargs)
            futures.append(__import__("weakref").ref(future))
            return future

    with Kept(2) as executor:
        for _ in completed(_tasks(20), executor):
            pass
        time.sleep(0.1)
    assert sum(ref() is not None for ref in futures) == 0


def test_a_sweep_is_log_abs_det_of_each(tmp_path):
    np.save(tmp_path / "c.npy", near_isometry(5, seed=7))
    operators = {"a": near_isometry(5), "bad": np.ones((2, 3)), "c": tmp_path / "c.npy"}
    key, method = jax.random.key(3), dx.MonteCarlo(200)
    with cf.ThreadPoolExecutor(1) as executor:
        swept = dx.sweep(operators, method, key=key, executor=executor)
    assert [one.name for one in swept] == ["a", "bad", "c"]
    for one, matrix in zip(swept[::2], (operators["a"], near_isometry(5, seed=7)), strict=True):
        alone = dx.log_abs_det(matrix, method, key=key)
        assert float(one.log_abs_det) == float(alone.log_abs_det)
        assert one.status == alone.status
        assert one.to_dict()["log_abs_det"] == float(alone.log_abs_det)
    assert str(swept[1].error).startswith("operator is 2x3, not square")
    assert swept[1].to_dict()["status"] == swept[1].status == "failed"
    with pytest.raises(ValueError, match="bad: operator is 2x3"):
        float(swept[1])


def test_operators_of_one_name_keep_their_own_results(tmp_path):
    a, method = near_isometry(5), dx.MonteCarlo(200)
    np.save(tmp_path / "a.npy", a)
    path, keys = tmp_path / "a.npy", jax.random.split(jax.random.key(0))
    with cf.ThreadPoolExecutor(1) as executor:
        twice = dx.sweep([path, path], method, key=keys, executor=executor)
        mapped = dx.sweep({1: a, "1": 3 * a}, method, key=keys[0], executor=executor)
    assert [one.name for one in twice] == [str(path)] * 2
    for one, key in zip(twice, keys, strict=True):
        assert float(one) == float(dx.log_abs_det(a, method, key=key))
    assert [one.name for one in mapped] == ["1", "1"]
    assert abs(float(mapped[1]) - float(mapped[0]) - 5 * np.log(3)) < 1e-5


def test_keys_of_their_own_are_independent():
    a, keys = near_isometry(5), jax.random.split(jax.random.key(0))
    with cf.ThreadPoolExecutor(1) as executor:
        first, second = dx.sweep([a, a], dx.MonteCarlo(100), key=keys, executor=executor)
    assert float(first.log_abs_det) != float(second.log_abs_det)
    with pytest.raises(
        ValueError, match="2 keys for 1 operators: pass one for all, or one for each"
    ):
        dx.sweep([a], dx.MonteCarlo(100), key=keys)
    with pytest.raises(TypeError, match="operators is a list or a mapping of operators or files"):
        dx.sweep("a.npy", dx.Exact())


@pytest.fixture
def no_cache(monkeypatch, tmp_path):
    """No compilation cache is configured, and where ours goes."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name in ("NPROC", "JAX_COMPILATION_CACHE_DIR", "JAX_ENABLE_COMPILATION_CACHE"):
        monkeypatch.delenv(name, raising=False)
    before: Any = jax.config
    before = before.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", None)
    yield tmp_path / "determinax"
    jax.config.update("jax_compilation_cache_dir", before)


def _settings():
    import jax

    return os.environ.get("NPROC"), jax.config.jax_compilation_cache_dir


def test_processes_of_others_are_set_up_before_jax_starts(no_cache):
    """A dense operator and a method are unpickled by modules that import it."""
    operators, method = [jax.numpy.asarray(near_isometry(5))], dx.MonteCarlo(200)
    context = multiprocessing.get_context("spawn")
    with cf.ProcessPoolExecutor(1, context) as executor:
        (one,) = dx.sweep(operators, method, key=jax.random.key(0), executor=executor)
        threads, cache = executor.submit(_settings).result()
    assert threads == "1"
    assert cache == str(no_cache)
    assert float(one) == float(dx.log_abs_det(operators[0], method, key=jax.random.key(0)))
    assert list(no_cache.iterdir())


def test_threads_of_this_process_leave_its_settings_alone(no_cache):
    with cf.ThreadPoolExecutor(1) as executor:
        (one,) = dx.sweep([lambda x: 2 * x], example=np.zeros(3), executor=executor)
    assert abs(float(one) - 3 * np.log(2)) < 1e-12
    assert _settings() == (None, None)


def test_a_task_that_only_cloudpickle_can_send_is_sent():
    pytest.importorskip("cloudpickle")
    call = pickle.loads(pickle.dumps(_workers._Call(Task("a", lambda x: x + 1, (2,)))))
    assert call() == 3


def lines_in(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_line_that_was_cut_short_is_written_again(tmp_path):
    path, same = tmp_path / "out.jsonl", {"seed": 0}
    lines = _lines.Lines(path, same, resume=False)
    for name in "ab":
        lines.add({"file": name, "seed": 0, "status": "ok"})
    lines.close()
    with pytest.raises(ValueError, match="is there already: say --resume to go on with it"):
        _lines.Lines(path, same, resume=False)
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    lines = _lines.Lines(path, same, resume=True)
    assert lines.done == {"a": "ok"}
    lines.add({"file": "b", "seed": 0, "status": "ok"})
    lines.close()
    assert path.read_bytes() == whole
    with pytest.raises(ValueError, match=r"line 1 was made with seed 0, not 1: name another file"):
        _lines.Lines(path, {"seed": 1}, resume=True)
    path.write_text("[1]\n")
    with pytest.raises(ValueError, match="line 1 is no line of a sweep"):
        _lines.Lines(path, same, resume=True)


def started(tmp_path, *options, num=6):
    folder = tmp_path / "matrices"
    folder.mkdir(exist_ok=True)
    for i in range(num):
        np.save(folder / f"{i}.npy", near_isometry(6, seed=i))
    env = processes.environment(XDG_CACHE_HOME=str(tmp_path / "cache"))
    command = ["-m", "determinax.cli", "sweep", f"{folder}/*.npy", "--method", "mc"]
    return processes.start(*command, "--samples", 1000, *options, env=env)


@pytest.fixture
def cluster(request):
    """A Dask cluster on this machine, with processes or threads as its workers, and its client."""
    distributed = pytest.importorskip("distributed", reason="no Dask: pip install '.[cluster]'")
    options = {"dashboard_address": None, "threads_per_worker": 1, "n_workers": request.param[0]}
    made = distributed.LocalCluster(processes=request.param[1], **options)
    with made, distributed.Client(made) as client:
        yield made, client


@pytest.mark.parametrize("cluster", [(1, False)], indirect=True)
def test_a_sweep_on_dask_is_that_on_threads(cluster):
    operators, method = [near_isometry(5), np.ones((2, 3)), near_isometry(5)], dx.MonteCarlo(200)
    keys = jax.random.split(jax.random.key(0), 3)
    with cluster[1].get_executor(pure=False) as executor:
        found = dx.sweep(operators, method, key=keys, executor=executor)
    assert [one.error is None for one in found] == [True, False, True]
    for i in (0, 2):
        assert float(found[i]) == float(dx.log_abs_det(operators[i], method, key=keys[i]))


def _slow_square(number):
    time.sleep(0.1)
    return number**2


@pytest.mark.slow
@pytest.mark.parametrize("cluster", [(2, True)], indirect=True)
def test_a_killed_worker_of_dask_loses_nothing_and_doubles_nothing(cluster):
    client = cluster[1]
    tasks = [Task(str(i), _slow_square, (i,)) for i in range(40)]
    seen = []
    with client.get_executor(pure=False) as executor:
        for task, result in completed(tasks, executor):
            seen.append((task.name, result))
            if len(seen) in (5, 15):
                victim = next(iter(client.run(os.getpid).values()))
                os.kill(victim, signal.SIGKILL)
    assert sorted(seen) == sorted((str(i), i**2) for i in range(40))


def workers_of(process):
    return [int(pid) for pid in os.popen(f"pgrep -P {process.pid}").read().split()]


def wait_for(condition, seconds=200):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_a_killed_worker_loses_nothing_and_a_killed_sweep_goes_on(tmp_path):
    out = tmp_path / "out.jsonl"
    # the last matrix comes later: however busy the machine, not all are done before the kill
    sweep = started(tmp_path, "--out", out, "--workers", 1, num=5)
    wait_for(lambda: out.exists() and out.read_bytes().count(b"\n") >= 1)
    doomed = workers_of(sweep)
    os.kill(sweep.pid, signal.SIGKILL)
    wait_for(lambda: not any(os.path.exists(f"/proc/{pid}/fd/0") for pid in doomed), 10)
    processes.end(sweep)
    before = len(lines_in(out))
    sweep = started(tmp_path, "--out", out, "--workers", 1, "--resume")
    wait_for(lambda: len(workers_of(sweep)) > 1 or sweep.poll() is not None)
    for pid in workers_of(sweep)[-1:]:
        os.kill(pid, signal.SIGKILL)
    done = processes.finish(sweep, 300)
    assert done.returncode == 0, done.stderr
    lines = lines_in(out)
    assert len(lines) == 6 > before
    assert sorted(line["file"][-5] for line in lines) == list("012345")
    from determinax._keys import stream

    for line in lines[:2]:
        key = stream(jax.random.key(0), "estimate")
        matrix = np.load(line["file"])
        assert (
            abs(line["log_abs_det"] - float(dx.log_abs_det(matrix, dx.MonteCarlo(1000), key=key)))
            < 1e-9
        )
    assert {"seconds", "seed", "status", "versions", "options"} <= lines[0].keys()


def test_memory_that_dask_has_given_back_is_kept_again(monkeypatch):
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "65536")
    _workers._keep_memory()
    assert "MALLOC_TRIM_THRESHOLD_" not in os.environ
