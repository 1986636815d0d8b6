"""Sparse matrices, factorised as they are: values, signs, rounding, and what is not started."""

import sys
import time
import types
from typing import Any

import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import pytest
import scipy.sparse
import scipy.sparse.linalg

import determinax as dx
from determinax import _checks
from determinax.operators import factorise, prepare
from determinax.operators._fill import column_counts
from determinax.paper.matrices import FILTER

KEY = jax.random.key(0)


def random_sparse(n, seed, density=0.1, diagonal=1.0):
    rng = np.random.default_rng(seed)
    a = scipy.sparse.random_array(
        (n, n), density=density, rng=rng, data_sampler=rng.standard_normal
    )
    return (a + diagonal * scipy.sparse.diags_array(rng.choice([-1.0, 1.0], n))).tocsr()


def permuted(n, seed):
    rng = np.random.default_rng(seed)
    return random_sparse(n, seed)[rng.permutation(n)].tocsr()


def scaled(n, seed):
    rng = np.random.default_rng(seed)
    left, right = (scipy.sparse.diags_array(10.0 ** rng.uniform(-40, 40, n)) for _ in range(2))
    return (left @ random_sparse(n, seed) @ right).tocsr()


def definite(n, seed):
    a = random_sparse(n, seed)
    return (a @ a.T + 0.1 * scipy.sparse.eye_array(n)).tocsr()


def triangular(n, seed):
    a = scipy.sparse.csr_array(scipy.sparse.tril(random_sparse(n, seed, diagonal=2.0)))
    order = np.random.default_rng(seed).permutation(n)
    return a[order][:, order].tocsr()


def tridiagonal(n, seed, diagonal=1.0):
    """Of numbers of one size, so that rows are exchanged; with a diagonal of 0, at every other."""
    rng = np.random.default_rng(seed)
    parts = [rng.standard_normal(n - 1), diagonal * rng.standard_normal(n), rng.normal(size=n - 1)]
    return scipy.sparse.csr_array(scipy.sparse.diags_array(parts, offsets=[-1, 0, 1]))


FAMILIES = {
    "random": random_sparse,
    "permuted": permuted,
    "badly scaled": scaled,
    "definite": definite,
    "negative definite": lambda n, seed: -definite(n, seed),
    "triangular": triangular,
    "dominant": lambda n, seed: random_sparse(n, seed, diagonal=20.0),
    "small": lambda n, seed: 0.01 * random_sparse(n, seed),
    "diagonal": lambda n, seed: random_sparse(n, seed, density=0.0),
    "tridiagonal": tridiagonal,
    "tridiagonal, symmetric": lambda n, seed: tridiagonal(n, seed) + tridiagonal(n, seed).T,
    "tridiagonal, zeros": lambda n, seed: tridiagonal(n, seed, diagonal=0.0),
}


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_value_and_sign_are_those_of_slogdet(name, seed):
    a = FAMILIES[name](60, seed)
    sign, value = np.linalg.slogdet(a.toarray())
    for method in (dx.Exact(), dx.Auto(5)):
        e = dx.log_abs_det(a, method, key=KEY)
        assert e.status == "exact"
        assert e.num_matvecs == 0
        assert abs(float(e) - value) < 1e-9 * max(1, abs(value))
        assert float(e.sign) == sign


@pytest.mark.parametrize("name", ["random", "definite", "permuted", "tridiagonal"])
def test_the_sparse_factors_themselves(name):
    """Not the dense ones that a small matrix may be given instead."""
    for seed in range(10):
        a = FAMILIES[name](80, seed)
        found = factorise(prepare(a)) or factorise(prepare(a, trial=False))
        sign, value = np.linalg.slogdet(a.toarray())
        assert abs(found.log_abs_det - value) < 1e-9 * max(1, abs(value))
        assert found.sign == sign
        assert found.condition >= 1


def test_float32_and_complex_and_lineax_kinds():
    a = random_sparse(50, 0)
    single = dx.log_abs_det(a.astype(np.float32), dx.Exact())
    assert abs(float(single) - np.linalg.slogdet(a.toarray())[1]) < 1e-3
    c = (a + 1j * random_sparse(50, 1)).tocsr()
    e = dx.log_abs_det(c, dx.Exact())
    assert abs(float(e) - np.linalg.slogdet(c.toarray())[1]) < 1e-9
    assert e.sign is None
    d = jnp.asarray(np.random.default_rng(0).uniform(1, 2, 30))
    tri = lx.TridiagonalLinearOperator(d, -0.3 * d[:-1], 0.2 * d[1:])
    for operator in (lx.DiagonalLinearOperator(-d), tri, lx.IdentityLinearOperator(d)):
        found = dx.log_abs_det(operator, dx.Exact())
        sign, value = np.linalg.slogdet(np.asarray(operator.as_matrix()))
        assert abs(float(found) - value) < 1e-11
        assert float(found.sign) == sign


