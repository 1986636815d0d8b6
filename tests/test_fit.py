"""Training for an operator: gradients are right, optima are reached, killed runs resume."""

import equinox as eqx
import jax
import numpy as np
import optax
import pytest
import scipy.sparse.linalg
from registry import triangular

import determinax as dx
from determinax import _checkpoint, flows
from determinax.operators import admit
from determinax.training.gradients import Objective

KEY = jax.random.key(0)
ADAMW = {"optimiser": optax.adamw(0.01), "learning_rate": None}
RNG = np.random.default_rng(0)
A = RNG.normal(size=(4, 4))
TRUTH = np.linalg.slogdet(A)[1]


def objective(gradient, batch_size=4096, matrix=A):
    operator = admit(matrix).operator
    return Objective(operator, operator.T, gradient, batch_size)


def perturbed(flow, scale=0.2):
    arrays, rest = eqx.partition(flow, flows.trainable(flow))
    return eqx.combine(jax.tree.map(lambda a: a + scale * RNG.normal(size=a.shape), arrays), rest)


def gradients_of(objective, flow, keys):
    arrays, rest = eqx.partition(flow, flows.trainable(flow))

    @jax.grad
    def gradient(arrays, key):
        return objective(eqx.combine(arrays, rest), key)[0]

    def flat(key):
        return jax.flatten_util.ravel_pytree(gradient(arrays, key))[0]

    return np.asarray(jax.jit(lambda keys: jax.lax.map(flat, keys))(keys))


def test_path_and_total_gradients_agree_in_the_mean():
    flow = perturbed(flows.projective_linear(4))
    keys = jax.random.split(KEY, 60)
    path, total = (gradients_of(objective(g), flow, keys) for g in ("path", "total"))
    used = path.any(0)
    path, total = path[:, used], total[:, used]
    error = np.sqrt((path.var(0) + total.var(0)) / len(keys))
    assert np.max(np.abs(path.mean(0) - total.mean(0)) / error) < 4
    assert np.max(np.abs(path.mean(0)) / error) > 20  # there is a gradient to agree on


def test_path_gradients_vanish_sample_by_sample_at_the_optimum():
    lower = np.tril(A) + 3 * np.eye(4)
    best = triangular(np.linalg.inv(lower))
    path = gradients_of(objective("path", 16, lower), best, KEY[None])
    total = gradients_of(objective("total", 16, lower), best, KEY[None])
    assert np.max(np.abs(path)) < 1e-12
    assert np.max(np.abs(total)) > 1e-2


