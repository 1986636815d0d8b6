"""Methods: a configuration each, run by one engine; and what it takes to write one."""

from determinax._diagnostics import AbstractDiagnostics, Finding, Plain
from determinax._keys import stream
from determinax.methods._base import (
    METHODS,
    AbstractMethod,
    AbstractSelector,
    Plan,
    Selection,
    registered,
)
from determinax.methods._sampling import Directions, default_chunk_size, estimate_from, log_weights
from determinax.methods.auto import Auto
from determinax.methods.deflated import Deflated
from determinax.methods.exact import Exact
from determinax.methods.lanczos import Lanczos
from determinax.methods.monte_carlo import MonteCarlo
from determinax.methods.probed import Probed
from determinax.methods.variational import Variational

__all__ = [
    "METHODS",
    "AbstractDiagnostics",
    "AbstractMethod",
    "AbstractSelector",
    "Auto",
    "Deflated",
    "Directions",
    "Exact",
    "Finding",
    "Lanczos",
    "MonteCarlo",
    "Plain",
    "Plan",
    "Probed",
    "Selection",
    "Variational",
    "default_chunk_size",
    "estimate_from",
    "log_weights",
    "registered",
    "stream",
]
