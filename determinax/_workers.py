"""Processes that work on queues of tasks. Nothing heavy is imported: a worker sets itself up before JAX.

Each worker is a pool of its own. So where one is killed it is known which tasks are lost, and only these,
the one that it had and the one that waited for it, are given to another.
"""

import concurrent.futures as cf
import contextlib
import ctypes
import functools
import importlib.util
import multiprocessing
import os
import pickle
import queue
import signal
import socket
import sys
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

# times that a task is given to another worker before it is taken for what kills them
_ATTEMPTS = 10
# tasks that wait in an executor of somebody else's
_OUTSTANDING = 256
# of glibc, and where its own rule ends up in programs with large arrays
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _LARGE = -1, -3, 2**25


def _here() -> tuple[str, int]:
    return socket.gethostname(), os.getpid()


class SetUp(NamedTuple):
    """How a worker computes: its threads, with 64 bits or not, where compiled code is kept; whose it is."""

    num_threads: int | None = 1
    x64: bool = True
    cache: str | None = None
    owner: tuple[str, int] = ("", 0)


def set_up_from_here(x64: bool, cache: Any) -> SetUp:
    """One thread a worker, and in this process, as an executor of threads has it, what is there already."""
    return SetUp(1, x64, None if cache is None else str(cache), _here())


class Task(NamedTuple):
    """What is to be computed, `run(*args)`, under which name, in a process that is set up how."""

    name: str
    run: Callable
    args: tuple[Any, ...]
    set_up: SetUp | None = None


class _Call:
    """A task on its way: a process that it is sent to sees what it holds only once that is set up.

    To unpickle an operator or a method imports JAX, after which it is too late for the number of threads.
    """

    def __init__(self, task: Task):
        self._task = task

    def __call__(self) -> Any:
        prepare_process(self._task.set_up)
        return self._task.run(*self._task.args)

    def __reduce__(self) -> tuple[Any, ...]:
        return _Sealed, (self._task.set_up, _pickled((self._task.run, self._task.args)))


class _Sealed:
    """What arrives of a `_Call`."""

    def __init__(self, set_up: SetUp | None, content: bytes):
        self._set_up, self._content = set_up, content

    def __call__(self) -> Any:
        prepare_process(self._set_up)
        run, args = pickle.loads(self._content)
        return run(*args)


def _pickled(content: Any) -> bytes:
    """As Dask does it: what cannot be named elsewhere goes as it is, where cloudpickle is installed."""
    has_other = importlib.util.find_spec("cloudpickle") is not None
    try:
        plain = pickle.dumps(content, protocol=5)
        if b"__main__" not in plain or not has_other:
            return plain
    except (pickle.PicklingError, AttributeError, TypeError):
        if not has_other:
            raise
    import cloudpickle  # pyright: ignore[reportMissingImports]

    return cloudpickle.dumps(content, protocol=5)


class Lost(RuntimeError):
    """What became of a task whose workers died, one after the other."""


class Workers(cf.Executor):
    """So many spawned processes, each replaced when it dies; see `concurrent.futures.Executor`."""

    def __init__(self, num: int, set_up: SetUp):
        self.num, self._set_up, self._lock = num, set_up, threading.Lock()
        self._pools = [self._pool() for _ in range(num)]
        self._load = [0] * num

    def _pool(self) -> cf.ProcessPoolExecutor:
        context = multiprocessing.get_context("spawn")
        return cf.ProcessPoolExecutor(1, context, _begin, (self._set_up,))

    def submit(self, fn: Callable, /, *args: Any, **kwargs: Any) -> cf.Future:
        """Give a task to the worker that has the least to do."""
        with self._lock:
            slot = min(range(self.num), key=self._load.__getitem__)
            self._load[slot] += 1
        try:
            future = self._pools[slot].submit(fn, *args, **kwargs)
        except cf.BrokenExecutor:  # its worker was killed
            self._pools[slot] = self._pool()
            future = self._pools[slot].submit(fn, *args, **kwargs)
        future.add_done_callback(functools.partial(self._unload, slot))
        return future

    def _unload(self, slot: int, _: cf.Future) -> None:
        with self._lock:
            self._load[slot] -= 1

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End all workers."""
        for pool in self._pools:
            pool.shutdown(wait=wait, cancel_futures=cancel_futures)


@contextlib.contextmanager
def given_or_own(
    executor: cf.Executor | None, num: int | None, set_up: SetUp
) -> Iterator[cf.Executor]:
    """The executor that was given, which its owner ends, or workers of ours, which end here."""
    if executor is not None:
        yield executor
        return
    own = Workers(num or os.cpu_count() or 1, set_up)
    try:
        yield own
    finally:
        own.shutdown(wait=False, cancel_futures=True)


def _begin(set_up: SetUp) -> None:
    """In a new worker: Ctrl-C is its parent's to heed, and it does not outlive that."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
    prepare_process(set_up)


