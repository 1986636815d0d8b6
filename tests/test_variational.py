"""Weights of a proposal: exact at the optimum, unbiased elsewhere, honest about what it misses."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from registry import triangular

import determinax as dx
from determinax import flows
from determinax.proposals import Proposal

KEY = jax.random.key(0)
RNG = np.random.default_rng(1)
LOWER = np.tril(RNG.normal(size=(5, 5)), -1) + np.diag([1.0, 0.5, 2.0, 0.1, 3.0])
TRUTH = np.linalg.slogdet(LOWER)[1]


BEST = Proposal(triangular(np.linalg.inv(LOWER)))
NEAR = Proposal(triangular(np.linalg.inv(LOWER) * np.array([1.0, 1.1, 0.9, 1.05, 1.0])))


def test_the_best_proposal_needs_one_sample():
    estimate = dx.log_abs_det(LOWER, dx.Variational(BEST, 1), key=KEY)
    assert abs(estimate.log_abs_det - TRUTH) < 1e-12
    assert np.isnan(estimate.lower_bound_standard_error)


@pytest.mark.parametrize("directions", ["independent", "frames"])
@pytest.mark.parametrize("defensive", [0.0, 0.2])
def test_any_proposal_is_unbiased(directions, defensive):
    method = dx.Variational(NEAR, 20_000, directions, defensive=defensive)
    estimate = dx.log_abs_det(LOWER, method, key=KEY)
    assert estimate.status in ("ok", "warn")
    assert 0 < estimate.standard_error < 0.01
    assert abs(estimate.log_abs_det - TRUTH) < 4 * estimate.standard_error
    assert estimate.num_matvecs == 20_000 + 1000  # the lower bound's


def test_the_bounds_enclose_the_truth():
    e = dx.log_abs_det(LOWER, dx.Variational(NEAR, 20_000), key=KEY)
    assert 0 < e.lower_bound_standard_error < 0.01
    assert TRUTH - 0.1 < e.lower_bound < TRUTH < e.kl_bound


def test_a_solve_gives_the_lower_bound_of_any_operator():
    inverse = jnp.asarray(np.linalg.inv(LOWER))
    operator = dx.as_operator(lambda x: jnp.asarray(LOWER) @ x, jnp.zeros(5))
    without = dx.log_abs_det(operator, dx.Variational(NEAR, 1000), key=KEY)
    assert without.lower_bound is None
    method = dx.Variational(NEAR, 1000, solve=lambda v: inverse @ v)
    dense = dx.log_abs_det(LOWER, dx.Variational(NEAR, 1000), key=KEY)
    np.testing.assert_allclose(
        dx.log_abs_det(operator, method, key=KEY).lower_bound, dense.lower_bound, rtol=1e-10
    )


def test_a_missed_direction_is_not_called_ok():
    """A proposal for another matrix: it hardly visits the direction that carries the determinant."""
    spike = np.diag([1.0, 1.0, 1.0, 1.0, 1e-4])
    estimate = dx.log_abs_det(spike, dx.Variational(Proposal(triangular(np.eye(5))), 5000), key=KEY)
    assert estimate.status == "unreliable"
    with pytest.raises(dx.UnreliableEstimateError):
        float(estimate)


def test_a_share_of_uniform_directions_bounds_the_weights():
    # narrow where it should be wide: without the mixture the weights have no variance
    narrow = Proposal(triangular(np.diag([1.0, 1.0, 1.0, 1.0, 0.05])))
    eye = np.eye(5)
    bare = dx.log_abs_det(eye, dx.Variational(narrow, 10_000), key=KEY)
    mixed = dx.log_abs_det(eye, dx.Variational(narrow, 10_000, defensive=0.3), key=KEY)
    assert bare.status == "unreliable"
    assert mixed.status == "ok"
    assert abs(mixed.log_abs_det) < 4 * mixed.standard_error < 0.2
    assert mixed.max_weight_share < 1.1 / 0.3 / 10_000  # weights of mean 1 below 1/0.3


def test_float32_proposals_serve_float64_operators():
    flow = flows.cylinder(5, key=KEY, num_flows=2, num_bins=4, num_centres=2, dtype="float32")
    orthogonal = np.linalg.qr(LOWER)[0]
    estimate = dx.log_abs_det(orthogonal, dx.Variational(Proposal(flow), 1000), key=KEY)
    assert estimate.log_abs_det.dtype == "float64"
    assert abs(estimate.log_abs_det) < 1e-4


def test_settings_are_checked():
    with pytest.raises(TypeError, match="proposal is a Proposal"):
        dx.Variational(flows.projective_linear(3), 10)
    with pytest.raises(ValueError, match="defensive"):
        dx.Variational(BEST, 10, defensive=1.0)
    with pytest.raises(ValueError, match="num_samples"):
        dx.Variational(BEST, 0)
    with pytest.raises(ValueError, match="5 dimensions"):
        dx.log_abs_det(np.eye(4), dx.Variational(BEST, 10), key=KEY)


def test_a_preconditioner_that_the_user_has_makes_every_weight_exact():
    a = np.random.default_rng(0).normal(size=(7, 7))
    inverse = np.linalg.inv(a)
    truth = np.linalg.slogdet(a)[1]
    for options in ({}, {"inverse": lambda v: a @ v}):
        method = dx.Variational.from_preconditioner(
            lambda v: inverse @ v, -truth, n=7, num_samples=30, **options
        )
        e = dx.log_abs_det(a, method, key=KEY)
        assert e.status == "exact"
        assert abs(float(e) - truth) < 1e-11
        assert (e.lower_bound is None) == (not options)
