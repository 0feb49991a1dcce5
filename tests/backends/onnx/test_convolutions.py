"""What stands between a convolution and its activation function goes into it; OpenVINO fuses the function."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from octune.backends import Settings
from octune.backends.onnx import OnnxBackend
from octune.backends.onnx.activation import feeds_activation
from octune.backends.onnx.graph import Model, View
from octune.backends.onnx.runtimes import ONNX_RUNTIME, RUNTIMES
from octune.plan import Plan, Scheme
from tests.backends.contract import calibrated, int8_plan
from tests.backends.onnx.graphs import reference

X = np.random.default_rng(3).standard_normal((2, 6, 9, 9)).astype(np.float32)


def model(nodes: list[NodeProto], stored: dict[str, Any], output: str = "y") -> ModelProto:
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 6, 9, 9])],
        [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(value, np.float32), name) for name, value in stored.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def weight(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape) / 6


@pytest.mark.parametrize("op", ["Conv", "ConvTranspose"])
def test_scales_and_shifts_go_into_the_convolution(op: str) -> None:
    stored = {
        "w": weight(6, 6, 3, 3), "b": weight(6, seed=1), "shift": weight(1, 6, 1, 1, seed=2),
        "scale": 1 + weight(6, 1, 1, seed=3), "less": 0.25, "by": 1.5 + weight(6, 1, 1, seed=4),
    }  # fmt: skip
    nodes = [
        helper.make_node(op, ["x", "w", "b"], ["c"], "conv"),
        helper.make_node("Add", ["shift", "c"], ["c1"]),
        helper.make_node("Mul", ["c1", "scale"], ["c2"]),
        helper.make_node("Sub", ["c2", "less"], ["c3"]),
        helper.make_node("Div", ["c3", "by"], ["c4"]),
        helper.make_node("Relu", ["c4"], ["y"]),
    ]
    given = model(nodes, stored)
    backend = OnnxBackend(given, Settings())
    running = backend.fp32_model()
    assert [node.op_type for node in running.graph.proto.graph.node] == [op, "Relu"]
    np.testing.assert_allclose(running.run(None, {"x": X})[0], reference(given, {"x": X})[0], atol=1e-5)


@pytest.mark.parametrize(
    ("shift", "again"),
    [((9,), False), ((1, 1, 9, 9), False), ((2, 6, 1, 1), False), ((6, 1, 1), True)],
    ids=["by column", "by place", "by row", "read twice"],
)
def test_what_is_not_one_number_for_a_channel_stays(shift: tuple[int, ...], again: bool) -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], "conv"),
        helper.make_node("Add", ["c", "shift"], ["c1"]),
        helper.make_node("Mul", ["c1", "c" if again else "c1"], ["y"]),
    ]
    given = model(nodes, {"w": weight(6, 6, 1, 1), "shift": weight(*shift)})
    running = OnnxBackend(given, Settings()).fp32_model()
    assert [node.op_type for node in running.graph.proto.graph.node] == ["Conv", "Add", "Mul"]
    np.testing.assert_allclose(running.run(None, {"x": X})[0], reference(given, {"x": X})[0], atol=1e-5)


def hard_swish(x: str, y: str) -> list[NodeProto]:
    """As exporters without the op write it."""
    return [
        helper.make_node("Add", [x, "three"], [f"{x}_up"]),
        helper.make_node("Clip", [f"{x}_up", "zero", "six"], [f"{x}_gate"]),
        helper.make_node("Mul", [x, f"{x}_gate"], [f"{x}_wide"]),
        helper.make_node("Div", [f"{x}_wide", "six"], [y]),
    ]


def swishing() -> ModelProto:
    """Two convolutions, each with a HardSwish, and a squeeze-and-excitation of the second."""
    nodes = [
        helper.make_node("Conv", ["x", "w0", "b"], ["c0"], "first", pads=[1] * 4),
        *hard_swish("c0", "h0"),
        helper.make_node("Conv", ["h0", "w1", "b"], ["c1"], "second", pads=[1] * 4),
        *hard_swish("c1", "h1"),
        helper.make_node("GlobalAveragePool", ["h1"], ["mean"]),
        helper.make_node("Conv", ["mean", "w2", "b"], ["c2"], "squeeze"),
        helper.make_node("HardSigmoid", ["c2"], ["gate"]),
        helper.make_node("Mul", ["h1", "gate"], ["y"]),
    ]
    stored = {f"w{i}": weight(6, 6, *[3 if i < 2 else 1] * 2, seed=i) * 3 for i in range(3)}
    return model(nodes, stored | {"b": weight(6, seed=5), "three": 3, "zero": 0, "six": 6})


def test_activation_functions_are_known_however_they_are_written() -> None:
    graph = swishing()
    stored = {item.name: numpy_helper.to_array(item) for item in graph.graph.initializer}
    view = View(Model(graph, stored))
    assert [feeds_activation(view, name) for name in ("c0", "c1", "c2")] == [True, True, True]
    # The result of one is read by others; it is not one itself.
    assert [feeds_activation(view, name) for name in ("h0", "h1", "y")] == [False, False, False]


def test_openvino_fuses_the_function_and_onnx_runtime_needs_an_int8_output() -> None:
    pytest.importorskip("openvino", reason="needs OpenVINO")
    given = swishing()
    backend = OnnxBackend(given, Settings())
    ranges = calibrated(backend, [X])
    plan = int8_plan(backend, ranges)
    wanted = reference(given, {"x": X})[0]
    for runtime, between in zip(RUNTIMES, (True, False), strict=True):
        graph = backend._graph(plan, ranges, runtime)
        quantized = {
            n.input[0].removesuffix("/float") for n in graph.proto.graph.node if n.op_type == "QuantizeLinear"
        }
        assert ({"c0", "c1", "c2"} <= quantized) == between
        assert {"x", "h0", "mean"} <= quantized
        # A convolution's input has a zero point in both.
        zeros = [array.dtype for name, array in graph.tensors.items() if name.endswith(("x/zero", "h0/zero"))]
        assert zeros == [np.uint8] * 2
        got = runtime.build(graph, 1).run(None, {"x": X})[0]
        assert np.linalg.norm(got - wanted) < 0.05 * np.linalg.norm(wanted)
    assert RUNTIMES[0] is ONNX_RUNTIME


def test_a_sigmoid_that_gates_int8_is_int8_as_well(tmp_path: Path) -> None:
    """SiLU, and a gate of its own: ONNX Runtime computes both nodes in int8."""
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["c1"], "conv1"),
        helper.make_node("Sigmoid", ["c1"], ["g1"]),
        helper.make_node("Mul", ["c1", "g1"], ["a1"]),
        helper.make_node("Conv", ["a1", "w2"], ["c2"], "conv2"),
        helper.make_node("Sigmoid", ["c2"], ["g2"]),
        helper.make_node("Mul", ["a1", "g2"], ["a2"]),
        helper.make_node("Conv", ["a2", "w3"], ["y"], "conv3"),
    ]
    stored = {f"w{number}": weight(6, 6, 1, 1, seed=number) for number in (1, 2, 3)}
    given = model(nodes, stored)
    backend = OnnxBackend(given, Settings())
    ranges = calibrated(backend, [{"x": X}])
    plan = int8_plan(backend, ranges)
    made = backend.apply(plan, ranges)
    wanted, got = reference(given, {"x": X})[0], made.run(None, {"x": X})[0]
    assert 0 < np.linalg.norm(got - wanted) / np.linalg.norm(wanted) < 0.06
    kinds = fused(made.graph, tmp_path)
    assert kinds["QLinearSigmoid"] == kinds["QLinearMul"] == 2
    one_float = backend.apply(plan.with_({"conv3": Scheme.fp32()}), ranges)
    assert fused(one_float.graph, tmp_path)["QLinearMul"] == 1  # what follows does not take int8


def fused(graph: Model, folder: Path) -> Counter[str]:
    """The types of the nodes that ONNX Runtime makes of a graph."""
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(folder / "fused.onnx")
    ort.InferenceSession(graph.whole().SerializeToString(), options)
    return Counter(node.op_type for node in onnx.load(options.optimized_model_filepath).graph.node)


@pytest.mark.parametrize("shape", [[2, 5, 8], ["n", 5, 8], ["n", "m", 8]], ids=["fixed", "batch", "free"])
@pytest.mark.parametrize("repairs", [(), ("bias",)], ids=["plain", "corrected"])
def test_a_product_and_its_bias_are_int8_where_sizes_are_fixed(
    shape: list[Any], repairs: tuple[str, ...], tmp_path: Path
) -> None:
    """ONNX Runtime would make a Gemm of them, and compute it in float."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"], "op"),
        helper.make_node("Add", ["p", "b"], ["y"]),
    ]
    given = helper.make_model(
        helper.make_graph(
            nodes,
            "net",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
            [
                numpy_helper.from_array(weight(8, 12).astype(np.float32), "w"),
                numpy_helper.from_array(weight(12, seed=1).astype(np.float32), "b"),
            ],
        ),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    x = np.random.default_rng(2).standard_normal((2, 5, 8)).astype(np.float32)
    backend = OnnxBackend(given, Settings())
    ranges = calibrated(backend, [{"x": x}])
    made = backend.apply(Plan({"op": Scheme.int8(repairs=repairs)}), ranges)
    assert fused(made.graph, tmp_path)["MatMulIntegerToFloat"] == 1
    wanted, got = reference(given, {"x": x})[0], made.run(None, {"x": x})[0]
    assert got.shape == wanted.shape
    assert 0 < np.linalg.norm(got - wanted) / np.linalg.norm(wanted) < 0.03
