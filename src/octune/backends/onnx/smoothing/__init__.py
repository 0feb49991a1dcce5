"""Smoothing in a graph: which ops share a multiplier, where it can go, and how it gets there."""

from octune.backends.onnx.smoothing.edit import SmoothingEdit
from octune.backends.onnx.smoothing.groups import SmoothingGroup, SmoothingGroups, output_range

__all__ = ["SmoothingEdit", "SmoothingGroup", "SmoothingGroups", "output_range"]
