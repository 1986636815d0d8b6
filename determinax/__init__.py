"""log|det A| from matrix-vector products alone: with an error bar, a bound and a verdict."""

from determinax import flows, operators, sphere
from determinax.estimate import Estimate, UnreliableEstimateError
from determinax.methods import Auto, Exact, Lanczos, MonteCarlo, log_abs_det, log_volume
from determinax.operators import OperatorError, as_operator

__version__ = "0.1.0"

__all__ = [
    "Auto",
    "Estimate",
    "Exact",
    "Lanczos",
    "MonteCarlo",
    "OperatorError",
    "UnreliableEstimateError",
    "as_operator",
    "flows",
    "log_abs_det",
    "log_volume",
    "operators",
    "sphere",
]
