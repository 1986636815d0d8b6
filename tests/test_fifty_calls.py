"""No call hangs on two cores: many calls in a process of their own, which a time limit kills."""

import os
import pathlib
import subprocess
import sys

import pytest

CALLS = pathlib.Path(__file__).parent / "fifty_calls.py"
# before JAX starts: XLA has as many threads as it may use cores
ON_TWO_CORES = """
import os, runpy, sys
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
pytestmark = pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity"), reason="cores can be chosen on Linux only"
)


def run(*args: str, limit: int, flags: str | None = None) -> None:
    """The calls, with these flags for XLA."""
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    if flags is not None:
        environment["XLA_FLAGS"] = flags
    command = [sys.executable, "-c", ON_TWO_CORES, str(CALLS), *args]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=limit, env=environment
        )
    except subprocess.TimeoutExpired as error:
        output = error.stdout.decode() if isinstance(error.stdout, bytes) else ""
        pytest.fail(f"no end within {limit} s; it came to:\n{output[-500:]}")
    assert done.returncode == 0, done.stdout[-500:] + done.stderr[-2000:]
    assert done.stdout.endswith("done\n")


def test_lanczos_comes_back_from_a_second_call():
    """A grid's Laplacian, tagged positive semidefinite: the second or third call never returned."""
    run("5", "Lanczos, definite", "eager", limit=300)


@pytest.mark.slow
@pytest.mark.parametrize("as_users", [True, False])
def test_fifty_calls_of_everything(as_users):
    """With XLA's flags as users have them, and with those of these tests."""
    run("50", limit=3600, flags=None if as_users else os.environ.get("XLA_FLAGS"))
