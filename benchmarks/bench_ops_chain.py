"""ONNX graphs that are written twice: in fp32, and with Q/DQ pairs. For benchmarks/bench_ops_onnx.py.

def spec(chain):
    return chain.conv(chain.op("Sigmoid", chain.conv("x", 8, 8, 1), name="inner"), 8, 8, 1)

forms(spec, x, threads, float_={"inner"})     # {"fp32": call, ...}
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from octune.backends.onnx.graph import Model
from octune.backends.onnx.runtimes import session
from octune.int8 import Grid, Limit, quantize_weight

__all__ = ["OPSETS", "Chain", "Spec", "forms"]

OPSETS = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
Range = tuple[float, float]


class Chain:
    """Writes nodes; with ``ranges``, weights are int8, and all tensors but those in ``float_`` have a Q/DQ
    pair.
    """

    def __init__(self, ranges: Mapping[str, Range] | None = None, float_: Collection[str] = ()) -> None:
        self.nodes: list[Any] = []
        self.tensors: dict[str, Any] = {}
        self.made: list[str] = []
        self._ranges, self._float = ranges, float_

    def conv(self, x: str, inputs: int, outputs: int, size: int, group: int = 1, **attributes: Any) -> str:
        random = np.random.default_rng(len(self.made))
        spread = (inputs // group * size**2) ** -0.5
        weight = random.standard_normal((outputs, inputs // group, size, size)) * spread
        kernel = self._weight(f"w{len(self.made)}", weight.astype(np.float32))
        bias = self._stored(f"b{len(self.made)}", np.zeros(outputs, np.float32))
        shape = {"pads": [size // 2] * 4, "kernel_shape": [size, size]}
        return self.op("Conv", x, kernel, bias, group=group, **shape, **attributes)

    def op(self, kind: str, *inputs: str, name: str = "", **attributes: Any) -> str:
        name = name or f"{kind}{len(self.made)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], name, **attributes))
        return self.seen(name)

    def seen(self, name: str) -> str:
        self.made.append(name)
        if self._ranges is None or name in self._float:
            return name
        grid = Grid.affine(*self._ranges[name])
        step = self._stored(f"{name}/scale", np.float32(grid.scale))
        zero = self._stored(f"{name}/zero", np.uint8(grid.zero_point))
        self.nodes.append(helper.make_node("QuantizeLinear", [name, step, zero], [f"{name}/q"]))
        self.nodes.append(helper.make_node("DequantizeLinear", [f"{name}/q", step, zero], [f"{name}/dq"]))
        return f"{name}/dq"

    def stored(self, value: Any) -> str:
        return self._stored(f"constant{len(self.tensors)}", value)

    def _stored(self, name: str, value: Any) -> str:
        self.tensors[name] = np.asarray(value)
        return name

    def _weight(self, name: str, weight: Any) -> str:
        if self._ranges is None:
            return self._stored(name, weight)
        made = quantize_weight(weight, "per_channel", Limit.PAIRS)
        names = [
            self._stored(f"{name}/int8", made.values),
            self._stored(f"{name}/scale", made.scales.reshape(-1).astype(np.float32)),
            self._stored(f"{name}/zero", np.zeros(made.scales.size, np.int8)),
        ]
        self.nodes.append(helper.make_node("DequantizeLinear", names, [f"{name}/dq"], axis=0))
        return f"{name}/dq"

    def model(self, outputs: Collection[str]) -> Model:
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, None)
        results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
        graph = helper.make_graph(self.nodes, "case", [x], results)
        return Model(helper.make_model(graph, opset_imports=OPSETS, ir_version=8), self.tensors)


Spec = Callable[[Chain], str]


def forms(
    spec: Spec, x: Any, threads: int, *, float_: Collection[str] = (), kept: Collection[str] = ()
) -> dict[str, Callable[[], Any]]:
    """fp32; int8 around the op; int8 with the op.

    The op stays in float where the tensors in ``float_`` have no Q/DQ pair, or where those in ``kept``, which
    it makes, are outputs of the graph: then ONNX Runtime does not fuse its Q/DQ pairs into it.
    """
    plain = Chain()
    spec(plain)
    names = [name for name in plain.made if name != "x"]
    values = session(plain.model(names), threads).run(names, {"x": x})
    ranges = {name: (float(v.min()), float(v.max())) for name, v in zip(names, values, strict=True)}
    ranges["x"] = (float(x.min()), float(x.max()))

    def made(ranges: Mapping[str, Range] | None, float_: Collection[str], kept: Collection[str]) -> Any:
        chain = Chain(ranges, float_)
        last = spec(chain)
        running = session(chain.model([last, *kept]), threads)
        return partial(_first, running, last, {"x": x})

    return {
        "fp32": made(None, (), ()),
        "int8, the op in float": made(ranges, float_, kept),
        "int8": made(ranges, (), ()),
    }


def _first(running: Any, name: str, feed: Mapping[str, Any]) -> Any:
    return running.run([name], feed)[0]
