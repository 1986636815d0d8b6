"""Ordinary matrices: `Auto` beside numpy.linalg.slogdet and SuperLU, in one run and a warm process.

    python benchmarks/everyday.py [--write] [--only grid diagonal] [--but random]

prints a table; with --write its rows also go into docs/results/everyday.md. SuperLU gets a minute, in a
process of its own.
"""

import argparse
import multiprocessing
import pathlib
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import scipy.sparse
import scipy.sparse.linalg
import scipy.spatial

import determinax as dx

PAGE = pathlib.Path(__file__).parent.parent / "docs" / "results" / "everyday.md"
PATIENCE = 60.0
HEAD = (
    "| matrix | Auto, s | slogdet or SuperLU, s | ratio | within 1.5 x + 0.3 s | relative difference "
    "| how |\n| --- | ---: | ---: | ---: | --- | ---: | --- |"
)
WORDS = (
    "# Ordinary matrices\n\n`Auto()` in a warm process beside `numpy.linalg.slogdet` (dense) and "
    "`scipy.sparse.linalg.splu` with its defaults (sparse), in one run on two cores. Seconds are those of "
    "the whole call, the door's checks and the condition estimate included. Grids and graphs are "
    "Laplacians + I/10. Made by `python benchmarks/everyday.py --write`.\n\n"
)
# their stubs know less than they do
diags_array: Any = scipy.sparse.diags_array
tree: Any = vars(scipy.spatial)["cKDTree"]


def grid(*sides: int) -> Any:
    """The Laplacian of a grid, and I/10."""
    total: Any = None
    for side in sides:
        line = diags_array([-1.0, 2, -1], offsets=[-1, 0, 1], shape=(side, side))
        total = line if total is None else scipy.sparse.kronsum(total, line)
    assert total is not None
    return scipy.sparse.csr_array(total + 0.1 * scipy.sparse.eye_array(total.shape[0]))


def random_sparse(n: int) -> Any:
    """Three entries a row at random places, and a diagonal."""
    rng = np.random.default_rng(0)
    places = np.repeat(np.arange(n), 3), rng.integers(0, n, 3 * n)
    a = scipy.sparse.csr_array((rng.normal(size=3 * n), places), shape=(n, n))
    return scipy.sparse.csr_array(a + 5 * scipy.sparse.eye_array(n))


def geometric(n: int, degree: float = 7.0) -> Any:
    """The Laplacian of points in the unit square that are near each other, and I/10."""
    points = np.random.default_rng(0).uniform(size=(n, 2))
    radius = (degree / (np.pi * n)) ** 0.5
    pairs = tree(points).query_pairs(radius, output_type="ndarray")
    ones = np.ones(len(pairs))
    half = scipy.sparse.csr_array((ones, (pairs[:, 0], pairs[:, 1])), shape=(n, n))
    links = half + half.T
    diagonal = scipy.sparse.diags_array(np.asarray(links.sum(axis=1)) + 0.1)
    return scipy.sparse.csr_array(diagonal - links)


def diagonals(n: int, width: int) -> Any:
    parts = [np.random.default_rng(0).uniform(2, 3, n)] + [-np.ones(n - 1)] * (width - 1)
    return scipy.sparse.csr_array(diags_array(parts, offsets=[0, 1, -1][:width]))


def dense(n: int) -> Any:
    return np.random.default_rng(0).standard_normal((n, n))


CASES: dict[str, Callable[[], Any]] = {
    "dense, n = 300": lambda: dense(300),
    "dense, n = 5,000": lambda: dense(5000),
    "grid 100 x 100": lambda: grid(100, 100),
    "grid 316 x 316": lambda: grid(316, 316),
    "grid 40 x 40 x 40": lambda: grid(40, 40, 40),
    "random sparse, n = 20,000": lambda: random_sparse(20_000),
    "diagonal, n = 10^6": lambda: diagonals(10**6, 1),
    "tridiagonal, n = 10^6": lambda: diagonals(10**6, 3),
    "geometric graph, n = 50,000": lambda: geometric(50_000),
}


def theirs(matrix: Any, results: Any) -> None:
    """log|det| and seconds of the tool that people would use instead."""
    began = time.perf_counter()
    if scipy.sparse.issparse(matrix):
        lu = scipy.sparse.linalg.splu(scipy.sparse.csc_array(matrix))
        value = float(np.sum(np.log(np.abs(lu.U.diagonal()))))
    else:
        value = float(np.linalg.slogdet(matrix)[1])
    results.put((value, time.perf_counter() - began))


def in_time(matrix: Any) -> tuple[float, float] | None:
    """The same in a process of its own; None where it does not end within a minute."""
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    process = context.Process(target=theirs, args=(matrix, results))
    process.start()
    try:
        return results.get(timeout=PATIENCE + 5)
    except Exception:  # the queue's Empty
        return None
    finally:
        process.kill()
        process.join()


def row(name: str, matrix: Any, key: Any) -> str:
    if not scipy.sparse.issparse(matrix):
        dx.log_abs_det(matrix, key=key).log_abs_det.block_until_ready()  # warm: compiled once
    began = time.perf_counter()
    estimate = dx.log_abs_det(matrix, key=key)
    value = float(estimate.log_abs_det)
    seconds = time.perf_counter() - began
    found = in_time(matrix)
    how = estimate.method.removeprefix("exact, ")
    if found is None:
        off = f"± {float(estimate.standard_error):.2g} ({estimate.status})"
        return f"| {name} | {seconds:.2f} | not within a minute | | | {off} | {how} |"
    other, lasted = found
    met = "yes" if seconds <= 1.5 * lasted + 0.3 else "no"
    off = f"{abs(value - other) / abs(other):.0e}"
    return f"| {name} | {seconds:.2f} | {lasted:.2f} | {seconds / lasted:.2f} | {met} | {off} | {how} |"


def write(rows: dict[str, str]) -> None:
    """Into the page, in the place of those of the same matrices."""
    text = PAGE.read_text() if PAGE.exists() else ""
    old = {line.split(" | ")[0][2:]: line for line in text.splitlines()}
    lines = [rows.get(name, old.get(name, "")) for name in CASES]
    PAGE.write_text("\n".join([WORDS + HEAD, *filter(None, lines)]) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the page, too")
    parser.add_argument("--only", nargs="*", default=[""], help="cases whose name has one of these")
    parser.add_argument("--but", nargs="*", default=[], help="without those that have one of these")
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    key = jax.random.key(0)
    dx.log_abs_det(np.eye(3), key=key)
    dx.log_abs_det(grid(5, 5), key=key)
    print(HEAD, flush=True)
    rows = {}
    for name, make in CASES.items():
        if any(word in name for word in options.only) and not any(w in name for w in options.but):
            rows[name] = row(name, make(), key)
            print(rows[name], flush=True)
    if options.write:
        write(rows)


if __name__ == "__main__":
    main()
