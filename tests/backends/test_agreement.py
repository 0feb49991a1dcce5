"""The three backends do the same arithmetic: what their int8 kernels answer is what the NumPy core says, with
repairs and without.
"""

from __future__ import annotations

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from typing import Any

import numpy as np
import pytest

from octune.backends import Settings, backend_for
from octune.calibration import TensorStats, choose_range, collect
from octune.int8 import Grid, Limit
from octune.plan import Plan, Scheme
from octune.repair import BIAS, SMOOTH, repairs_of
from tests.backends.onnx import test_saturation as onnx_side
from tests.backends.saturation import Array, ExactSums, Shape
from tests.backends.tensorflow import test_saturation as tensorflow_side
from tests.backends.torch import test_saturation as torch_side

FRAMEWORKS: dict[str, ExactSums] = {
    "torch": torch_side.TestTorch(),
    "onnx": onnx_side.TestOnnxRuntime(),
    "tensorflow": tensorflow_side.TestTensorFlow(),
}
SHAPES = (Shape(64, 24), Shape(63, 17), Shape(16, 24, 3), Shape(16, 16, 3, 16))
SCHEMES = (
    Scheme.int8(),
    Scheme.int8(granularity="per_tensor"),
    Scheme.int8(range_method="mse"),
    Scheme.int8(repairs=(BIAS.name,)),
    Scheme.int8(repairs=(SMOOTH.name,)),
    Scheme.int8(repairs=(SMOOTH.name, BIAS.name)),
)


def inputs_of(shape: Shape) -> Array:
    """Never negative for a convolution, so that no framework takes int8 around zero; two channels are
    outliers.
    """
    random = np.random.default_rng(1)
    size = (6, shape.inputs, 8, 8) if shape.kernel else (200, shape.inputs)
    x = random.uniform(0.0 if shape.kernel else -1.0, 2.0, size).astype(np.float32)
    x[:, [1, 4]] *= 20
    return x


def by_the_core(
    shape: Shape, weight: Array, x: Array, stats: TensorStats, scheme: Scheme
) -> tuple[Array, float]:
    """What an exact int8 kernel answers, and the size of the steps that it counts in."""
    repairs = repairs_of(scheme)
    smoothing = repairs.smoothing(stats, [(weight, shape.groups)])
    multiplier = None if smoothing is None else smoothing.multiplier
    made = repairs.int8_weight(weight, shape.groups, scheme.granularity, Limit.PAIRS, multiplier)
    low, high = choose_range(stats, scheme.range_method or "minmax")
    along = (-1, *[1] * (x.ndim - 2))
    if smoothing is not None:
        low, high, x = smoothing.low, smoothing.high, x * smoothing.multiplier.reshape(along)
    grid = Grid.affine(low, high)
    y, _ = shape.sums(grid.round_trip(x).astype(np.float64), made)
    if repairs.corrects_bias:
        shift = repairs.bias_shift(stats, weight, made.dequantized(), shape.groups, multiplier)
        y = y + shift.reshape(along)
    return y, grid.scale * float(made.scales.max())


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_kernels_answer_what_the_core_says(framework: str, shape: Shape, scheme: Scheme) -> None:
    side, weight, x = FRAMEWORKS[framework], shape.weight(0, 1.0), inputs_of(shape)
    backend = backend_for(side.build(shape, weight), Settings())
    inputs: Any = backend.split(side.batch(x))[0]
    backend.prepare(inputs)
    ranges = collect(backend, [inputs], 1)
    (op,) = [op for op in backend.ops() if op.can("int8")]
    (y,) = backend.run(backend.apply(Plan({op.name: scheme}), ranges), inputs).values()
    backend.close()
    wanted, step = by_the_core(shape, weight, x, ranges[op.name], scheme)
    error = np.abs((side.channels_first(y) if shape.kernel else y) - wanted)
    allowed = 1e-5 * np.abs(wanted).max()
    if shape.kernel and side.rounds_convolutions:  # the kernel rounds its output, too
        allowed += 0.51 * np.abs(wanted).max() / 127
    elif framework == "onnx":  # a bias is stored as a whole number of steps
        allowed += 0.5 * step
    # An input next to a tie may be rounded to either side.
    assert np.quantile(error, 0.99) <= allowed
