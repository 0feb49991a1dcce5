"""From any TensorFlow model to one GraphDef with constants: variables frozen, functions inlined, leftovers of
training cut off.

    frozen = freeze_graph(graph_def, inputs=("x",), outputs=("dense/BiasAdd",))
    frozen = freeze_session(session, ...)
    frozen = freeze_function(concrete_function, ["x"], ["output"])

A graph may read its own data through an iterator; its initialisers are kept as targets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.protobuf.config_pb2 import ConfigProto
from tensorflow.core.protobuf.meta_graph_pb2 import CollectionDef
from tensorflow.python.framework.convert_to_constants import (
    convert_variables_to_constants_from_session_graph,
    convert_variables_to_constants_v2,
)
from tensorflow.python.grappler import tf_optimizer
from tensorflow.python.util import deprecation

from octune.backends.tensorflow.graph.graph import FrozenGraph, node_of, tensor
from octune.backends.tensorflow.model.names import resolve
from octune.errors import ModelError, short, summary

__all__ = [
    "LARGEST_GRAPH",
    "as_graph",
    "drop_blanks",
    "ends",
    "freeze_function",
    "freeze_graph",
    "freeze_session",
    "upstream",
]

LARGEST_GRAPH = 2**31 - 1  # bytes that protobuf can hold in a GraphDef
VARIABLES = {"Variable", "VariableV2", "VarHandleOp", "AutoReloadVariable"}
INITIALISERS = {
    "MakeIterator",
    "InitializeTable",
    "InitializeTableV2",
    "InitializeTableFromTextFileV2",
    "LookupTableImportV2",
}
# Ops that no other op reads, but that are not outputs either.
NO_OUTPUT = {
    "Const",
    "NoOp",
    "Assert",
    "Placeholder",
    "PlaceholderWithDefault",
    "IteratorToStringHandle",
    "IteratorGetNext",
    "SaveV2",
}
NO_OUTPUT |= {
    "Print",
    "PrintV2",
    "RestoreV2",
    "MergeV2Checkpoints",
    "ScalarSummary",
    "HistogramSummary",
    "MergeSummary",
    "WriteFile",
}
CALLS = {"PartitionedCall", "StatefulPartitionedCall"}


def as_graph(graph_def: GraphDef) -> Any:
    """A ``tf.Graph`` of its own with these nodes, under their own names."""
    drop_blanks(graph_def)
    graph = tf.Graph()
    try:
        with graph.as_default():
            tf.graph_util.import_graph_def(graph_def, name="")
    except (ValueError, tf.errors.OpError) as error:
        raise ModelError(
            f"The graph cannot be read by TensorFlow {tf.__version__}: {summary(error)}. Ops of a library "
            "must be loaded before."
        ) from error
    return graph


def drop_blanks(graph_def: GraphDef) -> None:
    """Remove attributes without a value, which asking a node for an attribute that it does not have leaves
    behind.

    Graphs are imported with a complaint about them; in a function they count as values that are yet to come.
    """
    for node in graph_def.node:
        for key in [key for key, value in node.attr.items() if value.WhichOneof("value") is None]:
            del node.attr[key]


def freeze_graph(
    graph_def: GraphDef, inputs: Sequence[str], outputs: Sequence[str], graph: Any = None
) -> FrozenGraph:
    """A GraphDef that holds its weights already. Empty ``inputs`` and ``outputs`` are inferred."""
    graph = as_graph(graph_def) if graph is None else graph
    feeds, fetches = ends(graph, inputs, outputs)
    targets = _initialisers(graph)
    graph_def = _inlined(graph_def, [*feeds.values(), *fetches.values()], targets)
    graph_def = upstream(graph_def, [*fetches.values(), *targets, *feeds.values()])
    variables = [node.name for node in graph_def.node if node.op in VARIABLES]
    if variables:
        raise ModelError(
            f"The graph is not frozen: it has variables ({short(variables)}) but not their values. "
            "Give the tf.compat.v1.Session that holds them, a SavedModel, or a frozen graph."
        )
    _check_complete(graph_def, feeds, fetches)
    return FrozenGraph(graph_def, feeds, fetches, tuple(targets))


def freeze_session(session: Any, inputs: Sequence[str], outputs: Sequence[str]) -> FrozenGraph:
    """The session's graph with the values that its variables have now."""
    graph = session.graph
    _check_size(graph.get_collection(tf.compat.v1.GraphKeys.GLOBAL_VARIABLES))
    feeds, fetches = ends(graph, inputs, outputs)
    # Inputs that no output needs must stay: callers pass them.
    keep = list(dict.fromkeys([*map(node_of, (*fetches.values(), *feeds.values())), *_initialisers(graph)]))
    try:
        with deprecation.silence():
            graph_def = convert_variables_to_constants_from_session_graph(session, graph.as_graph_def(), keep)
    except tf.errors.FailedPreconditionError as error:
        raise ModelError(
            "The session's variables have no values yet. Restore a checkpoint or run their initialiser first."
        ) from error
    except (ValueError, tf.errors.OpError) as error:
        raise ModelError(f"The session's graph cannot be frozen: {summary(error)}") from error
    return freeze_graph(graph_def, inputs, outputs or list(fetches.values()))


