"""What the shell costs: a second call of every method beside the bare compiled core, in one run.

    python benchmarks/overhead.py [--write]

prints milliseconds and their ratio; with --write also docs/results/overhead.md.
"""

import argparse
import pathlib
import statistics
import time

import jax
import numpy as np

import determinax as dx
from determinax import _engine
from determinax.methods import AbstractSelector, Selection
from determinax.operators import NO_PRODUCTS

N, REPEATS, ROUNDS = 10, 10, 21
PAGE = pathlib.Path(__file__).parent.parent / "docs" / "results" / "overhead.md"


def methods() -> dict[str, dx.methods.AbstractMethod]:
    linear = dx.Proposal(dx.flows.projective_linear(N))
    flow = dx.Proposal(dx.flows.cylinder(N, key=jax.random.key(0), num_flows=2))
    return {
        "MonteCarlo(1000)": dx.MonteCarlo(1000),
        "MonteCarlo(1000, frames)": dx.MonteCarlo(1000, "frames"),
        "Variational, linear, 1000": dx.Variational(linear, 1000),
        "Variational, flow, 100": dx.Variational(flow, 100),
        "Lanczos(30, 10)": dx.Lanczos(30, 10),
        "Deflated(4)": dx.Deflated(4),
        "Exact": dx.Exact(),
        "Auto": dx.Auto(),
        "Probed (5, 5)": dx.Probed(pattern=(5, 5)),
    }


def core(method, operator, key) -> jax.Array:
    """What a method computes, without the shell: its choice where it makes one, then its program."""
    if isinstance(method, AbstractSelector):
        found = method.select(operator, key, NO_PRODUCTS, None)
        assert isinstance(found, Selection)  # of a matrix that leaves something to be computed
        method, operator = found.method, found.operator
    return _engine.compiled_run(method, operator, key).log_abs_det


def milliseconds(*calls) -> list[float]:
    """Of each call, the median over rounds of the mean of a few; the calls take turns."""
    for call in calls:
        jax.block_until_ready(call())
    rounds = [[] for _ in calls]
    for _ in range(ROUNDS):
        for call, seen in zip(calls, rounds, strict=True):
            began = time.perf_counter()
            for _ in range(REPEATS):
                jax.block_until_ready(call())
            seen.append((time.perf_counter() - began) / REPEATS)
    return [1e3 * statistics.median(seen) for seen in rounds]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the page, too")
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    rng = np.random.default_rng(0)
    a = np.linalg.qr(rng.standard_normal((N, N)))[0] + 0.05 * rng.standard_normal((N, N))
    key = jax.random.key(0)
    operator = dx.as_operator(a)
    lines = [
        "| method | second call, ms | bare compiled core, ms | at most 1.2 x + 1 ms |",
        "| --- | ---: | ---: | --- |",
    ]
    for name, method in methods().items():
        whole, bare = milliseconds(
            lambda m=method: dx.log_abs_det(a, m, key=key).log_abs_det,
            lambda m=method: core(m, operator, key),
        )
        met = "yes" if whole <= 1.2 * bare + 1 else "no"
        lines.append(f"| {name} | {whole:.2f} | {bare:.2f} | {met} |")
        print(lines[-1], flush=True)
    text = "\n".join(lines)
    print(text)
    if options.write:
        PAGE.write_text(
            f"# What a second call costs\n\nA dense {N} x {N} matrix in float64, the same call again "
            "and again in one process, beside the compiled core called directly; medians in one run. "
            "Auto and Probed look at values: their core is that look, and the program it chose. "
            "A second call compiles nothing, which the tests count. Made by "
            "`python benchmarks/overhead.py --write`.\n\n"
            f"{text}\n"
        )


if __name__ == "__main__":
    main()
