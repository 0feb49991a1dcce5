"""What int8 changes in the output of one op, given its fp32 input, without building a model around it.

    context = LocalErrors(weights, groups, threads)
    at = OpErrors(context, found, inputs, y, owns_output=True)
    at(scheme)                                # the op's output in int8, minus y

Numbers are those of the int8 kernels: integers times steps, up to the order of summation. How an op computes
is for its kind to say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnxruntime as ort

from octune.backends.onnx.graph import Array, Model
from octune.backends.onnx.kinds import Found
from octune.backends.onnx.runtimes import session
from octune.backends.onnx.smoothing import SmoothingGroups, output_range
from octune.backends.onnx.weights import Int8Weights
from octune.backends.terms import OUTPUT
from octune.calibration import choose_range
from octune.int8 import Grid
from octune.plan import Scheme

__all__ = ["LocalErrors", "OpErrors"]


class LocalErrors:
    """What all ops of a model need to compute their errors."""

    def __init__(self, weights: Int8Weights, groups: SmoothingGroups, threads: int | None) -> None:
        self.weights, self.groups, self.ranges = weights, groups, groups.ranges
        self._threads = threads
        self._sessions: dict[str, ort.InferenceSession] = {}

    def range(self, name: str, scheme: Scheme) -> tuple[float, float]:
        """The range of a tensor that calibration looked at."""
        return choose_range(self.ranges[name], scheme.range_method or "minmax")

    def session(self, key: str, graph: Callable[[], Model]) -> ort.InferenceSession:
        """A session for all ops that share a key."""
        if key not in self._sessions:
            self._sessions[key] = session(graph(), self._threads)
        return self._sessions[key]

    def rounding(
        self, found: Found, got: Array, y: Array, scheme: Scheme, factors: Array | None = None
    ) -> Array:
        """The error of an op's output ``y`` when ``got`` is quantized in its place, its channels multiplied
        by ``factors`` before that.
        """
        name = found.op.name
        low, high = output_range(self.ranges, name, factors, self.range(name + OUTPUT, scheme))
        wide = np.float32(1.0) if factors is None else found.along_channels(factors, y.ndim)
        rounded = Grid.affine(low, high).round_trip(got * wide) / wide
        # What a ReLU drops is not an error: its range begins at zero.
        kept = np.maximum(y, 0.0) if self.ranges[name + OUTPUT].low >= 0 else y
        return np.asarray(rounded - kept, np.float32)


@dataclass(frozen=True, eq=False)
class OpErrors:
    """An op with its fp32 inputs and output. Called with a scheme, it returns the error of the output.

    ``owns_output``: rounding its output counts as its own error, too. ``products`` is what its kind has
    computed for one scheme and may use again for another.
    """

    context: LocalErrors
    found: Found
    inputs: Sequence[Array]
    y: Array
    owns_output: bool
    products: dict[tuple[object, ...], Array] = field(default_factory=dict)

    def __call__(self, scheme: Scheme, *, few: bool = False) -> Array:
        """With ``few``, of a linear op only some rows, spread over all: enough to compare schemes."""
        return self.found.kind.error(self, scheme, few=few)