@functools.cache  # once in a process
def prepare_process(set_up: SetUp | None) -> None:
    """Threads, memory and JAX as a worker should have them, in a process of ours or of a cluster."""
    if set_up is None or set_up.owner == _here():
        return
    if set_up.num_threads is not None and "jax" not in sys.modules:
        for name in ("NPROC", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
            os.environ[name] = str(set_up.num_threads)
    _keep_memory()
    import jax

    jax.config.update("jax_enable_x64", set_up.x64)
    if set_up.cache is not None:
        jax.config.update("jax_compilation_cache_dir", set_up.cache)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
        # an entry that was cut short, or a full disk: it is compiled again, and that is all
        warnings.filterwarnings("ignore", message=".*persistent compilation cache")


def _keep_memory() -> None:
    """Let glibc keep what was freed, as it does by itself unless a variable says otherwise.

    Dask starts its workers with MALLOC_TRIM_THRESHOLD_=65536: every array's pages are then given back, and
    faulted in again, one by one.
    """
    if os.environ.pop("MALLOC_TRIM_THRESHOLD_", None) is None:
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # glibc alone has it
        mallopt(_M_MMAP_THRESHOLD, _LARGE)
        mallopt(_M_TRIM_THRESHOLD, 2 * _LARGE)


def completed(tasks: Iterable[Task], executor: cf.Executor) -> Iterator[tuple[Task, Any]]:
    """Each task with what it gave, or with its exception, as they are done; none is held afterwards.

    A task that loses its worker is given to another, and so is one that was only waiting for it.
    """
    # one more waits for each worker, so that none is idle while its result is written
    most = 2 * executor.num if isinstance(executor, Workers) else _OUTSTANDING
    coming, again = iter(tasks), deque[tuple[Task, int]]()
    under_way: dict[cf.Future, tuple[Task, int]] = {}
    # `cf.wait` would look at all that are under way for each of them
    done: queue.SimpleQueue[cf.Future] = queue.SimpleQueue()
    while True:
        while len(under_way) < most and (following := _next(coming, again)) is not None:
            future = _submitted(executor, *following)
            under_way[future] = following
            future.add_done_callback(done.put)
            del future  # no name keeps what is done
        if not under_way:
            return
        task, attempt, result = _ended(done.get(), under_way)
        if not isinstance(result, Lost):
            yield task, result
        elif attempt + 1 < _ATTEMPTS:
            again.append((task, attempt + 1))
        else:
            yield task, result


def _ended(
    future: cf.Future, under_way: dict[cf.Future, tuple[Task, int]]
) -> tuple[Task, int, Any]:
    return *under_way.pop(future), _result(future)


def _next(coming: Iterator[Task], again: deque[tuple[Task, int]]) -> tuple[Task, int] | None:
    if again:
        return again.popleft()
    task = next(coming, None)
    return None if task is None else (task, 0)


def _submitted(executor: cf.Executor, task: Task, attempt: int) -> cf.Future:
    try:
        # the attempt makes it another task for Dask, which else remembers how the last one ended
        return executor.submit(_attempted, attempt, _Call(task))
    except cf.BrokenExecutor as error:
        raise RuntimeError(
            "the executor has lost a worker and takes no more tasks: go on with a new one"
        ) from error


def _attempted(attempt: int, call: Callable[[], Any]) -> Any:
    del attempt
    return call()


def _result(future: cf.Future) -> Any:
    """What a task gave; the exception where it failed; `Lost` where its worker has gone."""
    try:
        return future.result()
    except (cf.BrokenExecutor, cf.CancelledError) as error:
        return _lost(error)
    except Exception as error:
        # Dask's own, by name: it need not be installed
        return (
            _lost(error) if type(error).__name__ in ("KilledWorker", "CommClosedError") else error
        )


def _lost(error: BaseException) -> Lost:
    lost = Lost(f"its worker was killed {_ATTEMPTS} times: does it need more memory than there is?")
    lost.__cause__ = error
    return lost
