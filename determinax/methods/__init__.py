"""The methods, one a file, and the sentence that calls them: `log_abs_det(operator, method)`."""

from determinax.methods.api import log_abs_det, log_volume
from determinax.methods.auto import Auto
from determinax.methods.base import AbstractMethod
from determinax.methods.deflated import Deflated
from determinax.methods.exact import Exact
from determinax.methods.gradient import Gradient, log_abs_det_gradient
from determinax.methods.jacobian import jacobian_log_abs_det
from determinax.methods.lanczos import Lanczos
from determinax.methods.monte_carlo import MonteCarlo
from determinax.methods.probed import Probed
from determinax.methods.variational import Variational

__all__ = [
    "AbstractMethod",
    "Auto",
    "Deflated",
    "Exact",
    "Gradient",
    "Lanczos",
    "MonteCarlo",
    "Probed",
    "Variational",
    "jacobian_log_abs_det",
    "log_abs_det",
    "log_abs_det_gradient",
    "log_volume",
]
