"""Events on the Earth: the field's benchmark of densities on S^2, by its protocol.

    python benchmarks/earth.py --data DIR [--splits 5] [--sets flood fire] [--seconds 240] [--out FILE]
    python benchmarks/earth.py --table FILE
    python benchmarks/earth.py --data DIR --sets flood --map docs/results

DIR holds volcano.csv, earthquake.csv, flood.csv and fire.csv: latitude and longitude in degrees, a row an
event, as De Bortoli et al. (2022) gathered them (from NOAA's catalogues of eruptions and earthquakes, the
Flood Observatory's archive and NASA's active fires; their repository and Mathieu and Nickel's of 2020 have
the files). Random splits of 80/10/10 %; mean negative log-likelihood of the test set in nats per area.

Every row is written as it comes, and a rerun skips the rows that are there. Flows know no floor, and the
same key gives the same flows: they are fitted once a split, and remembered for the other floors.
`--map` draws all events of the sets, without flows, and does nothing else.
`refit=False`: the protocol keeps the validation set out of the fit.
"""

import argparse
import json
import pathlib
import time
from collections.abc import Sequence

import jax
import numpy as np
from scipy.spatial import KDTree

import determinax as dx
from determinax import plots
from determinax.densities import fit as one_call
from determinax.sphere import from_lonlat, log_area

SETS = ("volcano", "earthquake", "flood", "fire")
FLOORS = (0.01, 0.1, 0.001)


def read(path: pathlib.Path) -> np.ndarray:
    """Unit vectors of a file of latitudes and longitudes."""
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    if lines[0][0].isalpha():  # names; the fires have none
        lines = lines[1:]
    values = np.array([[float(x) for x in line.split(",")[:2]] for line in lines])
    with jax.enable_x64(True):
        return np.asarray(from_lonlat(values[:, 1], values[:, 0]), float)


