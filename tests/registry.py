"""Matrices with known determinants, and ways to hand a matrix in: tests cross the two."""

import jax.numpy as jnp
import lineax as lx
import numpy as np
import pytest
import scipy.sparse
import scipy.sparse.linalg

import determinax as dx


def _random(n, seed=0):
    return np.random.default_rng(seed).standard_normal((n, n))


def orthogonal(n, seed=0):
    return np.linalg.qr(_random(n, seed))[0]


def near_isometry(n, size=0.3, seed=0):
    return orthogonal(n, seed) + size * _random(n, seed + 1) / n**0.5


def _negative(n):
    a = near_isometry(n, 0.2)
    return a if np.linalg.det(a) < 0 else a[[1, 0, *range(2, n)]]


MATRICES = {
    "one": np.array([[-2.5]]),
    "two": np.array([[1.0, 0.4], [-0.2, 0.8]]),
    "three": near_isometry(3, 0.2),
    "multiple of I": 3.0 * np.eye(6),
    "small multiple of I": 0.01 * np.eye(6),
    "diagonal": np.diag([1.0, 1.1, 0.9, -1.2, 0.8]),
    "orthogonal": orthogonal(7),
    "below one": 0.5 * near_isometry(5, 0.2),
    "negative": _negative(5),
    "near isometry": near_isometry(10, 0.2),
}
EQUAL_WEIGHTS = ("one", "multiple of I", "small multiple of I", "orthogonal")


class _Forward(scipy.sparse.linalg.LinearOperator):
    """Forward products only, one at a time."""

    def __init__(self, matrix):
        super().__init__(matrix.dtype, matrix.shape)
        self.matrix = matrix

    def _matvec(self, x):
        return self.matrix @ x


def _pytree_operator(a):
    half = a.shape[1] // 2

    def f(x):
        y = jnp.asarray(a) @ jnp.concatenate([x["head"], x["tail"].reshape(-1)])
        return {"head": y[:half], "tail": y[half:].reshape(-1, 1)}

    shapes = {"head": (half,), "tail": (a.shape[1] - half, 1)}
    example = {name: jnp.zeros(shape, a.dtype) for name, shape in shapes.items()}
    return dx.as_operator(f, example)


KINDS = {
    "numpy": lambda a: a,
    "jax": jnp.asarray,
    "list": lambda a: a.tolist(),
    "csr": scipy.sparse.csr_array,
    "coo": scipy.sparse.coo_array,
    "scipy operator": scipy.sparse.linalg.aslinearoperator,
    "scipy operator, forward only": _Forward,
    "lineax": lambda a: lx.MatrixLinearOperator(jnp.asarray(a)),
    "lineax sum": lambda a: (
        lx.MatrixLinearOperator(jnp.asarray(a - 1)) + lx.MatrixLinearOperator(jnp.ones_like(a))
    ),
    "lineax jacobian": lambda a: lx.JacobianLinearOperator(
        lambda x, _: jnp.asarray(a) @ x, jnp.zeros(a.shape[1], a.dtype)
    ),
    "callable": lambda a: dx.as_operator(
        lambda x: jnp.asarray(a) @ x, jnp.zeros(a.shape[1], a.dtype)
    ),
    "pytree callable": _pytree_operator,
}
FORWARD_ONLY = ("scipy operator, forward only",)


def rest_slow(cases, quick):
    """All of them, those that are not among the quick ones marked slow."""
    slow = pytest.mark.slow
    return [case if case in quick else pytest.param(case, marks=slow) for case in cases]


def triangular(matrix):
    """The projective linear flow with this lower triangular M, of positive diagonal."""
    return dx.flows.ProjectiveLinear(dx.flows.Triangular.of(jnp.asarray(matrix)))
