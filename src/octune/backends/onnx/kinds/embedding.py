"""Embeddings: Gather from a large table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from onnx import NodeProto, TensorProto, helper

from octune.backends.onnx.graph import Array, View, attribute
from octune.backends.onnx.kinds.base import Found, Kind
from octune.backends.onnx.kinds.weighted import with_weight
from octune.plan import Scheme

if TYPE_CHECKING:
    from octune.backends.onnx.errors import OpErrors
    from octune.backends.onnx.insert import Insertion

__all__ = ["EMBEDDING"]

SMALL_TABLE = 1 << 14


class Embedding(Kind):
    """Rows of a table, read by their numbers."""

    name, node_type = "embedding", "Gather"
    title = "Gather on a table"
    slots = (1,)
    multiplies = False

    def schemes(self) -> tuple[Scheme, ...]:
        return (Scheme.int8("weight"), Scheme.int8("weight", granularity="per_tensor"), Scheme.fp32())

    def find(self, view: View, index: int, node: NodeProto) -> Found | None:
        table = view.constant(node.input[0])
        if (
            table is None
            or table.ndim != 2
            or table.dtype.kind != "f"
            or table.size < SMALL_TABLE
            or attribute(node, "axis", 0) != 0
            or view.constant(node.input[1]) is not None
        ):
            return None
        return with_weight(self, index, node, table, signature=f"Gather{list(table.shape)}")

    def error(self, at: OpErrors, scheme: Scheme, *, few: bool) -> Array:
        rows = at.context.weights.get(at.found, scheme).dequantized()[at.inputs[0]]
        return np.asarray(rows - at.y, np.float32)

    def example(self, shape: Sequence[int], random: np.random.Generator) -> Array:
        return np.zeros(shape, np.int64)

    def insert(self, insertion: Insertion, found: Found, scheme: Scheme) -> None:
        """Rows are read as int8, and scaled after that."""
        edit, name = insertion.edit, found.op.name
        made = insertion.weights.get(found, scheme)
        table = edit.tensor(f"{name}/weight_int8", made.values)
        rows, wide = edit.name(f"{name}/rows"), edit.name(f"{name}/wide")
        nodes = [
            helper.make_node("Gather", [table, found.x], [rows], name=name, axis=0),
            helper.make_node("Cast", [rows], [wide], name=f"{name}/Cast", to=TensorProto.FLOAT),
        ]
        if made.scales.size == 1:
            factor = edit.tensor(f"{name}/weight_scale", made.scales.reshape(()))
        else:
            scales = edit.tensor(f"{name}/weight_scale", made.scales.reshape(-1, 1))
            factor = edit.name(f"{name}/factor")
            nodes.append(
                helper.make_node("Gather", [scales, found.x], [factor], name=f"{name}/Scale", axis=0)
            )
        nodes.append(helper.make_node("Mul", [wide, factor], [found.output], name=f"{name}/Mul"))
        edit.replace(found.index, nodes)


EMBEDDING = Embedding()
