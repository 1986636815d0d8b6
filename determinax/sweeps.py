"""Many matrices: a queue of independent estimates, on processes of this machine or of a cluster."""

import concurrent.futures as cf
import os
import pathlib
import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from determinax._checks import cache_folder
from determinax._interrupts import heeded
from determinax._lines import as_line, sentence
from determinax._workers import Task, completed, given_or_own, set_up_from_here
from determinax.estimate import Estimate
from determinax.methods import AbstractMethod
from determinax.progress import reporting


class Swept(NamedTuple):
    """What became of one operator: its estimate, or the sentence that says why there is none."""

    name: str
    estimate: Estimate | None
    error: str | None
    seconds: float

    @property
    def log_abs_det(self) -> Any:
        """Of the estimate."""
        return self._found.log_abs_det

    @property
    def standard_error(self) -> Any:
        """Of the estimate."""
        return self._found.standard_error

    @property
    def status(self) -> str:
        """The verdict on the estimate; "failed" where there is none."""
        return "failed" if self.estimate is None else self.estimate.status

    @property
    def _found(self) -> Estimate:
        if self.estimate is None:
            raise ValueError(f"{self.name}: {self.error}")
        return self.estimate

    def __float__(self) -> float:
        return float(self._found)

    def to_dict(self) -> dict[str, Any]:
        """As a line of JSON has it."""
        found = None if self.estimate is None else self.estimate.to_dict()
        return as_line(self.name, found, self.error, self.seconds)


@heeded()
def sweep(
    operators: Iterable[Any] | Mapping[str, Any],
    method: AbstractMethod | None = None,
    *,
    key: PRNGKeyArray | None = None,
    executor: cf.Executor | None = None,
    num_workers: int | None = None,
    volume: bool = False,
    progress: bool | None = None,
    **options: Any,
) -> list[Swept]:
    """`log_abs_det` of many operators, side by side; in their order.

    **Arguments:**

    - `operators`: arrays, SciPy sparse arrays, other operators that can be pickled, or paths of files,
        which the workers read; a mapping gives them names.
    - `method`, `options`: as in `log_abs_det`.
    - `key`: one for all: each result is that of `log_abs_det(operator, method, key=key)`, and operators of
        a size meet the same directions. For independent ones pass as many, `jax.random.split(key, num)`.
    - `executor`: any `concurrent.futures.Executor`: Dask's `Client.get_executor()`, mpi4py's
        `MPIPoolExecutor`. None: `num_workers` spawned processes, one for each core by default, with one
        thread each. A script that calls this needs `if __name__ == "__main__":`, as for `multiprocessing`.
        They share what they compile, in the folder that JAX is told, or else in that of the command line.
    - `volume`: `log_volume` in place of `log_abs_det`.

    What fails is a `Swept` with an `error`, and the others go on. A worker that is killed loses nothing:
    what it had is given to another.

    !!! example

        ```python
        found = dx.sweep([A, 2 * A, "missing.npz"], dx.MonteCarlo(1000), key=jax.random.key(0))
        [one.log_abs_det for one in found if one.error is None]
        ```
    """
    named = _named(operators)
    keys = _keys(key, len(named))
    config: Any = jax.config  # whose attributes no type checker knows
    # as the command line has it
    cache = config.jax_compilation_cache_dir or cache_folder()
    set_up = set_up_from_here(config.jax_enable_x64, cache)
    tasks = [
        Task(str(at), _estimated, (operator, method, own, volume, options), set_up)
        for at, ((_, operator), own) in enumerate(zip(named, keys, strict=True))
    ]
    found: dict[int, Swept] = {}  # by position: two may have one name
    with given_or_own(executor, num_workers, set_up) as pool, reporting(progress) as report:
        if report:
            report.start(len(tasks), "sweep")
        for task, result in completed(tasks, pool):
            name = named[int(task.name)][0]
            if isinstance(result, BaseException):
                found[int(task.name)] = Swept(name, None, sentence(result), 0.0)
            else:
                found[int(task.name)] = Swept(name, *result)
            if report:
                report.advance(len(found))
    return [found[at] for at in range(len(named))]


def _named(operators: Any) -> list[tuple[str, Any]]:
    if isinstance(operators, Mapping):
        return [(str(name), operator) for name, operator in operators.items()]
    if isinstance(operators, str | os.PathLike) or not isinstance(operators, Iterable):
        raise TypeError(
            f"operators is a list or a mapping of operators or files, not {operators!r}: put it in a list"
        )
    return [
        (str(one) if isinstance(one, str | os.PathLike) else str(number), one)
        for number, one in enumerate(operators)
    ]


def _keys(key: Any, num: int) -> list[Any]:
    """A key for each operator, as what can be pickled."""
    if key is None:
        return [None] * num
    impl = None
    if jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        impl, key = str(jax.random.key_impl(key)), jax.random.key_data(key)
    data = np.asarray(key)
    if data.ndim > 1 and len(data) != num:
        raise ValueError(f"{len(data)} keys for {num} operators: pass one for all, or one for each")
    return [(impl, data if data.ndim == 1 else data[i]) for i in range(num)]


def _estimated(
    operator: Any, method: Any, key: Any, volume: bool, options: dict[str, Any]
) -> tuple[Estimate | None, str | None, float]:
    """In a worker: the estimate or a sentence, and the seconds it took."""
    from determinax import api, files

    began = time.perf_counter()
    try:
        if isinstance(operator, str | os.PathLike):
            operator = files.read_matrix(pathlib.Path(operator))
        if key is not None:
            impl, data = key
            key = data if impl is None else jax.random.wrap_key_data(data, impl=impl)
        run = api.log_volume if volume else api.log_abs_det
        found = jax.device_get(run(operator, method, key=key, progress=False, **options))
        return found, None, time.perf_counter() - began
    except Exception as error:
        return None, sentence(error), time.perf_counter() - began
