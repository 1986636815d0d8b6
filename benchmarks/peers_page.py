"""Tables and figures of benchmarks/peers.py, from its rows."""

import pathlib
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from determinax import plots

# of the n products that give A itself
SHARES = {"n/4": 4, "n/2": 2, "n": 1}


INTRODUCTION = """# Beside the neighbours

Median error of log|det| in nats over {seeds} keys ({more} on the near-isometry), with quartiles, at
equal products: those with A and with its transpose, of pilots and of checks, all count. matfree,
imate and primate do stochastic Lanczos quadrature; each is shown at the best of depths 2, 5, 10 and
20 in hindsight, which nobody knows beforehand. CoLA (0.0.7) cannot be held to such budgets:
whatever batch size it is given, it draws min(100, n) probes. imate takes matrices only and hangs on
tall ones, where it is left out. primate's answer is NaN at times, which counts as an infinite
error. On kernels and the larger convolution imate and primate have a quarter of the keys. With n
products `Exact()` and `Deflated(n)` are exact on all of these; the dotted lines below stand there.
The best fixed choice is that of the first four columns with the smaller median, in hindsight too:
`Lanczos` runs matfree. A projective linear proposal fitted from scratch costs 2n products, n more
than the answer, so it is not among these; it is in the last table, where it is carried from step to
step. Made by `python benchmarks/peers.py`. Seconds, in the second picture, are of calls
that compile nothing, ours and theirs in one run on two idle cores, medians of three keys
(`--seconds 4`). Those of the near-isometry, of the 2-D kernel and of the larger convolution are still
of version 0.1.0, whose `deflated`, `probed` and `Auto` compiled at every call.

Where others win: on broad spectra with fewer than n products (Gaussian, tall, the residual
Jacobian) stochastic Lanczos does, by a factor of 4 to 10 over Monte Carlo and deflation; imate's
and primate's are as good as matfree's, which `Lanczos` runs and `Auto` chooses there. On the
near-isometry Monte Carlo with one frame wins; on kernels deflation with Lanczos on the rest, which
`Auto` chooses; on convolutions probing; on an operator that moves the proposal that is carried
along. And with n products, factorising does.

[![error against products](peers_products.png)](peers_products.png)
[![error against seconds](peers_seconds.png)](peers_seconds.png)
"""

DEFLATION = """
## Frames: does more of A revealed leave less error?

`Deflated`, forward products only, median error in nats.

| problem | n/4 products | n/2 products | smaller |
| --- | ---: | ---: | --- |
"""

MOVING = """n = 64, condition number 3, 1 % drift a step, 16 products a step (for the carried proposal
8 and 8 transposed, of which the 8 forward ones give the estimate before they update the proposal).

| method | median error (quartiles) |
| --- | --- |
"""


def quartiles(values: list[float]) -> str:
    with np.errstate(invalid="ignore"):
        low, middle, high = np.percentile(values, [25, 50, 75])
    return f"{middle:.2g} ({low:.1g} to {high:.1g})"


def best_of(own: list[dict], family: str) -> list[dict]:
    """The rows of the family's best method, by its median error."""
    found: dict[str, list[dict]] = {}
    for row in own:
        if row["method"].split(",")[0] == family:
            found.setdefault(row["method"], []).append(row)
    return min(found.values(), key=lambda rows: np.median(errors_of(rows)), default=[])


def errors_of(rows: list[dict]) -> list[float]:
    return [row["error"] for row in rows]


# what Auto chooses from; `Lanczos` is matfree's
OWN = ("Monte Carlo", "deflated", "probed", "matfree")
FAMILIES = (*OWN, "imate", "primate", "Auto")


def table(rows: list[dict], share: str) -> list[str]:
    lines = [
        "| problem | products | "
        + " | ".join(FAMILIES)
        + " | Auto / best fixed choice | Auto chose |",
        "| --- " * (len(FAMILIES) + 4) + "|",
    ]
    for name in dict.fromkeys(r["problem"] for r in rows):
        own = [r for r in rows if (r["problem"], r["share"]) == (name, share)]
        best = {family: best_of(own, family) for family in FAMILIES}
        medians = {family: np.median(errors_of(b)) for family, b in best.items() if b}
        auto, fixed = medians.get("Auto"), min(medians[f] for f in OWN if f in medians)
        # below a millionth of a nat, a factor of two means nothing
        ratio = "-" if auto is None else f"{max(auto, 1e-6) / max(fixed, 1e-6):.2g}"
        cells = [quartiles(errors_of(b)) if b else "-" for b in best.values()]
        chosen = ", ".join(sorted({r["chosen"] for r in own if r["chosen"]})) or "-"
        budget = own[0]["budget"]
        lines.append(f"| {name} | {budget} | {' | '.join(cells)} | {ratio} | {chosen} |")
    return [*lines, ""]


