"""Modified Bessel functions in logarithms, for every order and argument that a sphere asks for."""

import numpy as np
import scipy  # whose special functions load when they are used
from jaxtyping import Float


def log_mean_exp_height(n: int, kappa: Float[np.ndarray, " *num"]) -> Float[np.ndarray, " *num"]:
    r"""$\log \mathbb{E}_U[e^{\kappa x_1}] = \log \Gamma(n/2)\,(2/\kappa)^v I_v(\kappa)$, $v = n/2 - 1$."""
    kappa = np.asarray(kappa, float)
    v = n / 2 - 1
    safe = np.where(kappa > 1e-8, kappa, 1.0)
    full = scipy.special.gammaln(v + 1) + v * np.log(2 / safe) + log_iv(v, safe)
    # the series, 1 + kappa^2 / 2n, where nothing else is left of it
    return np.where(kappa > 1e-8, full, kappa**2 / (2 * n))


def mean_height(n: int, kappa: Float[np.ndarray, " *num"]) -> Float[np.ndarray, " *num"]:
    r"""The mean of $\langle c, x\rangle$ of a von Mises-Fisher law: $I_{n/2}(\kappa)/I_{n/2-1}(\kappa)$."""
    kappa = np.asarray(kappa, float)
    safe = np.maximum(kappa, 1e-8)
    ratio = np.exp(log_iv(n / 2, safe) - log_iv(n / 2 - 1, safe))
    return np.where(kappa > 1e-8, ratio, kappa / n)


def log_iv(v: float, x: Float[np.ndarray, " *num"]) -> Float[np.ndarray, " *num"]:
    r"""$\log I_v(x)$ for $v \ge 0$, $x > 0$, however large: Hankel's and Debye's expansions at the ends."""
    x = np.asarray(x, float)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        plain = np.log(scipy.special.ive(v, x)) + x
    far = _hankel(v, x)
    value = np.where(x > 1e4 * max(1.0, v * v), far, plain)
    return np.where(np.isfinite(value), value, _debye(max(v, 1.0), x) if v >= 10 else far)


def _hankel(v: float, x: np.ndarray) -> np.ndarray:
    m, y = 4 * v * v, 8 * x
    series = 1 - (m - 1) / y + (m - 1) * (m - 9) / (2 * y * y)
    with np.errstate(invalid="ignore", divide="ignore"):
        return x - np.log(2 * np.pi * x) / 2 + np.log(series)


def _debye(v: float, x: np.ndarray) -> np.ndarray:
    z = x / v
    root = np.sqrt(1 + z * z)
    t = 1 / root
    eta = root + np.log(z / (1 + root))
    u1 = (3 * t - 5 * t**3) / 24
    u2 = (81 * t**2 - 462 * t**4 + 385 * t**6) / 1152
    return v * eta - np.log(2 * np.pi * v) / 2 - np.log(root) / 2 + np.log1p(u1 / v + u2 / v**2)
