"""`determinax demo`: every method on the paper's matrices, as a table."""

import math
import pathlib
import time

import jax
import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import optax
from matplotlib.figure import Figure
from rich import box
from rich.console import Console
from rich.table import Table

from determinax import flows, plots
from determinax.api import log_abs_det
from determinax.estimate import Estimate
from determinax.methods import AbstractMethod, Exact, Lanczos, MonteCarlo, Variational
from determinax.paper.matrices import MATRICES, MONTE_CARLO_ERROR, SAMPLES, PaperMatrix
from determinax.progress import reporting
from determinax.proposals import Proposal
from determinax.training import divergence, fit, fit_density, fit_linear

mpl.use("Agg")

_COLOURS = {"exact": "green", "ok": "green", "warn": "yellow", "unreliable": "red"}


def run(num_samples: int, seed: int, out: pathlib.Path) -> None:
    """Estimate, then print the table; then fit a flow and save its picture."""
    methods: dict[str, AbstractMethod] = {
        "Exact": Exact(),
        "Monte Carlo": MonteCarlo(num_samples),
        "MC, frames": MonteCarlo(num_samples, "frames"),
        "Lanczos": Lanczos(num_probes=100, depth=20),
    }
    console = Console(width=None if Console().is_terminal else 110)
    table = Table(
        title="|det A| of the paper's matrices (relative error, verdict)",
        box=box.SIMPLE_HEAD,
        caption="green: exact or ok; yellow: warn; red: unreliable, as it says itself",
    )
    table.add_column("matrix", style="bold")
    table.add_column("truth", justify="right")
    table.add_column("printed in\nthe paper", justify="right")
    for name in methods:
        table.add_column(name, justify="right")
    costs: dict[str, tuple[int, float]] = {}
    with reporting() as report:
        if report:
            report.start(len(MATRICES) * len(methods), "estimating")
        for i, item in enumerate(MATRICES):
            cells = []
            for name, method in methods.items():
                started = time.perf_counter()
                key = jax.random.fold_in(jax.random.key(seed), len(cells))
                estimate = log_abs_det(item.matrix, method, key=key, progress=False)
                cells.append(_cell(item, estimate))
                seconds = costs.get(name, (0, 0.0))[1] + time.perf_counter() - started
                products = max(costs.get(name, (0, 0.0))[0], int(estimate.num_matvecs))
                costs[name] = (products, seconds)
                if report:
                    report.advance(i * len(methods) + len(cells), f"{item.name}, {name}")
            printed = "-" if item.printed_abs_det is None else f"{item.printed_abs_det:g}"
            truth = f"{math.exp(item.log_abs_det):.6g}"
            table.add_row(
                f"{item.name}  {len(item.matrix)}x{len(item.matrix)}", truth, printed, *cells
            )
    table.add_section()
    products = [f"{products:,}\n{seconds:.1f} s" for products, seconds in costs.values()]
    table.add_row("products\ntime", "", "", *products, style="dim")
    console.print(table)
    if num_samples in SAMPLES:
        at = SAMPLES.index(num_samples)
        paper = ", ".join(f"{errors[at]} % on {name}" for name, errors in MONTE_CARLO_ERROR.items())
        console.print(f"The paper's own Monte Carlo errors at {num_samples:,} samples: {paper}.")
    fit_variational(console, seed)
    fit_sphere(console, out / "sphere.png", seed)
    fit_projective(console, seed)


def fit_variational(console: Console, seed: int, steps: int = 400, num_samples: int = 1000) -> None:
    """The paper's kind of flow, trained for the first matrix for seconds instead of hours."""
    item = MATRICES[0]
    flow = flows.cylinder(10, key=jax.random.key(seed), num_flows=4, dtype="float32")
    trained = fit(item.matrix, flow, key=jax.random.key(seed + 1), steps=steps, batch_size=256)
    method = Variational(trained.proposal, num_samples)
    estimate = log_abs_det(item.matrix, method, key=jax.random.key(seed + 2), progress=False)
    console.print(
        f"The variational estimator on {item.name}, a flow trained for {steps} steps "
        f"({trained.seconds:.0f} s, {trained.num_matvecs:,} products; the paper's took 10,240,000 and as "
        f"many gradients): from {num_samples:,} samples |det| = {float(estimate.abs_det):.5g}, "
        f"off by {_percent(np.expm1(float(estimate.log_abs_det) - item.log_abs_det))}, "
        f"{estimate.status}, effective sample size {float(estimate.effective_sample_size or 0):.0f}."
    )


