"""LSTMs run in int8 as a whole, GRUs as a loop over int8 products."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import octune
from octune.backends import Settings
from octune.backends.onnx import OnnxBackend
from octune.opening import open_model
from octune.plan import Plan, Scheme
from tests.backends.contract import calibrated
from tests.backends.onnx.graphs import reference

INT8 = Scheme.int8("dynamic")


def tagger(
    op: str = "LSTM",
    directions: int = 2,
    state: bool = False,
    gates: str = "stored",
    opset: int = 17,
    lengths: bool = False,
    **attributes: Any,
) -> ModelProto:
    """A recurrent layer of 32 units on 24 numbers, and a linear one. ``gates``: how the weights are there;
    ``attributes`` are those of the layer.
    """
    random, count = np.random.default_rng(0), {"LSTM": 4, "GRU": 3, "RNN": 1}[op]
    stored: dict[str, Any] = {
        "w": random.standard_normal((directions, count * 32, 24)) / 4,
        "r": random.standard_normal((directions, count * 32, 32)) / 5,
        "b": random.standard_normal((directions, 2 * count * 32)) / 9,
        "head": random.standard_normal((32 * directions, 5)) / 4,
    }
    stored = {name: array.astype(np.float32) for name, array in stored.items()}
    nodes = []
    if gates == "sliced":  # as PyTorch's gates are brought into ONNX's order
        stored |= {
            "zero": np.array([0]),
            "half": np.array([64]),
            "end": np.array([2**31]),
            "one": np.array([1]),
        }
        whole = stored["w"]
        stored["w_moved"] = np.concatenate([whole[:, 64:], whole[:, :64]], 1)
        del stored["w"]
        nodes = [
            helper.make_node("Slice", ["w_moved", "zero", "half", "one"], ["w_end"]),
            helper.make_node("Slice", ["w_moved", "half", "end", "one"], ["w_begin"]),
            helper.make_node("Concat", ["w_begin", "w_end"], ["w"], axis=1),
        ]
    states = (["h0", "c0"] if op == "LSTM" else ["h0"]) if state else []
    names = ["x", "w", "r", "b", "lengths" if lengths else "", *states]
    attributes.setdefault("direction", "bidirectional" if directions == 2 else "forward")
    takes = {"x": ["steps", "n", 24]} | {name: [directions, "n", 32] for name in states}
    results = ["", "last", ""] if state else ["all"]  # of a layer with a state only the last is read
    perm, shape = ([1, 0, 2], [0, -1]) if state else ([0, 2, 1, 3], [0, 0, -1])
    nodes += [
        helper.make_node(
            op, names, results[: 3 if op == "LSTM" else 2], "layer", hidden_size=32, **attributes
        ),
        helper.make_node("Transpose", [results[1] if state else "all"], ["turned"], perm=perm),
        helper.make_node("Reshape", ["turned", "shape"], ["flat"]),
        helper.make_node("MatMul", ["flat", "head"], ["y"], "head"),
    ]
    stored["shape"] = np.array(shape)
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in takes.items()]
    inputs += [helper.make_tensor_value_info("lengths", TensorProto.INT32, ["n"])] if lengths else []
    graph = helper.make_graph(
        nodes,
        "tagger",
        inputs,
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in stored.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def feed(state: bool = False, directions: int = 2, steps: int = 7, op: str = "LSTM") -> dict[str, Any]:
    random = np.random.default_rng(1)
    given = {"x": random.standard_normal((steps, 3, 24)).astype(np.float32)}
    if state:
        given |= {
            name: random.uniform(-1, 1, (directions, 3, 32)).astype(np.float32)
            for name in ("h0", "c0")[: 2 if op == "LSTM" else 1]
        }
    return given


def check_int8(model: ModelProto, given: dict[str, Any], node: str, count: int = 1) -> None:
    """The layer is there in int8, close to fp32, and its harm is what its error does to the output."""
    backend = OnnxBackend(model, Settings())
    ranges = calibrated(backend, [given])
    made = backend.apply(Plan({"layer": INT8}), ranges)
    assert Counter(node.op_type for node in made.graph.proto.graph.node)[node] == count
    wanted, got = reference(model, given)[0], made.run(None, given)[0]
    error = np.linalg.norm(got - wanted) / np.linalg.norm(wanted)
    assert 0 < error < 0.05
    harm = backend.harm({"layer": [INT8]}, ranges, [backend.split(given)[0]])["layer", INT8]
    # Few samples, from an empty state: the order of magnitude.
    assert 0.1 < harm / (np.square(got - wanted).mean() / wanted.var()) < 10
    (layer,) = (op for op in backend.ops() if op.name == "layer")
    for scheme in layer.schemes:
        backend.alone(layer, scheme, ranges)()


@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("state", [False, True])
@pytest.mark.parametrize("gates", ["stored", "sliced"])
def test_an_lstm_runs_in_int8(directions: int, state: bool, gates: str) -> None:
    check_int8(tagger("LSTM", directions, state, gates), feed(state, directions), "DynamicQuantizeLSTM")


@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("state", [False, True])
@pytest.mark.parametrize("after", [0, 1], ids=["reset before the product", "reset after the product"])
def test_a_gru_runs_in_int8(directions: int, state: bool, after: int) -> None:
    model = tagger("GRU", directions, state, linear_before_reset=after)
    check_int8(model, feed(state, directions, op="GRU"), "Scan")


def test_a_gru_runs_in_int8_backwards_and_in_a_new_opset() -> None:
    model = tagger("GRU", 1, opset=20, direction="reverse", linear_before_reset=1)
    check_int8(model, feed(False, 1, op="GRU"), "Scan")


@pytest.mark.parametrize("op", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("state", [False, True])
def test_sequences_may_have_different_lengths(op: str, state: bool) -> None:
    model = tagger(op, 2, state, lengths=True)
    given = feed(state, op=op) | {"lengths": np.array([7, 2, 5], np.int32)}
    backend = OnnxBackend(model, Settings())
    ranges = calibrated(backend, [given])
    wanted, got = reference(model, given)[0], backend.apply(Plan({"layer": INT8}), ranges).run(None, given)[0]
    assert 0 < np.linalg.norm(got - wanted) < 0.05 * np.linalg.norm(wanted)
    if not state:  # zeros, where nothing is
        assert not got[2:, 1].any()
        assert got[:2, 1].any()


@pytest.mark.parametrize(
    ("attributes", "why"),
    [
        ({"activations": ["Relu", "Tanh"] * 2}, "functions of its own"),
        ({"clip": 1.0}, "clipping"),
    ],
)
def test_a_gru_that_does_more_stays_in_float(attributes: dict[str, Any], why: str) -> None:
    backend = OnnxBackend(tagger("GRU", **attributes), Settings())
    (layer,) = (op for op in backend.ops() if op.name == "layer")
    assert not layer.can("int8")
    assert why in layer.note


@pytest.mark.parametrize(("op", "int8"), [("LSTM", 2), ("GRU", 6)])  # a GRU has five products
def test_a_recurrent_layer_is_tuned_saved_and_loaded(op: str, int8: int, tmp_path: Any) -> None:
    batches = [feed(steps=steps) for steps in (5, 7, 9)]
    result = octune.tune(
        tagger(op), calibration=batches, evaluation=batches, criterion="50%", progress=False,
        config={"tuning": {"objective": "modelsize"}},
    )  # fmt: skip
    assert result.plan["layer"] == INT8
    result.save(tmp_path / "model")
    opened = open_model(tmp_path / "model")
    assert (opened.ops.int8, opened.ops.total) == (int8, int8)
    opened.close()


@pytest.mark.parametrize("op", ["LSTM", "GRU"])
def test_openvino_keeps_the_layer_in_float(op: str) -> None:
    pytest.importorskip("openvino", reason="needs OpenVINO")
    model, given = tagger(op), feed()
    backend = OnnxBackend(model, Settings())
    ranges = calibrated(backend, [given])
    (form,) = backend.finalists(Plan({"layer": INT8}), ranges, backend.split(given)[0])
    np.testing.assert_allclose(
        form.model.run(None, given)[0], reference(model, given)[0], rtol=1e-3, atol=1e-4
    )
