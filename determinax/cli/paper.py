"""`determinax reproduce` and `determinax demo`."""

import pathlib
from enum import StrEnum
from typing import Annotated

import typer

from determinax._checks import whole_number
from determinax.cli import common
from determinax.progress import reporting


class Target(StrEnum):
    """What `reproduce` makes."""

    table1 = "table1"
    table2 = "table2"
    figure1 = "figure1"
    figure2 = "figure2"
    figure3 = "figure3"
    all = "all"


class Preset(StrEnum):
    """What `--preset` takes."""

    paper = "paper"
    best = "best"
    quick = "quick"


def reproduce(
    target: Annotated[Target, typer.Argument(help="A table or a figure, or all of them.")],
    preset: Annotated[
        Preset,
        typer.Option(
            help="paper: the authors' flow and settings, hours; best: ours; quick: minutes."
        ),
    ] = Preset.quick,
    out: Annotated[pathlib.Path, typer.Option(help="Where rows, tables and figures go.")] = (
        pathlib.Path("results")
    ),
    resume: Annotated[
        bool, typer.Option("--resume", help="Use rows that exist, and go on with stopped runs.")
    ] = False,
    seed: common.Seed = 0,
) -> None:
    """Reproduce a table or a figure of the paper (Passenheim and Hoogeboom, 2020).

    **Examples**

        determinax reproduce table1
        determinax reproduce all --preset paper --out results --resume

    Stopped by Ctrl-C, it says how to go on.
    """
    with common.bad_input_exits():
        common.require_matplotlib("reproduce", "paper")
        common.require_folder(out)
        with reporting() as report:
            common.set_up_jax(report)
            from determinax.paper.reproduce import reproduce as make
        common.resumable(lambda: True)
        make(target.value, preset.value, out, resume, seed)


def demo(
    samples: Annotated[float, typer.Option(help="Directions for Monte Carlo.")] = 100_000,
    seed: common.Seed = 0,
    out: Annotated[pathlib.Path, typer.Option(help="Where the picture goes.")] = pathlib.Path(
        "demo"
    ),
) -> None:
    """Every method on the paper's seven matrices, beside the truth and the paper's figures.

    Then a flow on the sphere is fitted to a density for a few seconds, and its picture saved.
    """
    with common.bad_input_exits():
        common.require_matplotlib("demo", "paper")
        num_samples = whole_number(samples, "--samples")
        common.require_folder(out)
        with reporting() as report:
            common.set_up_jax(report)
            from determinax.paper import demo as show
        show.run(num_samples, seed, out)
