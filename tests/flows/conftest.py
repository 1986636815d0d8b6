"""Compiling is most of what these tests do: keep the programs for the next run and both workers."""

import jax


def pytest_configure(config):
    if config.cache is not None:
        jax.config.update("jax_compilation_cache_dir", str(config.cache.mkdir("xla")))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
