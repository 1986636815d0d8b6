"""Densities where the truth is known: how far a fit is from it, what tests and regions are worth.

    python benchmarks/known_truth.py [--cases two six ...] [--seconds 0] [--out FILE]
    python benchmarks/known_truth.py --table FILE

Every row is written as it comes, and a rerun skips the rows that are there. `gap` is the mean of log p -
log q over 20,000 new points of the truth p, in nats. `--seconds 0` leaves flows out of `dx.density`.
"""

import argparse
import json
import pathlib
import time

import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats

import determinax as dx
from determinax._keys import stream

SEEDS = {"two": 10, "six": 10, "uniform": 10, "p_values": 200, "power": 100, "regions": 100}
SEEDS |= {"pulled_back": 8, "conditional": 5}


def random_bumps(key, n: int, num: int, low: float, high: float) -> dx.VonMisesFisher:
    """Bumps at random places, with concentrations between `low` and `high`."""
    centres = dx.sphere.uniform(stream(key, "centres"), n, num).T
    spread = jax.random.uniform(stream(key, "widths"), (num,))
    return dx.VonMisesFisher(centres, low * (high / low) ** spread)


def gap_to(truth, key, num: int, seconds: float) -> dict:
    points = truth.sample(stream(key, "points"), num)
    found = dx.density(points, key=key, seconds=seconds, progress=False)
    new = truth.sample(stream(key, "new"), 20_000)
    gap = np.asarray(truth.log_density(new) - found.log_density(new), float)
    return {"gap": float(gap.mean()), "status": found.status, "weights": found.parts}


def two(key, seconds):
    centres = np.array([[0.0, 0.6, 0.8], [0.8, -0.6, 0.0]])
    return gap_to(
        dx.VonMisesFisher(centres, np.array([10.0, 50.0]), np.array([0.4, 0.6])), key, 2000, seconds
    )


def six(key, seconds):
    return gap_to(random_bumps(key, 8, 6, 10.0, 60.0), key, 5000, seconds)


def uniform(key, seconds):
    return gap_to(dx.Uniform(3), key, 3000, seconds)


def p_values(key, seconds):
    """Under the truth: uniform points, and points of four bumps against the bumps themselves."""
    even = dx.uniformity(dx.Uniform(3).sample(stream(key, "even"), 300), key=key)
    truth = random_bumps(jax.random.key(0), 3, 4, 10.0, 60.0)
    points = truth.sample(stream(key, "points"), 300)
    fit = dx.goodness_of_fit(truth, points, key=key)
    return {"rayleigh": even.rayleigh, "energy": even.energy, "goodness": fit}


def power(key, seconds):
    """Points of four bumps, a fit that lacks one: seen at 5 %?"""
    truth = random_bumps(key, 3, 4, 10.0, 60.0)
    lacking = dx.VonMisesFisher(truth.centres().T[:3], truth.concentrations()[:3])
    points = truth.sample(stream(key, "points"), 300)
    return {"goodness": dx.goodness_of_fit(lacking, points, key=key)}


def pulled_back(key, seconds):
    """A flow fitted to three of four bumps: are points uniform that come back through it?"""
    truth = random_bumps(key, 3, 4, 10.0, 60.0)
    three = dx.VonMisesFisher(truth.centres().T[:3], truth.concentrations()[:3])
    points = three.sample(stream(key, "fitted"), 2000)
    flow = dx.fit_samples(points, key=key, steps=1000, progress=False).proposal
    assert isinstance(flow, dx.Proposal)
    found = {}
    for name, law in (("three", three), ("four", truth)):
        new = law.sample(stream(key, name), 300)
        found[name] = dx.uniformity(flow.pull(new.T)[0].T, key=key).energy
    return found


def regions(key, seconds):
    truth = random_bumps(key, 3, 3, 5.0, 50.0)
    points = truth.sample(stream(key, "points"), 1000)
    found = dx.density(points, key=key, seconds=seconds, progress=False)
    new = truth.sample(stream(key, "new"), 10_000)
    return {str(p): float(found.region(p).contains(new).mean()) for p in (0.5, 0.9)}


