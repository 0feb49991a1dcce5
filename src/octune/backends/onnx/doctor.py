"""Which number formats are fast in ONNX Runtime and OpenVINO on this machine, measured on one matrix
product.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

from octune.backends.base import Backend
from octune.backends.terms import SelfTest
from octune.calibration import collect
from octune.cost import interleaved
from octune.plan import Plan, Scheme

__all__ = ["self_test"]


def self_test(backend_of: Callable[[ModelProto], Backend]) -> SelfTest:
    """The speed of every path relative to fp32 on ONNX Runtime."""
    random = np.random.default_rng(0)
    weight = random.standard_normal((768, 3072)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], "op")],
        "one",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, 768])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, 3072])],
        [numpy_helper.from_array(weight, "w")],
    )
    backend = backend_of(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
    feed, _ = backend.split(random.standard_normal((128, 768)).astype(np.float32))
    ranges = collect(backend, [feed], 1)
    models: dict[str, Any] = {"fp32": backend.fp32_model()}
    for mode in ("static", "dynamic"):
        models[f"int8 {mode}"] = backend.apply(Plan({"op": Scheme.int8(mode)}), ranges)
    for finalist in backend.finalists(Plan({"op": Scheme.int8()}), ranges, feed):
        models[f"int8 static, {finalist.form}"] = finalist.model

    def call(model: Any) -> Callable[[], object]:
        return lambda: model.run(None, feed.kwargs)

    times = interleaved({name: call(model) for name, model in models.items()}, warmup=5, iterations=30)
    return SelfTest(
        {name: times["fp32"].median_ms / timed.median_ms for name, timed in times.items() if name != "fp32"}
    )
