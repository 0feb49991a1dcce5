"""LSTMs run in int8 as a whole; GRUs are listed as what no runtime has in int8."""

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


def tagger(op: str = "LSTM", directions: int = 2, state: bool = False, gates: str = "stored") -> ModelProto:
    """A recurrent layer of 32 units on 24 numbers, and a linear one. ``gates``: how the weights are there."""
    random, count = np.random.default_rng(0), {"LSTM": 4, "GRU": 3}[op]
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
    names = ["x", "w", "r", "b", *(["", "h0", "c0"] if state else [])]
    direction = "bidirectional" if directions == 2 else "forward"
    takes = {"x": ["steps", "n", 24]} | (
        {"h0": [directions, "n", 32], "c0": [directions, "n", 32]} if state else {}
    )
    results = ["", "last", ""] if state else ["all"]  # of a layer with a state only the last is read
    perm, shape = ([1, 0, 2], [0, -1]) if state else ([0, 2, 1, 3], [0, 0, -1])
    nodes += [
        helper.make_node(
            op, names, results[: 3 if op == "LSTM" else 2], "layer", hidden_size=32, direction=direction
        ),
        helper.make_node("Transpose", [results[1] if state else "all"], ["turned"], perm=perm),
        helper.make_node("Reshape", ["turned", "shape"], ["flat"]),
        helper.make_node("MatMul", ["flat", "head"], ["y"], "head"),
    ]
    stored["shape"] = np.array(shape)
    graph = helper.make_graph(
        nodes,
        "tagger",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in takes.items()],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in stored.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def feed(state: bool = False, directions: int = 2, steps: int = 7) -> dict[str, Any]:
    random = np.random.default_rng(1)
    given = {"x": random.standard_normal((steps, 3, 24)).astype(np.float32)}
    if state:
        given |= {
            name: random.standard_normal((directions, 3, 32)).astype(np.float32) for name in ("h0", "c0")
        }
    return given


@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("state", [False, True])
@pytest.mark.parametrize("gates", ["stored", "sliced"])
def test_an_lstm_runs_in_int8(directions: int, state: bool, gates: str) -> None:
    model, given = tagger("LSTM", directions, state, gates), feed(state, directions)
    backend = OnnxBackend(model, Settings())
    ranges = calibrated(backend, [given])
    made = backend.apply(Plan({"layer": INT8}), ranges)
    assert Counter(node.op_type for node in made.graph.proto.graph.node)["DynamicQuantizeLSTM"] == 1
    wanted, got = reference(model, given)[0], made.run(None, given)[0]
    error = np.linalg.norm(got - wanted) / np.linalg.norm(wanted)
    assert 0 < error < 0.05
    harm = backend.harm({"layer": [INT8]}, ranges, [backend.split(given)[0]])["layer", INT8]
    assert harm == pytest.approx(np.square(got - wanted).mean() / wanted.var(), rel=3, abs=1e-6)
    (layer,) = (op for op in backend.ops() if op.name == "layer")
    for scheme in layer.schemes:
        backend.alone(layer, scheme, ranges)()


def test_an_lstm_is_tuned_saved_and_loaded(tmp_path: Any) -> None:
    batches = [feed(steps=steps) for steps in (5, 7, 9)]
    result = octune.tune(
        tagger(), calibration=batches, evaluation=batches, criterion="50%", progress=False,
        config={"tuning": {"objective": "modelsize"}},
    )  # fmt: skip
    assert result.plan["layer"] == INT8
    result.save(tmp_path / "model")
    opened = open_model(tmp_path / "model")
    assert (opened.ops.int8, opened.ops.total) == (2, 2)
    opened.close()


def test_openvino_keeps_the_layer_in_float() -> None:
    pytest.importorskip("openvino", reason="needs OpenVINO")
    model, given = tagger(), feed()
    backend = OnnxBackend(model, Settings())
    ranges = calibrated(backend, [given])
    (form,) = backend.finalists(Plan({"layer": INT8}), ranges, backend.split(given)[0])
    np.testing.assert_allclose(
        form.model.run(None, given)[0], reference(model, given)[0], rtol=1e-3, atol=1e-4
    )


def test_a_gru_is_listed_with_the_reason() -> None:
    backend = OnnxBackend(tagger("GRU"), Settings(portable=False))
    ops = {op.name: op for op in backend.ops()}
    assert not ops["layer"].can("int8")
    assert "no int8 kernel for a GRU" in ops["layer"].note
    assert ops["head"].can("int8")
