"""Densities on the sphere, relative to the uniform law: to sample, to evaluate, to mix and to store."""

from .base import AbstractProposal as AbstractProposal
from .base import cast as cast
from .blocks import BlockProposals as BlockProposals
from .bumps import VonMisesFisher as VonMisesFisher
from .bumps import kernels as kernels
from .em import fitted_bumps as fitted_bumps
from .flow import Proposal as Proposal
from .mixture import DefensiveMixture as DefensiveMixture
from .mixture import Mixture as Mixture
from .mixture import fitted_weights as fitted_weights
from .uniform import Uniform as Uniform
