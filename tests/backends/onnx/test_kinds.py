"""Another kind of op is one object: it is found, calibrated, judged, timed and applied without any change
elsewhere.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

import octune.backends.onnx
from octune.backends import Settings
from octune.backends.onnx import OnnxBackend
from octune.backends.onnx.errors import OpErrors
from octune.backends.onnx.graph import Array, View
from octune.backends.onnx.insert import Insertion
from octune.backends.onnx.kinds import KINDS, Found, Kind
from octune.harm import probe
from octune.int8 import Grid
from octune.plan import Op, Plan, Scheme
from tests.backends.contract import calibrated
from tests.backends.onnx.graphs import inputs, weight

INT8 = Scheme.int8(granularity="per_tensor")


class LayerNorm(Kind):
    """A normalisation whose input is int8."""

    name, node_type, title = "layer_norm", "LayerNormalization", "LayerNorm"
    multiplies = False

    def schemes(self) -> tuple[Scheme, ...]:
        return (INT8, Scheme.fp32())

    def find(self, view: View, index: int, node: NodeProto) -> Found | None:
        scale, shift = (view.constant(name) for name in node.input[1:])
        if scale is None or shift is None:
            return self.left_in_float(index, node, "its scale is computed, not stored")
        op = Op(node.name, self.name, self.schemes(), scale.size, f"LayerNorm{scale.size}")
        return Found(self, op, index, node, scale, bias=shift)

    def error(self, at: OpErrors, scheme: Scheme, *, few: bool) -> Array:
        x = Grid.affine(*at.context.range(at.found.op.name, scheme)).round_trip(at.inputs[0])
        normal = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
        return np.asarray(normal * at.found.weight + at.found.bias - at.y, np.float32)

    def insert(self, insertion: Insertion, found: Found, scheme: Scheme) -> None:
        made = insertion.quantized(found.x, *insertion.range(found.op.name, scheme), found)
        insertion.rewire(found, 0, found.x, made.dequantized)


def normalised(computed: bool = False) -> ModelProto:
    """A linear layer, a normalisation and another linear layer."""
    scale = "x0" if computed else "scale"
    nodes = [
        helper.make_node("MatMul", ["x", "w0"], ["h"], "first"),
        helper.make_node("ReduceMean", ["x"], ["x0"], "mean", axes=[0], keepdims=0),
        helper.make_node("LayerNormalization", ["h", scale, "shift"], ["n"], "norm"),
        helper.make_node("MatMul", ["n", "w1"], ["y"], "second"),
    ]
    stored = {"w0": weight(16, 16), "w1": weight(16, 16, 1), "shift": np.linspace(-1, 1, 16)}
    stored["scale"] = np.linspace(0.5, 2, 16)
    graph = helper.make_graph(
        nodes,
        "normalised",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 16])],
        [numpy_helper.from_array(array.astype(np.float32), name) for name, array in stored.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture(autouse=True)
def another(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("discover", "backend"):
        monkeypatch.setattr(f"octune.backends.onnx.{module}.KINDS", (*KINDS, LayerNorm()))


def test_another_kind_goes_through_every_stage() -> None:
    backend, x = OnnxBackend(normalised(), Settings(threads=1)), inputs(64)
    (op,) = [op for op in backend.ops() if op.kind == "layer_norm"]
    feed, ranges = backend.split(x)[0], calibrated(backend, [x])
    h = x @ weight(16, 16)
    assert (ranges["norm"].low, ranges["norm"].high) == pytest.approx((h.min(), h.max()), rel=1e-5)
    # applied
    model = backend.apply(Plan({"norm": INT8}), ranges)
    onnx.checker.check_model(model.graph.whole())
    assert [node.op_type for node in model.graph.proto.graph.node] == [
        "MatMul", "QuantizeLinear", "DequantizeLinear", "LayerNormalization", "MatMul",
    ]  # fmt: skip
    wanted, got = (backend.run(m, feed)["y"] for m in (backend.fp32_model(), model))
    assert 0 < np.abs(got - wanted).mean() < 0.02 * np.abs(wanted).mean()
    # judged
    candidates = {"norm": [INT8]}
    fast, slow = backend.harm(candidates, ranges, [feed]), probe(backend, candidates, ranges, [feed])
    assert fast["norm", INT8] == pytest.approx(slow["norm", INT8], rel=0.5)
    # timed
    for scheme in op.schemes:
        (y,) = backend.alone(op, scheme, ranges)()
        assert y.shape == ranges["norm"].shape


def test_a_reason_is_given_where_it_stays_in_float() -> None:
    backend = OnnxBackend(normalised(computed=True), Settings(threads=1))
    assert "norm: its scale is computed, not stored" in backend.notes


def test_a_model_without_ops_says_which_kinds_there_are() -> None:
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])],
        "relu",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (note,) = OnnxBackend(model, Settings()).notes
    assert note.endswith("(MatMul, Gemm, Conv, ConvTranspose, Gather on a table, LSTM, GRU, RNN, LayerNorm)")


def test_no_other_module_asks_for_a_kind_by_its_name() -> None:
    folder = Path(octune.backends.onnx.__file__).parent
    names = "|".join(kind.name for kind in KINDS)
    for file in folder.rglob("*.py"):
        if "kinds" not in file.parts:
            assert not re.search(rf"""op\.kind|["']({names})["']""", file.read_text()), file


@pytest.mark.parametrize("opset", [17, 20])
def test_every_row_has_a_range_of_its_own(opset: int) -> None:
    """A row with large numbers does not take the precision of the others, and rows of zeros stay zeros."""
    random = np.random.default_rng(0)
    weights = {
        "w": random.standard_normal((16, 12)).astype(np.float32),
        "b": random.standard_normal(12).astype(np.float32),
    }
    given = helper.make_model(
        helper.make_graph(
            [
                helper.make_node("MatMul", ["x", "w"], ["p"], "op"),
                helper.make_node("Add", ["p", "b"], ["y"], "bias"),
            ],
            "net",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", "m", 16])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
            [numpy_helper.from_array(array, name) for name, array in weights.items()],
        ),
        opset_imports=[helper.make_opsetid("", opset)],
        ir_version=8,
    )
    x = random.standard_normal((2, 5, 16)).astype(np.float32)
    x[0, 1] *= 1000
    x[1, 4] = 0
    backend = OnnxBackend(given, Settings())
    ranges = calibrated(backend, [{"x": x}])
    wanted = x @ weights["w"] + weights["b"]
    ordinary = np.ones((2, 5), bool)
    ordinary[0, 1] = False
    errors = {}
    for mode in ("dynamic", "token"):
        plan = Plan({"op": Scheme.int8(mode)})
        got = backend.apply(plan, ranges).run(None, {"x": x})[0]
        errors[mode] = np.linalg.norm((got - wanted)[ordinary]) / np.linalg.norm(wanted[ordinary])
        forms = [form.model for form in backend.finalists(plan, ranges, backend.split({"x": x})[0])]
        assert all(
            np.allclose(form.run(None, {"x": x})[0], got, atol=1e-2 * np.abs(got).max()) for form in forms
        )
    assert errors["token"] < 0.02
    assert 10 * errors["token"] < errors["dynamic"]
    np.testing.assert_allclose(
        backend.apply(Plan({"op": Scheme.int8("token")}), ranges).run(None, {"x": x})[0][1, 4], weights["b"]
    )
    feed = [backend.split({"x": x})[0]]
    assert 0 < backend.harm({"op": [Scheme.int8("token")]}, ranges, feed)["op", Scheme.int8("token")] < 1e-3
    backend.alone(backend.ops()[0], Scheme.int8("token"), ranges)()
