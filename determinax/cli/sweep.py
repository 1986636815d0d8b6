"""`determinax sweep`: many matrices, a line of JSON each."""

import concurrent.futures as cf
import contextlib
import glob
import os
import pathlib
import time
from collections import Counter
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from determinax import _interrupts
from determinax._checks import cache_folder
from determinax._lines import Lines, as_line, sentence
from determinax._workers import Task, completed, given_or_own, set_up_from_here
from determinax.cli import common
from determinax.cli import settings as options
from determinax.cli.common import Count
from determinax.cli.estimate import estimated
from determinax.cli.settings import Method, Settings
from determinax.progress import Report, reporting

Result = tuple[dict[str, Any] | None, str | None, float]


def sweep(
    files: Annotated[
        list[str], typer.Argument(help="Matrices, or quoted patterns such as 'matrices/*.npz'.")
    ],
    out: Annotated[pathlib.Path, typer.Option(help="Where the lines of JSON go.")],
    workers: Annotated[
        Count, typer.Option(help="Processes of this machine (default: one for each core).")
    ] = None,
    scheduler: Annotated[
        str | None, typer.Option(help="The address of a Dask scheduler, in place of --workers.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on: pass over the matrices that have a line.")
    ] = False,
    method: options.MethodOption = Method.auto,
    samples: options.Samples = None,
    depth: options.Depth = None,
    directions: options.Directions = None,
    frames: options.Frames = False,
    max_matvecs: options.MaxMatvecs = None,
    volume: options.Volume = False,
    spd: options.Spd = False,
    tolerance: options.Tolerance = None,
    rtol: options.Rtol = None,
    seed: common.Seed = 0,
) -> None:
    """Estimate log|det A| of many matrices, side by side, and write one line of JSON for each.

    A line has what `determinax estimate FILE --json` prints for the same options, its seconds and
    versions; or, where a matrix fails, `"status": "failed"` and the sentence that says why. It is written
    when the matrix is done, so a sweep that was killed goes on with `--resume`.

    **Examples**

        determinax sweep 'matrices/*.npz' --out results.jsonl
        determinax sweep 'matrices/*.npz' --out results.jsonl --workers 8 --resume
        determinax sweep a.npy b.npy --out results.jsonl --method mc --samples 1e5
        determinax sweep 'matrices/*.npz' --out results.jsonl --scheduler tcp://head:8786

    Exit code 0: all are exact, ok or warn; 3: some are unreliable; 2: some failed, or bad input.
    """
    with common.bad_input_exits():
        settings = options.checked(
            method=method,
            samples=samples,
            depth=depth,
            directions=directions,
            band=None,
            frames=frames,
            proposal=None,
            max_matvecs=max_matvecs,
            volume=volume,
            spd=spd,
            tolerance=tolerance,
            rtol=rtol,
            seed=seed,
        )
        if scheduler is not None and workers is not None:
            raise ValueError("--workers and --scheduler exclude each other: leave one of them out")
        num_workers = common.whole(workers, "workers")
        names = _matches(files)
        common.require_writable(out)
        common.expect_broken_pipes()
        # of the tracker of resources, which cannot know that a signal may end us at any time
        os.environ.setdefault("PYTHONWARNINGS", "ignore:resource_tracker")
        lines = Lines(out, {"seed": seed, "options": _chosen(settings)}, resume=resume)
        common.resumable(lambda: bool(lines.done))
        with reporting() as report, _executor(scheduler) as executor:
            todo = [name for name in names if name not in lines.done]
            _estimate_all(todo, len(names), settings, lines, executor, num_workers, report)
        lines.close()
        counts = Counter(lines.done[name] for name in names)
        _interrupts.conclude()
        print(_summary(counts, out), flush=True)
        if counts["failed"] or counts["unreliable"]:
            raise typer.Exit(common.BAD_INPUT if counts["failed"] else common.UNRELIABLE)


def _matches(patterns: list[str]) -> list[str]:
    """The files that are meant, each once, in order."""
    found: dict[str, None] = {}
    for pattern in patterns:
        matches = [pattern] if pathlib.Path(pattern).exists() else sorted(glob.glob(pattern))
        if not matches:
            raise ValueError(f"{pattern}: no such file: name matrices, or a pattern in quotes")
        found |= dict.fromkeys(matches)
    return list(found)


def _chosen(settings: Settings) -> dict[str, Any]:
    """The options that make a difference, for the lines."""
    chosen = settings._replace(seed=0, method=Method.auto)._asdict()
    others = {name: value for name, value in chosen.items() if value and name != "method"}
    return {"method": str(settings.method), **others}


@contextlib.contextmanager
def _executor(scheduler: str | None) -> Iterator[cf.Executor | None]:
    """Dask's, where there is a scheduler; it stays when we go."""
    if scheduler is None:
        yield None
        return
    try:
        from distributed import Client
    except ModuleNotFoundError as error:
        raise ValueError("--scheduler needs Dask: pip install 'determinax[cluster]'") from error
    try:
        client = Client(scheduler)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"no Dask scheduler answers at {scheduler}: start one with `dask scheduler`"
        ) from error
    with client:
        yield client.get_executor(pure=False)


def _estimate_all(
    todo: list[str],
    total: int,
    settings: Settings,
    lines: Lines,
    executor: cf.Executor | None,
    num_workers: int | None,
    report: Report | None,
) -> None:
    set_up = set_up_from_here(True, cache_folder())
    about = {"seed": settings.seed, "options": _chosen(settings)}
    tasks = [Task(name, in_worker, (name, settings), set_up) for name in todo]
    if report:
        report.start(total, "sweep")
        report.advance(total - len(todo), "starting the workers")
    with given_or_own(executor, num_workers, set_up) as pool:
        for task, result in completed(tasks, pool):
            found, error, seconds = (
                (None, sentence(result), 0.0) if isinstance(result, BaseException) else result
            )
            lines.add(as_line(task.name, found, error, seconds, **about))
            if report:
                report.advance(len(lines.done), task.name)


def in_worker(name: str, settings: Settings) -> Result:
    """The numbers of one matrix, or the sentence that says why there are none, and the seconds."""
    began = time.perf_counter()
    try:
        found = estimated(pathlib.Path(name), settings).to_dict()
        return found, None, time.perf_counter() - began
    except Exception as error:
        return None, sentence(error), time.perf_counter() - began


def _summary(counts: Counter[str], out: pathlib.Path) -> str:
    each = ", ".join(f"{num:,} {status}" for status, num in sorted(counts.items()))
    num = counts.total()
    return f"{num:,} {'matrix' if num == 1 else 'matrices'}: {each}; {out}"
