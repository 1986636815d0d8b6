r"""Operators made of operators: $AM$, and what is left of A between orthogonal complements."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
from jaxtyping import Array, Float

from determinax import _linalg
from determinax._linalg import mm
from determinax.operators._traits import (
    AbstractOwnOperator,
    OperatorError,
    columns,
    has_transpose,
    own_kind,
)


@own_kind
class PreconditionedLinearOperator(AbstractOwnOperator):
    r"""$AM$ for an operator A and any function that multiplies columns with M. No transpose."""

    inner: lx.AbstractLinearOperator
    multiply: Callable[[Array], Array]

    def mv(self, vector: Array) -> Array:
        """The product with one vector."""
        return columns(self, vector[:, None])[:, 0]

    def transpose(self) -> lx.AbstractLinearOperator:
        """There is none: M is a function."""
        raise OperatorError("a preconditioned operator has no transpose: use sampling methods")

    def in_structure(self) -> jax.ShapeDtypeStruct:
        """The structure of a vector that it takes."""
        return self.inner.in_structure()

    def out_structure(self) -> jax.ShapeDtypeStruct:
        """The structure of a vector that it gives."""
        return self.inner.out_structure()


@columns.register(PreconditionedLinearOperator)
def _(operator: PreconditionedLinearOperator, vectors: Array) -> Array:
    return columns(operator.inner, operator.multiply(vectors))


@has_transpose.register(PreconditionedLinearOperator)
def _(operator: PreconditionedLinearOperator) -> bool:
    del operator
    return False


class Reflector(eqx.Module):
    r"""An orthogonal matrix $P = I - UXU^\top$ whose first k columns span a frame; see `reflector`."""

    u: Float[Array, "n k"]
    x: Float[Array, "k k"]

    def complement(self, vectors: Float[Array, "rest num"]) -> Float[Array, "n num"]:
        """The vectors' images under all columns of P but the first k."""
        k = self.u.shape[1]
        padded = jnp.pad(vectors, [(k, 0), (0, 0)])
        return padded - mm(self.u, mm(self.x, mm(self.u.T, padded)))

    def coordinates(self, vectors: Float[Array, "n num"]) -> Float[Array, "rest num"]:
        """The transpose of `complement`."""
        moved = vectors - mm(self.u, mm(self.x.T, mm(self.u.T, vectors)))
        return moved[self.u.shape[1] :]


def reflector(frame: Float[Array, "n k"]) -> Reflector:
    r"""An orthogonal matrix whose first k columns span the frame, in memory O(nk).

    $P = I - UXU^\top$ with $U = V - E$, $X = (I - V_1^\top)^{-1}$, where $E$ are the first k unit
    vectors and $V_1$ the first k rows of $V$. We turn $V$ within its span so that $V_1$ is negative
    semidefinite: then $I - V_1 \ge I$, and nothing is ill-conditioned.
    """
    k = frame.shape[1]
    left, _, right = _linalg.svd(frame[:k])
    turned = mm(frame, -mm(left, right).T)
    identity = jnp.eye(k, dtype=frame.dtype)
    inverse = _linalg.solve(identity - turned[:k].T, identity)
    return Reflector(turned.at[:k].add(-identity), inverse)


@own_kind
class CompressedLinearOperator(AbstractOwnOperator):
    r"""$Q_\perp^\top A V_\perp$: an operator between the complements of a frame V and of its images."""

    inner: lx.AbstractLinearOperator
    right: Reflector
    left: Reflector

    def mv(self, vector: Array) -> Array:
        """The product with one vector."""
        return columns(self, vector[:, None])[:, 0]

    def transpose(self) -> "CompressedLinearOperator":
        """The transposed operator, compressed the other way round."""
        return CompressedLinearOperator(self.inner.transpose(), self.left, self.right)

    def in_structure(self) -> jax.ShapeDtypeStruct:
        """The structure of a vector that it takes."""
        inner, k = self.inner.in_structure(), self.right.u.shape[1]
        return jax.ShapeDtypeStruct((inner.shape[0] - k,), inner.dtype)

    def out_structure(self) -> jax.ShapeDtypeStruct:
        """The structure of a vector that it gives."""
        inner, k = self.inner.out_structure(), self.left.u.shape[1]
        return jax.ShapeDtypeStruct((inner.shape[0] - k,), inner.dtype)


@columns.register(CompressedLinearOperator)
def _(operator: CompressedLinearOperator, vectors: Array) -> Array:
    images = columns(operator.inner, operator.right.complement(vectors))
    return operator.left.coordinates(images)


@has_transpose.register(CompressedLinearOperator)
def _(operator: CompressedLinearOperator) -> bool:
    return has_transpose(operator.inner)
