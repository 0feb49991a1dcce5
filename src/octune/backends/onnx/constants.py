"""What a graph computes from constants alone is computed once, and kept as a constant.

Exporters leave sizes, axes and paddings as chains of small nodes; their values must be known to tell what a
node does. Weights are not touched: only small tensors take part.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import onnxruntime as ort
from onnx import ModelProto, NodeProto, ValueInfoProto, numpy_helper

from octune.backends.onnx.graph import Array, View, subgraphs

__all__ = ["fold_constants"]

log = logging.getLogger("octune")
SMALL = 1 << 14  # bytes
RANDOM = {
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
    "Multinomial",
    "Bernoulli",
    "Dropout",
}


def fold_constants(view: View) -> int:
    """Fold in place; return how many nodes were folded."""
    known = {name: array for name, array in view.model.tensors.items() if array.nbytes <= SMALL}
    chain = _computable(view, set(known))
    if not chain:
        return 0
    try:
        values = _values(view, [view.nodes[index] for index in chain], known)
    # Folding is optional, and onnxruntime has an exception class for every status.
    except Exception:
        log.debug("constants could not be folded", exc_info=True)
        return 0
    folded = {
        index for index in chain if all(_is_small(values[name]) for name in view.nodes[index].output if name)
    }
    view.model.tensors.update(
        {name: values[name] for index in folded for name in view.nodes[index].output if name}
    )
    view.keep(lambda index: index not in folded)
    return len(folded)


def _computable(view: View, known: set[str]) -> list[int]:
    """The nodes that read nothing but small constants, in the order of the graph."""
    found: list[int] = []
    for index, node in enumerate(view.nodes):
        plain = node.domain in ("", "ai.onnx") and node.op_type not in RANDOM and not any(subgraphs(node))
        if (
            plain
            and all(name in known for name in node.input if name)
            and not set(node.output) & set(view.outputs)
        ):
            known.update(name for name in node.output if name)
            found.append(index)
    return found


def _is_small(value: Any) -> bool:
    # not a sequence, not strings
    return isinstance(value, np.ndarray) and value.dtype.kind in "fiub" and value.nbytes <= SMALL


def _values(view: View, nodes: list[NodeProto], known: dict[str, Array]) -> dict[str, Any]:
    source = view.model.proto
    proto = ModelProto(ir_version=source.ir_version, opset_import=source.opset_import)
    proto.graph.name = "constants"
    proto.graph.node.extend(nodes)
    read = {name for node in nodes for name in node.input if name in known}
    proto.graph.initializer.extend(numpy_helper.from_array(known[name], name) for name in sorted(read))
    names = [name for node in nodes for name in node.output if name]
    proto.graph.output.extend(ValueInfoProto(name=name) for name in names)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return dict(zip(names, session.run(names, {}), strict=True))
