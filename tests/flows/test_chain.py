"""Chains compose maps, scan over the repeated ones, and say when they cannot."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from determinax import flows

from .registry import build, forward, inverse, jit, points


def test_a_chain_is_the_composition_of_its_maps():
    chain = build("recipe-cylinder-odd", 10, "float64", 0.3)
    assert chain.num_blocks == 1
    assert len(chain) == 3
    _assert_composes(chain, points(10, "float64"))


def test_repeated_blocks_are_stacked():
    chain = build("recipe-cylinder", 10, "float64", 0.3)
    assert len(chain) == 8
    assert len(chain.blocks) == 4  # a layer and a rotation, for each half
    assert chain.num_blocks == 2
    assert not chain.rest
    _assert_composes(chain, points(10, "float64"))


def _assert_composes(chain, s):
    moved, log_det = s, 0.0
    for f in chain.maps:
        moved, more = forward(f, moved)
        log_det = log_det + more
    np.testing.assert_allclose(forward(chain, s)[0], moved, atol=1e-12)
    np.testing.assert_allclose(forward(chain, s)[1], log_det, atol=1e-11)
    back, log_det = s, 0.0
    for f in chain.maps[::-1]:
        back, more = inverse(f, back)
        log_det = log_det + more
    np.testing.assert_allclose(inverse(chain, s)[0], back, atol=1e-10)
    np.testing.assert_allclose(inverse(chain, s)[1], log_det, atol=1e-9)


def test_chains_of_chains_are_flat():
    maps = [flows.Rotation.random(3, key=jax.random.key(i)) for i in range(3)]
    chain = flows.Chain([flows.Chain(maps[:2]), maps[2]])
    assert len(chain.blocks) == 1
    assert chain.num_blocks == 3


def test_a_map_of_another_kind_at_the_end_leaves_the_blocks_alone():
    repeated = build("recipe-cylinder", 10, "float64", 0.3)
    last = build("projective-linear", 10, "float64", 0.3)
    chain = flows.Chain([repeated, last])
    assert chain.num_blocks == repeated.num_blocks
    assert len(chain.rest) == 1
    _assert_composes(chain, points(10, "float64"))


def test_a_layer_more_adds_no_code():
    def size(num_flows):
        f = flows.cylinder(4, key=jax.random.key(0), num_flows=num_flows, hidden=(4,))
        arrays, rest = eqx.partition(f, eqx.is_array)
        program = jax.jit(lambda a, s: eqx.combine(a, rest).forward(s))
        return len(program.lower(arrays, jnp.ones((4, 2))).as_text().splitlines())

    assert size(8) == size(4)


def test_one_point_and_columns_and_vmap_agree():
    f, s = build("coupling-0-moebius", 4, "float64", 0.3), points(4, "float64")[:, :6]
    moved, log_det = forward(f, s)
    one, one_log_det = forward(f, s[:, 0])
    np.testing.assert_allclose(one, moved[:, 0], atol=1e-14)
    np.testing.assert_allclose(one_log_det, log_det[0], atol=1e-14)
    mapped, mapped_log_det = jit(lambda f, s: jax.vmap(f.forward, -1, -1)(s))(f, s)
    np.testing.assert_allclose(mapped, moved, atol=1e-14)
    np.testing.assert_allclose(mapped_log_det, log_det, atol=1e-14)


def test_constants_are_not_trainable():
    f = flows.cylinder(4, key=jax.random.key(0), num_flows=2, hidden=(4,))
    mask = flows.trainable(f)
    rotation = f.maps[1]
    assert isinstance(rotation, flows.Rotation)
    assert flows.trainable(rotation).matrix is False
    assert any(jax.tree.leaves(mask))


def test_maps_of_different_dimensions_do_not_compose():
    maps = [flows.Rotation.random(n, key=jax.random.key(0)) for n in (3, 4)]
    with pytest.raises(ValueError, match="different dimensions"):
        flows.Chain(maps)
    with pytest.raises(ValueError, match="at least one map"):
        flows.Chain([])
