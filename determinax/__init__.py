"""log|det A| from matrix-vector products alone: with an error bar, a bound and a verdict."""

from determinax import flows, operators, sphere, training
from determinax.estimate import Estimate, UnreliableEstimateError
from determinax.methods import (
    Auto,
    Deflated,
    Exact,
    Gradient,
    Lanczos,
    MonteCarlo,
    Probed,
    Variational,
    jacobian_log_abs_det,
    log_abs_det,
    log_abs_det_gradient,
    log_volume,
)
from determinax.operators import OperatorError, as_operator
from determinax.proposals import Proposal
from determinax.storage import StorageError, load, save
from determinax.training import (
    Fit,
    Tracker,
    fit,
    fit_density,
    fit_jacobian,
    fit_linear,
    fit_samples,
)

__version__ = "0.1.0"

__all__ = [
    "Auto",
    "Deflated",
    "Estimate",
    "Exact",
    "Fit",
    "Gradient",
    "Lanczos",
    "MonteCarlo",
    "OperatorError",
    "Probed",
    "Proposal",
    "StorageError",
    "Tracker",
    "UnreliableEstimateError",
    "Variational",
    "as_operator",
    "fit",
    "fit_density",
    "fit_jacobian",
    "fit_linear",
    "fit_samples",
    "flows",
    "jacobian_log_abs_det",
    "load",
    "log_abs_det",
    "log_abs_det_gradient",
    "log_volume",
    "operators",
    "save",
    "sphere",
    "training",
]
