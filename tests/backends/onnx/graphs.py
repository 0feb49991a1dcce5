"""Graphs built node by node, in the odd ways that exporters have."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

Array = npt.NDArray[Any]


def weight(rows: int, columns: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal((rows, columns)).astype(np.float32) / rows**0.5


def inputs(count: int = 4, width: int = 16, seed: int = 1) -> Array:
    return np.random.default_rng(seed).standard_normal((count, width)).astype(np.float32)


def reference(model: ModelProto, feed: dict[str, Array]) -> list[Array]:
    """What the model itself computes."""
    return list(
        ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feed)
    )


@dataclass
class Chain:
    """Linear layers of one width, one after the other; each may store its weight in its own way."""

    width: int = 16
    nodes: list[NodeProto] = field(default_factory=list)
    stored: dict[str, Array] = field(default_factory=dict)
    extra_inputs: list[str] = field(default_factory=list)
    last: str = "x"

    def add(self, how: str, name: str = "", relu: bool = True) -> Chain:
        index = len(self.nodes)
        value, key = weight(self.width, self.width, index), f"w {index}/ä:{how}"
        operand = self._store(how, key, value)
        output = f"h:{index}"
        if how == "gemm":
            self.stored[f"b{index}"] = np.linspace(-1, 1, self.width, dtype=np.float32)
            self.nodes.append(
                helper.make_node(
                    "Gemm", [self.last, operand, f"b{index}"], [output], name, transB=1, alpha=0.5, beta=2.0
                )
            )
        else:
            self.nodes.append(helper.make_node("MatMul", [self.last, operand], [output], name))
        if relu:
            self.nodes.append(helper.make_node("Relu", [output], [f"{output}r"]))
        self.last = f"{output}r" if relu else output
        return self

    def _store(self, how: str, key: str, value: Array) -> str:
        if how == "constant":
            self.nodes.append(helper.make_node("Constant", [], [key], value=numpy_helper.from_array(value)))
        elif how == "transposed":
            self.stored[f"{key} t"] = np.ascontiguousarray(value.T)
            self.nodes.append(helper.make_node("Transpose", [f"{key} t"], [key], perm=[1, 0]))
        elif how == "identity":
            self.stored[f"{key} i"] = value
            self.nodes.append(helper.make_node("Identity", [f"{key} i"], [key]))
        elif how == "half":
            self.stored[f"{key} h"] = value.astype(np.float16)
            self.nodes.append(helper.make_node("Cast", [f"{key} h"], [key], to=TensorProto.FLOAT))
        elif how == "reshaped":
            self.stored[f"{key} r"], self.stored[f"{key} s"] = (
                value.reshape(-1),
                np.array([self.width, -1], np.int64),
            )
            self.nodes.append(helper.make_node("Reshape", [f"{key} r", f"{key} s"], [key]))
        elif how == "shared":
            key = "shared weight"
            self.stored[key] = weight(self.width, self.width, 99)
        else:
            self.stored[key] = value
            if how == "input":
                self.extra_inputs.append(key)
        return key

    def model(self, opset: int = 17, ir: int = 8) -> ModelProto:
        made = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", self.width])]
        made += [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, self.stored[name].shape)
            for name in self.extra_inputs
        ]
        graph = helper.make_graph(
            self.nodes,
            "chain",
            made,
            [helper.make_tensor_value_info(self.last, TensorProto.FLOAT, ["n", self.width])],
            [numpy_helper.from_array(array, name) for name, array in self.stored.items()],
        )
        return onnx.helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir)


WAYS = ("plain", "gemm", "constant", "transposed", "identity", "half", "reshaped", "shared", "input")


def single(
    op_type: str, x: list[Any], stored: dict[str, Array], opset: int = 17, **attributes: Any
) -> ModelProto:
    """A model of one node, whose further inputs are stored."""
    node = helper.make_node(op_type, ["x", *stored], ["y"], name=op_type, **attributes)
    graph = helper.make_graph(
        [node],
        "single",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * len(x))],
        [numpy_helper.from_array(array, name) for name, array in stored.items()],
    )
    return onnx.helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
