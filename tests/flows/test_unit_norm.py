"""Maps of the sphere stay on the sphere, in both directions and whatever their parameters."""

import numpy as np

from .registry import SCALES, build, every_map_and_dtype, forward, inverse, points


@every_map_and_dtype
def test_points_stay_on_the_sphere(name, n, dtype):
    s = points(n, dtype)
    tolerance = 20 * np.finfo(dtype).eps
    for scale in SCALES:
        f = build(name, n, dtype, scale)
        for map_ in (forward, inverse):
            norm = np.linalg.norm(map_(f, s)[0], axis=0)
            np.testing.assert_allclose(norm, 1, atol=tolerance)
