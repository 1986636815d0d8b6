"""Many dimensions in float32, on many samples, in chunks of constant memory."""

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

from determinax import flows, sphere

N, CHUNK, TOTAL = 512, 8192, 1_000_000


@pytest.mark.slow
@pytest.mark.parametrize("circle", ["moebius", "spline"])
def test_512_dimensions_stay_finite_on_a_million_samples(circle):
    key = jax.random.key(0)
    f = flows.cylinder(N, key=key, num_flows=2, circle=circle, hidden=(32,), dtype=jnp.float32)
    params, rest = eqx.partition(f, flows.trainable(f))
    # gates opened: every map does something
    params = jax.tree.map(lambda a: a + 0.1 if a.ndim == 1 else a, params)

    def loss(params, s):
        f = eqx.combine(params, rest)
        moved, log_det = f.forward(s)
        back, log_det_back = f.inverse(moved)
        total = jnp.sum(moved[0] + log_det / N) + jnp.sum(back[-1] + log_det_back / N)
        return total, (moved, log_det, back, log_det_back)

    @jax.jit
    def check(key):
        s = sphere.uniform(key, N, CHUNK, jnp.float32)
        (_, out), gradients = jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)(params, s)
        finite = [jnp.all(jnp.isfinite(a)) for a in jax.tree.leaves((out, gradients))]
        return jnp.all(jnp.stack(finite)), jnp.max(jnp.abs(out[2] - s)), jnp.std(out[1])

    num_chunks = -(-TOTAL // CHUNK)
    for k in jax.random.split(jax.random.key(1), num_chunks):
        finite, error, spread = check(k)
        assert finite
        assert error < 1e-3
        assert spread > 0.1
