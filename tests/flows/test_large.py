"""Many dimensions in float32, on many samples, in chunks of constant memory."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

from determinax import flows, sphere

N, CHUNK = 512, 512


@pytest.mark.slow
@pytest.mark.parametrize(("circle", "total"), [("moebius", 1_000_000), ("spline", 100_000)])
def test_512_dimensions_stay_finite_on_a_million_samples(circle, total):
    key = jax.random.key(0)
    options = {"num_flows": 2, "circle": circle, "num_bins": 8, "hidden": (32,)}
    f = flows.cylinder(N, key=key, dtype=jnp.float32, **options)
    params, rest = eqx.partition(f, flows.trainable(f))
    # gates opened: every map does something
    params = jax.tree.map(lambda a: a + 0.1 if a.ndim == 1 else a, params)

    def loss(params, s):
        f = eqx.combine(params, rest)
        moved, log_det = f.forward(s)
        back, log_det_back = f.inverse(moved)
        total = jnp.sum(moved[0] + log_det / N) + jnp.sum(back[-1] + log_det_back / N)
        return total, (moved, log_det, back, log_det_back)

    # the other tests are compiled without optimisation; this one computes
    @functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 3})
    def check(key):
        s = sphere.uniform(key, N, CHUNK, jnp.float32)
        (_, out), gradients = jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)(params, s)
        finite = [jnp.all(jnp.isfinite(a)) for a in jax.tree.leaves((out, gradients))]
        return jnp.all(jnp.stack(finite)), jnp.max(jnp.abs(out[2] - s)), jnp.std(out[1])

    num_chunks = -(-total // CHUNK)
    for k in jax.random.split(jax.random.key(1), num_chunks):
        finite, error, spread = check(k)
        assert finite
        assert error < 1e-3
        assert spread > 0.1
