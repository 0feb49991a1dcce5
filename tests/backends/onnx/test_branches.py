"""Branches whose conditions follow from the inputs are opened, and what comes out has both again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

import octune
from octune.backends import Settings
from octune.backends.onnx import OnnxBackend
from octune.calibration import collect
from octune.plan import Op, Plan, Scheme
from tests.backends.contract import int8_plan, observed
from tests.backends.onnx.graphs import inputs, reference, weight
from tests.clock import clock

FLOAT = TensorProto.FLOAT


def graph(
    nodes: list[NodeProto], name: str, gives: dict[str, list[Any]], stored: dict[str, Any], *takes: Any
) -> Any:
    outputs = [helper.make_tensor_value_info(key, FLOAT, shape) for key, shape in gives.items()]
    constants = [numpy_helper.from_array(np.asarray(value), key) for key, value in stored.items()]
    return helper.make_graph(nodes, name, list(takes), outputs, constants)


def branch(seed: int, nested: bool) -> Any:
    """A linear op whose weight is a Constant node under a name that the other branch has as well; and in one
    of them another choice, by the number of rows.
    """
    weights = numpy_helper.from_array(weight(16, 16, seed), "value")
    nodes = [
        helper.make_node("Constant", [], ["w"], value=weights),
        helper.make_node("MatMul", ["hidden", "w"], ["a"], "inner"),
        helper.make_node("Relu", ["a"], ["b"]),
    ]
    if not nested:
        return graph(nodes, "branch", {"b": ["n", 16]}, {})
    few = graph([helper.make_node("MatMul", ["b", "w"], ["c"], "few")], "few", {"c": ["n", 16]}, {})
    many = graph([helper.make_node("Identity", ["b"], ["c"])], "many", {"c": ["n", 16]}, {})
    nodes += [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "zero"], ["rows"]),
        helper.make_node("Less", ["rows", "eight"], ["small"]),
        helper.make_node("If", ["small"], ["d"], "by_size", then_branch=few, else_branch=many),
    ]
    return graph(nodes, "branch", {"d": ["n", 16]}, {"zero": np.int64(0), "eight": np.int64(8)})


def two_rates() -> ModelProto:
    """A model that has one net for a rate of 16 and another one for all others."""
    nodes = [
        helper.make_node("MatMul", ["x", "first_w"], ["hidden"], "first"),
        helper.make_node("Equal", ["rate", "sixteen"], ["is_16"]),
        helper.make_node(
            "If", ["is_16"], ["chosen"], "by_rate", then_branch=branch(5, True), else_branch=branch(6, False)
        ),
        helper.make_node("MatMul", ["chosen", "last_w"], ["y"], "last"),
    ]
    stored = {"first_w": weight(16, 16), "last_w": weight(16, 4, 2), "sixteen": np.int64(16)}
    x = helper.make_tensor_value_info("x", FLOAT, ["n", 16])
    rate = helper.make_tensor_value_info("rate", TensorProto.INT64, [])
    whole = graph(nodes, "two_rates", {"y": ["n", 4]}, stored, x, rate)
    return helper.make_model(whole, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def feed(rate: int, rows: int = 4) -> dict[str, Any]:
    return {"x": inputs(rows), "rate": np.array(rate, np.int64)}


def test_the_branch_that_the_data_takes_is_quantized_and_the_others_stay_as_they_were() -> None:
    model = two_rates()
    backend = OnnxBackend(model, Settings())
    backend.prepare(backend.split(feed(16))[0])
    # What takes another branch has no part in the ranges.
    given = [backend.split(one)[0] for one in (feed(16), feed(8, rows=9), feed(16, rows=9))]
    ranges = collect(backend, given, 30)
    assert ranges["first"].shape[0] <= 4
    plan = int8_plan(backend, ranges)
    assert set(plan.names("int8")) == {"first", "inner", "few", "last"}
    made = backend.apply(plan, ranges)
    onnx.checker.check_model(made.graph.whole(), full_check=True)
    wanted, got = reference(model, feed(16))[0], made.run(None, feed(16))[0]
    assert 0 < np.abs(got - wanted).max() < 0.1 * np.abs(wanted).max()
    for given in (feed(8), feed(16, rows=9)):
        np.testing.assert_allclose(made.run(None, given)[0], reference(model, given)[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("fp32", "int8", "wins"), [(0.01, 0.004, True), (0.004, 0.01, False)], ids=["faster", "slower"]
)
def test_a_model_with_branches_is_timed_saved_and_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fp32: float, int8: float, wins: bool
) -> None:
    """Speed decides, on a clock that knows how many seconds a model takes."""
    passes, run, alone = clock(monkeypatch), OnnxBackend.run, OnnxBackend.alone

    def timed(backend: OnnxBackend, model: Any, given: Any) -> Any:
        passes(int8 if "QuantizeLinear" in str(model.graph.proto) else fp32)
        return run(backend, model, given)

    def timed_alone(backend: OnnxBackend, op: Op, scheme: Scheme, ranges: Any) -> Callable[[], object]:
        call = alone(backend, op, scheme, ranges)
        return lambda: (passes(fp32 if scheme.is_float else 0.001), call())

    monkeypatch.setattr(OnnxBackend, "run", timed)
    monkeypatch.setattr(OnnxBackend, "alone", timed_alone)
    result = octune.tune(
        two_rates(),
        calibration=[feed(16)],
        evaluation=[feed(16)],
        criterion="90%",
        config={"performance": {"forms": ["native"]}},
        progress=False,
    )
    assert set(result.plan) == {op.name for op in result.ops} == {"first", "inner", "few", "last"}
    assert [trial.plan.counts() for trial in result.trials] == [{"int8": 4}]
    assert result.trials[0].speedup == pytest.approx(fp32 / int8)
    assert result.plan.counts() == ({"int8": 4} if wins else {"fp32": 4})
    result.save(tmp_path / "model")
    loaded = octune.load(tmp_path / "model")
    for rate in (8, 16):
        wanted, exact = reference(two_rates(), feed(rate))[0], rate == 8 or not wins
        tolerance = 1e-5 if exact else 0.1 * np.abs(wanted).max()
        np.testing.assert_allclose(loaded.run(None, feed(rate))[0], wanted, rtol=1e-4, atol=tolerance)


def test_the_branch_for_a_false_condition() -> None:
    model, backend = two_rates(), OnnxBackend(two_rates(), Settings())
    backend.prepare(backend.split(feed(8))[0])
    assert [op.name for op in backend.ops()] == ["first", "inner", "last"]
    ranges = observed(backend, [feed(8)])
    made = backend.apply(Plan({"inner": Scheme.int8()}), ranges)
    assert 0 < np.abs(made.run(None, feed(8))[0] - reference(model, feed(8))[0]).max() < 0.1
    np.testing.assert_allclose(made.run(None, feed(16))[0], reference(model, feed(16))[0], rtol=1e-5)


def test_openvino_has_both_branches() -> None:
    pytest.importorskip("openvino", reason="needs OpenVINO")
    model, backend = two_rates(), OnnxBackend(two_rates(), Settings())
    backend.prepare(backend.split(feed(16))[0])
    ranges = observed(backend, [feed(16)])
    (form,) = backend.finalists(int8_plan(backend, ranges), ranges, backend.split(feed(16))[0])
    for given in (feed(16), feed(8)):
        wanted = reference(model, given)[0]
        np.testing.assert_allclose(form.model.run(None, given)[0], wanted, atol=0.1 * np.abs(wanted).max())


def test_ops_that_cannot_be_reached_are_listed_with_the_reason() -> None:
    """A branch that depends on what a linear op computes, and a loop."""
    body = graph(
        [
            helper.make_node("MatMul", ["state", "first_w"], ["next"], "step"),
            helper.make_node("Identity", ["go"], ["on"]),
        ],
        "body",
        {"on": [], "next": ["n", 16]},
        {},
        helper.make_tensor_value_info("i", TensorProto.INT64, []),
        helper.make_tensor_value_info("go", TensorProto.BOOL, []),
        helper.make_tensor_value_info("state", FLOAT, ["n", 16]),
    )
    body.output[0].type.tensor_type.elem_type = TensorProto.BOOL
    nodes = [
        helper.make_node("MatMul", ["x", "first_w"], ["hidden"], "first"),
        helper.make_node("ReduceMax", ["hidden"], ["peak"], keepdims=0),
        helper.make_node("Greater", ["peak", "zero"], ["high"]),
        helper.make_node(
            "If", ["high"], ["chosen"], "by_value", then_branch=branch(5, False), else_branch=branch(6, False)
        ),
        helper.make_node("Loop", ["three", "", "chosen"], ["y"], "again", body=body),
    ]
    stored = {"first_w": weight(16, 16), "zero": np.float32(0), "three": np.int64(3)}
    x = helper.make_tensor_value_info("x", FLOAT, ["n", 16])
    whole = graph(nodes, "unreachable", {"y": ["n", 16]}, stored, x)
    model = helper.make_model(whole, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    backend = OnnxBackend(model, Settings())
    backend.prepare(backend.split(inputs())[0])
    ops = {op.name: op for op in backend.ops()}
    assert [name for name, op in ops.items() if op.can("int8")] == ["first"]
    assert "a branch of by_value" in ops["by_value/inner"].note
    assert "inside again, a Loop" in ops["again/step"].note
    assert any(note.startswith("again/step: it is inside again") for note in backend.notes)
    ranges = observed(backend, [inputs()])
    made = backend.apply(Plan({"first": Scheme.int8()}), ranges)
    assert np.isfinite(made.run(None, {"x": inputs()})[0]).all()
