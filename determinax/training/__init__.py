"""Training: a fitter takes steps, one loop runs it, and a `Fit` comes out.

```python
flow = dx.flows.projective_linear(10)
fit = dx.training.fit(A, flow, key=key, steps=20, batch_size=64)
dx.log_abs_det(A, dx.Variational(fit.proposal, 100), key=key)
```
"""

from determinax.training._base import AbstractFitter, Fit, FitInterrupted, Record
from determinax.training._loop import run
from determinax.training.densities import divergence, fit_density
from determinax.training.gradients import fit, train
from determinax.training.jacobians import fit_jacobian
from determinax.training.linear import fit_linear
from determinax.training.models import ModelFit, fit_free_form, fit_model
from determinax.training.samples import SampleFit, default_flow, fit_samples
from determinax.training.tracker import Tracker

__all__ = [
    "AbstractFitter",
    "Fit",
    "FitInterrupted",
    "ModelFit",
    "Record",
    "SampleFit",
    "Tracker",
    "default_flow",
    "divergence",
    "fit",
    "fit_density",
    "fit_free_form",
    "fit_jacobian",
    "fit_linear",
    "fit_model",
    "fit_samples",
    "run",
    "train",
]