def split(points: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Training and validation points together, which of them are validation, and test points."""
    order = np.random.default_rng(seed).permutation(len(points))
    first, second = int(0.8 * len(points)), int(0.9 * len(points))
    return points[order[:second]], np.arange(second) >= first, points[order[second:]]


def remember_flows() -> None:
    """Let `dx.density` fit each flow once: the second time with the same key, it is there already."""
    fit, known = one_call.fit_samples, {}

    def remembered(rows, *, key, **options):
        name = rows.shape, rows[0, 0], jax.random.key_data(key).tobytes()
        if name not in known:
            known[name] = fit(rows, key=key, **options)
        return known[name]

    one_call.fit_samples = remembered


def row(points: np.ndarray, seed: int, floor: float, seconds: float) -> dict:
    """What one fit gives on the test set."""
    known, held, test = split(points, seed)
    start, cpu = time.perf_counter(), time.process_time()
    found = dx.density(
        known,
        key=jax.random.key(seed),
        validation=held,
        floor=float(np.deg2rad(floor)),
        seconds=seconds,
        refit=False,
        progress=False,
    )
    took, spent = time.perf_counter() - start, time.process_time() - cpu
    flows = [q for name, q in found.models.items() if name.startswith("flow")]
    kernels = [q for name, q in found.models.items() if name.startswith("kernels")]

    def loss(q):
        return log_area(3) - float(np.mean(q.log_density(test)))

    result: dict = {"density": loss(found.proposal)}
    result["kernels"] = loss(dx.Mixture([*kernels, dx.Uniform(3)]).with_fitted_weights(known[held]))
    if flows:
        result["flows"] = loss(dx.Mixture(flows).with_fitted_weights(known[held]))
        result["each flow"] = [loss(q) for q in flows]
    return {
        "nll": result,
        "weights": found.parts,
        "status": found.status,
        "p_value": found.verdict.p_value,
        "in_training": float(np.mean(KDTree(known[~held]).query(test)[0] < 1e-9)),
        "seconds": took,
        "cpu_seconds": spent,
        "version": dx.__version__,
    }


def table(rows: list[dict]) -> str:
    """Means and standard deviations over splits, as Markdown; what stands twice counts once."""
    rows = list({(r["set"], r["split"], r["floor"], r["flows"]): r for r in rows}.values())
    lines = [
        "| floor, degrees | model | " + " | ".join(SETS) + " |",
        "| --- | --- |" + " --- |" * 4,
    ]
    kinds = [("density", True), ("flows", True), ("density", False), ("kernels", False)]
    names = {"density": "`dx.density`", "flows": "flows alone", "kernels": "kernels alone"}
    for floor in FLOORS:
        for kind, has_flows in kinds:
            cells = [_cell(rows, name, floor, kind, has_flows) for name in SETS]
            if any(cells) and (kind != "flows" or floor == FLOORS[0]):
                label = names[kind] + ("" if has_flows or kind == "kernels" else ", `seconds=0`")
                shown = "any" if kind == "flows" else f"{floor:g}"
                lines.append(f"| {shown} | {label} | " + " | ".join(c or "-" for c in cells) + " |")
    shares = [
        np.mean([r["in_training"] for r in rows if r["set"] == name] or [np.nan]) for name in SETS
    ]
    lines.append(
        "| | test points in the training set | " + " | ".join(f"{s:.1%}" for s in shares) + " |"
    )
    return "\n".join(lines)


def _cell(rows: list[dict], name: str, floor: float, kind: str, has_flows: bool) -> str:
    values = [
        r["nll"][kind]
        for r in rows
        if (r["set"], r["floor"], r["flows"]) == (name, floor, has_flows) and kind in r["nll"]
    ]
    if not values:
        return ""
    error = f" ± {np.std(values):.2f}" if len(values) > 1 else ""
    return f"{np.mean(values):.2f}{error} ({len(values)})"


def draw(data: pathlib.Path, names: Sequence[str], folder: pathlib.Path) -> None:
    """A map of each set: all of its events, without flows."""
    for name in names:
        points = read(data / f"{name}.csv")
        found = dx.density(points, key=jax.random.key(0), seconds=0, progress=False)
        plots.save_map(found, folder / f"earth_{name}.png", points=points)


def main() -> None:
    parser = argparse.ArgumentParser(description="Densities of events on the Earth.")
    parser.add_argument("--data", type=pathlib.Path)
    parser.add_argument("--sets", nargs="+", default=SETS, choices=SETS)
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=240.0, help="for flows; 0: none")
    parser.add_argument("--floors", type=float, nargs="+", default=FLOORS)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("earth.jsonl"))
    parser.add_argument("--map", type=pathlib.Path, help="draw maps in such a folder instead")
    parser.add_argument("--table", type=pathlib.Path, help="print the table of such a file")
    options = parser.parse_args()
    if options.table:
        print(table([json.loads(line) for line in options.table.read_text().splitlines()]))
        return
    if options.data is None:
        parser.error("say where the files are: --data DIR")
    if options.map:
        draw(options.data, options.sets, options.map)
        return
    text = options.out.read_text() if options.out.exists() else ""
    rows = [json.loads(line) for line in text.splitlines()]
    done = {(r["set"], r["split"], r["floor"], r["flows"]) for r in rows}
    remember_flows()
    for seed in range(options.splits):
        for name in options.sets:
            points = read(options.data / f"{name}.csv")
            for floor in options.floors:
                for has_flows in (False, True) if options.seconds else (False,):
                    place = {"set": name, "split": seed, "floor": floor, "flows": has_flows}
                    if tuple(place.values()) in done:
                        continue
                    new = place | row(points, seed, floor, options.seconds if has_flows else 0.0)
                    rows.append(new)
                    with options.out.open("a") as file:
                        file.write(json.dumps(new) + "\n")
                    print(json.dumps({**place, **new["nll"], "s": new["cpu_seconds"]}), flush=True)
            # programs of one set are of no use to the next, and a process may map so many files only
            jax.clear_caches()
    print(table(rows))


if __name__ == "__main__":
    main()