def fit_projective(console: Console, seed: int) -> None:
    """The best proposal there is, from 2n products: one sample is exact."""
    item = MATRICES[0]
    fitted = fit_linear(item.matrix, key=jax.random.key(seed), progress=False)
    one = Variational(fitted.proposal, 1)
    estimate = log_abs_det(item.matrix, one, key=jax.random.key(seed + 1), progress=False)
    error = abs(np.expm1(float(estimate.log_abs_det) - item.log_abs_det))
    console.print(
        f"A projective linear proposal for {item.name}, fitted by {fitted.num_matvecs} products: from ONE "
        f"sample |det| = {float(estimate.abs_det):.10g}, off by {100 * error:.0e} %."
    )


def fit_sphere(
    console: Console,
    out: pathlib.Path,
    seed: int,
    steps: int = 2500,
    page: pathlib.Path | None = None,
) -> None:
    """A flow on S^2 fitted to four bumps, for a few seconds, and its picture; `page`: a sphere to turn."""
    rate = optax.cosine_decay_schedule(1e-2, steps)
    key = jax.random.key(seed + 1)
    fit = fit_density(_bumps, _flow(seed), key=key, steps=steps, batch_size=512, learning_rate=rate)
    result = divergence(fit.proposal, _bumps, key=jax.random.key(seed + 2))
    picture = _picture(fit.proposal, f"flow after {steps:,} steps: KL {result.kl:.4f}")
    out.parent.mkdir(parents=True, exist_ok=True)
    picture.savefig(out, dpi=120)
    plt.close(picture)
    if page is not None:
        plots.sphere(
            fit.proposal,
            page,
            beside=_bumps,
            names=("the flow", "the target"),
            title="A flow, fitted to four bumps",
        )
    console.print(
        f"A flow on the sphere, fitted to four bumps in {fit.seconds:.1f} s: KL {result.kl:.4f} nats, "
        f"effective sample size {result.effective_sample_size:.0%}; picture in {out}."
    )


def _flow(seed: int) -> flows.Chain:
    """One cylinder, its axis along x: a density is rough at its poles, and there are no bumps there."""
    layer = flows.cylinder(
        3,
        key=jax.random.key(seed),
        num_flows=1,
        num_bins=8,
        conditioning="autoregressive",
        rotations=False,
        dtype="float32",
    )
    turn = jax.numpy.roll(jax.numpy.eye(3, dtype="float32"), 1, axis=0)
    return flows.Chain([*layer.maps, flows.Rotation(turn)])


@plots.style()
def _picture(proposal: Proposal, title: str) -> Figure:
    """The target, the fit in the same colours, and what is between them."""
    figure = plt.figure(figsize=(11, 3), layout="constrained")
    panels = [figure.add_subplot(1, 3, i + 1, projection="mollweide") for i in range(3)]
    plots.density(_bumps, n=3, axes=panels[0], title="target", vmin=0, colorbar=False)
    target = panels[0].collections[0]
    _, top = target.get_clim()
    plots.density(proposal, axes=panels[1], title=title, vmin=0, vmax=float(top), colorbar=False)
    options = {"limit": 1.0, "colorbar": False}
    plots.difference(proposal, _bumps, axes=panels[2], title="flow minus target", **options)
    bars = {"location": "bottom", "shrink": 0.5, "aspect": 30}
    figure.colorbar(target, ax=panels[:2], label="density / uniform", extend="max", **bars)
    figure.colorbar(
        panels[2].collections[0], ax=panels[2], label="difference", extend="both", **bars
    )
    return figure


def _bumps(x: jax.Array) -> jax.Array:
    """The target of Rezende et al. (2020), Table 1."""
    modes = [
        [0.0541, 0.7629, -0.6442],
        [0.2919, 0.4546, 0.8415],
        [0.2341, -0.7914, -0.5646],
        [-0.4999, -0.5788, 0.6442],
    ]
    return jax.nn.logsumexp(10 * jax.numpy.asarray(modes, x.dtype) @ x)


def _cell(item: PaperMatrix, estimate: Estimate) -> str:
    error = np.expm1(float(estimate.log_abs_det) - item.log_abs_det)
    colour = _COLOURS[estimate.status]
    return f"{float(estimate.abs_det):.6g}\n[{colour}]{_percent(error)} {estimate.status}[/]"


def _percent(error: float) -> str:
    return f"{100 * error:+.1f} %" if abs(error) > 5e-4 else f"{100 * abs(error):.0e} %"
