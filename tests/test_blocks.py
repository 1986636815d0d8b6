"""Compositions of blocks: log-determinants add up, known ones exactly."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import determinax as dx
from determinax.likelihood import standard_normal

N = 6


def points(num: int = 5, seed: int = 2):
    return jnp.asarray(np.random.default_rng(seed).normal(size=(num, N)))


class Residual(eqx.Module):
    net: eqx.nn.MLP

    def __call__(self, x):
        return x + 0.3 * self.net(x)


class Scaling(eqx.Module):
    log_scale: jax.Array

    def __call__(self, x):
        return x * jnp.exp(self.log_scale)

    def log_abs_det(self, x):
        del x
        return jnp.sum(self.log_scale)


def test_blocks_of_one_shape_are_one_scan_and_equal_blocks_one_by_one():
    blocks = [eqx.nn.MLP(N, N, 8, 1, key=jax.random.key(i)) for i in range(3)]
    blocks = [Residual(b) for b in blocks]
    sample_x = lambda key, num: jax.random.normal(key, (num, N))  # noqa: E731
    q = dx.block_proposals(blocks, sample_x, key=jax.random.key(0))
    x = points(4)
    together = dx.jacobian_surrogate(blocks, x, q, key=jax.random.key(1), num_samples=4)
    mixed = [blocks[0], lambda x, b=blocks[1]: b(x), blocks[2]]
    apart = dx.jacobian_surrogate(mixed, x, q, key=jax.random.key(1), num_samples=4)
    np.testing.assert_allclose(together.log_abs_det, apart.log_abs_det, rtol=1e-9)
    np.testing.assert_allclose(together.correction, apart.correction, rtol=1e-9)

    def whole(x):
        for b in blocks:
            x = b(x)
        return x

    truth = jnp.linalg.slogdet(jax.vmap(jax.jacfwd(whole))(x))[1]
    many = dx.jacobian_surrogate(blocks, x, q, key=jax.random.key(1), num_samples=400)
    np.testing.assert_allclose(many.log_abs_det, truth, atol=0.1)
    estimate = dx.log_likelihood(blocks, None, x, q, key=jax.random.key(2), num_samples=400)
    expected = jax.vmap(lambda x: standard_normal(whole(x)))(x) + truth
    np.testing.assert_allclose(estimate.log_likelihood, expected, atol=0.15)


def test_blocks_that_know_their_log_determinant_cost_nothing():
    nets = [Residual(eqx.nn.MLP(N, N, 8, 1, key=jax.random.key(i))) for i in range(2)]
    scales = [Scaling(0.3 * jax.random.normal(jax.random.key(i), (N,))) for i in range(3)]
    blocks = [scales[0], nets[0], scales[1], nets[1], scales[2]]
    q = dx.block_proposals(blocks, lambda key, num: points(num), key=jax.random.key(0))
    assert len(q) == 2

    def whole(x, blocks=blocks):
        for b in blocks:
            x = b(x)
        return x

    x = points(4)
    truth = jnp.linalg.slogdet(jax.vmap(jax.jacfwd(whole))(x))[1]
    uneven = [*scales[:2], nets[0], nets[1], scales[2]]  # no scan: segments of two shapes
    options = {"key": jax.random.key(1), "num_samples": 400}
    for some in (blocks, uneven):
        s = dx.jacobian_surrogate(some, x, q, **options)
        exact = jnp.linalg.slogdet(jax.vmap(jax.jacfwd(lambda x, b=some: whole(x, b)))(x))[1]
        for value in (s.log_abs_det, s.bound, s.corrected, s.loss):
            np.testing.assert_allclose(value, exact, atol=0.1)
    estimate = dx.log_likelihood(blocks, None, x, q, key=jax.random.key(2), num_samples=400)
    expected = jax.vmap(lambda x: standard_normal(whole(x)))(x) + truth
    np.testing.assert_allclose(estimate.log_likelihood, expected, atol=0.15)

    def total(field, scale):  # of the last block, which no product goes through: an exact gradient
        last = eqx.tree_at(lambda b: b[4].log_scale, blocks, scale)
        s = dx.jacobian_surrogate(last, x, q, key=jax.random.key(1), num_samples=2)
        return jnp.sum(getattr(s, field))

    for field, slope in {"log_abs_det": 4, "bound": 4, "corrected": 4, "loss": 0}.items():
        found = jax.grad(total, argnums=1)(field, scales[2].log_scale)
        np.testing.assert_allclose(found, np.full(N, slope), rtol=1e-12)
    with pytest.raises(ValueError, match="add them up"):
        dx.block_proposals(scales, lambda key, num: points(num), key=jax.random.key(0))


def test_blocks_and_proposals_that_do_not_match_are_refused():
    blocks = [Residual(eqx.nn.MLP(N, N, 8, 1, key=jax.random.key(i))) for i in range(2)]
    q = dx.block_proposals(blocks, lambda key, num: points(num), key=jax.random.key(0))
    with pytest.raises(TypeError, match="proposals for 2 blocks"):
        dx.jacobian_surrogate(blocks[:1], points(), q, key=jax.random.key(0))
    with pytest.raises(ValueError, match="family is"):
        dx.block_proposals(blocks, lambda key, num: points(num), key=jax.random.key(0), family="x")
    with pytest.raises(TypeError, match=r"outside of jit"):
        jax.jit(lambda key: dx.block_proposals(blocks, lambda _, num: points(num), key=key).n)(
            jax.random.key(0)
        )
