"""`Auto` starts nothing that it cannot end in the time that it is given."""

import time

import jax
import numpy as np
import pytest
import scipy.sparse.linalg
from registry import near_isometry

import determinax as dx
from determinax.methods import Selection, auto
from determinax.operators import NO_PRODUCTS, admit, traits

KEY = jax.random.key(0)


class Slow(scipy.sparse.linalg.LinearOperator):
    """So many seconds for each product of a near-isometry."""

    def __init__(self, n, seconds, size=0.01):
        super().__init__(np.float64, (n, n))
        self.scale = 1 + size * np.random.default_rng(0).standard_normal((n, 1))
        self.seconds, self.num = seconds, 0

    def _matmat(self, X):
        self.num += X.shape[1]
        time.sleep(self.seconds * X.shape[1])
        return self.scale * X

    def _matvec(self, x):
        return self._matmat(x.reshape(-1, 1)).ravel()

    def _rmatmat(self, X):
        return self._matmat(X)


def chosen(operator, method):
    found = method.select(admit(operator).operator, KEY, NO_PRODUCTS, None)
    assert isinstance(found, Selection)
    return found


def test_products_of_the_host_are_timed_before_all_of_them_are_begun():
    slow = Slow(300, 0.01)
    found = chosen(slow, dx.Auto(max_seconds=1))
    assert not isinstance(found.method, dx.Exact)
    assert "all products, a dense matrix and its factors would take about" in (found.why or "")
    # 3 seconds for all of them; what is left is what fits into one
    assert found.method.cost(traits(found.operator)).total <= 100
    assert slow.num < 30
    assert isinstance(chosen(Slow(300, 0.01), dx.Auto(max_seconds=60)).method, dx.Exact)
    # whoever allows n products may wait for them
    assert isinstance(chosen(Slow(300, 0.01), dx.Auto(300, max_seconds=1)).method, dx.Exact)


def test_products_that_were_timed_are_counted():
    quick = Slow(20, 0.0)
    entered = admit(quick)
    before = quick.num
    e = dx.log_abs_det(quick, dx.Auto(), key=KEY, check_linear=False)
    assert entered.spent.total > 0
    assert e.num_matvecs == quick.num - before


def test_a_slow_product_cuts_what_is_left():
    found = chosen(Slow(20_000, 0.005), dx.Auto(max_seconds=1))
    products = found.method.cost(traits(found.operator)).total
    assert auto._FEWEST <= products <= 1 / 0.005
    budget = chosen(Slow(20_000, 0.0), dx.Auto(max_seconds=1))
    assert budget.method.cost(traits(budget.operator)).total > products
    # a budget of products is the caller's own
    found = chosen(Slow(20_000, 0.005), dx.Auto(400, max_seconds=1))
    assert found.method.cost(traits(found.operator)).total > 300


def test_a_dense_factorisation_is_begun_only_if_it_ends_in_time(monkeypatch):
    a = near_isometry(40, 0.1)
    monkeypatch.setattr(auto, "dense_seconds", lambda t: 100.0)
    assert not isinstance(chosen(a, dx.Auto()).method, dx.Exact)
    assert isinstance(chosen(a, dx.Auto(max_seconds=200)).method, dx.Exact)
    assert isinstance(chosen(a, dx.Auto(40)).method, dx.Exact)


@pytest.mark.parametrize("directions", ["frames", "independent"])
def test_the_frame_is_in_the_estimate(directions):
    t = traits(admit(np.eye(5)).operator)._replace(rows=20_000, cols=20_000)
    seconds = auto.lasting(t, dx.MonteCarlo(2000, directions), 0.0)
    assert (seconds > 30) == (directions == "frames")
    deflated = dx.Deflated(2000, dx.MonteCarlo(50))
    assert auto.lasting(t, deflated, 0.0) > 60
