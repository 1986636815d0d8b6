"""`determinax reproduce`: runs what is missing, then makes tables and figures from the rows."""

import pathlib
from typing import Literal, get_args

import jax
import matplotlib as mpl
import numpy as np
from rich.console import Console
from rich.markdown import Markdown

from determinax import storage
from determinax._checkpoint import remove
from determinax.paper import experiments, report
from determinax.paper.matrices import MATRICES, matrix_named

mpl.use("Agg")

Target = Literal["table1", "table2", "figure1", "figure2", "figure3", "all"]

# which matrices' rows each one is made from
_NEEDS = {
    "table1": report.DENSE,
    "table2": ("W",),
    "figure1": ("cover",),
    "figure2": ("W",),
    "figure3": (),
}


def reproduce(
    target: Target, preset: experiments.Preset, out: pathlib.Path, resume: bool, seed: int = 0
) -> None:
    """Make a table or a figure of the paper, or all of them, in the folder `out`.

    Rows go to `out/preset-matrix.jsonl`, trained proposals beside them. With `resume`, rows that
    exist and are of the same settings are used as they are, and a training run that was interrupted
    goes on.
    """
    if target not in get_args(Target):
        raise ValueError(
            f"what to reproduce is one of {', '.join(get_args(Target))}, not {target!r}"
        )
    targets = tuple(_NEEDS) if target == "all" else (target,)
    matrices = [item.name for item in MATRICES if any(item.name in _NEEDS[t] for t in targets)]
    console = Console()
    out.mkdir(parents=True, exist_ok=True)
    for i, name in enumerate(matrices):
        rows = _rows_of(out, preset, name)
        config = experiments.configure(preset, name, seed)
        proposal_path = out / f"{config.name}.safetensors"
        # of the proposals, a picture needs one
        complete = rows.exists() and (name != "cover" or proposal_path.exists())
        if resume and complete and config.made(experiments.read_rows([rows])):
            continue
        console.print(f"{name} ({i + 1} of {len(matrices)}): {config.steps:,} steps ...")
        checkpoint = out / f"{config.name}.checkpoint"
        figures, proposal = experiments.run(config, checkpoint=checkpoint, resume=resume)
        storage.save(proposal, proposal_path)
        experiments.write_rows(rows, figures)
        remove(checkpoint)
    tables = [target for target in targets if target.startswith("table")]
    _run_projective(out, [name for target in tables for name in _NEEDS[target]], resume, seed)
    for name in targets:
        _make(name, preset, out, console)


def _run_projective(out: pathlib.Path, matrices: list[str], resume: bool, seed: int) -> None:
    """Takes seconds, whatever the preset."""
    for name in matrices:
        rows = _rows_of(out, "projective", name)
        if not (resume and rows.exists()):
            experiments.write_rows(rows, experiments.run_projective(name, seed))


def _make(target: str, preset: str, out: pathlib.Path, console: Console) -> None:
    rows = experiments.read_rows([_rows_of(out, preset, name) for name in _NEEDS[target]])
    path = out / f"{preset}-{target}"
    if target.startswith("table"):
        rows += experiments.read_rows([_rows_of(out, "projective", n) for n in _NEEDS[target]])
        text = report.table1(rows) if target == "table1" else report.table2(rows)
        storage.write_atomically(path.with_suffix(".md"), text.encode())
        console.print(Markdown(text))
        console.print(f"saved as {path.with_suffix('.md')}")
        return
    optimum = report.optimal_log_density(matrix_named("cover").matrix)
    if target == "figure1":
        proposal = storage.load(out / f"{preset}-cover.safetensors")
        points = proposal.sample(jax.random.key(0), 500)
        figure = report.figure1(proposal, optimum, np.asarray(points))
    else:
        figure = report.figure2(rows) if target == "figure2" else report.figure3(optimum)
    report.save_figure(figure, path)
    console.print(f"saved as {path}.png and .svg")


def _rows_of(out: pathlib.Path, preset: str, matrix: str) -> pathlib.Path:
    return out / f"{preset}-{matrix}.jsonl"
