"""The commands, put together."""

from typing import Annotated

import typer

from determinax.cli import density, estimate, fit, paper, report, sweep

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def about(
    version: Annotated[bool, typer.Option("--version", help="Show the version and leave.")] = False,
) -> None:
    """Estimate log|det A| from matrix-vector products, with an error bar, a bound and a verdict.

    Try `determinax demo`, then `determinax estimate matrix.npy`.

    Exit codes: 0 fine; 2 bad input; 3 an estimate is unreliable; 130 Ctrl-C; 143 SIGTERM.
    """
    if version:
        from determinax import __version__

        print(f"determinax {__version__}")
        raise typer.Exit


app.command()(estimate.estimate)
app.command()(report.report)
app.command()(sweep.sweep)
app.command()(fit.fit)
app.command()(density.density)
app.command()(density.sample)
app.command()(paper.reproduce)
app.command()(paper.demo)
