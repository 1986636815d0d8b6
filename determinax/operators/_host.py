"""The kind "host": products that run on the host, as those of a SciPy `LinearOperator`."""

import functools
from typing import Any

import equinox as eqx
import jax
import numpy as np
import scipy.sparse.linalg
from jaxtyping import Array

from determinax.operators._door import Entered, enter, inexact_dtype, narrowing_note
from determinax.operators._traits import (
    NO_PRODUCTS,
    AbstractOwnOperator,
    HostCalls,
    OperatorError,
    Products,
    has_transpose,
    own_kind,
)

# where a SciPy operator keeps its calls: the same object for the same operator, so that what is
# compiled for it serves again; both go together when nobody holds them any more
_KEPT = "_determinax_calls"


@own_kind
class HostLinearOperator(AbstractOwnOperator):
    """Whatever multiplies on the host, `matmat` and perhaps `rmatmat`: JAX compiles around it."""

    calls: HostCalls = eqx.field(static=True)
    is_transposed: bool = eqx.field(static=True, default=False)

    def mv(self, vector: Array) -> Array:
        """The product with one vector; `vmap` makes it one call for the whole chunk.

        A callback has no transpose for JAX to find: the kind gives it one, so that no method has to
        know.
        """

        @jax.custom_vjp
        def product(vector):
            return self._call(vector)

        def forward(vector):
            return self._call(vector), None

        def backward(_, cotangent):
            return (self.transpose()._call(cotangent),)

        product.defvjp(forward, backward)
        return product(vector)

    def _call(self, vector: Array) -> Array:
        call = functools.partial(self.calls, self.is_transposed)
        return jax.pure_callback(call, self.out_structure(), vector, vmap_method="expand_dims")

    def transpose(self) -> "HostLinearOperator":
        """The transposed operator, where the host has `rmatmat`."""
        if self.calls.rmatmat is None:
            raise OperatorError(
                "the operator has no transpose: give the SciPy LinearOperator an rmatvec, "
                "or use a method that needs forward products only, such as MonteCarlo"
            )
        return HostLinearOperator(self.calls, not self.is_transposed)

    def in_structure(self) -> jax.ShapeDtypeStruct:
        """The structure of a vector that it takes."""
        size = self.calls.shape[0 if self.is_transposed else 1]
        return jax.ShapeDtypeStruct((size,), self.calls.dtype)

    def out_structure(self) -> jax.ShapeDtypeStruct:
        """The structure of a vector that it gives."""
        size = self.calls.shape[1 if self.is_transposed else 0]
        return jax.ShapeDtypeStruct((size,), self.calls.dtype)


@has_transpose.register(HostLinearOperator)
def _(operator: HostLinearOperator) -> bool:
    return operator.calls.rmatmat is not None


@enter.register(scipy.sparse.linalg.LinearOperator)
def _(host: Any, example: Any = None) -> Entered:
    del example
    if len(host.shape) != 2:
        raise OperatorError(f"operator has shape {host.shape}: a matrix has two axes")
    m, n = (int(size) for size in host.shape)
    dtype = inexact_dtype(np.dtype(host.dtype), "operator")
    if m == 0 or n == 0:
        raise OperatorError(f"operator is {m}x{n}: it has no entries")
    kept = getattr(host, _KEPT, {})
    calls, spent = kept.get(dtype), NO_PRODUCTS
    if calls is None:
        calls, spent = _calls(host, (m, n), dtype)
        setattr(host, _KEPT, {**kept, dtype: calls})
    return Entered(
        HostLinearOperator(calls),
        product=host.matvec,
        structure=jax.ShapeDtypeStruct((n,), calls.taken),
        spent=spent,
        notes=narrowing_note(host.dtype, dtype),
    )


def _calls(host: Any, shape: tuple[int, int], dtype: np.dtype) -> tuple[HostCalls, Products]:
    """The calls of a SciPy operator; one product tells, once, whether it has a transpose."""
    taken = np.result_type(host.dtype, np.float32)

    def transposed(x):
        # SciPy's rmatmat is the adjoint; the transpose is its conjugate
        return host.rmatmat(x.conj()).conj()

    try:
        host.rmatvec(np.zeros(shape[0], taken))
    except Exception:  # whatever it is: there are no products with the transpose
        return HostCalls(host.matmat, None, shape, dtype, taken), NO_PRODUCTS
    return HostCalls(host.matmat, transposed, shape, dtype, taken), Products(0, 1)
