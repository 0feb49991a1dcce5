"""What can be done for an op that int8 hurts, before it is left in float. A repair is part of a scheme, by
its name.
"""

from octune.repair.bias import BIAS, bias_correction
from octune.repair.smooth import SMOOTH, Smoothing, smoothing

__all__ = ["BIAS", "SMOOTH", "Smoothing", "bias_correction", "smoothing"]
