"""Complex operators, as real ones of twice the size."""

import jax
import jax.numpy as jnp
import lineax as lx
from jaxtyping import Array

from determinax.operators._traits import (
    AbstractOwnOperator,
    columns,
    has_transpose,
    is_complex,
    own_kind,
)


@own_kind
class RealEmbedding(AbstractOwnOperator):
    r"""A complex operator on $\mathbb{C}^n$ as a real one on $\mathbb{R}^{2n}$, parts stacked.

    Its determinant is $|\det A|^2$: log-determinants behind the door are halved. A product with the
    embedding is one product with the complex operator.
    """

    inner: lx.AbstractLinearOperator

    def mv(self, vector: Array) -> Array:
        """The product with one stacked vector."""
        return columns(self, vector[:, None])[:, 0]

    def as_matrix(self) -> Array:
        """The dense real matrix of twice the size."""
        a = self.inner.as_matrix()
        return jnp.block([[a.real, -a.imag], [a.imag, a.real]])

    def transpose(self) -> "RealEmbedding":
        """The transpose of the embedding is the embedding of the adjoint."""
        return RealEmbedding(Conjugate(self.inner.transpose()))

    def in_structure(self) -> jax.ShapeDtypeStruct:
        """The structure of a vector that it takes."""
        return _double_real(self.inner.in_structure())

    def out_structure(self) -> jax.ShapeDtypeStruct:
        """The structure of a vector that it gives."""
        return _double_real(self.inner.out_structure())


@columns.register(RealEmbedding)
def _(operator: RealEmbedding, vectors: Array) -> Array:
    real, imaginary = jnp.split(vectors, 2)
    image = columns(operator.inner, jax.lax.complex(real, imaginary))
    return jnp.concatenate([image.real, image.imag])


@is_complex.register(RealEmbedding)
def _(operator: RealEmbedding) -> bool:
    del operator
    return True


@has_transpose.register(RealEmbedding)
def _(operator: RealEmbedding) -> bool:
    return has_transpose(operator.inner)


@own_kind
class Conjugate(AbstractOwnOperator):
    """The complex conjugate of an operator, for any operator that has products."""

    inner: lx.AbstractLinearOperator

    def mv(self, vector: Array) -> Array:
        """The product with one vector."""
        return self.inner.mv(vector.conj()).conj()

    def as_matrix(self) -> Array:
        """The dense matrix."""
        return self.inner.as_matrix().conj()

    def transpose(self) -> "Conjugate":
        """The transposed operator."""
        return Conjugate(self.inner.transpose())

    def in_structure(self) -> jax.ShapeDtypeStruct:
        """The structure of a vector that it takes."""
        return self.inner.in_structure()

    def out_structure(self) -> jax.ShapeDtypeStruct:
        """The structure of a vector that it gives."""
        return self.inner.out_structure()


@columns.register(Conjugate)
def _(operator: Conjugate, vectors: Array) -> Array:
    return columns(operator.inner, vectors.conj()).conj()


def _double_real(structure: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((2 * structure.size,), jnp.finfo(structure.dtype).dtype)
