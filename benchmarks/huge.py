"""A million unknowns: 1,000 products with operators whose determinant is known, and the memory they take.

    python benchmarks/huge.py                # n = 10^6
    python benchmarks/huge.py --n 10000000 --products 64

Each operator runs in a process of its own: `ru_maxrss` is the most that a process ever had.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from typing import Any

import numpy as np

OPERATORS = ("fft", "convolution", "host")


def fft(n: int) -> tuple[Any, float]:
    """A circulant near-isometry, by its spectrum: two FFTs a product."""
    import jax.numpy as jnp

    # the spectrum of a real circulant: gains near 1, the same at k and n - k
    k = np.arange(n // 2 + 1)
    gains = np.exp(2e-4 * (np.cos(2 * np.pi * k * 7 / n) + 0.5))
    truth = 2 * np.sum(np.log(gains)) - np.log(gains[0])
    truth -= np.log(gains[-1]) if n % 2 == 0 else 0.0
    spectrum = jnp.asarray(gains, float)

    def product(x: Any) -> Any:
        return jnp.fft.irfft(spectrum * jnp.fft.rfft(x), n).astype(x.dtype)

    return product, float(truth)


def convolution(n: int) -> tuple[Any, float]:
    """A circular 3 x 3 window on an image, near the identity; its spectrum is the window's."""
    import jax.numpy as jnp

    import determinax as dx

    side = round(n**0.5)
    window = np.zeros((3, 3))
    window[1, 1], window[0, 1], window[2, 2] = 1.001, 1e-4, -1e-4
    image = np.zeros((side, side))
    for i in range(3):
        for j in range(3):
            image[(i - 1) % side, (j - 1) % side] = window[i, j]
    truth = np.sum(np.log(np.abs(np.fft.fft2(image))))
    operator = dx.operators.convolution(jnp.asarray(window, float), (side, side), "circular")
    return operator, float(truth)


def host(n: int) -> tuple[Any, float]:
    """The product of a sparse matrix on the host: a bidiagonal one near the identity."""
    import scipy.sparse.linalg

    diagonal = 1 + 1e-4 * np.cos(np.arange(n))
    offsets: Any = [0, 1]
    sparse = scipy.sparse.diags_array([diagonal, np.full(n - 1, 1e-4)], offsets=offsets).tocsr()
    operator = scipy.sparse.linalg.aslinearoperator(sparse)
    return operator, float(np.sum(np.log(diagonal)))


def work(name: str, n: int, num: int, how: str, dtype: str) -> None:
    import jax

    jax.config.update("jax_enable_x64", dtype == "float64")
    import jax.numpy as jnp

    import determinax as dx
    from determinax.operators import traits

    operator, truth = {"fft": fft, "convolution": convolution, "host": host}[name](n)
    example = jnp.zeros(n) if name == "fft" else None
    admitted = dx.as_operator(operator, example)
    method = dx.MonteCarlo(num) if how == "mc" else dx.Auto(max_seconds=60)
    size = dx.MonteCarlo(num).plan(traits(admitted)).size
    itemsize = admitted.in_structure().dtype.itemsize
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    began = time.perf_counter()
    found = dx.log_abs_det(admitted, method, key=jax.random.key(0), progress=False)
    value, error = float(found.log_abs_det), float(found.standard_error)
    row = {
        "operator": name,
        "how": how,
        "n": admitted.in_size(),
        "products": int(found.num_matvecs),
        "truth": truth,
        "value": value,
        "error": error,
        "off": (value - truth) / error if error else 0.0,
        "status": found.status,
        "seconds": time.perf_counter() - began,
        "chunk_mb": size * admitted.in_size() * itemsize / 2**20,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - before,
        "note": next((note for note in found.notes if note.startswith("Auto")), ""),
    }
    print(json.dumps(row))


def main(n: int, num: int, hows: list[str], dtype: str, names: list[str]) -> None:
    columns = "n|products|truth|estimate|off, in errors|verdict|s|chunk MB|peak MB|peak/chunk"
    head = f"operator|method, {dtype}|{columns}"
    print(f"|{head}|\n|{'---|' * 12}")
    notes = []
    for how in hows:
        for name in names:
            argv = [sys.executable, __file__, "--work", name, how, "--n", str(n)]
            done = subprocess.run(
                [*argv, "--products", str(num), "--dtype", dtype],
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                print(f"| {name} | {how} | failed: {done.stderr.strip().splitlines()[-1]} |")
                continue
            row = json.loads(done.stdout)
            cells = [name, how, f"{row['n']:,}", f"{row['products']:,}", f"{row['truth']:.5f}"]
            cells += [
                f"{row['value']:.5f} ± {row['error']:.2g}",
                f"{row['off']:.2f}",
                row["status"],
            ]
            cells += [f"{row['seconds']:.0f}", f"{row['chunk_mb']:.0f}", f"{row['peak_mb']:.0f}"]
            print(
                "|",
                " | ".join([*cells, f"{row['peak_mb'] / row['chunk_mb']:.2f}"]),
                "|",
                flush=True,
            )
            notes += [f"{name}: {row['note']}"] if row["note"] else []
    print(*notes, sep="\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", nargs=2)
    parser.add_argument("--n", type=int, default=10**6)
    parser.add_argument("--products", type=int, default=1000)
    parser.add_argument("--methods", nargs="+", default=["mc", "auto"])
    parser.add_argument("--dtype", default="float64", choices=["float32", "float64"])
    parser.add_argument("--operators", nargs="+", default=OPERATORS)
    arguments = parser.parse_args()
    if arguments.work:
        work(arguments.work[0], arguments.n, arguments.products, arguments.work[1], arguments.dtype)
    else:
        names = list(arguments.operators)
        main(arguments.n, arguments.products, arguments.methods, arguments.dtype, names)
