"""TensorFlow graphs of strangers: only ops that compute, and nothing of what loading a SavedModel runs.

    graph_def = harmless(read_graph_def(path), str(path))
    function = signature_graph(folder, handover)

A graph is a program: its ops read and write files, call Python, or load engines. ``tf.saved_model.load`` runs
functions of the model itself, to restore and to initialise. Octune saves frozen graphs, which need none of
that, so here the graph of the signature is taken out of the file and nothing else is read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.protobuf.saved_model_pb2 import SavedModel
from tensorflow.python.framework import op_def_registry

from octune.backends.tensorflow.model.callables import flat_function
from octune.backends.tensorflow.model.freeze import freeze_graph, upstream
from octune.backends.tensorflow.model.handover import Handover
from octune.errors import ArtifactError

__all__ = ["harmless", "signature_graph"]

# Ops with a state are refused, and with them most of what touches the world; these only call other functions.
CALLS = {"StatefulPartitionedCall", "If", "_If", "While", "_While", "Case", "Assert", "GuaranteeConst"}
# They have no state, and read files, send tensors away, call Python or compilers, or end the process.
HARMFUL = re.compile(
    r".*(File|Dataset|Reader|Py|Debug|Xla|TPU|TRT|Rpc|Remote|Vocab|Summary|Checkpoint|Proto|Lookup|Table"
    r"|Mlir|DTensor|Save|Restore|Load).*|ImmutableConst|Copy(Host|ToMesh.*)?|Abort|BatchFunction|CustomAggregator"
)


def harmless(graph_def: GraphDef, where: str) -> GraphDef:
    """The same graph, if it does nothing but compute; ArtifactError names the op that does more."""
    functions = {function.signature.name for function in graph_def.library.function}
    for body in (graph_def.node, *(function.node_def for function in _reached(graph_def))):
        for node in body:
            if node.op not in functions and node.op not in CALLS:
                _check(node, where)
    return graph_def


def _reached(graph_def: GraphDef) -> list[Any]:
    """The functions that the nodes of a graph may call, and those that they call."""
    functions = {function.signature.name: function for function in graph_def.library.function}
    reached: dict[str, Any] = {}
    waiting = [list(graph_def.node)]
    while waiting:
        for node in waiting.pop():
            for name in ({node.op, *_called(node)} & set(functions)) - set(reached):
                reached[name] = functions[name]
                waiting.append(list(functions[name].node_def))
    return list(reached.values())


def _check(node: Any, where: str) -> None:
    described = op_def_registry.get(node.op)
    if described is not None and not described.is_stateful and not HARMFUL.fullmatch(node.op):
        return
    raise ArtifactError(
        f"{where} has the op {node.op} ({node.name}), which may do more than compute, and was not made by "
        "you on this machine: it is not run. If you trust whoever made it: octune.load(folder, trust=True), "
        "or --trust."
    )


def _called(node: Any) -> Iterator[str]:
    for value in node.attr.values():
        yield from (one.name for one in ([value.func] if value.HasField("func") else value.list.func))


def signature_graph(folder: Path, handover: Handover) -> Any:
    """The signature of a SavedModel as a concrete function, from the graph in its file alone."""
    path = folder / "saved_model.pb"
    saved = SavedModel()
    try:
        saved.ParseFromString(path.read_bytes())
        [meta] = saved.meta_graphs
        signature = meta.signature_def[handover.signature]
    except Exception as error:  # protobuf's DecodeError has no public home that is the same in all versions
        raise ArtifactError(f"{path} is not a SavedModel that Octune wrote ({error}).") from error
    feeds = {name: signature.inputs[name].name for name in handover.inputs}
    fetches = {name: signature.outputs[name].name for name in sorted(signature.outputs)}
    part = upstream(meta.graph_def, [*fetches.values(), *feeds.values()])
    harmless(part, str(path))
    whole = freeze_graph(part, tuple(feeds.values()), tuple(fetches.values())).graph_def  # functions inlined
    left = _reached(whole)
    del whole.library.function[:]  # TensorFlow knows functions by name, and another model may have the same
    whole.library.function.extend(left)
    return flat_function(whole, feeds, fetches)
