"""Tables and figures of the paper's experiments, from rows alone."""

import pathlib
from collections.abc import Callable, Iterable
from typing import Any

import jax.numpy as jnp
import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from determinax import plots
from determinax.paper.matrices import (
    KL_GAP,
    MATRICES,
    MONTE_CARLO_ERROR,
    SAMPLES,
    TRAINING_PRODUCTS,
    VARIATIONAL_ERROR,
    matrix_named,
)
from determinax.proposals import AbstractProposal

Row = dict[str, Any]

DENSE = ("A1", "A2", "A3", "A4", "A5")
COLOURS = {"vde": plots.COLOURS[0], "mc": plots.COLOURS[1]}
_LABELS = {"vde": "variational", "mc": "Monte Carlo"}


def table1(rows: list[Row]) -> str:
    """Mean absolute relative error over A1..A5, as in Table 1, and Table 3's determinants."""
    title = "Table 1: mean absolute relative error over A1..A5"
    table = _table(title, rows, DENSE, "A1..A5")
    return "\n".join([table, _projective(rows, DENSE, "A1..A5"), _training(rows, DENSE)])


def table2(rows: list[Row]) -> str:
    """The convolution W: estimates and errors, as in Table 2."""
    text = _table("Table 2: the convolution W", rows, ("W",), "W")
    lines = ["| estimate | " + " | ".join(f"{n:,}" for n in SAMPLES) + " |", _rule(len(SAMPLES))]
    for method in ("vde", "mc"):
        chosen = [_values(rows, ("W",), method, n, "log_abs_det") for n in SAMPLES]
        dets = " | ".join(f"{np.mean(np.exp(v)):.4g}" for v in chosen)
        logs = " | ".join(f"{np.mean(v):.4f}" for v in chosen)
        lines += [
            f"| {_LABELS[method]}: det | {dets} |",
            f"| {_LABELS[method]}: log det | {logs} |",
        ]
    truth = matrix_named("W").log_abs_det
    lines.append(f"\nTruth: |det W| = {np.exp(truth):.4f}, log|det W| = {truth:.4f}.\n")
    return "\n".join([text, *lines, _projective(rows, ("W",), "W"), _training(rows, ("W",))])


def _table(title: str, rows: list[Row], matrices: Iterable[str], name: str) -> str:
    lines = [
        f"## {title}",
        "",
        "| samples | " + " | ".join(f"{n:,}" for n in SAMPLES) + " |",
        _rule(len(SAMPLES)),
    ]
    printed = {"vde": VARIATIONAL_ERROR[name], "mc": MONTE_CARLO_ERROR[name]}
    for method in ("vde", "mc"):
        cells = []
        for n in SAMPLES:
            errors = 100 * _values(rows, matrices, method, n, "error")
            # per matrix over the keys, then the spread between matrices and keys together
            cells.append(f"{np.mean(errors):.3g} ± {np.std(errors):.2g} %")
        lines.append(f"| {_LABELS[method]}, here | " + " | ".join(cells) + " |")
        paper = " | ".join(f"{e} %" for e in printed[method])
        lines.append(f"| {_LABELS[method]}, paper | {paper} |")
    shares = [_ok_share(rows, matrices, n) for n in SAMPLES]
    lines.append("| variational, called ok | " + " | ".join(f"{s:.0%}" for s in shares) + " |")
    keys = len({row["key"] for row in rows if row["kind"] == "estimate"})
    lines.append(
        f"\nMean ± standard deviation over the matrices and {keys} evaluation keys of each.\n"
    )
    return "\n".join(lines)


def _projective(rows: list[Row], matrices: Iterable[str], name: str) -> str:
    own = [r for r in rows if r["kind"] == "projective" and r["matrix"] in matrices]
    error, worst = np.mean([r["error"] for r in own]), max(r["error"] for r in own)
    products, seconds = (np.median([r[what] for r in own]) for what in ("products", "seconds"))
    return (
        "| no flow, one sample | error | worst of all keys | products, fit and sample "
        "| paper's training products, those with A alone | seconds, compiled |\n"
        f"{_rule(5)}\n"
        f"| projective linear | {100 * error:.1e} % | {100 * worst:.1e} % | {products:.0f} "
        f"| {TRAINING_PRODUCTS[name]:,} | {seconds:.2g} |\n"
    )


def _training(rows: list[Row], matrices: Iterable[str]) -> str:
    lines = [
        "| matrix | &#124;det&#124; | printed | KL gap, here | KL gap, paper | gradient | steps "
        "| products | seconds | steps to the paper's gap | products to it | of the paper's | n |",
        _rule(12),
    ]
    for item in (item for item in MATRICES if item.name in matrices):
        row = next((r for r in rows if r["kind"] == "training" and r["matrix"] == item.name), None)
        if row is None:
            continue
        gap = KL_GAP.get(item.name)
        reached = _reached(rows, item.name, gap) if gap else None
        steps, products, share = "---"
        if reached:
            steps, products = f"{reached['step']:,}", f"{reached['products']:,}"
            # theirs with the transpose, as ours
            share = f"{reached['products'] / (2 * TRAINING_PRODUCTS['A1..A5']):.1%}"
        lines.append(
            f"| {item.name} | {np.exp(item.log_abs_det):.4f} | {item.printed_abs_det} "
            f"| {row['kl_gap']:.2g} | {gap or '-'} | {row['config']['gradient']} "
            f"| {row['config']['steps']:,} | {row['products']:,} | {row['seconds']:,.0f} | {steps} "
            f"| {products} | {share} | {len(item.matrix)} |"
        )
    first = next(r for r in rows if r["kind"] == "training")
    used = ", ".join(f"{name} {version}" for name, version in first["versions"].items())
    lines.append(
        "\nn products would reveal the matrix; those with the transpose count. "
        f"Made with {used}; {first['machine']}.\n"
    )
    return "\n".join(lines)