def conditional(key, seconds):
    """A bump that wanders along the equator with x: an ensemble of three flows, 4,000 points."""
    x = jax.random.uniform(stream(key, "x"), (24_000,), minval=-1, maxval=1)
    north = dx.VonMisesFisher(np.eye(3)[:1], 20.0)
    raw = north.sample(stream(key, "points"), len(x))
    c, s = jnp.cos(1.5 * x), jnp.sin(1.5 * x)
    points = jnp.stack([c * raw[:, 0] - s * raw[:, 1], s * raw[:, 0] + c * raw[:, 1], raw[:, 2]], 1)
    log_p = north.log_density(raw)[4000:]
    fit = dx.fit_samples(points[:4000], key=key, context=x[:4000], members=3, progress=False)

    def gap(q):
        return float(jnp.mean(log_p - q.log_density(points[4000:], x[4000:, None])))

    return {"gap": gap(fit.proposal), "each": [gap(one.proposal) for one in fit.members]}


CASES = {
    f.__name__: f for f in (two, six, uniform, p_values, power, pulled_back, regions, conditional)
}


def table(rows: list[dict]) -> str:
    """What the rows say, as Markdown."""

    def of(case, name):
        return np.array([r[name] for r in rows if r["case"] == case and name in r])

    lines = ["| case | runs | result |", "| --- | ---: | --- |"]
    for case in CASES:
        own = [r for r in rows if r["case"] == case]
        if not own:
            continue
        if case in ("two", "six", "uniform", "conditional"):
            gaps = of(case, "gap")
            said = f"gap {gaps.mean():.4f} nats on average, {np.abs(gaps).max():.4f} at most"
            statuses = {r["status"] for r in own if "status" in r}
            said += f"; verdict: {', '.join(sorted(statuses))}" if statuses else ""
            each = np.ravel([r["each"] for r in own if "each" in r])
            said += f"; of one flow {each.mean():.4f}, {each.max():.4f}" if each.size else ""
        elif case == "p_values":
            tests = {
                n: scipy.stats.kstest(of(case, n), "uniform").pvalue
                for n in own[0]
                if n in ("rayleigh", "energy", "goodness")
            }
            said = ", ".join(f"{n}: Kolmogorov-Smirnov p = {p:.2f}" for n, p in tests.items())
        elif case == "power":
            said = f"rejected at 5 %: {np.mean(of(case, 'goodness') < 0.05):.2f} of sets"
        elif case == "pulled_back":
            missed, right = (np.mean(of(case, name) < 0.05) for name in ("four", "three"))
            said = f"rejected at 5 %: {missed:.2f} of sets; of points of the three: {right:.2f}"
        else:
            said = ", ".join(
                f"region({p}): coverage {of(case, p).mean():.3f} ± {of(case, p).std():.3f}"
                for p in ("0.5", "0.9")
            )
        lines.append(f"| {case} | {len(own)} | {said} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="Densities whose truth is known.")
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--seconds", type=float, default=0.0, help="for flows; 0: none")
    parser.add_argument("--seeds", type=int, help="of every case, at most")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("known_truth.jsonl"))
    parser.add_argument("--table", type=pathlib.Path, help="print the table of such a file")
    options = parser.parse_args()
    if options.table:
        print(table([json.loads(line) for line in options.table.read_text().splitlines()]))
        return
    text = options.out.read_text() if options.out.exists() else ""
    rows = [json.loads(line) for line in text.splitlines()]
    done = {(r["case"], r["seed"]) for r in rows}
    for case in options.cases:
        for seed in range(min(SEEDS[case], options.seeds or SEEDS[case])):
            if (case, seed) in done:
                continue
            start = time.process_time()
            new = {"case": case, "seed": seed, **CASES[case](jax.random.key(seed), options.seconds)}
            new["cpu_seconds"] = time.process_time() - start
            rows.append(new)
            with options.out.open("a") as file:
                file.write(json.dumps(new) + "\n")
    print(table(rows))


if __name__ == "__main__":
    main()
