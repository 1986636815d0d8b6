"""Normalizing flows on spheres.

```python
q = dx.Proposal(dx.flows.cylinder(3, key=key, num_flows=1, conditioning="autoregressive"))
s, log_density = q.sample_and_log_density(key, 100)
```
"""

from .banded import Banded as Banded
from .base import AbstractCircleMap as AbstractCircleMap
from .base import AbstractIntervalMap as AbstractIntervalMap
from .base import AbstractSphereMap as AbstractSphereMap
from .base import Constant as Constant
from .base import trainable as trainable
from .chain import Chain as Chain
from .conditional import ConditionalLinear as ConditionalLinear
from .conditional import Given as Given
from .conditional import RescaledContext as RescaledContext
from .conditioners import Conditioner as Conditioner
from .conditioners import ImageConditioner as ImageConditioner
from .cylinder import Circle as Circle
from .cylinder import CylinderAutoregressive as CylinderAutoregressive
from .cylinder import CylinderCoupling as CylinderCoupling
from .exponential import AbstractPotential as AbstractPotential
from .exponential import ExponentialMap as ExponentialMap
from .exponential import Polynomial as Polynomial
from .exponential import Radial as Radial
from .linear import AbstractFactor as AbstractFactor
from .linear import Circulant as Circulant
from .linear import Dense as Dense
from .linear import Diagonal as Diagonal
from .linear import DiagonalLowRank as DiagonalLowRank
from .linear import Inverse as Inverse
from .linear import Kronecker as Kronecker
from .linear import MaskedConvolution as MaskedConvolution
from .linear import Preconditioner as Preconditioner
from .linear import Product as Product
from .linear import ProjectiveLinear as ProjectiveLinear
from .linear import Transpose as Transpose
from .linear import Triangular as Triangular
from .moebius import MoebiusMixture as MoebiusMixture
from .recipes import conditional_convolution as conditional_convolution
from .recipes import conditional_linear as conditional_linear
from .recipes import cylinder as cylinder
from .recipes import exponential_polynomial as exponential_polynomial
from .recipes import exponential_radial as exponential_radial
from .recipes import projective_linear as projective_linear
from .rotation import Householder as Householder
from .rotation import Rotation as Rotation
from .splines import CircularSpline as CircularSpline
from .splines import IntervalSpline as IntervalSpline
