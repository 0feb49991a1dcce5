"""A model in two parts: a light graph, and its tensors as arrays beside it.

    model = Model(proto, tensors)             # proto declares no tensor that numpy can hold
    view = View(model)
    view.producer("hidden"), view.readers("hidden"), view.constant("weight")

Weights never travel through protobuf: a variant of a model is another light graph over the same arrays, and a
model of more than 2 GB is like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

__all__ = ["Array", "Model", "QDQ_OPSET", "View", "attribute", "captured", "declared", "headed_like"]

Array = npt.NDArray[Any]

QDQ_OPSET = 13  # the first whose Q/DQ nodes have a scale per channel
# Smaller tensors stay in the protobuf: shapes and axes, which shape inference wants to see.
INLINE = 1024


@dataclass
class Model:
    """A graph and its tensors. ``proto.graph.initializer`` holds only what numpy cannot (strings, 4-bit
    numbers).
    """

    proto: ModelProto
    tensors: dict[str, Array] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(array.nbytes for array in self.tensors.values()) + _bytes_inside(self.proto.graph)

    def skeleton(self) -> tuple[ModelProto, dict[str, Array]]:
        """A protobuf in which large tensors are declared as external, and those tensors."""
        proto = ModelProto()
        proto.CopyFrom(self.proto)
        large: dict[str, Array] = {}
        for name, array in self.tensors.items():
            if array.nbytes < INLINE:
                proto.graph.initializer.append(numpy_helper.from_array(np.asarray(array, order="C"), name))
            else:
                proto.graph.initializer.append(declared(name, array))
                large[name] = array
        return proto, large

    def whole(self) -> ModelProto:
        """One protobuf with everything in it. Only for models below 2 GB."""
        proto = ModelProto()
        proto.CopyFrom(self.proto)
        proto.graph.initializer.extend(
            numpy_helper.from_array(np.asarray(a, order="C"), name) for name, a in self.tensors.items()
        )
        return proto


def _bytes_inside(graph: GraphProto) -> int:
    """Bytes of the tensors in a graph, its constants and the graphs inside it."""
    held = [*graph.initializer, *(item.t for node in graph.node for item in node.attribute)]
    inside = sum(_bytes_inside(inner) for node in graph.node for inner in subgraphs(node))
    return inside + sum(int(tensor.ByteSize()) for tensor in held)


def headed_like(source: ModelProto) -> ModelProto:
    """An empty protobuf with the versions and metadata of another."""
    return ModelProto(
        ir_version=source.ir_version,
        producer_name=source.producer_name,
        producer_version=source.producer_version,
        domain=source.domain,
        model_version=source.model_version,
        opset_import=source.opset_import,
        metadata_props=source.metadata_props,
    )


def declared(name: str, array: Array, **entries: Any) -> TensorProto:
    """A tensor without its data: name, type, shape, and where the data is."""
    tensor = TensorProto(name=name, data_type=helper.np_dtype_to_tensor_dtype(array.dtype), dims=array.shape)
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": "tensors", **entries}.items():
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def attribute(node: NodeProto, name: str, default: Any = None) -> Any:
    """The value of a node's attribute."""
    return next((helper.get_attribute_value(a) for a in node.attribute if a.name == name), default)


def subgraphs(node: NodeProto) -> Iterator[GraphProto]:
    """The graphs inside a node (If, Loop, Scan)."""
    for item in node.attribute:
        if item.type == AttributeProto.GRAPH:
            yield item.g
        elif item.type == AttributeProto.GRAPHS:
            yield from item.graphs


def captured(graph: GraphProto) -> set[str]:
    """The names of outer tensors that a subgraph reads."""
    own = {item.name for item in (*graph.initializer, *graph.input)}
    needed: set[str] = set()
    for node in graph.node:
        needed.update(name for name in node.input if name and name not in own)
        for inner in subgraphs(node):
            needed |= captured(inner) - own
        own.update(node.output)
    return needed | {output.name for output in graph.output if output.name not in own}


