"""What can be done for an op that int8 hurts, before it is left in float. A repair is part of a scheme, by its name."""

from octune.repair.smooth import SMOOTH, Smoothing, smoothing

__all__ = ["SMOOTH", "Smoothing", "smoothing"]
