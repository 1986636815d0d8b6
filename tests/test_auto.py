"""`Auto` starts nothing that it cannot end in the time that it is given."""

import time

import jax
import numpy as np
import pytest
import scipy.sparse.linalg
from registry import near_isometry

import determinax as dx
from determinax import _checks
from determinax._revealed import CHECKS, Revealed
from determinax.methods import Selection, auto
from determinax.operators import NO_PRODUCTS, _convolution, admit, traits
from determinax.progress import Report

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


def layer(channels, side, padding="zero"):
    kernel = 0.02 * np.random.default_rng(0).normal(size=(channels, channels, 3, 3))
    kernel[range(channels), range(channels), 1, 1] += 1
    return dx.operators.convolution(kernel, (side, side), padding)


@pytest.mark.parametrize(
    ("method", "have", "padding"),
    [
        (dx.Auto(max_seconds=0.51), 2**40, "zero"),
        (dx.Auto(max_seconds=0.51), 2**40, "circular"),
        (dx.Auto(max_seconds=60), 10**6, "zero"),
        (dx.Auto(max_matvecs=20), 2**40, "zero"),
    ],
)
def test_a_pattern_that_is_too_large_is_never_built(method, have, padding, monkeypatch):
    def build(*_, **__):
        raise AssertionError

    a = layer(3, 60, padding)
    monkeypatch.setattr(_convolution, "banded_pattern", build)
    monkeypatch.setattr(auto, "_DENSE_LIMIT", 1000)
    monkeypatch.setattr(_checks, "physical_memory", lambda: have)
    found = chosen(a, method)
    assert not isinstance(found.method, dx.Probed)
    entries = 9 * (178 if padding == "zero" else 180) ** 2
    assert f"probing its {entries:,} entries would take" in (found.why or "")
    assert "products, about" in (found.why or "")


@pytest.mark.parametrize(
    ("side", "padding", "num"), [(60, "zero", 9), (60, "circular", 9), (61, "circular", 16)]
)
def test_a_pattern_that_fits_is_probed_and_its_cost_is_said(side, padding, num, monkeypatch):
    heard = []
    report = Report(lambda *_: None, lambda *_: None, heard.append)
    operator = admit(layer(1, side, padding)).operator
    found = dx.Auto().select(operator, KEY, NO_PRODUCTS, report)
    assert isinstance(found, dx.Estimate)
    assert found.num_matvecs == num + CHECKS
    said = f"Auto chose Probed: {num + CHECKS} products, about 0.5 s and "
    assert said in found.reasons[-1]
    assert "entries of a pattern, about 0.5 s and" in heard[0]
    if padding == "zero":
        assert f"factorising what {num} products revealed, about" in heard[1]
        assert "its factors: about" in " ".join(found.reasons)


def test_what_was_revealed_in_vain_is_counted(monkeypatch):
    monkeypatch.setattr(Revealed, "log_abs_det", lambda *_: "about 99 s and 1 MB")
    found = chosen(layer(1, 30), dx.Auto())
    assert isinstance(found.method, dx.Exact)
    assert found.spent.total >= 9 + CHECKS
    assert "factors of what probing revealed would take about 99 s and 1 MB" in (found.why or "")
