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


# measured: what takes long and is held by something shorter as well; `make test-slow` runs it
_LONG = (
    "test_experiments.py",
    "test_readme.py::test_the_page_runs_and_prints_what_it_says[docs/free_form.md]",
    "test_readme.py::test_the_page_runs_and_prints_what_it_says[docs/flows.md]",
    "test_readme.py::test_the_page_runs_and_prints_what_it_says[docs/start/sphere.md]",
    "test_readme.py::test_the_page_runs_and_prints_what_it_says[docs/start/paper.md]",
    "test_readme.py::test_the_page_runs_and_prints_what_it_says[docs/variational.md]",
    "test_docstrings.py::test_the_example_runs[determinax.training",
    "test_docstrings.py::test_the_example_runs[determinax.densities",
    "test_docstrings.py::test_the_example_runs[determinax.plots",
    "test_docstrings.py::test_the_example_runs[determinax.likelihood",
    "test_docstrings.py::test_the_example_runs[determinax.blocks",
    "test_walk.py::test_a_fit_that_was_interrupted_goes_on_to_the_same_bits",
    "test_cli.py::test_a_flow_is_trained_and_leaves_no_checkpoint",
    "test_blocks.py::test_blocks_of_one_shape_are_one_scan",
    "test_deflated.py::test_it_can_be_differentiated",
    "test_densities.py::test_a_stack_is_taken_where_bumps_fall_short",
    "test_densities.py::test_a_verdict_on_a_law_that_is_too_narrow",
    "test_paper.py::test_monte_carlo_errs_on_the_convolution",
    "test_proposals.py::test_samples_and_points_chosen_by_the_density_pass_an_energy_test[cyl",
    "test_proposals.py::test_samples_and_points_chosen_by_the_density_pass_an_energy_test[ensemble",
    "test_proposals.py::test_the_density_has_mean_1_and_samples_follow_it[ensemble-3]",
    "test_proposals.py::test_the_density_has_mean_1_and_samples_follow_it[cylinder-3]",
    "test_proposals.py::test_the_density_has_mean_1_and_samples_follow_it[defensive-3]",
    "test_proposals.py::test_what_is_saved_comes_back[ensemble]",
    "test_proposals.py::test_no_depth_is_beyond_the_antipode",
    "test_report.py::test_the_cure_keeps_the_method_and_its_own_cure_is_none",
    "test_secant.py::test_a_probed_factor_times_a_diagonal_is_a_family",
    "test_secant.py::test_full_frames_make_one_sample_exact_after_2n_products[matrix2]",
    "test_secant.py::test_full_frames_make_one_sample_exact_after_2n_products[matrix4]",
    "test_storage.py::test_every_map_comes_back_bit_for_bit[recipe-cylinder-odd-float32]",
    "test_storage.py::test_every_map_comes_back_bit_for_bit[recipe-cylinder-float32]",
    "test_transforms.py::test_gradients_through_a_convolution_kernel",
    "test_transforms.py::test_lanczos_differentiates_a_scale_to_rounding[repeated",
    "test_transforms.py::test_lanczos_differentiates_a_scale_to_rounding[orthogonal",
    "test_transforms.py::test_the_gradient_of_lanczos_is_the_inverse_transposed[multiple of I",
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        if any(long in item.nodeid for long in _LONG):
            item.add_marker(pytest.mark.slow)


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