@pytest.mark.parametrize("n", [1, 2, 3, 200])
def test_tridiagonal_matrices_are_lapacks(n, monkeypatch):
    """With the condition number of the equilibrated matrix; SuperLU sees what is smaller than 3 x 3."""
    a = tridiagonal(n, 5) if n > 1 else scipy.sparse.csr_array([[3.0]])
    c = (a + 1j * tridiagonal(n, 6)).tocsr() if n > 1 else a
    if n > 2:
        monkeypatch.setattr(scipy.sparse.linalg, "splu", None)
    for matrix in (a, c):
        prepared = prepare(matrix)
        found = factorise(prepared)
        assert abs(found.log_abs_det - np.linalg.slogdet(matrix.toarray())[1]) < 1e-9
        condition = np.linalg.cond(prepared.matrix.toarray(), 1)
        assert 0.3 * condition < found.condition < 1.001 * condition
        if n > 2:
            assert found.how == "tridiagonal LU"


def test_singular_tridiagonal_matrices():
    odd = tridiagonal(61, 0, diagonal=0.0)  # an odd number of rows whose diagonal is 0
    path = scipy.sparse.diags_array([-1.0, 2, -1], offsets=[-1, 0, 1], shape=(50, 50)).tolil()
    path[0, 0] = path[-1, -1] = 1  # the Laplacian of a path: constants are mapped to 0
    for a in (odd, scipy.sparse.csr_array(path)):
        e = dx.log_abs_det(a, dx.Exact())
        assert e.status == "unreliable"
        assert e.log_abs_det == -np.inf or e.standard_error > 0.1


def test_singular_matrices_are_minus_infinity():
    zero_row = scipy.sparse.csr_array(np.diag([1.0, 0.0, 2.0]))
    dependent = scipy.sparse.csr_array(np.array([[1.0, 2, 0], [2, 4, 0], [0, 1, 3]]))
    for a in (zero_row, dependent):
        e = dx.log_abs_det(a, dx.Exact())
        assert e.status == "unreliable"
        assert e.log_abs_det == -np.inf or e.standard_error > 0.1
    hilbert = scipy.sparse.csr_array(1 / (1 + np.arange(14)[:, None] + np.arange(14)))
    assert dx.log_abs_det(hilbert, dx.Exact()).status == "unreliable"


@pytest.mark.parametrize(("side", "truth"), [(32, 94.652802), (64, 373.570605)])
def test_a_convolution_that_fools_pivoting_stays_right_as_a_matrix(side, truth):
    """Its entries fix its determinant to 12 digits; its condition number is 1e20 and more."""
    operator = dx.operators.convolution(FILTER, (side, side))
    matrix, _ = dx.operators.probe(operator, dx.operators.pattern(operator))
    for method in (dx.Exact(), dx.Auto()):
        e = dx.log_abs_det(matrix, method, key=KEY)
        assert e.status == "exact"
        assert abs(float(e) - truth) < 1e-5


def test_fill_is_counted_without_factorising():
    rng = np.random.default_rng(0)
    for seed in range(5):
        a = scipy.sparse.random_array((40, 40), density=0.06, rng=rng)
        pattern = (abs(a) + abs(a.T) + scipy.sparse.eye_array(40)).tocsc()
        counts, post = column_counts(pattern)
        ordered = pattern[post][:, post].toarray()
        dense = np.eye(40) * 100 + ordered * np.random.default_rng(seed).uniform(0.5, 1, (40, 40))
        lower = np.linalg.cholesky((dense + dense.T) / 2)
        assert np.array_equal(counts, np.sum(lower != 0, axis=0))


