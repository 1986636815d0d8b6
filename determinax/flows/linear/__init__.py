r"""Projective linear maps $s = Mz/\|Mz\|$: the angular central Gaussian family.

$$\log\det = \log|\det M| - n\log\|Mz\|.$$

The family holds the best proposal for $\log|\det A|$: at $M = A^{-1}$ every weight is $1/|\det A|$.

Reference: Tyler (1987), Biometrika 74(3), on the angular central Gaussian law.
"""

from ._base import AbstractFactor as AbstractFactor
from .circulant import Circulant as Circulant
from .combined import Inverse as Inverse
from .combined import Product as Product
from .combined import Transpose as Transpose
from .convolution import MaskedConvolution as MaskedConvolution
from .dense import Dense as Dense
from .diagonal import Diagonal as Diagonal
from .kronecker import Kronecker as Kronecker
from .low_rank import DiagonalLowRank as DiagonalLowRank
from .preconditioner import Preconditioner as Preconditioner
from .projective import ProjectiveLinear as ProjectiveLinear
from .projective import project as project
from .triangular import Triangular as Triangular
