"""Draw what takes seconds, and write the page of pictures: docs/gallery.md.

    python tools/gallery.py

Pictures of long runs (benchmarks, examples) are redrawn from their rows in docs/results, or stay as the
command under them made them.
"""

import json
import pathlib
import sys
from typing import Any, NamedTuple

import jax
import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
from rich.console import Console

import determinax as dx
from determinax import plots
from determinax.paper import demo, experiments, report
from determinax.paper.matrices import matrix_named

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs" / "results"
GALLERY = ROOT / "docs" / "gallery"
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "examples")]


class Picture(NamedTuple):
    """A picture of the page, below `docs/`."""

    path: str
    title: str
    words: str
    command: str
    phone: str = ""  # the same page, 390 pixels wide


GROUPS: dict[str, list[Picture]] = {
    "In one look": [
        Picture(
            "gallery/why.png",
            "Why the proposal matters",
            "Left: which directions s carry 1/|det A| for a 3 x 3 matrix. Right: the error of |det W|. "
            "Uniform directions miss what matters. A trained flow finds most of it. The best density is "
            "linear, and 2n products find it: then one sample is exact. Dotted: n products give W itself.",
            "make gallery",
        ),
        Picture(
            "gallery/report-1280.webp",
            "A report",
            "One file, no network: verdict, bounds, how the estimate came about. "
            "[Open this one](gallery/report.html).",
            "determinax report matrix.npy --method mc --samples 2e4 --exact --out report.html",
            "gallery/report-390.webp",
        ),
        Picture(
            "gallery/sphere-1280.webp",
            "A sphere to turn",
            "A flow beside its target, on one scale, with a slider along its layers. "
            "[Turn it](gallery/sphere.html).",
            "make gallery    # plots.sphere(proposal, path, beside=target)",
            "gallery/sphere-390.webp",
        ),
        Picture(
            "gallery/home-1280.webp",
            "This site",
            "With a search box and a reference of every public name.",
            "make docs-serve",
            "gallery/home-390.webp",
        ),
    ],
    "The paper's figures": [
        Picture(
            "results/paper-figure1.png",
            "Figure 1, by the authors' flow and settings",
            "The density that the flow learned for the cover matrix beside the optimal one, and samples of "
            "it. The streaks are the flow's, not the drawing's.",
            "determinax reproduce figure1 --preset paper",
        ),
        Picture(
            "results/best-figure1.png",
            "Figure 1, by a linear map",
            "The same objective, and a family that holds the optimum.",
            "determinax reproduce figure1 --preset best",
        ),
        Picture(
            "results/paper-figure2.png",
            "Figure 2: the error on W",
            "Ten keys for each number of samples, with the authors' flow.",
            "determinax reproduce figure2 --preset paper",
        ),
        Picture(
            "results/paper-figure3.png",
            "Figure 3: the optimal proposal",
            "Proportional to ||As||^-3, all around and as a globe.",
            "determinax reproduce figure3 --preset best",
        ),
    ],
    "Tori and spheres": [
        Picture(
            "gallery/bumps.png",
            "A flow in five seconds",
            "Four bumps on the sphere, a cylinder flow that was fitted to them, and what is between the "
            "two. [Turn it by hand, and watch its layers](gallery/sphere.html).",
            "determinax demo",
        ),
        Picture(
            "results/tori_and_spheres.png",
            "Table 1 of Rezende et al. (2020)",
            "The target and the Moebius-spline flow after 20,000 steps, in the same colours.",
            "python examples/tori_and_spheres.py",
        ),
        Picture(
            "gallery/events.png",
            "Data on a sphere",
            "800 made-up events: density by colour, the regions of 50 and 90 % outlined. "
            "[The walk](start/sphere.md).",
            "determinax density events.csv --lonlat --seconds 0 --map map.png",
        ),
        Picture(
            "results/earth_flood.png",
            "Floods",
            "4,875 events of the Flood Observatory's archive. [Measured](results/earth.md).",
            "python benchmarks/earth.py --data DIR --sets flood --map docs/results",
        ),
    ],
    "Digits": [
        Picture(
            "results/digits_loss.png",
            "An invertible network, trained with few products",
            "The loss along the training: log|det J| from 1 or 4 products a digit, and by the power "
            "series. [Measured](results/digits.md).",
            "python examples/digits_flow.py",
        ),
        Picture(
            "results/digits_samples.png",
            "Digits that it draws",
            "The first row is of the data set.",
            "python examples/digits_flow.py",
        ),
    ],
    "Operators that move": [
        Picture(
            "results/tracker.png",
            "A tracker beside Lanczos",
            "At equal products: the tracker carries what it knows from step to step, Lanczos starts from "
            "nothing. [Measured](results/tracker.md).",
            "python benchmarks/tracker.py",
        ),
        Picture(
            "results/moving_convolution.png",
            "A convolution that learns",
            "log|det K| of a layer under SGD, and the errors along the way. "
            "[Measured](results/moving_convolution.md).",
            "python examples/moving_convolution.py",
        ),
        Picture(
            "results/secant.png",
            "The secant update",
            "How many products it takes until all weights are equal, by the size of the block. "
            "[Measured](results/secant.md).",
            "python benchmarks/secant.py",
        ),
        Picture(
            "results/variance_law.png",
            "The variance law",
            "The spread of log-weights over what theory says. [Measured](results/variance_law.md).",
            "python benchmarks/variance_law.py",
        ),
    ],
    "Beside the neighbours": [
        Picture(
            "results/peers_products.png",
            "Error against products",
            "Ten problems; matfree, imate and primate do stochastic Lanczos quadrature. "
            "[Measured](results/peers.md).",
            "python benchmarks/peers.py",
        ),
        Picture(
            "results/peers_seconds.png",
            "Error against seconds",
            "The same runs.",
            "python benchmarks/peers.py",
        ),
    ],
}