class View:
    """Which node makes and which nodes read every tensor of the main graph, and which tensors are
    constant.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self.nodes: list[NodeProto] = list(model.proto.graph.node)
        self.inputs = [item.name for item in model.proto.graph.input]
        self.outputs = [item.name for item in model.proto.graph.output]
        self._constants: dict[str, Array | None] = {}
        self._types: dict[str, int] = {}
        self._ranks: dict[str, int] = {}
        self._fixed: set[str] = set()

    @cached_property
    def _producers(self) -> dict[str, int]:
        return {output: index for index, node in enumerate(self.nodes) for output in node.output if output}

    @cached_property
    def _readers(self) -> dict[str, list[int]]:
        readers: dict[str, list[int]] = {}
        for index, node in enumerate(self.nodes):
            inside = set[str]().union(*map(captured, subgraphs(node)))
            for name in {*node.input, *inside}:
                readers.setdefault(name, []).append(index)
        return readers

    def producer(self, tensor: str) -> int | None:
        """The index of the node that makes a tensor; None for inputs and stored tensors."""
        return self._producers.get(tensor)

    def readers(self, tensor: str) -> list[int]:
        """The indices of the nodes that read a tensor, in subgraphs too."""
        return self._readers.get(tensor, [])

    def only_reader(self, tensor: str) -> int | None:
        """The one node that reads a tensor, if nothing else does and it is not an output of the model."""
        readers = self.readers(tensor)
        return readers[0] if len(readers) == 1 and tensor not in self.outputs else None

    def constant(self, tensor: str) -> Array | None:
        """The value of a tensor that does not depend on any input, where simple nodes lead to it from a
        stored one.
        """
        if tensor not in self._constants:
            self._constants[tensor] = self._constant(tensor)
        return self._constants[tensor]

    def _constant(self, tensor: str) -> Array | None:
        stored = self.model.tensors.get(tensor)
        index = self.producer(tensor)
        if stored is not None or index is None:
            return stored
        node = self.nodes[index]
        if node.domain not in ("", "ai.onnx"):
            return None
        if node.op_type == "Concat":
            parts = [self.constant(name) for name in node.input]
            known = [part for part in parts if part is not None]
            return np.concatenate(known, attribute(node, "axis")) if len(known) == len(parts) else None
        if node.op_type not in ("Identity", "Transpose", "Cast", "Reshape", "Unsqueeze", "Squeeze", "Slice"):
            return None
        source = self.constant(node.input[0])
        return None if source is None else self._evaluated(node, source)

    def _evaluated(self, node: NodeProto, source: Array) -> Array | None:
        if node.op_type == "Transpose":
            return source.transpose(attribute(node, "perm"))
        if node.op_type == "Cast":
            kind = attribute(node, "to")
            return source.astype(np.float32) if kind == TensorProto.FLOAT else None
        if node.op_type == "Identity":
            return source
        argument = self.constant(node.input[1]) if len(node.input) > 1 and node.input[1] else None
        if node.op_type == "Reshape":
            if argument is None or (0 in argument and attribute(node, "allowzero", 0)):
                return None
            return source.reshape(
                [source.shape[i] if size == 0 else int(size) for i, size in enumerate(argument)]
            )
        if argument is None and len(node.input) > 1:
            return None
        if node.op_type == "Slice":
            return self._sliced(node, source)
        axes = None if argument is None else tuple(int(axis) for axis in argument)
        if node.op_type == "Squeeze":
            return source.squeeze(axes)
        return None if axes is None else np.expand_dims(source, axes)

    def _sliced(self, node: NodeProto, source: Array) -> Array | None:
        given = [self.constant(name) if name else None for name in node.input[1:]]
        if any(value is None and name for value, name in zip(given, node.input[1:], strict=True)):
            return None
        starts, ends, axes, steps = [*given, None, None][:4]
        if starts is None or ends is None:
            return None
        where = [slice(None)] * source.ndim
        if steps is not None and (steps < 1).any():
            return None
        for place, (start, end) in enumerate(zip(starts, ends, strict=True)):
            step = 1 if steps is None else int(steps[place])
            where[place if axes is None else int(axes[place])] = slice(int(start), int(end), step)
        return source[tuple(where)]

    def keep(self, kept: Callable[[int], bool]) -> None:
        """Leave nodes out of the graph itself, by index. The view must not be used afterwards."""
        nodes = [node for index, node in enumerate(self.nodes) if kept(index)]
        del self.model.proto.graph.node[:]
        self.model.proto.graph.node.extend(nodes)

    def learn(self, values: Iterable[Any]) -> None:
        """Take types and ranks from value infos, of inputs, outputs and inference."""
        for item in values:
            if item.type.HasField("tensor_type"):
                self._types[item.name] = item.type.tensor_type.elem_type
                if item.type.tensor_type.HasField("shape"):
                    sizes = item.type.tensor_type.shape.dim
                    self._ranks[item.name] = len(sizes)
                    if all(size.HasField("dim_value") for size in sizes):
                        self._fixed.add(item.name)

    def elem_type(self, tensor: str) -> int:
        """The type of a tensor's numbers in ONNX's numbering; 0 where it is not known."""
        return self._types.get(tensor, 0)

    def rank(self, tensor: str) -> int | None:
        """The number of dimensions, where it is known."""
        return self._ranks.get(tensor)

    def has_fixed_sizes(self, tensor: str) -> bool:
        """Whether all of its dimensions are known in advance."""
        return tensor in self._fixed


def unused(name: str, taken: Mapping[str, Any] | set[str]) -> str:
    """The name itself, or with a number, if it is taken."""
    candidate, count = name, 1
    while candidate in taken:
        count += 1
        candidate = f"{name}_{count}"
    return candidate
