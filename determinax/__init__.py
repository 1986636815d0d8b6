"""log|det A| from matrix-vector products alone: with an error bar, a bound and a verdict."""

# nothing is imported here, `typing` neither: until the command line heeds Ctrl-C it has to be quick
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from determinax import api as api
    from determinax import blocks as blocks
    from determinax import densities as densities
    from determinax import distributed as distributed
    from determinax import estimate as estimate
    from determinax import files as files
    from determinax import flows, operators, sphere, training
    from determinax import gradients as gradients
    from determinax import jacobians as jacobians
    from determinax import likelihood as likelihood
    from determinax import methods as methods
    from determinax import paper as paper
    from determinax import places as places
    from determinax import plots as plots
    from determinax import progress as progress
    from determinax import proposals as proposals
    from determinax import storage as storage
    from determinax import surrogates as surrogates
    from determinax import sweeps as sweeps
    from determinax.api import log_abs_det, log_volume
    from determinax.blocks import block_proposals
    from determinax.densities import Density, density, goodness_of_fit, judge, region, uniformity
    from determinax.estimate import Estimate, UnreliableEstimateError
    from determinax.gradients import Gradient, log_abs_det_gradient
    from determinax.jacobians import jacobian_log_abs_det
    from determinax.likelihood import (
        LikelihoodEstimate,
        UnsolvedPointError,
        free_form_loss,
        log_likelihood,
    )
    from determinax.methods import (
        Auto,
        Deflated,
        Exact,
        Lanczos,
        MonteCarlo,
        Probed,
        Variational,
    )
    from determinax.operators import OperatorError, as_operator
    from determinax.proposals import (
        Mixture,
        Proposal,
        Uniform,
        VonMisesFisher,
        fitted_bumps,
        kernels,
    )
    from determinax.storage import StorageError, load, save
    from determinax.surrogates import Surrogate, jacobian_surrogate, surrogate
    from determinax.sweeps import sweep
    from determinax.training import (
        Fit,
        FitInterrupted,
        Tracker,
        fit,
        fit_density,
        fit_free_form,
        fit_jacobian,
        fit_linear,
        fit_samples,
    )

__version__ = "0.2.0"

# where each name is; it is imported when it is first asked for, so that `determinax --help` is quick
_HOMES = {
    "densities": ("Density", "density", "goodness_of_fit", "judge", "region", "uniformity"),
    "distributed": (),
    "estimate": ("Estimate", "UnreliableEstimateError"),
    "files": (),
    "flows": (),
    "api": ("log_abs_det", "log_volume"),
    "blocks": ("block_proposals",),
    "gradients": ("Gradient", "log_abs_det_gradient"),
    "jacobians": ("jacobian_log_abs_det",),
    "likelihood": (
        "LikelihoodEstimate",
        "UnsolvedPointError",
        "free_form_loss",
        "log_likelihood",
    ),
    "methods": ("Auto", "Deflated", "Exact", "Lanczos", "MonteCarlo", "Probed", "Variational"),
    "operators": ("OperatorError", "as_operator"),
    "paper": (),
    "places": (),
    "plots": (),
    "progress": (),
    "proposals": ("Mixture", "Proposal", "Uniform", "VonMisesFisher", "fitted_bumps", "kernels"),
    "sphere": (),
    "sweeps": ("sweep",),
    "storage": ("StorageError", "load", "save"),
    "surrogates": ("Surrogate", "jacobian_surrogate", "surrogate"),
    "training": (
        "Fit",
        "FitInterrupted",
        "Tracker",
        "fit",
        "fit_density",
        "fit_free_form",
        "fit_jacobian",
        "fit_linear",
        "fit_samples",
    ),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "Auto",
    "Deflated",
    "Density",
    "Estimate",
    "Exact",
    "Fit",
    "FitInterrupted",
    "Gradient",
    "Lanczos",
    "LikelihoodEstimate",
    "Mixture",
    "MonteCarlo",
    "OperatorError",
    "Probed",
    "Proposal",
    "StorageError",
    "Surrogate",
    "Tracker",
    "Uniform",
    "UnreliableEstimateError",
    "UnsolvedPointError",
    "Variational",
    "VonMisesFisher",
    "as_operator",
    "block_proposals",
    "density",
    "distributed",
    "fit",
    "fit_density",
    "fit_free_form",
    "fit_jacobian",
    "fit_linear",
    "fit_samples",
    "fitted_bumps",
    "flows",
    "free_form_loss",
    "goodness_of_fit",
    "jacobian_log_abs_det",
    "jacobian_surrogate",
    "judge",
    "kernels",
    "likelihood",
    "load",
    "log_abs_det",
    "log_abs_det_gradient",
    "log_likelihood",
    "log_volume",
    "operators",
    "region",
    "save",
    "sphere",
    "surrogate",
    "sweep",
    "training",
    "uniformity",
]


def __getattr__(name: str) -> "Any":
    import importlib

    if name in _HOMES:
        return importlib.import_module(f"determinax.{name}")
    if name not in _HOME_OF:
        raise AttributeError(f"module 'determinax' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"determinax.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_HOMES})
