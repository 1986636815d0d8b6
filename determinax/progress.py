"""A progress bar for what takes longer than two seconds: on a terminal, never in a pipe."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

PATIENCE = 2.0


class Report(NamedTuple):
    """How a run tells its caller how far it is: `start(total, what)`, then `advance(done, note)`."""

    start: Callable[[int, str], Any]
    advance: Callable[..., Any]


@contextmanager
def reporting(wanted: bool | None = None) -> Iterator[Report | None]:
    """A `Report` for the length of a run, or None where nobody watches.

    None means: if standard error is a terminal. The bar appears only once two seconds have passed.
    """
    if wanted is None:
        wanted = sys.stderr.isatty()
    if not wanted:
        yield None
        return
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:,.0f} of {task.total:,.0f}"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
        console=Console(stderr=True),
        transient=True,
    )
    started = time.monotonic()

    def start(total: int, what: str) -> None:
        for task in bar.task_ids:
            bar.remove_task(task)
        bar.add_task(what, total=total, note="")

    def advance(done: int, note: str = "") -> None:
        if not bar.live.is_started and time.monotonic() - started > PATIENCE:
            bar.start()
        bar.update(bar.task_ids[0], completed=done, note=note)

    try:
        yield Report(start, advance)
    finally:
        bar.stop()
