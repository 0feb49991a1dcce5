"""Peepholes on an exported int8 graph: what the layers did one by one, done once.

- one quantize for all readers of a tensor (Q, K and V),
- an activation between two int8 ops moves into the first, which then gives uint8: no float in between.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.fx import Graph, GraphModule, Node

__all__ = ["fold_packing", "lower"]

aten, onednn = torch.ops.aten, torch.ops.onednn
# The layers import the module that registers these, so they exist by the time a graph holds them.
QUANTIZE = "quantized_decomposed::quantize_per_tensor"

_META = torch.library.Library("onednn", "IMPL", "Meta")
# Packing has no meta kernel of its own; export needs one. Packed linear weights look transposed.
_META.impl("qlinear_prepack", lambda weight, x_shape=None: weight.t())
_META.impl("qconv_prepack", lambda weight, *rest: weight)


def lower(program: torch.export.ExportedProgram) -> None:
    """Rewrite the program's graph in place."""
    graph = program.graph_module.graph
    _drop_dropout(graph)
    _share_quantizes(graph)
    graph.eliminate_dead_code()
    graph.lint()
    program.graph_module.recompile()


def _calls(graph: Graph, *targets: Any) -> list[Node]:
    return [node for node in graph.nodes if node.op == "call_function" and node.target in targets]


def _replace(graph: Graph, old: Node, new: Node) -> None:
    old.replace_all_uses_with(new)
    graph.erase_node(old)


def _drop_dropout(graph: Graph) -> None:
    for node in _calls(graph, aten.dropout.default):
        if node.args[2] is False:
            _replace(graph, node, node.args[0])  # type: ignore[arg-type]


def _share_quantizes(graph: Graph) -> None:
    first: dict[tuple[Any, ...], Node] = {}
    for node in _calls(graph, torch.ops.quantized_decomposed.quantize_per_tensor.default):
        key = tuple(node.args)
        if key in first:
            _replace(graph, node, first[key])
        else:
            first[key] = node


def fold_packing(module: nn.Module) -> None:
    """Pack constant weights now, once, instead of at every call."""
    assert isinstance(module, GraphModule)
    graph = module.graph
    for index, node in enumerate(_calls(graph, onednn.qlinear_prepack.default, onednn.qconv_prepack.default)):
        if not all(not isinstance(arg, Node) or arg.op == "get_attr" for arg in node.args):
            continue
        values = [_attribute(module, arg.target) if isinstance(arg, Node) else arg for arg in node.args]
        name = f"_octune_packed_{index}"
        setattr(module, name, node.target(*values))  # type: ignore[operator]
        with graph.inserting_before(node):
            packed = graph.create_node("get_attr", name)
        _replace(graph, node, packed)
    graph.eliminate_dead_code()
    module.recompile()


def _attribute(module: nn.Module, path: Any) -> Any:
    found: Any = module
    for part in str(path).split("."):
        found = getattr(found, part)
    return found
