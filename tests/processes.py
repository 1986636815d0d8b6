"""Python programs that a test starts: each is killed with all that it started once its time is over."""

import contextlib
import os
import pathlib
import signal
import subprocess
import sys

TESTS = pathlib.Path(__file__).parent
ROOT = TESTS.parent
# as the tests themselves: quick to compile
QUICK = (
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true "
    "--xla_cpu_use_fusion_emitters=false"
)


def environment(num_devices=1, flags=QUICK, **more):
    """Of a program with so many virtual devices."""
    path = os.pathsep.join([str(ROOT), str(TESTS)])
    xla = f"{flags} --xla_force_host_platform_device_count={num_devices}"
    return os.environ | {"PYTHONPATH": path, "XLA_FLAGS": xla, "JAX_PLATFORMS": "cpu"} | more


def start(*command, env=None, **options):
    """A program in a process group of its own."""
    return subprocess.Popen(
        [sys.executable, *map(str, command)],
        env=env or environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        **options,
    )


def end(process):
    """Kill what is left of the program and of all that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def finish(process, seconds):
    """What it printed, once it has ended by itself; else it is killed, and that is a failure."""
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        end(process)
        out, err = process.communicate()
        raise AssertionError(f"not done after {seconds} s:\n{out[-2000:]}\n{err[-4000:]}") from None
    finally:
        end(process)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def run(*command, seconds=120, **options):
    """The output of a program that has to end well."""
    done = finish(start(*command, **options), seconds)
    assert done.returncode == 0, (
        f"exit code {done.returncode}:\n{done.stdout}\n{done.stderr[-4000:]}"
    )
    return done.stdout