def _reached(rows: list[Row], matrix: str, gap: float) -> Row | None:
    curve = (r for r in rows if r["kind"] == "curve" and r["matrix"] == matrix)
    return next((r for r in curve if r["kl_gap"] <= gap), None)


@plots.style()
def figure1(proposal: AbstractProposal, optimum: Callable, points: np.ndarray) -> Figure:
    """The learned density for the cover matrix, beside its samples and the optimum."""
    figure = plt.figure(figsize=(11, 2.7))
    panels: list[tuple[str, Any, Any]] = [
        ("optimal density", optimum, None),
        ("learned density", proposal, None),
        ("learned density and samples", proposal, points),
    ]
    every, top = [], None
    for i, (title, source, samples) in enumerate(panels):
        axes = figure.add_subplot(1, 3, i + 1, projection="mollweide")
        options = {"vmin": 0, "vmax": top, "colorbar": False}  # those of the optimum for all
        plots.density(source, n=3, points=samples, axes=axes, title=title, **options)
        every.append(axes)
        top = every[0].collections[0].get_clim()[1]
    figure.colorbar(
        every[0].collections[0], ax=every, label="density / uniform", extend="max", shrink=0.8
    )
    return figure


@plots.style()
def figure2(rows: list[Row], matrix: str = "W") -> Figure:
    """Estimates and relative errors against samples: the median over keys, and their range."""
    truth = matrix_named(matrix).log_abs_det
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8))
    for method in ("mc", "vde"):
        chosen = [r for r in rows if r["kind"] == "estimate" and r["method"] == method]
        chosen = [r for r in chosen if r["matrix"] == matrix]
        counts = sorted({r["num_samples"] for r in chosen})
        for axes, of in ((left, lambda r: np.exp(r["log_abs_det"])), (right, lambda r: r["error"])):
            values = np.array([[of(r) for r in chosen if r["num_samples"] == n] for n in counts])
            low, middle, high = np.quantile(values, [0.1, 0.5, 0.9], axis=1)
            axes.fill_between(counts, low, high, color=COLOURS[method], alpha=0.2, linewidth=0)
            axes.plot(counts, middle, "o-", color=COLOURS[method], label=_LABELS[method])
    left.axhline(np.exp(truth), color="black", linewidth=1, linestyle="--", label="truth")
    left.set_ylabel(f"estimate of |det {matrix}|")
    right.set_ylabel("absolute relative error")
    for axes in (left, right):
        axes.set(xscale="log", yscale="log", xlabel="samples (one product each)")
    left.legend(title="median over keys, 10 to 90 % band")
    return figure


@plots.style()
def figure3(optimum: Callable) -> Figure:
    """The optimal proposal for the cover matrix, all around and as a globe."""
    figure = plt.figure(figsize=(8, 2.9))
    grid = figure.add_gridspec(1, 2, width_ratios=(2, 1))
    left = figure.add_subplot(grid[0], projection="mollweide")
    right = figure.add_subplot(grid[1])
    options = {"n": 3, "vmin": 0, "colorbar": False}
    plots.density(optimum, axes=left, title="optimal proposal", **options)
    drawn = left.collections[0]
    options |= {"vmax": float(drawn.get_clim()[1]), "projection": "orthographic"}
    plots.density(optimum, axes=right, title="as a globe", **options)
    figure.colorbar(drawn, ax=[left, right], label="density / uniform", shrink=0.8)
    return figure


def optimal_log_density(matrix: np.ndarray) -> Callable:
    r"""$-n \log\|As\|$ of one point: the best proposal, unnormalised."""
    a = jnp.asarray(matrix)
    return lambda s: -a.shape[1] * jnp.log(jnp.linalg.norm(a @ s))


def save_figure(figure: Figure, path: pathlib.Path) -> None:
    """As PNG and SVG."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with plots.style(), mpl.rc_context({"svg.hashsalt": "determinax"}):
        figure.savefig(path.with_suffix(".png"))
        figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})
    plt.close(figure)


def _values(rows, matrices, method: str, num: int, name: str) -> np.ndarray:
    return np.array(
        [
            row[name]
            for row in rows
            if row["kind"] == "estimate"
            and (row["method"], row["num_samples"]) == (method, num)
            and row["matrix"] in matrices
        ]
    )


def _ok_share(rows, matrices, num: int) -> float:
    return float(np.mean(_values(rows, matrices, "vde", num, "status") == "ok"))


def _rule(columns: int) -> str:
    return "| --- |" + " ---: |" * columns
