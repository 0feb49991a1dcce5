"""The int8 kernels of ONNX Runtime and OpenVINO never overflow, on any CPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from octune.backends import Backend, Settings, backend_for
from octune.calibration import Ranges, collect
from octune.machine import probe_machine
from octune.plan import Plan, Scheme
from tests.backends.saturation import CONV, LINEAR, Array, ExactSums, Shape
from tests.machines import kernels_add_exactly


def graph_of(node: Any, tensors: dict[str, Array], **inputs: list[int | None]) -> ModelProto:
    graph = helper.make_graph(
        [node],
        "one",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in tensors.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


class OneOp(ExactSums):
    @pytest.fixture(params=LINEAR + CONV, ids=str)
    def shape(self, request: pytest.FixtureRequest) -> Shape:
        return request.param

    def build(self, shape: Shape, weight: Array) -> ModelProto:
        if not shape.kernel:
            node = helper.make_node("MatMul", ["x", "w"], ["y"], name="op")
            return graph_of(node, {"w": np.ascontiguousarray(weight.T)}, x=[None, shape.inputs])
        node = helper.make_node("Conv", ["x", "w"], ["y"], name="op", group=shape.groups)
        return graph_of(node, {"w": weight}, x=[None, shape.inputs, None, None])


class TestOnnxRuntime(OneOp):
    schemes = (*ExactSums.schemes, Scheme.int8("dynamic"))
    rounds_convolutions = True

    def exact_anyway(self) -> bool:
        return kernels_add_exactly()


class TestOpenVino(OneOp):
    rounds_convolutions = True

    def grids(self, shape: Shape, scheme: Scheme) -> Sequence[tuple[int, int]]:
        """What its matrix products read as int8 around zero has no -128."""
        return super().grids(shape, scheme) if shape.kernel else ((0, 255), (-127, 127))

    def models(self, backend: Backend, plan: Plan, ranges: Ranges, inputs: Any) -> list[Any]:
        pytest.importorskip("openvino", reason="needs OpenVINO")
        return [finalist.model for finalist in backend.finalists(plan, ranges, inputs)]


@pytest.mark.parametrize("inner", [2, 63, 64, 768])
def test_products_of_two_activations_do_not_overflow(inner: int) -> None:
    node = helper.make_node("MatMul", ["a", "b"], ["y"], name="op")
    backend = backend_for(graph_of(node, {}, a=[None, 4, inner], b=[None, inner, 4]), Settings())
    a, b = np.full((1, 4, inner), 255, np.float32), np.full((1, inner, 4), 64, np.float32)
    b[0, :, 1] = -64
    inputs = backend.split({"a": a, "b": b})[0]
    ranges = collect(backend, [inputs], 1)
    plan = Plan({"op": Scheme.int8(granularity="per_tensor")})
    for model in (
        backend.apply(plan, ranges),
        *(form.model for form in backend.finalists(plan, ranges, inputs)),
    ):
        (y,) = backend.run(model, inputs).values()
        np.testing.assert_allclose(y, a @ b, rtol=1e-6)


def test_all_8_bits_are_used_where_the_model_stays_on_a_cpu_that_allows_it() -> None:
    backend = backend_for(
        graph_of(
            helper.make_node("MatMul", ["x", "w"], ["y"], name="op"),
            {"w": np.ones((4, 4), np.float32)},
            x=[None, 4],
        ),
        Settings(portable=False),
    )
    assert (backend.limit.value == "none") == probe_machine().exact_int8


def test_sums_of_an_lstm_do_not_overflow() -> None:
    """All weights are alike and so are all inputs: with 8 bits of both, pairs of products would not fit."""
    alike = {
        "w": np.full((1, 32, 64), 1 / 64, np.float32),
        "r": np.full((1, 32, 8), 1 / 8, np.float32),
        "b": np.zeros((1, 64), np.float32),
    }
    node = helper.make_node("LSTM", ["x", *alike], ["y"], "op", hidden_size=8)
    backend = backend_for(graph_of(node, alike, x=[None, None, 64]), Settings())
    inputs = backend.split(np.ones((5, 1, 64), np.float32))[0]
    ranges = collect(backend, [inputs], 1)
    wanted, got = (
        next(iter(backend.run(backend.apply(plan, ranges), inputs).values()))
        for plan in (Plan(), Plan({"op": Scheme.int8("dynamic")}))
    )
    np.testing.assert_allclose(got, wanted, rtol=0.01)
