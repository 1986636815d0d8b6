r"""Likelihoods of free-form networks: an encoder and a decoder of any architecture, nothing bounded.

The density is the decoder's: $p(x) = \pi(z)\,/\,|\det J_g(z)|$ at $g(z) = x$. The variational estimate
of $\log|\det J_g|$ errs upward, so that model and proposal minimise one upper bound of $-\log p$: there
is nothing to exploit. The encoder f only has to find z, and is trained to.

!!! example

    ```python
    dx.likelihood.standard_normal(jnp.zeros(3))  # the usual prior
    ```
"""

from .estimate import LikelihoodEstimate as LikelihoodEstimate
from .estimate import UnsolvedPointError as UnsolvedPointError
from .evaluate import log_likelihood as log_likelihood
from .loss import FreeForm as FreeForm
from .loss import free_form_loss as free_form_loss
from .loss import standard_normal as standard_normal
