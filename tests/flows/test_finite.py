"""Values and gradients are finite at and near the poles, the seams and the bin edges."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from determinax import flows

from .registry import MODERATE, REGISTRY, build, case, jit


def _hard_points(n: int, dtype: str):
    """Poles, near-poles, the seam of the circle and edges of even bins, as columns."""
    eye = np.eye(n)
    axes = sorted({0, 1, 2, n // 2, n - 1} & set(range(n)))
    columns = [sign * eye[k] for k in axes for sign in (1, -1)]
    rng = np.random.default_rng(n)
    for distance in (1e-3, 1e-6, 1e-9, 1e-12, 1e-18, 1e-30):
        columns += [eye[k] + distance * rng.normal(size=n) for k in (0, n - 1)]
        columns += [eye[0] + distance * eye[1], eye[0] - distance * eye[1]]
        columns += [-eye[0] + distance * eye[1], -eye[0] - distance * eye[1]]
    for edge in {*np.linspace(-1, 1, 7), *np.linspace(-1, 1, 9)}:  # of 6 bins, and of 8
        for ulp in (-1, 0, 1):
            h = np.clip(edge * (1 + ulp * np.finfo(dtype).eps), -1, 1)
            columns.append(h * eye[n - 1] + np.sqrt(1 - h * h) * eye[0])
    points = np.stack(columns, axis=1)
    return jnp.asarray(points / np.linalg.norm(points, axis=0), dtype)


def _gradients(map_):
    @jit
    def run(f, s):
        params, rest = eqx.partition(f, flows.trainable(f))

        def loss(params, s):
            y, log_det = map_(eqx.combine(params, rest), s)
            return jnp.sum(y * jnp.arange(1, y.size + 1).reshape(y.shape)) / y.size + jnp.sum(
                log_det
            )

        return map_(f, s), jax.grad(loss, argnums=(0, 1))(params, s)

    return run


_forward = _gradients(lambda f, s: f.forward(s))
_inverse = _gradients(lambda f, s: f.inverse(s))


# gradients take long to compile: float32, where numbers run out first, in the least dimension;
# the others with the slow tests
CASES = [
    case(
        name,
        n,
        dtype,
        slow=name.startswith("recipe") or (n, dtype) != (entry.dimensions[0], "float32"),
    )
    for name, entry in REGISTRY.items()
    for n, dtype in (
        (entry.dimensions[0], "float32"),
        (entry.dimensions[0], "float64"),
        (10, "float32"),
        (33, "float32"),
    )
    if n in entry.dimensions
]


@pytest.mark.parametrize(("name", "n", "dtype"), CASES)
def test_values_and_gradients_are_finite_at_hard_points(name, n, dtype):
    s = _hard_points(n, dtype)
    for scale in (0.0, MODERATE[-1]):  # at 0 the knots are the even edges, exactly
        f = build(name, n, dtype, scale)
        for run in (_forward, _inverse):
            out, gradients = run(f, s)
            for leaf in jax.tree.leaves((out, gradients)):
                assert leaf.dtype == dtype
                assert jnp.all(jnp.isfinite(leaf))
