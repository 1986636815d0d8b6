"""Tables and figures of benchmarks/peers.py, from its rows."""

import pathlib

import matplotlib.pyplot as plt
import numpy as np

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
step. Made by `python benchmarks/peers.py`.

Where others win: on broad spectra with fewer than n products (Gaussian, tall, the residual
Jacobian) stochastic Lanczos does, by a factor of 4 to 10 over Monte Carlo and deflation; imate's
and primate's are as good as matfree's, which `Lanczos` runs and `Auto` chooses there. On the
near-isometry Monte Carlo with one frame wins; on kernels deflation with Lanczos on the rest, which
`Auto` chooses; on convolutions probing; on an operator that moves the proposal that is carried
along. And with n products, factorising does.

![error against products](peers_products.png)
![error against seconds](peers_seconds.png)
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


def draw(rows: list[dict], against: str, path: pathlib.Path) -> None:
    """A panel a problem: median error against products or seconds, with quartiles."""
    names = list(dict.fromkeys(r["problem"] for r in rows))
    columns = 4
    figure, axes = plt.subplots(
        -(-len(names) // columns), columns, figsize=(14, 3.1 * -(-len(names) // columns))
    )
    for axis in axes.flat[len(names) :]:
        axis.set_axis_off()
    for name, axis in zip(names, axes.flat, strict=False):
        for i, family in enumerate(FAMILIES):
            points = []
            for share in SHARES:
                own = [r for r in rows if (r["problem"], r["share"]) == (name, share)]
                best = best_of(own, family)
                # all of A revealed: the dotted line, and off the scale
                if best and (family, share) != ("deflated", "n"):
                    low, middle, high = np.percentile(errors_of(best), [25, 50, 75])
                    points.append((np.median([r[against] for r in best]), low, middle, high))
            if points:
                x, low, middle, high = np.maximum(np.transpose(points), 1e-14)
                style = {"color": f"C{i}", "label": family}
                axis.plot(x, middle, "s--" if family == "Auto" else "o-", ms=4, **style)
                axis.fill_between(x, low, high, color=f"C{i}", alpha=0.12, lw=0)
        axis.set(xscale="log", yscale="log")
        if against == "products":
            n = next(r["n"] for r in rows if r["problem"] == name)
            axis.axvline(n, color="k", ls=":")
            axis.set_xticks([n // 4, n // 2, n], ["n/4", "n/2", "n"])
            axis.minorticks_off()
        axis.set_title(name, fontsize=9)
    axes.flat[0].set_ylabel("median error, nats")
    legends = [axis.get_legend_handles_labels() for axis in axes.flat]
    handles = {label: h for own in legends for h, label in zip(*own, strict=True)}
    unit = "products with A and its transpose (dotted: n, the exact baseline)"
    figure.legend(handles.values(), handles.keys(), loc="lower center", ncols=len(FAMILIES))
    figure.supxlabel(unit if against == "products" else "seconds, compiled", y=0.05, fontsize=10)
    figure.tight_layout(rect=(0, 0.07, 1, 1))
    figure.savefig(path, dpi=110)


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
