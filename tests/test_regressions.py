"""What once went wrong, and the tests that would see it again."""

import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import optax
import pytest
import scipy.sparse.linalg
from registry import near_isometry, triangular

import determinax as dx
from determinax import flows
from determinax.methods import Plain

KEY = jax.random.key(0)
A = near_isometry(6)


def test_a_new_tracker_with_an_equal_optimiser_compiles_nothing(compilations):
    lower = np.tril(A) + 2 * np.eye(6)
    start = dx.Proposal(triangular(np.linalg.inv(lower)))
    for _ in range(2):
        first = len(compilations)
        dx.Tracker(start, optax.adam(1e-2)).step(lower, KEY, 8)
    assert len(compilations) == first


def test_a_new_fit_with_equal_settings_compiles_nothing(compilations):
    for _ in range(2):
        first = len(compilations)
        dx.fit(A, flows.projective_linear(6), key=KEY, steps=5, batch_size=8, progress=False)
    assert len(compilations) == first


def test_optimisers_are_transformations_everywhere():
    options = {"key": KEY, "steps": 3, "batch_size": 8}
    dx.fit(A, flows.projective_linear(6), optimiser=optax.sgd(0.1), **options)
    with pytest.raises(TypeError, match=r"optax.GradientTransformation.*call it"):
        dx.fit(A, flows.projective_linear(6), optimiser=optax.adam, **options)
    with pytest.raises(ValueError, match="learning rate of its own"):
        dx.fit(
            A, flows.projective_linear(6), optimiser=optax.sgd(0.1), learning_rate=0.1, **options
        )


def test_counts_may_be_written_as_floats():
    fit = dx.fit(A, flows.projective_linear(6), key=KEY, steps=1e1, batch_size=8.0)
    assert len(fit.history["loss"]) == 10
    with pytest.raises(ValueError, match="steps must be a whole number"):
        dx.fit(A, flows.projective_linear(6), key=KEY, steps=1.5)


def test_chains_of_linear_maps_are_linear():
    chain = flows.Chain([flows.projective_linear(6), flows.projective_linear(6)])
    assert chain.is_linear
    assert not flows.cylinder(6, key=KEY, num_flows=1).is_linear
    e = dx.log_abs_det(A, dx.Variational(dx.Proposal(chain), 100), key=KEY)
    assert e.diagnostics.is_linear


class Host(scipy.sparse.linalg.LinearOperator):
    """Counts its products, and breaks at the `bad`-th if asked to."""

    def __init__(self, bad=None):
        super().__init__(A.dtype, A.shape)
        self.num, self.bad = 0, bad

    def _counted(self, a, x):
        self.num += x.shape[1]
        if self.bad is not None and self.num >= self.bad:
            raise RuntimeError("the licence has expired")
        return a @ x

    def _matmat(self, x):
        return self._counted(A, x)

    def _matvec(self, x):
        return self._counted(A, x.reshape(-1, 1))

    def _rmatmat(self, x):
        return self._counted(A.T, x)

    def _rmatvec(self, x):
        return self._counted(A.T, x.reshape(-1, 1))


@pytest.mark.parametrize(
    ("run", "at"),  # the door itself takes four products
    [
        (lambda a: dx.fit(a, flows.projective_linear(6), key=KEY, steps=5, batch_size=8), 9),
        (lambda a: dx.fit_linear(a, key=KEY), 9),
        (lambda a: dx.Tracker(dx.Proposal(flows.projective_linear(6))).step(a, KEY, 4), 3),
    ],
    ids=["fit", "fit_linear", "tracker"],
)
def test_a_product_that_breaks_while_training_is_one_sentence(run, at):
    host = Host()
    run(host)  # the door has looked at it
    host.bad = host.num + at
    with pytest.raises(dx.OperatorError, match="raised while computing a product") as caught:
        run(host)
    assert "licence" in str(caught.value.__cause__)
    host.bad = None
    run(host)  # nobody is blamed for it later


def test_the_estimate_of_a_gradient_knows_that_a_flow_is_not_linear():
    for flow in (flows.projective_linear(6), flows.cylinder(6, key=KEY, num_flows=1)):
        method = dx.Variational(dx.Proposal(flow), 60)
        found = dx.log_abs_det_gradient(lambda t: t * A, jnp.ones(()), method, key=KEY)
        assert found.estimate.diagnostics.is_linear == flow.is_linear


