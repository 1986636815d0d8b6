"""Progress: a spinner or a bar, on a terminal or in a notebook, never in a pipe.

It appears at once, drawn by a thread of its own, so that it also turns while XLA compiles: the run only
says how far it is. rich is imported when there is something to draw.
"""

import contextlib
import dataclasses
import importlib.util
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from determinax import _interrupts

# so many seconds of silence: what is quicker needs no bar
PATIENCE = 0.3
_FRAMES_PER_SECOND = 8
# what the second line says before the first piece of work is done
_FIRST = "compiling, and running the first piece"
# and after an interrupt that comes while XLA compiles
_STOPPING = "stopping as soon as XLA has compiled this; a second Ctrl-C stops now"


def _ignore(what: str) -> None:
    del what


class Report(NamedTuple):
    """How a run tells its caller how far it is.

    `start(total, what, note)`, then `advance(done, note)`; or `working(what)` for a phase without a count.
    """

    start: Callable[..., Any]
    advance: Callable[..., Any]
    working: Callable[[str], Any] = _ignore


# the report of the run that this thread is in: a run inside of it uses the same
_current = threading.local()


@contextlib.contextmanager
def reporting(wanted: bool | None = None) -> Iterator[Report | None]:
    """A `Report` for the length of a run, or None where nobody watches.

    None means: if standard error is a terminal, or in a notebook.
    """
    if wanted is None:
        wanted = (sys.stderr is not None and sys.stderr.isatty()) or _in_notebook()
    # what draws it comes with the extra [cli]
    if not wanted or importlib.util.find_spec("rich") is None:
        yield None
        return
    outer = getattr(_current, "report", None)
    if outer is not None:
        yield outer
        return
    display = _Display()
    with _interrupts.before_leaving(display.stop):
        display.start()
        _current.report = Report(display.count, display.advance, display.work)
        try:
            yield _current.report
        finally:
            _current.report = None
            display.stop()


def _in_notebook() -> bool:
    return "ipykernel" in sys.modules and importlib.util.find_spec("ipywidgets") is not None


@dataclasses.dataclass
class _Phase:
    what: str
    total: int | None = None
    done: int = 0
    note: str = ""


class _Display:
    """What is drawn: the run sets the phase, and the thread of rich's `Live` reads it."""

    def __init__(self):
        self._phase = _Phase("working")
        self._drawn: _Phase | None = None
        self._over, self._lock = threading.Event(), threading.Lock()
        self._live: Any = None
        self._bars: Any = None

    def count(self, total: int, what: str, note: str = "") -> None:
        self._phase = _Phase(what, total, note=note or _FIRST)

    def advance(self, done: int, note: str = "") -> None:
        self._phase.done, self._phase.note = done, note

    def work(self, what: str) -> None:
        self._phase = _Phase(what)

    def start(self) -> None:
        if _in_notebook():  # where the first picture belongs to the cell of the main thread
            self._draw()
        else:
            threading.Thread(target=self._draw_later, daemon=True).start()

    def stop(self) -> None:
        self._over.set()
        with self._lock:
            if self._live is not None:
                self._live.stop()

    def _draw_later(self) -> None:
        if not self._over.wait(PATIENCE):
            self._draw()

    def _draw(self) -> None:
        from rich.console import Console
        from rich.live import Live

        console = Console(stderr=True)
        self._bars = _bars(console)
        with self._lock:
            if self._over.is_set():
                return
            self._live = Live(
                console=console,
                get_renderable=self._picture,
                refresh_per_second=_FRAMES_PER_SECOND,
                transient=True,
            )
            self._live.start(refresh=True)

    def _picture(self) -> Any:
        from rich.console import Group
        from rich.text import Text

        phase = self._phase
        bar = self._bars[phase.total is not None]
        if phase is not self._drawn:
            for task in bar.task_ids:
                bar.remove_task(task)
            bar.add_task(phase.what, total=phase.total)
            self._drawn = phase
        bar.update(bar.task_ids[0], completed=phase.done)
        words = _STOPPING if _interrupts.is_noted() else phase.note
        if not words:
            return bar.get_renderable()
        note = Text(f"  {words}", style="dim", no_wrap=True, overflow="ellipsis")
        return Group(bar.get_renderable(), note)


def _bars(console: Any) -> tuple[Any, Any]:
    """Without a count, and with one; what they say never takes more than a line."""
    from rich import progress as rp
    from rich.table import Column

    def what() -> Any:
        column = Column(no_wrap=True, overflow="ellipsis", ratio=1)
        return rp.TextColumn("{task.description}", table_column=column)

    spinner = "dots" if console.encoding.startswith("utf") else "line"
    spinning = rp.Progress(
        rp.SpinnerColumn(spinner), what(), rp.TimeElapsedColumn(), console=console
    )
    counting = rp.Progress(
        rp.SpinnerColumn(spinner),
        what(),
        rp.BarColumn(bar_width=20),
        rp.TextColumn("{task.completed:,.0f} of {task.total:,.0f}"),
        rp.TimeRemainingColumn(),
        console=console,
        expand=True,
    )
    return spinning, counting
