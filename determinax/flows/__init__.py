"""Normalizing flows on spheres."""

from .base import AbstractCircleMap as AbstractCircleMap
from .base import AbstractIntervalMap as AbstractIntervalMap
from .base import AbstractSphereMap as AbstractSphereMap
from .base import Constant as Constant
from .base import trainable as trainable
from .chain import Chain as Chain
from .conditioners import Conditioner as Conditioner
from .cylinder import Circle as Circle
from .cylinder import CylinderAutoregressive as CylinderAutoregressive
from .cylinder import CylinderCoupling as CylinderCoupling
from .linear import AbstractFactor as AbstractFactor
from .linear import ProjectiveLinear as ProjectiveLinear
from .linear import Triangular as Triangular
from .moebius import MoebiusMixture as MoebiusMixture
from .recipes import cylinder as cylinder
from .rotation import Householder as Householder
from .rotation import Rotation as Rotation
from .splines import CircularSpline as CircularSpline
from .splines import IntervalSpline as IntervalSpline