def test_a_fit_counts_the_products_of_the_door():
    for run in (
        lambda a: dx.fit(a, flows.projective_linear(6), key=KEY, steps=5, batch_size=8),
        lambda a: dx.fit_linear(a, key=KEY),
    ):
        host = Host()
        assert run(host).num_matvecs == host.num
    host = Host()
    tracker = dx.Tracker.from_fit(dx.fit_linear(A, key=KEY))
    spent = 0
    for _ in range(3):
        tracker, estimate = tracker.step(host, KEY, 4)
        spent += estimate.num_matvecs
    assert spent == host.num


def test_starts_and_trackers_take_the_operators_dtype():
    wide = dx.fit_linear(A, key=KEY)
    narrow = dx.fit_linear(A.astype(np.float32), key=KEY, start=wide)
    assert narrow.proposal.flow.factor.matrix().dtype == np.float32
    _, estimate = dx.Tracker.from_fit(wide).step(A.astype(np.float32), KEY, 4)
    assert abs(float(estimate.log_abs_det) - np.linalg.slogdet(A)[1]) < 1e-4
    method = dx.Variational(narrow.proposal, 10)
    assert dx.log_abs_det(A, method, key=KEY).log_abs_det.dtype == np.float64


def test_what_is_moved_scales_all_of_its_errors():
    method = dx.Variational(dx.Proposal(flows.projective_linear(6)), 100)
    e = dx.log_abs_det(A, method, key=KEY)
    half = e.moved(3.0, factor=0.5)
    for name in ("kl_bound", "importance_bound", "lower_bound"):
        error = f"{name}_standard_error"
        assert float(getattr(half, error)) == pytest.approx(0.5 * float(getattr(e, error)))
        assert float(getattr(half, name)) == pytest.approx(0.5 * float(getattr(e, name)) + 3)


def test_nothing_is_narrowed_without_a_word():
    def wide(x):  # takes float32, and gives float64
        return jnp.asarray(A) @ x.astype(jnp.float64)

    operator = dx.as_operator(wide, jnp.zeros(6, jnp.float32))
    assert operator.mv(jnp.ones(6)).dtype == jnp.float64
    with jax.enable_x64(False):
        e = dx.log_abs_det(A, dx.Exact())
        assert "float32, as JAX is set up" in e.reasons[-1]
        assert dx.log_abs_det(A.astype(np.float32), dx.Exact()).reasons == ()


def test_an_operator_and_a_key_that_are_closed_over_pass_through_jit():
    for method in (dx.Auto(), dx.Auto(4), dx.MonteCarlo(50)):
        assert np.isfinite(jax.jit(lambda m=method: dx.log_abs_det(A, m, key=KEY).log_abs_det)())
    with pytest.raises(ValueError, match="outside of jit"):
        jax.jit(lambda: dx.log_abs_det(A, dx.Probed(pattern=(5, 5)), key=KEY).log_abs_det)()


def test_the_same_jacobian_is_compiled_once(compilations):
    operator = lx.JacobianLinearOperator(lambda x, _: jnp.tanh(jnp.asarray(A) @ x), jnp.zeros(6))
    for _ in range(2):
        first = len(compilations)
        dx.log_abs_det(operator, dx.MonteCarlo(100), key=KEY)
    assert len(compilations) == first


def test_a_type_of_ones_own_comes_in_once_it_is_registered():
    class Scaled:
        def __init__(self, factor):
            self.factor = factor

    with pytest.raises(TypeError, match=r"as_operator\.register"):
        dx.as_operator(Scaled(2.0))
    dx.as_operator.register(Scaled)(lambda thing, example=None: thing.factor * np.eye(4))
    assert float(dx.log_abs_det(Scaled(2.0))) == pytest.approx(4 * np.log(2))


def test_an_estimate_without_weights_is_judged_fairly():
    e = dx.Estimate(jnp.asarray(1.0), jnp.asarray(0.01), Plain(), dx.operators.Products(5))
    assert e.status == "ok"
    assert e.reasons == ()
    assert e.interval == pytest.approx((1 - 0.0196, 1 + 0.0196), rel=1e-3)


def test_a_fault_under_jit_has_its_sentence():
    e = jax.jit(lambda a: dx.log_abs_det(a, dx.MonteCarlo(50), key=KEY))(
        jnp.asarray(A).at[0, 0].set(jnp.nan)
    )
    assert int(e.code) == 3
    assert "contains NaN or Inf" in e.reasons[0]
