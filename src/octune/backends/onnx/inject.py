"""What a model computes when an error is added to the output of one of its ops.

    injector = Injector(view, items, threads)
    seen = ...                                # values of injector.needed, and of the model's inputs
    injector.outputs(item, error, seen)       # -> outputs that come after the op, by name

The graph is cut into parts, and only the part of the op and those after it are run: what comes before is
known already.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnxruntime as ort
from onnx import ModelProto, TensorProto, helper

from octune.backends.onnx.edit import Edit
from octune.backends.onnx.graph import Array, Model, View, captured, subgraphs
from octune.backends.onnx.kinds import Found
from octune.backends.onnx.runtimes import session

__all__ = ["Injector"]

PARTS = 4


class Injector:
    """One session for every part of the graph, made when it is first needed."""

    def __init__(self, view: View, items: Sequence[Found], threads: int | None) -> None:
        self._view, self._threads = view, threads
        ordered = sorted(items, key=lambda item: item.index)
        size = -(-len(ordered) // PARTS)
        groups = [ordered[start : start + size] for start in range(0, len(ordered), size)]
        self._part_of = {item.op.name: part for part, group in enumerate(groups) for item in group}
        self._groups = groups
        self._starts = [0 if part == 0 else group[0].index for part, group in enumerate(groups)]
        self._frontiers = [self._frontier(start) for start in self._starts]
        self._sessions: dict[int, tuple[ort.InferenceSession, dict[str, str]]] = {}

    @property
    def needed(self) -> set[str]:
        """Tensors whose values must be known where the graph is cut."""
        return set[str]().union(*self._frontiers) - set(self._view.inputs)

    def outputs(self, item: Found, error: Array, seen: Mapping[str, Array]) -> dict[str, Array]:
        """The outputs of the model that can change when ``error`` is added to the op's output."""
        part = self._part_of[item.op.name]
        if part not in self._sessions:
            self._sessions[part] = self._made(part, seen)
        running, names = self._sessions[part]
        rest = {name: np.zeros((), np.float32) for name in names.values()}
        outputs = [port.name for port in running.get_outputs()]
        feed = {name: seen[name] for name in self._frontiers[part]} | rest | {names[item.op.name]: error}
        return dict(zip(outputs, running.run(outputs, feed), strict=True))

    def _frontier(self, start: int) -> list[str]:
        """The tensors that nodes from ``start`` on read and nodes before it make, and inputs of the model."""
        model = self._view.model
        stored = {*model.tensors, *(item.name for item in model.proto.graph.initializer)}
        made: set[str] = set()
        wanted: dict[str, None] = {}
        for node in self._view.nodes[start:]:
            inside = set[str]().union(*map(captured, subgraphs(node)))
            reads = (
                name
                for name in (*node.input, *sorted(inside))
                if name and name not in made and name not in stored
            )
            wanted.update(dict.fromkeys(reads))
            made.update(node.output)
        return list(wanted)

    def _made(self, part: int, seen: Mapping[str, Array]) -> tuple[ort.InferenceSession, dict[str, str]]:
        """The graph from a part on, with an extra input for every op of the part; and the names of those
        inputs.
        """
        source, start = self._view.model, self._starts[part]
        proto = ModelProto(ir_version=source.proto.ir_version, opset_import=source.proto.opset_import)
        proto.graph.name = "part"
        proto.graph.node.extend(self._view.nodes[start:])
        made = {name for node in self._view.nodes[start:] for name in node.output}
        proto.graph.input.extend(
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(seen[name].dtype), [None] * seen[name].ndim
            )
            for name in self._frontiers[part]
        )
        proto.graph.output.extend(item for item in source.proto.graph.output if item.name in made)
        proto.graph.initializer.extend(source.proto.graph.initializer)
        proto.graph.sparse_initializer.extend(source.proto.graph.sparse_initializer)
        edit = Edit(View(Model(proto, source.tensors)))
        names = {}
        for item in self._groups[part]:
            names[item.op.name] = edit.name(f"{item.output}/error")
            edit.inputs.append(helper.make_tensor_value_info(names[item.op.name], TensorProto.FLOAT, None))
            edit.insert(item.output, "Add", names[item.op.name])
        return session(edit.finish(), self._threads), names
