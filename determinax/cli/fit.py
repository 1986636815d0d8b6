"""`determinax fit`."""

import pathlib
from enum import StrEnum
from typing import Annotated, Any

import typer

from determinax import _interrupts
from determinax.cli import common
from determinax.cli.common import Count
from determinax.progress import Report, reporting


class GradientKind(StrEnum):
    """What `--gradient` takes."""

    path = "path"
    total = "total"
    forward = "forward"


def fit(
    file: common.Matrix,
    save: Annotated[pathlib.Path, typer.Option(help="Where the proposal goes.")],
    max_matvecs: Annotated[
        Count, typer.Option(help="The products that the linear fit may spend (default 2n).")
    ] = None,
    flow: Annotated[
        bool, typer.Option("--flow", help="Train a flow by gradients, as the paper does.")
    ] = False,
    steps: Annotated[Count, typer.Option(help="Training steps of a flow (default 2,000).")] = None,
    batch_size: Annotated[
        Count, typer.Option(help="Products a step, and as many transposed (default 1,024).")
    ] = None,
    num_flows: Annotated[Count, typer.Option(help="Layers of the flow (default 8).")] = None,
    gradient: Annotated[
        GradientKind | None,
        typer.Option(
            help="path: least noise (default); total: the paper's; forward: needs no transpose."
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on where a flow's training was stopped.")
    ] = False,
    header: common.Header = None,
    skip_rows: common.SkipRows = 0,
    seed: common.Seed = 0,
) -> None:
    """Fit a proposal for |det A|, and save it for `determinax estimate --method vde`.

    By default it is a linear map, which 2n products find and after which one sample is exact. With
    `--flow` it is a normalizing flow on the sphere, trained for minutes to hours.

    **Examples**

        determinax fit matrix.npy --save q.safetensors
        determinax estimate matrix.npy --method vde --proposal q.safetensors
        determinax fit matrix.npy --save q.safetensors --flow --steps 1e4
        determinax fit matrix.npy --save q.safetensors --flow --steps 1e4 --resume

    The last goes on with a run that was stopped, to the very bits of one that was not.
    """
    with common.bad_input_exits():
        given = {
            "steps": common.whole(steps, "steps"),
            "batch_size": common.whole(batch_size, "batch-size", least=2),
            "num_flows": common.whole(num_flows, "num-flows"),
            "gradient": gradient and gradient.value,
            "resume": resume or None,
        }
        options = {name: value for name, value in given.items() if value is not None}
        budget = common.whole(max_matvecs, "max-matvecs")
        _require_applicable(options, budget, flow)
        common.require_writable(save)
        common.require_apart(save, file)
        with reporting() as report:
            matrix = common.read(file, header, skip_rows, report)
            common.require_shape(file, matrix, volume=True)
            if flow:
                result = _train_flow(matrix, save, seed, report, options)
            else:
                result = _fit_linear(matrix, save, seed, report, budget)
        print(result)
        print(f"saved as {save}", flush=True)


def _require_applicable(options: dict[str, Any], budget: int | None, flow: bool) -> None:
    if options and not flow:
        name = next(iter(options)).replace("_", "-")
        raise ValueError(f"--{name} is for a flow that is trained: leave it out, or say --flow too")
    if flow and budget is not None:
        raise ValueError(
            "--max-matvecs is for the linear fit: leave it out, and set --steps and --batch-size"
        )


def _fit_linear(
    matrix: Any, save: pathlib.Path, seed: int, report: Report | None, max_matvecs: int | None
) -> Any:
    jax = common.set_up_jax(report)
    import determinax as dx
    from determinax._keys import stream

    common.say(report, "fitting")
    key = stream(jax.random.key(seed), "fit")
    result = dx.fit_linear(matrix, key=key, max_matvecs=max_matvecs)
    _interrupts.conclude()
    dx.save(result.proposal, save)
    return result


def _train_flow(
    matrix: Any,
    save: pathlib.Path,
    seed: int,
    report: Report | None,
    options: dict[str, Any],
) -> Any:
    jax = common.set_up_jax(report)
    import determinax as dx
    from determinax._checkpoint import remove
    from determinax._keys import stream

    common.say(report, "building the flow")
    key = jax.random.key(seed)
    n = dx.as_operator(matrix).in_size()
    flow = dx.flows.cylinder(
        n,
        key=stream(key, "flow"),
        num_flows=options.pop("num_flows", 8),
        conditioning="autoregressive" if n == 3 else "coupling",
        dtype="float32",
    )
    checkpoint = save.with_name(save.name + ".checkpoint")
    common.resumable(checkpoint.exists)
    options = {"steps": 2000, **options}
    result = dx.fit(matrix, flow, key=stream(key, "fit"), checkpoint=checkpoint, **options)
    _interrupts.conclude()
    dx.save(result.proposal, save)
    remove(checkpoint)
    return result
