"""Stochastic Lanczos quadrature, the neighbours' method, by matfree."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
import matfree.decomp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from determinax import operators as ops
from determinax import sphere, weights
from determinax.estimate import Estimate
from determinax.methods.base import AbstractMethod, require_key, whole_number
from determinax.operators import NO_PRODUCTS, OperatorError, Products
from determinax.progress import Report

# what the Lanczos bases of the probes in memory may hold together
_BASIS_ENTRIES = 2**26


@dataclasses.dataclass(frozen=True)
class Lanczos(AbstractMethod):
    r"""$\log|\det A| = \frac12 \operatorname{tr}\log A^\top A$ by random probes and quadrature.

    Use it for broad spectra with fewer than n products, where sampling weights fails. Operators
    tagged positive (or negative) semidefinite cost one product a step, others one with A and one
    with its transpose. The quadrature errs upward until it has converged; its change from half
    its depth is part of the standard error, and decides the verdict.

    **Arguments:**

    - `num_probes`: independent random vectors.
    - `depth`: Lanczos steps for each; more than n bring nothing and are not taken.

    matfree decomposes; the quadrature is ours, since it must survive an exhausted Krylov space
    (a multiple of the identity) and be read at half its depth.

    References: Ubaru, Chen and Saad (2017); Golub and Kahan (1965).
    """

    num_probes: int = 30
    depth: int = 30

    def __post_init__(self):
        object.__setattr__(self, "num_probes", whole_number(self.num_probes, "num_probes"))
        object.__setattr__(self, "depth", whole_number(self.depth, "depth"))

    def estimate(
        self,
        operator: lx.AbstractLinearOperator,
        key: PRNGKeyArray | None,
        *,
        spent: Products = NO_PRODUCTS,
        progress: Report | None = None,
    ) -> Estimate:
        """Run all probes side by side."""
        key = require_key(key, "Lanczos")
        depth = min(self.depth, operator.in_size())
        symmetric = is_definite(operator)
        transpose = operator if symmetric else transposed(operator)
        run = _quadratures if ops.is_traced((operator, key)) else _compiled_quadratures
        values, halves, log_scale = weights.guarded(
            run, operator, transpose, key, self.num_probes, depth, symmetric
        )
        if not ops.is_traced(values) and np.isnan(np.asarray(values)).any():
            probe = int(np.argmax(np.isnan(np.asarray(values))))
            raise OperatorError(
                f"a product of probe {probe} contains NaN or Inf: every product of the operator "
                "with a finite vector must be finite"
            )
        factor, n = ops.log_det_factor(operator), operator.in_size()
        rounding = n * jnp.finfo(operator.in_structure().dtype).eps
        error = jnp.std(values) / np.sqrt(max(self.num_probes - 1, 1))
        bias = jnp.abs(jnp.mean(halves) - jnp.mean(values)) if depth < n else jnp.zeros(())
        error, bias = jnp.maximum(error, rounding), jnp.maximum(bias - rounding, 0)
        steps = self.num_probes * depth
        # and one product to find the scale
        spent += Products(steps + 1) if symmetric else Products(steps + 1, steps)
        return Estimate(
            log_abs_det=factor * (jnp.mean(values) + n * log_scale),
            standard_error=factor * jnp.hypot(error, bias),
            quadrature_change=bias / error,
            method=f"Lanczos, {self.num_probes} probes of depth {depth}",
            num_groups=self.num_probes,
            factor=factor,
            num_matvecs=spent.total,
            num_transposed=spent.transposed,
            num_matvecs_dense=ops.rows_columns(operator)[1],
        )


def is_definite(operator: lx.AbstractLinearOperator) -> bool:
    """Whether the operator is tagged as definite: then one product a step is enough."""
    return lx.is_positive_semidefinite(operator) or lx.is_negative_semidefinite(operator)


def transposed(operator: lx.AbstractLinearOperator) -> lx.AbstractLinearOperator:
    """The transpose, with a sentence where there is none."""
    try:
        return operator.transpose()
    except OperatorError:
        raise
    except Exception as error:
        raise OperatorError(
            "Lanczos needs products with the transpose, and JAX could not transpose the operator: "
            "use MonteCarlo, or pass a lineax operator that has a transpose"
        ) from error


def _quadratures(operator, transpose, key, num_probes, depth, symmetric):
    """Each probe's quadrature of n e^T log(A) e, at full and at half depth, and the log-scale."""
    n, dtype = operator.in_size(), operator.in_structure().dtype
    probes = sphere.uniform(key, n, num_probes, dtype)
    # A^T A squares the scale: take it out first, by the size of one of the probes' products
    log_size = weights.log_norm(operator.mv(probes[:, 0])[:, None])[0]
    log_scale = jax.lax.stop_gradient(jnp.where(jnp.isfinite(log_size), log_size, 0))
    scale = jnp.exp(log_scale)
    decompose = _tridiagonal if symmetric else _bidiagonal

    def quadrature(probe):
        nodes = decompose(operator, transpose, scale, depth)(probe)
        return nodes(depth), nodes(max(depth // 2, 1))

    # side by side, as many as their bases leave room for
    room = max(1, _BASIS_ENTRIES // (depth * (n + operator.out_size())))
    batch = min(num_probes, room)
    values, halves = jax.lax.map(quadrature, probes.T.astype(float), batch_size=batch)
    return n * values, n * halves, log_scale


_compiled_quadratures = eqx.filter_jit(_quadratures)


def _scaled_product(operator, scale):
    """Products in the operator's dtype, recurrences in the widest: matfree knows only that one."""
    dtype = operator.in_structure().dtype
    return lambda v: (operator.mv(v.astype(dtype)) / scale).astype(float)


def _bidiagonal(operator, transpose, scale, depth):
    product = _scaled_product(operator, scale)
    if ops.host_operators(operator):
        # matfree transposes by jax.vjp, which a callback to the host lacks: tell it how
        forward = product
        product = jax.custom_vjp(forward)
        product.defvjp(
            lambda v: (forward(v), None), lambda _, u: (_scaled_product(transpose, scale)(u),)
        )
    decompose = matfree.decomp.bidiag(depth, materialize=False, reortho="full")

    def apply(probe):
        diagonal, off = decompose(product, probe).J_small
        alphas, betas = _cut(diagonal, off)

        def nodes(d):
            matrix = jnp.diag(alphas[:d]) + jnp.diag(betas[: d - 1], 1)
            _, values, vt = jnp.linalg.svd(matrix)
            return jnp.sum(vt[:, 0] ** 2 * jnp.log(values))

        return nodes

    return apply


def _tridiagonal(operator, transpose, scale, depth):
    del transpose
    # not tridiag_sym: its averaged off-diagonal hides the exact zero of an exhausted Krylov space
    decompose = matfree.decomp.hessenberg(depth, reortho="full", custom_vjp=False)

    def apply(probe):
        matrix = jnp.asarray(decompose(_scaled_product(operator, scale), probe).J_small)
        diagonal, off = _cut(jnp.diagonal(matrix), jnp.diagonal(matrix, -1), definite=True)

        def nodes(d):
            side = jnp.diag(off[: d - 1], 1)
            values, vectors = jnp.linalg.eigh(jnp.diag(diagonal[:d]) + side + side.T)
            return jnp.sum(vectors[0] ** 2 * jnp.log(jnp.abs(values)))

        return nodes

    return apply


def _cut(
    diagonal: Float[Array, " d"], off: Float[Array, " d-1"], definite: bool = False
) -> tuple[Array, Array]:
    """Cut the small matrix where the Krylov space was exhausted, which leaves NaN behind.

    Only behind an exact zero: a NaN before one comes from the operator and must stay.
    """
    broken = off == 0 if definite else (off == 0) | (diagonal[:-1] == 0)
    behind = jnp.cumsum(broken) > 0
    diagonal = diagonal.at[1:].set(jnp.where(behind, 1, diagonal[1:]))
    return diagonal, jnp.where(behind, 0, off)