@pytest.mark.parametrize(
    ("gradient", "tolerance"), [("path", 1e-9), ("total", 0.05), ("forward", 0.05)]
)
def test_the_optimum_is_reached(gradient, tolerance):
    rate = optax.exponential_decay(0.05, 1000, 0.05)
    fit = dx.fit(
        A,
        flows.projective_linear(4),
        key=KEY,
        steps=2500,
        batch_size=64,
        learning_rate=rate,
        gradient=gradient,
        tolerance=1e-11,
    )
    assert fit.history["spread"][-1] < tolerance
    assert abs(fit.history["loss"][-1] - TRUTH) < tolerance
    assert fit.num_matvecs == len(fit.history["loss"]) * (64 if gradient == "forward" else 128)
    assert fit.num_transposed == (0 if gradient == "forward" else fit.num_matvecs // 2)
    assert "products" in repr(fit)


def test_it_stops_on_convergence():
    options = {"key": KEY, "steps": 300, "batch_size": 8}
    near = np.linalg.qr(A)[0] + 1e-3 * A
    fit = dx.fit(near, flows.projective_linear(4), tolerance=0.1, **options)
    assert fit.converged
    assert len(fit.history["loss"]) == 100
    fit = dx.fit(near, flows.projective_linear(4), **options)
    assert not fit.converged
    assert len(fit.history["loss"]) == 300


def test_scipy_operators_train_with_their_transpose_and_without():
    flow = flows.projective_linear(4)
    options = {"key": KEY, "steps": 20, "batch_size": 16, "learning_rate": 0.02}
    dense = dx.fit(A, flow, **options)
    both = scipy.sparse.linalg.LinearOperator(
        A.shape, matvec=lambda x: A @ x, rmatvec=lambda x: A.T @ x, dtype=float
    )
    np.testing.assert_allclose(
        dx.fit(both, flow, **options).history["loss"], dense.history["loss"], rtol=1e-10
    )
    forward = scipy.sparse.linalg.LinearOperator(A.shape, matvec=lambda x: A @ x, dtype=float)
    with pytest.raises(dx.OperatorError, match=r'gradient="forward"'):
        dx.fit(forward, flow, **options)
    fit = dx.fit(forward, flow, gradient="forward", **options)
    assert fit.history["loss"][-1] < fit.history["loss"][0]


def test_a_run_resumes_bit_for_bit(tmp_path):
    path = tmp_path / "run.checkpoint"
    options = {"key": KEY, "batch_size": 8, "learning_rate": 0.01, "checkpoint_every": 100}
    flow = flows.projective_linear(4)
    whole = dx.fit(A, flow, steps=400, **options)

    class Killed(Exception):
        pass

    def kill_after(write, count):
        def wrapped(*args):
            nonlocal count
            write(*args)
            count -= 1
            if count == 0:
                raise Killed

        return wrapped

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_checkpoint, "write", kill_after(_checkpoint.write, 2))
        with pytest.raises(Killed):
            dx.fit(A, flow, steps=400, checkpoint=path, **options)
    assert path.exists()
    assert path.with_name("run.checkpoint.previous").exists()
    with pytest.MonkeyPatch.context() as patch:
        writes, real = [], _checkpoint.write
        patch.setattr(_checkpoint, "write", lambda *args: writes.append(real(*args)))
        resumed = dx.fit(A, flow, steps=400, checkpoint=path, resume=True, **options)
    assert len(writes) == 2  # of four: it went on from the second
    for name, values in whole.history.items():
        np.testing.assert_array_equal(resumed.history[name], values)
    jax.tree.map(np.testing.assert_array_equal, resumed.proposal, whole.proposal)

    # damaged: the one before serves, with a warning; of another run: refused
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.warns(UserWarning, match="damaged checkpoint"):
        again = dx.fit(A, flow, steps=400, checkpoint=path, resume=True, **options)
    jax.tree.map(np.testing.assert_array_equal, again.proposal, whole.proposal)
    others = (
        (2 * A, {}),
        (A, ADAMW),
        (A, {"learning_rate": 0.02}),
    )
    for matrix, change in others:
        with pytest.raises(dx.StorageError, match="another run"):
            dx.fit(matrix, flow, steps=400, checkpoint=path, resume=True, **(options | change))
    with pytest.raises(ValueError, match="checkpoint="):
        dx.fit(A, flow, steps=400, resume=True, **options)


def test_a_run_of_another_function_is_not_resumed(tmp_path):
    path = tmp_path / "run.checkpoint"
    flow = flows.projective_linear(3)
    options = {"key": KEY, "steps": 100, "batch_size": 16, "checkpoint": path}
    dx.fit_density(lambda x: 2 * x[0], flow, **options)
    again = dx.fit_density(lambda x: 2 * x[0], flow, resume=True, **options)
    assert len(again.history["loss"]) == 100
    with pytest.raises(dx.StorageError, match="another run"):
        dx.fit_density(lambda x: 3 * x[0], flow, resume=True, **options)


def test_a_run_that_had_converged_stays_where_it_was(tmp_path):
    options = {"key": KEY, "steps": 3000, "batch_size": 16, "learning_rate": 0.02}
    options |= {"tolerance": 0.05, "checkpoint": tmp_path / "run", "checkpoint_every": 100}
    flow = flows.projective_linear(4)
    fit = dx.fit(A, flow, **options)
    assert fit.converged
    again = dx.fit(A, flow, resume=True, **options)
    assert again.converged
    assert len(again.history["loss"]) == len(fit.history["loss"]) < 3000
    assert again.seconds > fit.seconds / 2  # those before count


def test_settings_are_checked():
    flow = flows.projective_linear(4)
    with pytest.raises(ValueError, match='"path", "total" or "forward"'):
        dx.fit(A, flow, key=KEY, steps=1, gradient="natural")
    with pytest.raises(ValueError, match="n = 3"):
        dx.fit(A[:3, :3], flow, key=KEY, steps=1)
    with pytest.raises(ValueError, match="batch_size"):
        dx.fit(A, flow, key=KEY, steps=1, batch_size=1)
