import os
import pathlib
import signal
import threading

# before JAX starts: the tests compile far more than they compute, and without MLIR's emitters
# of fused loops XLA compiles twice as fast
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true "
    "--xla_cpu_use_fusion_emitters=false",
)

import jax
import jax.monitoring
import pytest

jax.config.update("jax_enable_x64", True)

# a shell's background job ignores Ctrl-C, and so would all that it starts
if threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)

_MAPS = pathlib.Path("/proc/self/maps")


@pytest.fixture(autouse=True, scope="module")
def _bounded_memory_maps():
    """Compiled functions hold memory, and maps, of which a Linux process may have 65,530."""
    yield
    if _MAPS.exists() and _MAPS.read_text().count("\n") > 15_000:
        jax.clear_caches()


@pytest.fixture
def compilations():
    """Counts the programs that JAX compiles, by its own events."""
    seen = []

    def note(event, duration, **_):
        if event.endswith("backend_compile_duration"):
            seen.append(duration)

    jax.monitoring.register_event_duration_secs_listener(note)
    yield seen
    jax.monitoring.unregister_event_duration_listener(note)
