"""The grid of activations: zero is exact, nothing is off by more than half a step, and the kernels of all
frameworks find the same levels.
"""

from __future__ import annotations

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octune.int8 import Grid

Array = np.ndarray[Any, np.dtype[Any]]
finite = st.floats(-1e30, 1e30, allow_nan=False)
moderate = st.floats(-1e6, 1e6)


@given(finite, finite)
def test_zero_is_exact_and_the_numbers_fit(one: float, other: float) -> None:
    grid = Grid.affine(*sorted((one, other)))
    assert grid.scale > 0
    assert np.isfinite(grid.scale)
    assert np.isfinite(np.float32(1) / np.float32(grid.scale))
    assert type(grid.zero_point) is int
    assert 0 <= grid.zero_point <= 255
    assert grid.round_trip(np.zeros(1))[0] == 0.0
    assert grid.quantize(np.zeros(1))[0] == grid.zero_point


@given(finite, finite, st.floats(0, 1))
def test_values_inside_the_range_are_off_by_at_most_half_a_step(
    one: float, other: float, where: float
) -> None:
    low, high = min(one, other, 0.0), max(one, other, 0.0)
    x = np.array([low, high, low + where * (high - low)])
    grid = Grid.affine(low, high)
    step = grid.scale if high - low > 255e-30 else 1e-27  # what is this small counts as zero
    assert np.abs(grid.dequantize(grid.quantize(x)) - x).max() <= 0.5 * step * (1 + 1e-6)


@given(st.floats(1e-6, 1e6), st.floats(1e-6, 1e6), st.floats(1, 100))
def test_values_outside_are_clipped_to_the_ends(below: float, above: float, factor: float) -> None:
    grid = Grid.affine(-below, above)
    ends = grid.dequantize(grid.quantize(np.array([-below * factor, above * factor])))
    assert abs(ends[0] + below) <= 0.5 * grid.scale * (1 + 1e-6)
    assert abs(ends[1] - above) <= 0.5 * grid.scale * (1 + 1e-6)
    far = grid.dequantize(grid.quantize(np.array([-1e9, 1e9])))
    assert far == pytest.approx(np.array([grid.low, grid.high]), rel=1e-9, abs=0)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.0, 255.0, Grid(1.0, 0)),
        (-255.0, 0.0, Grid(1.0, 255)),
        (-127.5, 127.5, Grid(1.0, 128)),
        (10.0, 255.0, Grid(1.0, 0)),  # widened to hold zero
        (-255.0, -10.0, Grid(1.0, 255)),
        (0.0, 0.0, Grid(1.0, 0)),
        (-1e-45, 1e-45, Grid(1.0, 0)),
    ],
)
def test_known_ranges(low: float, high: float, expected: Grid) -> None:
    assert Grid.affine(low, high) == expected


@settings(max_examples=50)
@given(moderate, moderate)
def test_ranges_hold_zero_at_a_whole_level(a: float, b: float) -> None:
    grid = Grid.affine(min(a, b), max(a, b))
    assert grid.low <= 0 <= grid.high
    assert (grid.high - grid.low) / 255 == pytest.approx(grid.scale)
    assert -grid.low / grid.scale == pytest.approx(grid.zero_point)
    x = np.linspace(min(a, b, 0), max(a, b, 0), 100)
    assert np.abs(grid.round_trip(x) - x).max() <= 1.01 * grid.scale + 1e-6 * max(abs(a), abs(b))


@given(st.floats(1e-6, 1e6), st.sampled_from([127, 64]))
def test_around_zero(reach: float, largest: int) -> None:
    grid = Grid.symmetric(reach, largest)
    x = np.array([-reach, 0.0, reach, -1e3 * reach, 1e3 * reach])
    assert grid.quantize(x).tolist() == [-largest, 0, largest, -128, 127]
    assert grid.dequantize(grid.quantize(x))[:3] == pytest.approx([-reach, 0.0, reach])
    assert grid.low == -grid.high == pytest.approx(-reach * 127 / largest)


def test_nothing_at_all_has_a_grid() -> None:
    assert Grid.symmetric(0.0).round_trip(np.zeros(3, np.float32)).tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("grid", [Grid.affine(-1.0, 3.0), Grid.symmetric(2.0)], ids=["uint8", "int8"])
def test_levels_go_there_and_back_through_any_view_of_their_bytes(grid: Grid) -> None:
    x = np.random.default_rng(0).uniform(-4, 4, (3, 50)).astype(np.float32)
    levels = grid.quantize(x)
    for kind in (np.int8, np.uint8):
        np.testing.assert_allclose(grid.dequantize(levels.view(kind)), grid.round_trip(x), rtol=1e-6)
    assert np.array_equal(grid.quantize(grid.round_trip(x)), levels)


def in_torch(grid: Grid, x: Array) -> Array:
    import torch

    from octune.backends.torch.quantize import to_uint8

    return to_uint8(torch.from_numpy(x), grid.scale, grid.zero_point).numpy()


def in_onnx(grid: Grid, x: Array) -> Array:
    import onnxruntime as ort
    from onnx import TensorProto, helper, numpy_helper

    graph = helper.make_graph(
        [helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["y"])],
        "one",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None])],
        [helper.make_tensor_value_info("y", TensorProto.UINT8, None)],
        [
            numpy_helper.from_array(np.asarray(grid.scale, np.float32), "scale"),
            numpy_helper.from_array(np.asarray(grid.zero_point, np.uint8), "zero"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"x": x})[0])


def in_tensorflow(grid: Grid, x: Array) -> Array:
    import tensorflow as tf

    from octune.backends.tensorflow.graph.emit import constant, node, quantize

    made = tf.compat.v1.GraphDef()
    made.node.extend(
        [
            node("x", "Placeholder", (), dtype=tf.float32),
            constant("low", grid.low),
            constant("high", grid.high),
            quantize("q", "x:0", "low", "high"),
        ]
    )
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(made, name="")
        with tf.compat.v1.Session(graph=graph) as session:
            return np.asarray(session.run("q:0", {"x:0": x})).view(np.uint8)


@pytest.mark.parametrize("ends", [(-1.0, 3.0), (0.0, 0.01), (-700.0, 0.0), (-2.5, 2.5)], ids=str)
@pytest.mark.parametrize("kernel", [in_torch, in_onnx, in_tensorflow])
def test_the_kernels_of_all_frameworks_find_these_levels(kernel: Any, ends: tuple[float, float]) -> None:
    grid = Grid.affine(*ends)
    x = np.random.default_rng(0).uniform(1.1 * ends[0], 1.1 * ends[1], 20_000).astype(np.float32)
    # Some kernels multiply by the inverse, or break ties in other ways: next to a tie they may differ.
    steps = x.astype(np.float64) / grid.scale
    clear = np.abs(steps - np.floor(steps) - 0.5) > 1e-4
    assert clear.mean() > 0.99
    assert np.array_equal(kernel(grid, x)[clear], grid.quantize(x)[clear])