def test_what_cannot_be_done_in_time_or_memory_is_not_started(monkeypatch):
    rng = np.random.default_rng(0)
    n = 3000
    places = np.repeat(np.arange(n), 4), rng.integers(0, n, 4 * n)
    a = scipy.sparse.csr_array((rng.normal(size=4 * n), places), shape=(n, n))
    a = (a + 5 * scipy.sparse.eye_array(n)).tocsr()
    started = []
    monkeypatch.setattr(scipy.sparse.linalg, "splu", lambda *_, **__: started.append(0))
    e = dx.log_abs_det(a, dx.Auto(100, max_seconds=1e-3), key=KEY)
    assert not started
    assert "its factors would take about" in e.reasons[-1]
    assert e.num_matvecs <= 100
    monkeypatch.setattr(_checks, "physical_memory", lambda: 10**6)
    with pytest.raises(ValueError, match="more than this machine has"):
        dx.log_abs_det(a, dx.Exact())
    assert not started


def test_inside_of_jit_it_is_dense_as_ever():
    a = random_sparse(12, 0)
    operator = dx.as_operator(a)
    value = jax.jit(lambda: dx.log_abs_det(operator, dx.Exact()).log_abs_det)()
    np.testing.assert_allclose(value, np.linalg.slogdet(a.toarray())[1], rtol=1e-10)


def test_a_diagonal_of_five_million_rows_takes_seconds():
    """It took 95; on a busy core it takes five."""
    a = scipy.sparse.diags_array(np.linspace(1, 2, 5 * 10**6))
    began = time.process_time()
    e = dx.log_abs_det(a)
    assert time.process_time() - began < 20
    assert abs(float(e) - np.sum(np.log(a.diagonal()))) < 1e-9 * float(e)
    assert e.status == "exact"


def test_a_large_grid_is_quick():
    """No answer came within 150 seconds; SuperLU takes one."""
    line = scipy.sparse.diags_array([-1.0, 2, -1], offsets=[-1, 0, 1], shape=(316, 316))
    a = scipy.sparse.csr_array(
        scipy.sparse.kronsum(line, line) + 0.1 * scipy.sparse.eye_array(316**2)
    )
    lu = scipy.sparse.linalg.splu(a.tocsc())
    began = time.process_time()
    e = dx.log_abs_det(a, key=KEY)
    assert time.process_time() - began < 10
    truth = float(np.sum(np.log(np.abs(lu.U.diagonal()))))
    assert abs(float(e) - truth) < 1e-9 * abs(truth)


class NotDefinite(Exception):
    pass


class Old:
    """What scikit-sparse 0.4 gives: a factor that is called to solve."""

    def __init__(self, matrix):
        self.matrix = matrix.toarray()
        try:
            self.lower = np.linalg.cholesky(self.matrix)
        except np.linalg.LinAlgError as error:
            raise NotDefinite from error

    def __call__(self, b):
        return np.linalg.solve(self.matrix, b)

    def D(self):
        return np.diagonal(self.lower) ** 2


class New(Old):
    """What 0.5 gives."""

    __call__ = None

    def solve(self, b):
        return np.linalg.solve(self.matrix, b)

    def get_factor(self, kind, lower):
        assert (kind, lower) == ("LL", True)
        return scipy.sparse.csc_array(self.lower)


def _new(matrix, *, lower, sym_kind):
    assert (lower, sym_kind) == (True, "sym")
    return New(matrix)


# 0.5 has a `cholesky` too, which gives matrices: it must not be called
APIS = {
    "0.4": {"cholesky": Old, "Factor": Old},
    "0.5": {"cho_factor": _new, "cholesky": None},
}


@pytest.mark.parametrize("version", APIS)
def test_definite_matrices_are_cholmods_where_it_is_installed(version, monkeypatch):
    module: Any = types.ModuleType("sksparse.cholmod")
    vars(module).update(APIS[version], CholmodNotPositiveDefiniteError=NotDefinite)
    parent: Any = types.ModuleType("sksparse")
    parent.cholmod = module
    monkeypatch.setitem(sys.modules, "sksparse", parent)
    monkeypatch.setitem(sys.modules, "sksparse.cholmod", module)
    line = scipy.sparse.diags_array([-1.0, 2.1, -1], offsets=[-1, 0, 1], shape=(7, 7))
    definite = scipy.sparse.kronsum(line, line).tocsr()
    bad = (definite - 2 * scipy.sparse.eye_array(49)).tocsr()
    for matrix, how in ((definite, "Cholesky"), (-definite, "Cholesky"), (bad, "LU")):
        e = dx.log_abs_det(matrix, dx.Exact())
        sign, truth = np.linalg.slogdet(matrix.toarray())
        assert e.method == f"exact, sparse {how}"
        assert float(e.log_abs_det) == pytest.approx(truth, abs=1e-9)
        assert e.sign == sign
        assert float(e.standard_error) < 1e-10