def freeze_function(function: Any, arguments: Sequence[str], results: Sequence[str]) -> FrozenGraph:
    """A concrete function with its variables as constants; names are given to its flat arguments and results,
    in order.
    """
    _check_size(function.variables)
    try:
        frozen = convert_variables_to_constants_v2(function, lower_control_flow=False)
    except (ValueError, tf.errors.OpError) as error:
        raise ModelError(f"The function cannot be frozen: {summary(error)}") from error
    feeds = {name: made.name for name, made in zip(arguments, frozen.inputs, strict=False)}
    fetches = {name: made.name for name, made in zip(results, frozen.outputs, strict=True)}
    if len(feeds) != len(arguments):
        raise ModelError(
            f"The function takes {list(arguments)}, but only {len(feeds)} of them are left after freezing."
        )
    graph_def = frozen.graph.as_graph_def()
    # Arguments that nothing reads must stay: callers pass them.
    return FrozenGraph(upstream(graph_def, [*fetches.values(), *feeds.values()]), feeds, fetches)


def upstream(graph_def: GraphDef, wanted: Iterable[str]) -> GraphDef:
    """The part of a graph that makes these tensors or ops, in its own order; the library of functions is
    kept.
    """
    kept = _behind(graph_def, wanted)
    part = GraphDef()
    part.versions.CopyFrom(graph_def.versions)
    part.library.CopyFrom(graph_def.library)
    part.node.extend(node for node in graph_def.node if node.name in kept)
    for node in part.node:
        # A wish to be placed beside an op that is gone means nothing any more, and cannot be
        # imported.
        places = node.attr["_class"].list.s if "_class" in node.attr else ()
        if any(place.decode().removeprefix("loc:@") not in kept for place in places):
            del node.attr["_class"]
    return part


def _behind(graph_def: GraphDef, wanted: Iterable[str], fed: Iterable[str] = ()) -> set[str]:
    """The nodes that must run to make these tensors, when the tensors in ``fed`` come from outside."""
    nodes, kept = {node.name: node for node in graph_def.node}, set[str]()
    given, waiting = set(fed), [node_of(name) for name in wanted]
    while waiting:
        name = waiting.pop()
        if name not in kept and name in nodes:
            kept.add(name)
            waiting.extend(
                node_of(reference) for reference in nodes[name].input if tensor(reference) not in given
            )
    return kept


def ends(graph: Any, inputs: Sequence[str], outputs: Sequence[str]) -> tuple[dict[str, str], dict[str, str]]:
    fetches = resolve(outputs, graph, "outputs") if outputs else _inferred_outputs(graph)
    if inputs:
        return resolve(inputs, graph, "inputs"), fetches
    # Only what the answers need: a graph that was trained has more placeholders than that.
    needed = _needed(graph, [*map(node_of, fetches.values()), *_initialisers(graph)])
    return {
        o.name: f"{o.name}:0" for o in graph.get_operations() if o.type == "Placeholder" and o.name in needed
    }, fetches


