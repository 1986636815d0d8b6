"""The density of data on a sphere in one call: fitted, stacked, judged."""

from .fit import density as density
from .fit import judge as judge
from .questions import Marginal as Marginal
from .questions import Region as Region
from .questions import region as region
from .result import Density as Density
from .tests import Uniformity as Uniformity
from .tests import goodness_of_fit as goodness_of_fit
from .tests import uniformity as uniformity
from .verdict import Verdict as Verdict