def page() -> str:
    """The gallery, in Markdown."""
    parts = [
        "# Gallery\n\nEvery picture, with the command that makes it. `make gallery` draws those that take "
        "seconds, and redraws others from the rows that their runs left.\n"
    ]
    for group, pictures in GROUPS.items():
        parts.append(f"## {group}\n")
        for one in pictures:
            shot = "{ .shot }" if one.phone else ""
            parts.append(f"### {one.title}\n\n![{one.title}]({one.path}){shot}\n")
            if one.phone:
                parts.append(f"![{one.title}, on a phone]({one.phone}){{ .shot .phone }}\n")
            parts.append(f"{one.words}\n\n    {one.command}\n")
    return "\n".join(parts)


@plots.style()
def why(path: pathlib.Path, narrow: bool = False) -> None:
    """Where 1/|det A| comes from, and what three ways to draw directions make of it."""
    figure = plt.figure(figsize=(4.2, 5.8) if narrow else (9.2, 3))
    grid = figure.add_gridspec(*((2, 1) if narrow else (1, 2)))
    grid.set_height_ratios((1, 1.1)) if narrow else grid.set_width_ratios((1, 1.6))
    globe = figure.add_subplot(grid[0])
    cover = matrix_named("cover").matrix
    plots.density(
        report.optimal_log_density(cover),
        n=3,
        projection="orthographic",
        axes=globe,
        title="the directions that carry 1/|det A|",
        colorbar=False,
    )
    bar = {"location": "left", "shrink": 0.75, "aspect": 25}
    figure.colorbar(globe.images[0], ax=globe, label="best density / uniform", **bar)
    axes = figure.add_subplot(grid[1])
    rows = experiments.read_rows([RESULTS / "paper-W.jsonl"])
    for method, words in (
        ("mc", "uniform directions"),
        ("vde", "the paper's flow, after training"),
    ):
        counts, low, middle, high = _errors(rows, method)
        (line,) = axes.plot(counts, middle, "o-", color=report.COLOURS[method], label=words)
        axes.fill_between(counts, low, high, color=line.get_color(), alpha=0.2, lw=0)
    linear = experiments.read_rows([RESULTS / "projective-W.jsonl"])
    at, error = linear[0]["products"], max(row["error"] for row in linear)
    axes.plot(
        at,
        error,
        "*",
        color=plots.COLOURS[2],
        ms=14,
        label=f"fit_linear and one sample: {at} in all",
    )
    n = len(matrix_named("W").matrix)
    axes.axvline(n, color="0.3", ls=":", lw=1)
    axes.text(1.15 * n, 30 * error, "n products\ngive W itself", color="0.3", fontsize=8.5)
    axes.set(xscale="log", yscale="log", title=f"the error of |det W|, n = {n}")
    axes.set(
        xlabel="products of the estimate", ylabel="relative error of |det W|", ylim=(1e-16, 1e3)
    )
    axes.legend(loc="center right")
    figure.savefig(path)


