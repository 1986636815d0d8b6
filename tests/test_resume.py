"""A long estimate goes on with its own operator only, however that is given."""

import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import pytest
import scipy.sparse
import scipy.sparse.linalg
from registry import near_isometry

import determinax as dx
from determinax import _checkpoint

KEY = jax.random.key(3)
A, B = near_isometry(8, 0.2), 2 * near_isometry(8, 0.2)
METHOD = dx.MonteCarlo(600, chunk_size=100)


def _inner_jit(a):
    inner = jax.jit(lambda x: a @ x)
    return dx.as_operator(lambda x: inner(x), jnp.zeros(8))


def _tagged(a):
    return lx.TaggedLinearOperator(lx.MatrixLinearOperator(jnp.asarray(a)), lx.lower_triangular_tag)


# whether a product has to tell
KINDS = {
    "dense": (lambda a: a, False),
    "tagged": (_tagged, False),
    "sparse": (scipy.sparse.csr_array, False),
    "host": (scipy.sparse.linalg.aslinearoperator, True),
    "function with a jitted one inside": (_inner_jit, True),
}


@pytest.mark.parametrize("kind", KINDS)
def test_an_estimate_goes_on_with_its_own_operator_only(kind, tmp_path, monkeypatch):
    make, is_asked = KINDS[kind]
    monkeypatch.setattr(_checkpoint, "_SECONDS", 0.0)
    options = {"key": KEY, "checkpoint": tmp_path / "run.ck"}
    plain = dx.log_abs_det(make(A), METHOD, key=KEY)
    whole = dx.log_abs_det(make(A), METHOD, **options)
    assert whole.num_matvecs == plain.num_matvecs + is_asked
    again = dx.log_abs_det(make(A), METHOD, resume=True, **options)
    assert again.log_abs_det == plain.log_abs_det
    # the product of the run that wrote it, and that of this one
    assert again.num_matvecs == plain.num_matvecs + 2 * is_asked
    with pytest.raises(dx.StorageError, match="of another run"):
        dx.log_abs_det(make(B), METHOD, resume=True, **options)


def test_the_provenance_has_a_digest_only_where_it_tells_operators_apart():
    def digest(operator):
        e = dx.log_abs_det(operator, dx.MonteCarlo(8), key=KEY, trace=True)
        return dict(e.provenance)["digest of the operator"]

    for make in (lambda a: a, scipy.sparse.csr_array, _inner_jit):
        assert digest(make(A)) == digest(make(A)) != digest(make(B))
    assert digest(scipy.sparse.linalg.aslinearoperator(A)).startswith("none")


def test_a_product_that_differs_by_rounding_is_the_same(tmp_path):
    from determinax._shell import _require_same_product

    image = np.linspace(-1, 1, 50)
    _require_same_product(image * (1 + 1e-14), image, tmp_path)
    with pytest.raises(dx.StorageError, match="product with a fixed vector differs"):
        _require_same_product(image * (1 + 1e-8), image, tmp_path)


def test_a_place_that_cannot_be_written_is_refused_before_anything_is_begun(tmp_path):
    missing, products = tmp_path / "missing" / "run.ck", []

    class Host(scipy.sparse.linalg.LinearOperator):
        def _matmat(self, X):
            products.append(X.shape)
            return X

        def _rmatmat(self, X):
            return self._matmat(X)

    host: object = Host(float, (8, 8))
    admitted = dx.as_operator(host)
    products.clear()
    with pytest.raises(ValueError, match="nothing can be written there: no such file"):
        dx.log_abs_det(admitted, METHOD, key=KEY, checkpoint=missing, check_linear=False)
    flow = dx.flows.projective_linear(8)
    with pytest.raises(ValueError, match="nothing can be written there: no such file"):
        dx.fit(admitted, flow, key=KEY, steps=5, checkpoint=missing)
    assert products == []