# hollow squares for Auto, which stands where the method stands that it chose
MARKERS: dict[str, str] = dict(zip(FAMILIES, "oDv^<>s", strict=True))


@plots.style()
def draw(rows: list[dict], against: str, path: pathlib.Path) -> None:
    """A panel a problem: median error against products or seconds, with quartiles."""
    names = list(dict.fromkeys(r["problem"] for r in rows))
    columns = 5 if len(names) % 5 == 0 else 4
    lines = -(-len(names) // columns)
    figure, axes = plt.subplots(lines, columns, figsize=(2.7 * columns, 2.5 * lines + 0.5))
    for axis in axes.flat[len(names) :]:
        axis.remove()
    for name, axis in zip(names, axes.flat, strict=False):
        own = [r for r in rows if r["problem"] == name]
        for family, colour in zip(FAMILIES, plots.COLOURS, strict=True):
            _curve(axis, own, family, colour, against)
        _axes(axis, own, against)
        axis.set_title(name.replace(", ", ",\n"), fontsize=9.5)
    legends = [axis.get_legend_handles_labels() for axis in axes.flat]
    handles = {label: h for each in legends for h, label in zip(*each, strict=True)}
    ordered = [family for family in FAMILIES if family in handles]
    figure.legend(
        [handles[f] for f in ordered], ordered, loc="outside upper center", ncols=len(ordered)
    )
    unit = "products with A and its transpose (n of them give A itself: and `Exact` is exact)"
    seconds = "seconds of a call that compiles nothing"
    figure.supxlabel(unit if against == "products" else seconds, fontsize=10)
    figure.supylabel("error of log|det|, nats: median and quartiles over keys", fontsize=10)
    figure.savefig(path)


def _curve(axis: Axes, rows: list[dict], family: str, colour: str, against: str) -> None:
    points = []
    for share in SHARES:
        best = best_of([r for r in rows if r["share"] == share], family)
        # with n products all of A is revealed: off the scale
        if best and (family, share) != ("deflated", "n"):
            low, middle, high = np.percentile(errors_of(best), [25, 50, 75])
            points.append((np.median([r[against] for r in best]), low, middle, high))
    if not points:
        return
    x, low, middle, high = np.maximum(np.transpose(points), 1e-14)
    auto = family == "Auto"
    face: dict[str, Any] = (
        {"mfc": "none", "ms": 8, "ls": "--", "zorder": 3} if auto else {"ms": 4.5}
    )
    axis.plot(x, middle, color=colour, marker=MARKERS[family], label=family, **face)
    if len(x) > 1 and np.all(np.isfinite(high)):
        axis.fill_between(x, low, high, color=colour, alpha=0.1, lw=0)


def _axes(axis: Axes, rows: list[dict], against: str) -> None:
    """Decades where there are some; otherwise whole labels between them."""
    axis.set(xscale="log", yscale="log")
    axis.margins(0.12)
    for scale, limits in ((axis.xaxis, axis.get_xlim()), (axis.yaxis, axis.get_ylim())):
        if np.ptp(np.log10(limits)) < 1.5:
            scale.set_minor_locator(LogLocator(subs=(2, 5)))
            scale.set_minor_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
            scale.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
        else:
            scale.set_minor_locator(NullLocator())
    if against == "products":
        n = rows[0]["n"]
        ticks = {n / 4: "n/4", n / 2: "n/2", n: "n"}
        least = min(r["products"] for r in rows)
        if least < n / 10:
            ticks = {least: str(least), n / 4: "n/4", n: "n"}
        axis.set_xticks(list(ticks), list(ticks.values()))
        axis.xaxis.set_minor_locator(NullLocator())
        axis.axvline(n, color="0.3", ls=":", lw=1)


def deflation(rows: list[dict]) -> str:
    """Whether n/2 products leave a smaller median error than n/4, problem by problem."""
    own = [row for row in rows if row["method"] == "deflated"]
    pairs = {
        name: [
            np.median(errors_of([r for r in own if (r["problem"], r["share"]) == (name, share)]))
            for share in ("n/4", "n/2")
        ]
        for name in dict.fromkeys(row["problem"] for row in own)
    }
    lines = [
        f"| {name} | {a:.3g} | {b:.3g} | {'yes' if b < a else 'NO'} |"
        for name, (a, b) in pairs.items()
    ]
    return DEFLATION + "\n".join(lines) + "\n"


def moving_table(rows: list[dict]) -> str:
    lines = MOVING
    for name in dict.fromkeys(r["method"] for r in rows):
        errors = errors_of([r for r in rows if r["method"] == name])
        lines += f"| {name} | {quartiles(errors)} |\n"
    return lines
