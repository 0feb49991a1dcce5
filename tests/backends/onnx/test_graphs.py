"""Graphs as exporters leave them: every way of storing a weight, of naming things, of nesting graphs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from octune.backends import Settings
from octune.backends.onnx import OnnxBackend
from octune.errors import ModelError, UnsupportedError
from octune.plan import Plan, Scheme
from tests.backends.contract import calibrated, int8_plan
from tests.backends.onnx.graphs import WAYS, Chain, inputs, reference, single, weight


def close(got: Any, wanted: Any, share: float = 0.15) -> bool:
    return bool(np.abs(got - wanted).mean() < share * np.abs(wanted - wanted.mean()).mean() + 1e-3)


def quantized(model: Any, x: Any) -> tuple[OnnxBackend, Any, Any]:
    """The backend of a model, and what it computes from ``x`` in fp32 and with everything in int8."""
    backend = OnnxBackend(model, Settings())
    feed = backend.split(x)[0]
    ranges = calibrated(backend, [x])
    plan = int8_plan(backend, ranges)
    assert plan.names("int8")
    made = backend.apply(plan, ranges)
    onnx.checker.check_model(made.graph.whole())
    return (
        backend,
        list(backend.run(backend.fp32_model(), feed).values()),
        list(backend.run(made, feed).values()),
    )


@settings(max_examples=25)
@given(ways=st.lists(st.sampled_from(WAYS), min_size=1, max_size=4), names=st.booleans(), old=st.booleans())
def test_weights_are_found_however_they_are_stored(ways: list[str], names: bool, old: bool) -> None:
    chain = Chain()
    for index, way in enumerate(ways):
        chain.add(way, name=f"op {index}: a/b é" if names else "", relu=index % 2 == 0)
    model = chain.model(opset=12 if old else 17, ir=6 if old else 8)
    x = inputs()
    backend, fp32, int8 = quantized(model, x)
    assert len([op for op in backend.ops() if op.can("int8")]) == len(ways)
    np.testing.assert_allclose(fp32[0], reference(model, {"x": x})[0], rtol=1e-4, atol=1e-5)
    assert close(int8[0], fp32[0])
    assert not np.array_equal(int8[0], fp32[0])


def test_the_model_that_was_given_is_not_changed() -> None:
    model = Chain().add("constant").add("gemm").model(opset=12)
    before = model.SerializeToString()
    quantized(model, inputs())
    assert model.SerializeToString() == before


def test_shared_weights_are_noted() -> None:
    backend = OnnxBackend(Chain().add("shared", "a").add("shared", "b").model(), Settings())
    assert any("shared with b" in note for note in backend.notes)


def test_inputs_with_a_default_are_constants() -> None:
    backend = OnnxBackend(Chain().add("input").model(), Settings())
    assert [port.name for port in backend.fp32_model().get_inputs()] == ["x"]
    assert any("default value" in note for note in backend.notes)


def test_fp16_models_are_computed_in_fp32_and_keep_their_types() -> None:
    made = single("MatMul", ["n", 16], {"w": weight(16, 8).astype(np.float16)})
    made.graph.input[0].type.tensor_type.elem_type = TensorProto.FLOAT16
    made.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT16
    x = inputs().astype(np.float16)
    backend, fp32, int8 = quantized(made, x)
    assert fp32[0].dtype == int8[0].dtype == np.float16
    np.testing.assert_allclose(fp32[0], x.astype(np.float32) @ weight(16, 8), atol=2e-2)
    assert any("fp16" in note for note in backend.notes)


def test_bfloat16_and_double_weights_are_left_alone() -> None:
    made = single("MatMul", ["n", 16], {"w": weight(16, 8).astype(np.float64)})
    for item in (made.graph.input[0], made.graph.output[0]):
        item.type.tensor_type.elem_type = TensorProto.DOUBLE
    (op,) = OnnxBackend(made, Settings()).ops()
    assert op.schemes == (Scheme.fp32(),)
    assert "float64" in op.note


@pytest.mark.parametrize(
    ("op_type", "shape", "kernel", "attributes"),
    [
        ("Conv", (4, 12), (8, 4, 3), {"pads": [1, 1]}),
        ("Conv", (4, 8, 8), (8, 4, 3, 3), {"strides": [2, 2]}),
        ("Conv", (4, 8, 8), (8, 2, 3, 3), {"group": 2}),
        ("Conv", (4, 8, 8), (4, 1, 3, 3), {"group": 4}),
        ("Conv", (4, 5, 6, 6), (8, 4, 3, 3, 3), {}),
        ("ConvTranspose", (4, 6, 6), (4, 8, 2, 2), {"strides": [2, 2]}),
    ],
)
@pytest.mark.parametrize("biased", [True, False])
def test_convolutions_of_every_kind(
    op_type: str, shape: tuple[int, ...], kernel: tuple[int, ...], attributes: dict[str, Any], biased: bool
) -> None:
    generator = np.random.default_rng(0)
    stored = {"w": generator.standard_normal(kernel).astype(np.float32)}
    if biased:
        stored["b"] = generator.standard_normal(8 if op_type == "ConvTranspose" else kernel[0]).astype(
            np.float32
        )
    x = generator.standard_normal((2, *shape)).astype(np.float32)
    model = single(op_type, ["n", *shape], stored, **attributes)
    backend, fp32, int8 = quantized(model, x)
    assert close(int8[0], fp32[0])
    ranges = calibrated(backend, [x])
    (op,) = backend.ops()
    for scheme in op.schemes:
        got = backend.run(backend.apply(Plan({op.name: scheme}), ranges), backend.split(x)[0])
        assert close(got["y"], fp32[0]), str(scheme)
        backend.alone(op, scheme, ranges)()


def test_depthwise_smoothing_evens_channels_out() -> None:
    generator = np.random.default_rng(0)
    x = generator.standard_normal((4, 4, 8, 8)).astype(np.float32)
    x[:, 2] *= 200
    kernel = generator.standard_normal((4, 1, 3, 3)).astype(np.float32)
    kernel[2] /= 200
    backend = OnnxBackend(single("Conv", ["n", 4, 8, 8], {"w": kernel}, group=4), Settings())
    ranges, feed = calibrated(backend, [x]), backend.split(x)[0]
    wanted = backend.run(backend.fp32_model(), feed)["y"]

    def error(scheme: Scheme) -> float:
        return float(
            np.square(backend.run(backend.apply(Plan({"Conv": scheme}), ranges), feed)["y"] - wanted).mean()
        )

    assert error(Scheme.int8(repairs=["smooth"])) < 0.01 * error(Scheme.int8())


def test_a_tensor_that_is_also_an_output_keeps_its_name() -> None:
    generator = np.random.default_rng(0)
    kernels = {f"w{i}": generator.standard_normal((4, 4, 3, 3)).astype(np.float32) for i in range(2)}
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["first"], "a", pads=[1] * 4),
        helper.make_node("Relu", ["first"], ["features"]),
        helper.make_node("Conv", ["features", "w1"], ["y"], "b", pads=[1] * 4),
    ]
    graph = helper.make_graph(
        nodes,
        "two outputs",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, 4, 8, 8])],
        [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, 4, 8, 8])
            for name in ("features", "y")
        ],
        [numpy_helper.from_array(array, name) for name, array in kernels.items()],
    )
    model = onnx.helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    _, fp32, int8 = quantized(model, generator.standard_normal((2, 4, 8, 8)).astype(np.float32))
    assert len(int8) == 2
    assert all(close(got, wanted) for got, wanted in zip(int8, fp32, strict=True))


def test_a_quantized_model_is_refused_and_the_node_named() -> None:
    backend = OnnxBackend(Chain().add("plain", "op").model(), Settings())
    ranges = calibrated(backend, [inputs()])
    made = backend.apply(int8_plan(backend, ranges), ranges).graph
    with pytest.raises(ModelError, match=r"already quantized: node '.*' is a (De)?[qQ]uantizeLinear"):
        OnnxBackend(made.whole(), Settings())


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (single("Gemm", [16, "n"], {"w": weight(16, 4)}, transA=1), "transA"),
        (single("MatMul", ["n", 2, 16], {"w": np.ones((2, 16, 4), np.float32)}), "3 dimensions"),
        (single("MatMul", ["n", 16], {"w": np.full((16, 4), np.inf, np.float32)}), "infinities"),
    ],
)
def test_what_cannot_be_quantized_says_why(model: Any, why: str) -> None:
    (op,) = OnnxBackend(model, Settings()).ops()
    assert op.schemes == (Scheme.fp32(),)
    assert why in op.note


def test_old_opsets_are_converted_and_older_ones_refused() -> None:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    part = helper.make_node("Slice", ["x"], ["y"], starts=[1], ends=[3], axes=[1])  # inputs since opset 10
    graph = helper.make_graph([part], "g", [x], [y])
    old = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 8)], ir_version=4)
    given = {"x": np.arange(6, dtype=np.float32).reshape(2, 3)}
    made = OnnxBackend(old, Settings()).fp32_model().run(None, given)[0]
    np.testing.assert_array_equal(made, given["x"][:, 1:])
    with pytest.raises(UnsupportedError, match="opset 7"):
        OnnxBackend(Chain().add("plain").model(opset=7), Settings())


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.onnx").write_bytes(b"nonsense")
    with pytest.raises(ModelError, match="not an ONNX model"):
        OnnxBackend(tmp_path / "a.onnx", Settings())
    with pytest.raises(ModelError, match="There is no file"):
        OnnxBackend(tmp_path / "b.onnx", Settings())


def test_tensors_in_a_file_beside_the_model_stay_there(tmp_path: Path) -> None:
    model = Chain(width=64).add("plain").add("gemm").model()
    x = inputs(width=64)
    wanted = reference(model, {"x": x})[0]
    path = tmp_path / "model.onnx"
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=100)
    backend, fp32, int8 = quantized(path, x)
    np.testing.assert_allclose(fp32[0], wanted, rtol=1e-4, atol=1e-5)
    assert close(int8[0], fp32[0])
    assert any(isinstance(array, np.memmap) for array in backend._view.model.tensors.values())
    with pytest.raises(ModelError, match="Give the path"):
        OnnxBackend(onnx.load(path, load_external_data=False), Settings())
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(ModelError, match="cannot be read"):
        OnnxBackend(path, Settings())


def test_large_models_are_saved_in_two_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from octune.backends.onnx import files

    monkeypatch.setattr(files, "ONE_FILE", 1000)
    backend = OnnxBackend(Chain(width=64).add("plain").add("gemm").model(), Settings())
    x = inputs(width=64)
    ranges, feed = calibrated(backend, [x]), backend.split(x)[0]
    plan = int8_plan(backend, ranges)
    model = backend.apply(plan, ranges)
    metadata = backend.writer()(model, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"model.onnx", "model.onnx.data"}
    wanted, got = backend.run(model, feed), backend.run(backend.load(tmp_path, metadata), feed)
    assert all(np.array_equal(wanted[name], got[name]) for name in wanted)


def padded(
    zeros: list[int], value: float | None = None, mode: str = "constant", **conv: Any
) -> onnx.ModelProto:
    """x -> Pad -> Conv, the numbers of zeros as exporters leave them: computed by a chain of nodes."""
    random = np.random.default_rng(0)
    first, second = np.array(zeros[:4], np.int64), np.array(zeros[4:], np.int64)
    stored = {"first": first, "second": second, "w": random.standard_normal((8, 3, 3, 3)).astype(np.float32)}
    nodes = [
        helper.make_node("Concat", ["first", "second"], ["joined"], axis=0),
        helper.make_node("Cast", ["joined"], ["pads"], to=TensorProto.INT64),
        helper.make_node(
            "Pad", ["x", "pads", *(["value"] if value is not None else [])], ["wide"], mode=mode
        ),
        helper.make_node("Conv", ["wide", "w"], ["y"], **conv),
    ]
    if value is not None:
        stored["value"] = np.float32(value)
    graph = helper.make_graph(
        nodes,
        "padded",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 9, 9])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * 4)],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in stored.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize(
    ("model", "left"),
    [
        (padded([0, 0, 0, 1, 0, 0, 2, 1]), 0),
        (padded([0, 0, 1, 0, 0, 0, 0, 0], 0.0, pads=[1, 1, 1, 1], strides=[2, 2]), 0),
        (padded([0, 0, 1, 1, 0, 0, 1, 1], auto_pad="VALID"), 0),
        (padded([0, 0, 1, 1, 0, 0, 1, 1], 0.5), 1),  # not zeros
        (padded([0, 0, 1, 1, 0, 0, 1, 1], mode="reflect"), 1),
        (padded([0, 0, -1, 0, 0, 0, 0, 0]), 1),  # cuts a row off
        (padded([1, 0, 0, 0, 0, 0, 0, 0]), 1),  # an image more
        (padded([0, 0, 1, 1, 0, 0, 1, 1], auto_pad="SAME_UPPER"), 1),
    ],
)
def test_zeros_around_an_image_become_the_padding_of_its_convolution(
    model: onnx.ModelProto, left: int
) -> None:
    x = np.random.default_rng(1).standard_normal((2, 3, 9, 9)).astype(np.float32)
    backend, fp32, int8 = quantized(model, x)
    kinds = [node.op_type for node in backend.fp32_model().graph.proto.graph.node]
    assert kinds.count("Pad") == left
    assert "Concat" not in kinds  # what is computed from constants alone is a constant
    np.testing.assert_allclose(fp32[0], reference(model, {"x": x})[0], rtol=1e-4, atol=1e-4)
    assert close(int8[0], fp32[0])


def test_what_chance_makes_and_what_is_large_is_no_constant() -> None:
    nodes = [
        helper.make_node("RandomNormal", [], ["noise"], shape=[1, 16]),
        helper.make_node("Expand", ["one", "many"], ["wide"]),
        helper.make_node("ReduceSum", ["wide"], ["sum"], keepdims=0),
        helper.make_node("Mul", ["noise", "sum"], ["shift"]),
        helper.make_node("Add", ["x", "shift"], ["z"]),
        helper.make_node("MatMul", ["z", "w"], ["y"]),
    ]
    stored = {"one": np.zeros(1, np.float32), "many": np.array([10_000], np.int64), "w": weight(16, 8)}
    graph = helper.make_graph(
        nodes,
        "chance",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 8])],
        [numpy_helper.from_array(array, name) for name, array in stored.items()],
    )
    x = inputs()
    backend, fp32, _ = quantized(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), x
    )
    kinds = [node.op_type for node in backend.fp32_model().graph.proto.graph.node]
    assert "RandomNormal" in kinds
    assert "ReduceSum" not in kinds
    np.testing.assert_allclose(fp32[0], x @ weight(16, 8), rtol=1e-4, atol=1e-5)
