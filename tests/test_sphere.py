import jax
import jax.numpy as jnp
import numpy as np
import pytest

from determinax import sphere

KEY = jax.random.key(0)


@pytest.mark.parametrize("n", [1, 2, 3, 10])
def test_uniform_points_have_unit_norm_and_the_moments_of_the_sphere(n):
    s = sphere.uniform(KEY, n, 20_000)
    np.testing.assert_allclose(jnp.linalg.norm(s, axis=0), 1, rtol=1e-12)
    # E s = 0 and E s s^T = I/n, in standard errors
    assert np.all(np.abs(s.mean(axis=1)) < 5 / np.sqrt(n * 20_000))
    np.testing.assert_allclose(s @ s.T / 20_000, np.eye(n) / n, atol=5 / np.sqrt(20_000) / n)


@pytest.mark.parametrize(
    ("n", "k"), [(1, 1), (2, 2), (5, 5), (5, 2), (33, 33), (100, 100), (100, 7)]
)
def test_frames_are_orthonormal(n, k):
    z = sphere.frame(KEY, n, k)
    assert z.shape == (n, k)
    np.testing.assert_allclose(z.T @ z, np.eye(k), atol=1e-13)


@pytest.mark.parametrize("method", [sphere._gram_schmidt, sphere._householder])
def test_frames_are_haar_distributed(method):
    frames = jax.vmap(method)(jax.random.normal(KEY, (20_000, 3, 3)))
    # LAPACK's own signs would make some entries one-sided
    assert np.all(np.abs(frames.mean(axis=0)) < 5 / np.sqrt(3 * 20_000))
    signs = np.sign(np.linalg.det(frames)).mean()
    assert abs(signs) < 5 / np.sqrt(20_000)


@pytest.mark.parametrize("k", [0, 4])
def test_a_frame_of_impossible_size_is_refused(k):
    with pytest.raises(ValueError, match="1 to 3 directions"):
        sphere.frame(KEY, 3, k)


def test_dtype_is_respected():
    assert sphere.uniform(KEY, 3, 5, jnp.float32).dtype == jnp.float32
    assert sphere.frame(KEY, 3, dtype=jnp.float32).dtype == jnp.float32


def test_longitude_and_latitude_go_there_and_back():
    lon, lat = np.array([0.0, 90, -179.5, 13.4, 0]), np.array([0.0, 0, 89.999, 52.5, -90])
    points = sphere.from_lonlat(lon, lat)
    np.testing.assert_allclose(points[:2], [[1, 0, 0], [0, 1, 0]], atol=1e-15)
    np.testing.assert_allclose(sphere.to_lonlat(points)[0][:4], lon[:4], atol=1e-9)
    np.testing.assert_allclose(sphere.to_lonlat(points)[1], lat, atol=1e-12)
    assert sphere.from_lonlat(350, 10).shape == (3,)
    assert float(sphere.to_lonlat(sphere.from_lonlat(350, 10))[0]) == pytest.approx(-10)


@pytest.mark.parametrize(
    ("lon", "lat", "sentence"),
    [
        ([0.0, 1.0], [0.0, 91.0], "the latitude of row 1 is 91"),
        ([0.0, np.nan], [0.0, 1.0], "the longitude of row 1 is nan"),
        ([0.0, 1.0], [0.0], "not pairs"),
        (400.0, 0.0, "the longitude is 400"),
    ],
)
def test_bad_degrees_are_refused(lon, lat, sentence):
    with pytest.raises((TypeError, ValueError), match=sentence):
        sphere.from_lonlat(lon, lat)
