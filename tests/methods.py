"""Every method of the registry, crossed with kinds of input by the tests of properties."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import lineax as lx
import scipy.sparse
import scipy.sparse.linalg
from registry import near_isometry

import determinax as dx
from determinax.methods import METHODS

N = 8
A = near_isometry(N, 0.2)


def proposal(n=N):
    return dx.Proposal(dx.flows.projective_linear(n))


def _flow():
    flow = dx.flows.cylinder(N, key=jax.random.key(5), num_flows=1, num_bins=4, num_centres=3)
    return dx.Proposal(flow)


class Case(NamedTuple):
    """A method's settings, and what it can do."""

    make: Callable[[], Any]
    name: str  # in METHODS
    needs_key: bool = True
    in_jit: bool = True  # Probed looks at values
    has_gradient: bool = True
    transposes: bool = False


CASES = {
    "MonteCarlo": Case(lambda: dx.MonteCarlo(600), "mc"),
    "MonteCarlo, frames": Case(lambda: dx.MonteCarlo(800, "frames"), "mc"),
    "MonteCarlo, rest": Case(lambda: dx.MonteCarlo(601, chunk_size=100), "mc"),
    "MonteCarlo, one frame": Case(lambda: dx.MonteCarlo(5, "frames"), "mc"),
    "Variational": Case(lambda: dx.Variational(proposal(), 300), "vde"),
    "Variational, defensive": Case(lambda: dx.Variational(proposal(), 300, defensive=0.2), "vde"),
    "Exact": Case(lambda: dx.Exact(), "exact", needs_key=False),
    "Lanczos": Case(lambda: dx.Lanczos(24, 6), "lanczos", transposes=True),
    "Deflated": Case(lambda: dx.Deflated(3), "deflated"),
    "Deflated, all": Case(lambda: dx.Deflated(N), "deflated"),
    "Deflated, smallest": Case(
        lambda: dx.Deflated(2, dx.Lanczos(20, 4), which="smallest"), "deflated", transposes=True
    ),
    "Probed": Case(lambda: dx.Probed(pattern=(N, N)), "probed", in_jit=False, has_gradient=False),
    "Auto": Case(lambda: dx.Auto(), "auto"),
    "Auto, few": Case(lambda: dx.Auto(6), "auto"),
}
assert {case.name for case in CASES.values()} == METHODS.keys()


def _host(a):
    return scipy.sparse.linalg.LinearOperator(
        a.shape,
        matmat=lambda x: a @ x,
        matvec=lambda x: a @ x,
        rmatvec=lambda x: a.T @ x,
        rmatmat=lambda x: a.T @ x,
        dtype=a.dtype,
    )


def _jacobian(a):
    return lx.JacobianLinearOperator(
        lambda x, _: jnp.tanh(jnp.asarray(a) @ x), jnp.zeros(a.shape[1], a.dtype)
    )


KINDS = {
    "dense": lambda a: a,
    "sparse": scipy.sparse.csr_array,
    "callable": lambda a: dx.as_operator(
        lambda x: jnp.asarray(a) @ x, jnp.zeros(a.shape[1], a.dtype)
    ),
    "SciPy": _host,
    "Jacobian": _jacobian,
}
