"""Many devices: the same bits for samplers on any number of them; operators that are split over them."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import processes
import pytest
from methods import CASES, KINDS, A, proposal
from on_devices import FITS, MANY, SPREAD, THIN

import determinax as dx
from determinax import _devices
from determinax.methods import METHODS
from determinax.operators import NO_PRODUCTS
from determinax.training.gradients import GradientFitter, Objective


def lines(what, *arguments, num_devices=8, seconds=400, **env):
    script, words = processes.TESTS / "on_devices.py", [json.dumps(a) for a in arguments]
    out = processes.run(
        script, what, *words, env=processes.environment(num_devices, **env), seconds=seconds
    )
    return [json.loads(line) for line in out.splitlines()]


def test_samplers_give_the_same_bits_on_one_and_on_eight_devices():
    names = ["MonteCarlo, rest", "Variational"]
    assert lines("samples", names, [1, 8]) == [[name, [True] * 4] for name in names]


@pytest.mark.slow
def test_every_method_that_splits_gives_the_same_bits_on_1_2_4_and_8_devices():
    found = dict(lines("samples", list(MANY), [1, 2, 4, 8], seconds=900))
    assert found.keys() == MANY.keys()
    for name, equal in found.items():
        # Lanczos is not a sampler of weights, and still a function of numbers of chunks alone
        assert equal == [True] * 6, name


@pytest.mark.slow
def test_every_method_of_the_registry_gives_the_same_bits_on_8_devices():
    found = dict(lines("samples", list(CASES), [8], seconds=1200))
    assert {CASES[name].name for name in found} == METHODS.keys()
    assert [name for name, equal in found.items() if equal != [True] * 3] == []


def test_fits_give_the_same_bits_on_1_2_and_4_devices():
    names = ["fit, path", "fit_samples"]
    assert lines("fits", names, [1, 2, 4], num_devices=4) == [[name, [True] * 4] for name in names]


@pytest.mark.slow
def test_every_fit_that_splits_gives_the_same_bits_on_1_2_4_and_8_devices():
    found = lines("fits", list(FITS), [1, 2, 3, 4, 8], seconds=1200)
    assert found == [[name, [True] * 6] for name in FITS]


@pytest.mark.slow
def test_all_kinds_of_operators_give_the_same_bits_on_a_mesh():
    assert lines("kinds", list(KINDS), seconds=400) == [[kind, True] for kind in KINDS]


def test_operators_that_are_split_over_devices():
    names = ["MonteCarlo, one frame", "Exact", "Deflated, all"]
    found = lines("split", names, [8], ["rows"])
    assert len(found) == 2 * len(names)
    assert max(row[4] for row in found) < 1e-12
    notes = {row[0]: row[5] for row in found}
    assert notes["Exact"] == [
        "A dense factorisation cannot be split over devices: A was gathered on one."
    ]


@pytest.mark.slow
def test_every_method_takes_operators_that_are_split_by_rows_or_columns_on_both_kinds_of_meshes():
    found = lines("split", list(CASES), [8], ["rows", "columns"], seconds=1200)
    assert len(found) == 4 * len(CASES)
    assert {CASES[row[0]].name for row in found} == METHODS.keys()
    assert max(row[4] for row in found) < 1e-12


def test_a_jacobian_at_a_point_that_is_split_over_devices():
    found = lines("spread", ["MonteCarlo, rest"], ["Jacobian, over the image"], num_devices=4)
    assert len(found) == 2
    assert max(row[3] for row in found) < 1e-12


@pytest.mark.slow
def test_every_method_takes_convolutions_and_jacobians_that_are_split_over_devices():
    found = lines("spread", list(CASES), list(SPREAD), num_devices=4, seconds=1800)
    assert len(found) == 2 * len(CASES) * len(SPREAD)
    assert max(row[3] for row in found) < 1e-12


@pytest.mark.slow
def test_programs_of_split_operators_gather_no_matrix_and_hold_a_share_of_it():
    n, nums = 512, [1, 2, 4, 8]
    found = lines("compiled", list(THIN), n, nums, ["rows", "columns"])
    assert len(found) == len(THIN) * len(nums) * 2
    for name, axis, num, most_gathered, held in found:
        assert most_gathered <= n * n / 64, (name, axis, num)  # of directions and their images
        assert 1 / num <= held < 1 / num + 0.1, (name, axis, num)


@pytest.mark.slow
def test_programs_of_split_convolutions_and_jacobians_gather_directions_at_most():
    found = lines("compiled_spread", list(SPREAD), list(THIN), 256, num_devices=4)
    assert len(found) == len(SPREAD) * len(THIN)
    for kind, name, n, most_gathered in found:
        assert most_gathered <= n * n / 64, (kind, name)


def test_a_mesh_and_an_operator_that_is_split_already_do_not_go_together():
    """Of many chunks, and of one, which used to leave the mesh aside without a word."""
    script = (
        "import jax, jax.numpy as jnp, determinax as dx\n"
        "from jax.sharding import NamedSharding, PartitionSpec\n"
        "mesh = jax.make_mesh((2,), ('x',))\n"
        "a = jax.device_put(jnp.eye(8), NamedSharding(mesh, PartitionSpec('x', None)))\n"
        "for method in (dx.MonteCarlo(100), dx.MonteCarlo(4, 'frames'), dx.Deflated(8)):\n"
        "    try:\n"
        "        dx.log_abs_det(a, method, key=jax.random.key(0), mesh=mesh)\n"
        "    except ValueError as error:\n"
        "        print(error)\n"
    )
    out = processes.run("-c", script, env=processes.environment(2)).splitlines()
    assert len(out) == 3
    assert all(line.startswith("the operator is split over 2 devices already") for line in out)


def test_numbers_are_dealt_in_turn():
    of_two_devices = [np.asarray([0, 2, 4]), np.asarray([1, 3, 5])]
    np.testing.assert_array_equal(_devices.dealt(of_two_devices), np.arange(6))


def test_a_bar_stops_at_the_same_chunk_on_a_mesh():
    mesh = jax.make_mesh((1,), ("x",))
    options = {"key": jax.random.key(1), "tolerance": 0.01}
    alone = dx.log_abs_det(A, dx.MonteCarlo(100_000, chunk_size=100), **options)
    apart = dx.log_abs_det(A, dx.MonteCarlo(100_000, chunk_size=100), **options, mesh=mesh)
    assert int(alone.num_matvecs) == int(apart.num_matvecs) < 100_000
    assert float(alone.log_abs_det) == float(apart.log_abs_det)


def test_what_cannot_be_split_says_so():
    mesh = jax.make_mesh((1,), ("x",))
    found = dx.log_abs_det(A, dx.Exact(), mesh=mesh)
    assert "Exact cannot be split over devices: it ran on one." in found.notes
    with pytest.raises(
        TypeError, match=r"mesh is a jax.sharding.Mesh, such as jax.make_mesh gives"
    ):
        dx.log_abs_det(A, dx.MonteCarlo(10), key=jax.random.key(0), mesh=2)


def parts_of(gradient, num=8, size=16):
    """A fitter, and what it makes of parts of a batch, stacked."""
    flow = proposal().flow
    loss = Objective(dx.as_operator(A), dx.as_operator(A.T), gradient, size)
    fitter = GradientFitter(
        loss=loss,
        start=flow,
        optimiser=optax.sgd(1.0),
        tolerance=0.0,
        per_step=NO_PRODUCTS,
        what="test",
        is_to_data=False,
    )
    state, keys = fitter.init(), jax.random.split(jax.random.key(0), num)
    return fitter, state, keys, jax.vmap(lambda key: fitter.part(state, key))(keys)


def test_parts_of_a_batch_are_merged_to_its_own_gradient():
    fitter, state, keys, parts = parts_of("path")
    merged = fitter.merged(parts)
    assert merged.log_w.shape == (128,)
    for whole, mean in zip(
        jax.tree.leaves(merged.gradient), jax.tree.leaves(parts.gradient), strict=True
    ):
        np.testing.assert_allclose(whole, np.mean(mean, axis=0), rtol=1e-4, atol=1e-6)

    # likelihoods are weighted over the whole batch, not part by part
    fitter, state, keys, parts = parts_of("forward")
    drawn = [fitter.proposal(state).sample_columns(key, 16)[0] for key in keys]
    points, log_w = jnp.concatenate(drawn, axis=1), parts.log_w.reshape(-1)

    def minus_likelihood(parameters):
        q = fitter.proposal(state._replace(parameters=parameters))
        return -jax.nn.softmax(log_w) @ q.log_density_columns(points)

    expected = jax.grad(minus_likelihood)(state.parameters)
    for mine, theirs in zip(
        jax.tree.leaves(fitter.merged(parts).gradient), jax.tree.leaves(expected), strict=True
    ):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-6)


def test_fits_that_cannot_be_split_say_so():
    mesh, key = jax.make_mesh((1,), ("x",)), jax.random.key(0)
    with pytest.raises(
        ValueError, match=r"secant updates cannot be split over devices: leave mesh="
    ):
        dx.fit_linear(A, key=key, mesh=mesh)
    with pytest.raises(ValueError, match="batch_size is a multiple of 8, from 16 on, not 60"):
        dx.fit(A, proposal().flow, key=key, steps=1, batch_size=60, mesh=mesh)


def test_a_mesh_of_one_fits_data_as_well_as_none():
    points = np.random.default_rng(0).standard_normal((500, 3)) + np.asarray([0, 0, 2])
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    options = {"key": jax.random.key(1), "steps": 200, "learning_rate": 0.03, "progress": False}
    flow = dx.flows.cylinder(3, key=options["key"], num_flows=1, conditioning="autoregressive")
    mesh = jax.make_mesh((1,), ("x",))
    alone, apart = (dx.fit_samples(points, flow, mesh=m, **options) for m in (None, mesh))
    # other draws, so other fits; and 50 held-out points know their likelihood to 0.15 nats only
    assert alone.train_log_likelihood == pytest.approx(apart.train_log_likelihood, abs=0.03)
    assert apart.train_log_likelihood > 1.1
    assert np.isfinite(apart.history["held_out"]).sum() == 2
    with pytest.raises(ValueError, match="batch_size is a multiple of 8"):
        dx.fit_samples(points, flow, mesh=mesh, batch_size=20, **options)
