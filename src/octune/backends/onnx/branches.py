"""Branches of a graph: an ``If`` whose condition follows from the inputs (a sampling rate, a size) is opened,
so that the branch which the data takes is quantized like any other graph.

    graph, guards = open_branches(model, feed)   # the branch that this feed takes, in the main graph
    takes(guards, feed)                          # whether another feed takes the same one
    guarded(int8_graph, guards)                  # the whole model again: int8 in that branch, fp32 elsewhere

An ``If`` is opened only if something in it could be quantized, and if telling where it leads takes no op
with weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, ValueInfoProto, helper, numpy_helper

from octune.backends.onnx.graph import Array, Model, View, attribute, headed_like, subgraphs, unused
from octune.backends.onnx.kinds import KINDS
from octune.backends.onnx.runtimes import session
from octune.backends.onnx.source import declare_constants

__all__ = ["Guard", "guarded", "named_inside", "open_branches", "takes"]


@dataclass(frozen=True, eq=False)
class Guard:
    """The condition of an ``If`` that was opened: ``model`` computes it as its only output, ``taken`` is what
    it must be, and ``other`` is the graph where it is not.
    """

    model: Model
    taken: bool
    other: Model

    @property
    def condition(self) -> str:
        return str(self.model.proto.graph.output[0].name)

    def holds(self, feed: Mapping[str, Array]) -> bool:
        """Whether this feed takes the branch that was opened."""
        read = {item.name for item in self.model.proto.graph.input}
        made = session(self.model, 1).run(None, {name: feed[name] for name in read})
        return bool(np.all(made[0])) == self.taken


def takes(guards: Iterable[Guard], feed: Mapping[str, Array]) -> bool:
    """Whether a feed takes every branch that was opened."""
    return all(guard.holds(feed) for guard in guards)


def named_inside(node: NodeProto) -> list[tuple[str, NodeProto]]:
    """The nodes in the graphs inside a node that could be ops, with their names."""
    return [
        (f"{node.name}/{inner.name or f'{inner.op_type}_{number}'}", inner)
        for number, inner in enumerate(_inner_ops(node))
    ]


def _inner_ops(node: NodeProto) -> list[NodeProto]:
    types = {kind.node_type for kind in KINDS if kind.multiplies}
    return [
        inner
        for graph in subgraphs(node)
        for one in graph.node
        for inner in ([one] if one.op_type in types else _inner_ops(one))
    ]


def open_branches(model: Model, feed: Mapping[str, Array]) -> tuple[Model, list[Guard]]:
    """The graph with those branches in it that this feed takes."""
    guards: list[Guard] = []
    while (found := _next(View(model), len(guards))) is not None:
        index, computed = found
        taken = not Guard(computed, False, model).holds(feed)
        guards.append(Guard(computed, taken, _inlined(model, index, not taken)))
        model = _inlined(model, index, taken)
    return model, guards


def _next(view: View, number: int) -> tuple[int, Model] | None:
    """The next ``If`` to open, and what computes its condition."""
    for index, node in enumerate(view.nodes):
        if node.op_type == "If" and _inner_ops(node):
            chain = _behind(view, node.input[0])
            if chain is not None:
                return index, _condition(view, chain, node.input[0], f"condition{number}")
    return None


def _behind(view: View, tensor: str) -> list[int] | None:
    """The nodes that make a tensor, in their order; None if ops or graphs inside nodes are among them."""
    types = {kind.node_type for kind in KINDS if kind.multiplies}
    waiting, found = [tensor], set[int]()
    while waiting:
        index = view.producer(waiting.pop())
        if index is None or index in found:
            continue
        node = view.nodes[index]
        if node.op_type in types or any(subgraphs(node)):
            return None
        found.add(index)
        waiting.extend(name for name in node.input if name)
    return sorted(found)


def _condition(view: View, chain: Sequence[int], tensor: str, prefix: str) -> Model:
    """A model of these nodes. Its names are its own, so that it can stand beside the graph it is from."""
    nodes = [view.nodes[index] for index in chain]
    read = {name for node in nodes for name in node.input if name} | {tensor}
    names = {name: f"{prefix}/{name}" for node in nodes for name in node.output if name}
    stored = {name: array for name, array in view.model.tensors.items() if name in read}
    names |= {name: f"{prefix}/{name}" for name in stored}
    proto = headed_like(view.model.proto)
    proto.graph.name = prefix
    proto.graph.node.extend(_renamed(nodes, names))
    proto.graph.input.extend(item for item in view.model.proto.graph.input if item.name in read)
    proto.graph.output.append(ValueInfoProto(name=names.get(tensor, tensor)))
    return Model(proto, {names[name]: array for name, array in stored.items()})


# -- into the main graph -------------------------------------------------------------------------------------


def _inlined(model: Model, index: int, taken: bool) -> Model:
    """The graph with one branch of an ``If`` in its place."""
    nodes = list(model.proto.graph.node)
    branch: GraphProto = attribute(nodes[index], "then_branch" if taken else "else_branch")
    taken_names = {name for node in nodes for name in node.output} | {*model.tensors}
    taken_names |= {item.name for item in model.proto.graph.input}
    names: dict[str, str] = {}
    for name in [*(item.name for item in branch.initializer), *_made(branch.node)]:
        names[name] = unused(name, taken_names)
        taken_names.add(names[name])
    inner = _renamed(branch.node, names)
    results = zip(branch.output, nodes[index].output, strict=True)
    ends = [
        helper.make_node("Identity", [names.get(item.name, item.name)], [output], f"{output}/Identity")
        for item, output in results
        if output
    ]
    proto = ModelProto()
    proto.CopyFrom(model.proto)
    del proto.graph.node[:]
    proto.graph.node.extend([*nodes[:index], *inner, *ends, *nodes[index + 1 :]])
    stored = {names[item.name]: numpy_helper.to_array(item) for item in branch.initializer}
    made = Model(proto, {**model.tensors, **stored})
    declare_constants(made, [])  # graphs that are opened further then share them
    return made


def _made(nodes: Iterable[NodeProto]) -> list[str]:
    return [name for node in nodes for name in node.output if name]


def _renamed(nodes: Iterable[NodeProto], names: Mapping[str, str]) -> list[NodeProto]:
    """Copies of nodes that call tensors by other names, in the graphs inside them as well."""
    copies = []
    for node in nodes:
        copy = NodeProto()
        copy.CopyFrom(node)
        _rename(copy, names)
        copies.append(copy)
    return copies


def _rename(node: NodeProto, names: Mapping[str, str]) -> None:
    node.input[:] = [names.get(name, name) for name in node.input]
    node.output[:] = [names.get(name, name) for name in node.output]
    for graph in subgraphs(node):
        # What a graph makes itself hides what has that name outside.
        own = {*(item.name for item in graph.initializer), *_made(graph.node)}
        outer = {name: new for name, new in names.items() if name not in own}
        for inner in graph.node:
            _rename(inner, outer)
        for item in graph.output:
            item.name = outer.get(item.name, item.name)


# -- and back ------------------------------------------------------------------------------------------------


def guarded(graph: Model, guards: Sequence[Guard]) -> Model:
    """A model that computes ``graph`` where all conditions hold, and what the model did elsewhere."""
    for number, guard in reversed(list(enumerate(guards))):
        graph = _either(graph, guard, f"branch{number}")
    return graph


def _either(graph: Model, guard: Guard, prefix: str) -> Model:
    other = guard.other
    # Both graphs may call different things by the same name.
    kept = {name: array for name, array in other.tensors.items() if graph.tensors.get(name, array) is array}
    moved = {name: f"{prefix}/{name}" for name in other.tensors if name not in kept}
    kept |= {new: other.tensors[name] for name, new in moved.items()}
    tensors = {**kept, **graph.tensors, **guard.model.tensors}
    proto = headed_like(graph.proto)
    proto.graph.name = other.proto.graph.name
    proto.graph.input.extend(other.proto.graph.input)
    proto.graph.output.extend(other.proto.graph.output)
    held = (item for one in (other, graph) for item in one.proto.graph.initializer)
    proto.graph.initializer.extend({item.name: item for item in held}.values())
    bodies = [_body(graph, f"{prefix}/opened", {}, tensors), _body(other, f"{prefix}/other", moved, tensors)]
    first, second = bodies if guard.taken else bodies[::-1]
    either = helper.make_node(
        "If",
        [guard.condition],
        [item.name for item in proto.graph.output],
        prefix,
        then_branch=first,
        else_branch=second,
    )
    proto.graph.node.extend([*guard.model.proto.graph.node, either])
    return Model(proto, tensors)


def _body(model: Model, prefix: str, moved: Mapping[str, str], outside: Mapping[str, Array]) -> GraphProto:
    """A graph as a branch. It reads inputs and stored tensors from outside, and what it makes has names that
    are not taken there.
    """
    results = {item.name: f"{prefix}/{item.name}" for item in model.proto.graph.output}
    made = {*_made(model.proto.graph.node)}
    taken = {name: f"{prefix}/{name}" for name in made if name in outside or name in results}
    nodes = _renamed(model.proto.graph.node, {**moved, **taken})
    nodes += [
        helper.make_node("Identity", [moved.get(name, name)], [new], f"{new}/Identity")
        for name, new in results.items()
        if name not in made
    ]
    outputs = [ValueInfoProto(name=results[item.name], type=item.type) for item in model.proto.graph.output]
    return helper.make_graph(nodes, prefix, [], outputs)
