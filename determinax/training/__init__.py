"""Training: a loss, a flow and an optimiser become a `Fit`."""

from determinax.training.densities import divergence, fit_density, fit_samples
from determinax.training.jacobian import fit_jacobian
from determinax.training.loop import Fit, train
from determinax.training.natural import fit_linear
from determinax.training.objectives import fit
from determinax.training.tracker import Tracker

__all__ = [
    "Fit",
    "Tracker",
    "divergence",
    "fit",
    "fit_density",
    "fit_jacobian",
    "fit_linear",
    "fit_samples",
    "train",
]
