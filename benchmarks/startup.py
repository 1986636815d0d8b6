"""How long it takes to start: importing the package, and commands that compute nothing.

    python benchmarks/startup.py [--rounds 7]

Every round runs each once, in processes of their own and in turn, so that a busy machine is busy for
all of them; medians and ratios are over the rounds. Seconds are those of the processor: on an idle core
they are those of the clock, which are beside them.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time

BASE = "import jax, equinox, lineax, optax"
CODES = {
    BASE: BASE,
    "import determinax; determinax.log_abs_det": "import determinax; determinax.log_abs_det",
    "from determinax import *": "from determinax import *",
    "import determinax": "import determinax",
    "(python alone)": "pass",
}
COMMANDS = {
    "determinax --help": ["--help"],
    "determinax estimate --help": ["estimate", "--help"],
    "determinax --version": ["--version"],
    "determinax estimate missing.npy": ["estimate", "missing.npy"],
    "determinax estimate bad.csv": ["estimate", "bad.csv"],
    "determinax estimate bad.csv --method magic": ["estimate", "bad.csv", "--method", "magic"],
    "determinax estimate bad.csv --samples 9": ["estimate", "bad.csv", "--samples", "9"],
}


def seconds(words: list[str], folder: str) -> tuple[float, float]:
    """Of the processor and of the clock, for one process."""
    before, began = os.times(), time.perf_counter()
    subprocess.run([sys.executable, *words], cwd=folder, capture_output=True, check=False)
    after = os.times()
    used = after.children_user + after.children_system
    return used - before.children_user - before.children_system, time.perf_counter() - began


def main() -> None:
    """Measure in turn, then print medians and ratios."""
    parser = argparse.ArgumentParser(description="How long it takes to start.")
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    runs = {name: ["-c", code] for name, code in CODES.items()}
    runs |= {name: ["-m", "determinax.cli", *words] for name, words in COMMANDS.items()}
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "bad.csv"), "w") as file:
            file.write("1,2\n3\n")
        for i in range(rounds + 1):
            for name, words in runs.items():
                measured = seconds(words, folder)
                if i:  # the first round fills the caches of the disk
                    found[name].append(measured)
    print(f"| {'of':44} | seconds | of the clock | beside the first |")
    print("| --- | ---: | ---: | ---: |")
    for name, measured in found.items():
        ratios = [mine[0] / base[0] for mine, base in zip(measured, found[BASE], strict=True)]
        used, clock = (statistics.median(column) for column in zip(*measured, strict=True))
        print(f"| {name:44} | {used:7.2f} | {clock:12.2f} | {statistics.median(ratios):16.2f} |")


if __name__ == "__main__":
    main()
