"""From calibration data to the ranges of every activation, in one streaming pass."""

from octune.calibration.collect import Observed, collect, merged, observed
from octune.calibration.observer import Observer, TensorStats
from octune.calibration.ranges import Ranges, choose_range

__all__ = [
    "Observed",
    "Observer",
    "Ranges",
    "TensorStats",
    "choose_range",
    "collect",
    "merged",
    "observed",
]