def _errors(rows: list[dict[str, Any]], method: str) -> tuple[list[int], Any, Any, Any]:
    own = [r for r in rows if (r["kind"], r.get("method")) == ("estimate", method)]
    counts = sorted({r["num_samples"] for r in own})
    errors = [[r["error"] for r in own if r["num_samples"] == n] for n in counts]
    return counts, *np.quantile(np.array(errors), [0.1, 0.5, 0.9], axis=1)


def events(path: pathlib.Path) -> None:
    """The map of the walk of somebody with a file of events."""
    rng = np.random.default_rng(0)
    near = rng.normal([[140.0, 38.0]] * 500 + [[-72.0, -30.0]] * 250, [6.0, 4.0])
    latitude = np.rad2deg(np.arcsin(rng.uniform(-1, 1, 50)))
    far = np.stack([rng.uniform(-180, 180, 50), latitude], axis=1)
    points = dx.sphere.from_lonlat(*np.concatenate([near, far]).T)
    found = dx.density(points, key=jax.random.key(0), seconds=0, progress=False)
    plots.save_map(found, path, points=points)


def example_report(path: pathlib.Path) -> None:
    """A report to look at."""
    rng = np.random.default_rng(0)
    a = np.linalg.qr(rng.standard_normal((50, 50)))[0] + 0.02 * rng.standard_normal((50, 50))
    estimate = dx.log_abs_det(a, dx.MonteCarlo(20_000), key=jax.random.key(0), trace=True)
    exact = float(np.linalg.slogdet(a)[1])
    estimate.report(
        path, exact=exact, source="matrix.npy", command="determinax estimate matrix.npy"
    )


def from_rows() -> None:
    """Pictures of runs whose rows are kept."""
    import peers_page

    for preset in ("paper", "best"):
        rows = experiments.read_rows([RESULTS / f"{preset}-W.jsonl"])
        report.save_figure(report.figure2(rows), RESULTS / f"{preset}-figure2")
        optimum = report.optimal_log_density(matrix_named("cover").matrix)
        report.save_figure(report.figure3(optimum), RESULTS / f"{preset}-figure3")
    rows = [json.loads(line) for line in (RESULTS / "peers.jsonl").open()]
    for against in ("products", "seconds"):
        peers_page.draw(rows, against, RESULTS / f"peers_{against}.png")


def main() -> None:
    """Draw, and write the page."""
    mpl.use("Agg")
    jax.config.update("jax_enable_x64", True)
    GALLERY.mkdir(exist_ok=True)
    from_rows()
    why(GALLERY / "why.png")
    why(GALLERY / "why-narrow.png", narrow=True)  # for phones
    demo.fit_sphere(Console(), GALLERY / "bumps.png", 0, page=GALLERY / "sphere.html")
    events(GALLERY / "events.png")
    example_report(GALLERY / "report.html")
    (ROOT / "docs" / "gallery.md").write_text(page())
    print(f"{sum(map(len, GROUPS.values()))} pictures on docs/gallery.md")


if __name__ == "__main__":
    main()