def _inferred_outputs(graph: Any) -> dict[str, str]:
    """The tensors that no op reads; of several, those that are floats."""
    found = [
        output
        for operation in graph.get_operations()
        if operation.type not in NO_OUTPUT
        and not operation.type.startswith(("Assign", "Apply", "ResourceApply"))
        and not operation.name.startswith("gradients/")
        for output in operation.outputs
        if not any(output.consumers() for output in operation.outputs)
        and output.dtype.base_dtype not in (tf.resource, tf.variant)
        and not output.dtype._is_ref_dtype
    ]
    floats = [output for output in found if output.dtype.is_floating]
    if not found:
        raise ModelError(
            "No output of the graph could be inferred: every tensor is read by another op. Name them as "
            "model.outputs."
        )
    return {
        (output.op.name if len(output.op.outputs) == 1 else output.name): output.name
        for output in floats or found
    }


def _initialisers(graph: Any) -> list[str]:
    return [operation.name for operation in graph.get_operations() if operation.type in INITIALISERS]


def _needed(graph: Any, names: Iterable[str]) -> set[str]:
    waiting, seen = [graph.get_operation_by_name(name) for name in names], set[str]()
    while waiting:
        operation = waiting.pop()
        if operation.name in seen:
            continue
        seen.add(operation.name)
        waiting.extend(read.op for read in operation.inputs)
        waiting.extend(operation.control_inputs)
    return seen


def _inlined(graph_def: GraphDef, ends: Iterable[str], targets: Iterable[str]) -> GraphDef:
    """The graph with calls of functions replaced by their bodies, by Grappler's function optimizer and
    nothing else of it.
    """
    functions = {function.signature.name for function in graph_def.library.function}
    if not any(node.op in CALLS or node.op in functions for node in graph_def.node):
        return graph_def
    meta = tf.compat.v1.train.export_meta_graph(graph_def=graph_def, graph=as_graph(graph_def))
    keep = CollectionDef()
    keep.node_list.value.extend(dict.fromkeys([*map(node_of, ends), *targets]))
    meta.collection_def["train_op"].CopyFrom(keep)
    config = ConfigProto()
    options = config.graph_options.rewrite_options
    options.min_graph_nodes = -1
    options.optimizers.append("function")
    inlined = tf_optimizer.OptimizeGraph(config, meta)
    # Grappler drops functions that no call is left to reach; those of datasets are needed.
    known = {function.signature.name for function in inlined.library.function}
    inlined.library.function.extend(f for f in graph_def.library.function if f.signature.name not in known)
    return inlined


def _check_complete(graph_def: GraphDef, feeds: Mapping[str, str], fetches: Mapping[str, str]) -> None:
    needed = _behind(graph_def, fetches.values(), feeds.values())
    if any(node.op == "IteratorGetNext" and node.name in needed for node in graph_def.node):
        initialisers = [node.name for node in graph_def.node if node.op in INITIALISERS]
        needed |= _behind(graph_def, initialisers, feeds.values())
    fed = set(map(node_of, feeds.values()))
    lost = [node.name for node in graph_def.node if node.op == "Placeholder" and node.name in needed - fed]
    if lost:
        raise ModelError(
            f"The outputs need the placeholders {short(lost)}, which model.inputs does not name. It names: "
            f"{short(feeds)}. Add them."
        )


def _check_size(variables: Iterable[Any]) -> None:
    total = sum(v.shape.num_elements() * v.dtype.size for v in variables if v.shape.is_fully_defined())
    if total > LARGEST_GRAPH:
        raise ModelError(
            f"The model has {total / 2**30:.1f} GB of weights, and a TensorFlow graph with its weights "
            "inside holds at most 2 GB. "
            "Split the model, for example into two SavedModels, and tune them one by one."
        )
