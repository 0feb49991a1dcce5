"""Peephole optimizations of an exported int8 graph: what the layers do one by one, done once.

- one quantize for all readers of a tensor, and one matmul for int8 linears that read it (Q, K and V);
- in a convolutional net, the skip of a residual block reads the uint8 tensor that the next convolution reads
  anyway; a skip that is itself a convolution returns uint8; max pooling takes uint8;
- checks, casts and transposes that do nothing are removed: with one more reader, a float tensor cannot become
  uint8.

What is left, the compiler does by itself: it moves activations and additions that follow an int8 op into it,
and lets it return uint8 where a quantize comes next, so that int8 flows from layer to layer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.fx import Graph, GraphModule, Node

__all__ = ["fill_empty_arguments", "fold_packing", "lower", "quantize_as_layers_do"]

aten: Any = torch.ops.aten
onednn: Any = torch.ops.onednn
decomposed: Any = torch.ops.quantized_decomposed

_META = torch.library.Library("onednn", "IMPL", "Meta")  # type: ignore[no-untyped-call]
# Packing has no meta kernel of its own; export needs one. Packed linear weights look transposed.
_META.impl("qlinear_prepack", lambda weight, x_shape=None: weight.t())  # type: ignore[no-untyped-call]
_META.impl("qconv_prepack", lambda weight, *rest: weight)  # type: ignore[no-untyped-call]
_META.impl("qconv3d_pointwise", lambda *args: onednn.qconv_pointwise.default(*args))  # type: ignore[no-untyped-call]

# What computes every number of its result from the numbers at the same place of its arguments.
_POINTWISE = {
    aten.add.Tensor, aten.add_.Tensor, aten.mul.Tensor, aten.relu.default, aten.relu_.default,
    aten.gelu.default, aten.silu.default, aten.silu_.default, aten.hardswish.default, aten.hardswish_.default,
    aten.hardtanh.default, aten.hardtanh_.default, aten.leaky_relu.default, aten.leaky_relu_.default,
    aten.sigmoid.default, aten.tanh.default,
}  # fmt: skip
# Positions in the arguments of onednn.qlinear_pointwise.
_PACKED, _SCALES, _BIAS = 3, 4, 6


def lower(
    program: torch.export.ExportedProgram, outputs: Mapping[str, tuple[float, int]] | None = None
) -> None:
    """Rewrite the program's graph in place; ``outputs`` has the scale and zero point of convolutions'
    outputs, by weight.
    """
    graph = program.graph_module.graph
    buffers = program.graph_signature.inputs_to_buffers
    known = {node: outputs[buffers[node]] for node in buffers if outputs and buffers[node] in outputs}
    _drop_dropout(graph)
    _drop_idle_casts(graph)
    _drop_idle_transposes(graph)
    _keep_heights(graph)
    _share_quantizes(graph)
    _pool_uint8(graph)
    _quantize_skips(graph)
    _quantize_shortcuts(graph, known)
    _merge_linears(graph)
    _keep_volumes_apart(graph)
    graph.eliminate_dead_code()
    graph.lint()
    program.graph_module.recompile()


def _calls(graph: Graph, *targets: Any) -> list[Node]:
    return [node for node in graph.nodes if node.op == "call_function" and node.target in targets]


def _replace(graph: Graph, old: Node, new: Node) -> None:
    old.replace_all_uses_with(new)
    graph.erase_node(old)


def _drop_dropout(graph: Graph) -> None:
    for node in _calls(graph, aten.dropout.default, aten.dropout_.default, aten.feature_dropout.default):
        source, _, training = node.args
        if training is False and isinstance(source, Node):
            _replace(graph, node, source)


def _drop_idle_casts(graph: Graph) -> None:
    for node in _calls(graph, aten._assert_tensor_metadata.default):
        graph.erase_node(node)
    for node in _calls(graph, aten.to.dtype):
        source = node.args[0]
        if (
            isinstance(source, Node)
            and len(node.args) == 2
            and not node.kwargs
            and source.meta["val"].dtype == node.args[1]
        ):
            _replace(graph, node, source)


def _keep_heights(graph: Graph) -> None:
    """Between convolutions of one dimension, which run as images of height one, leave the height where it is:
    the compiler then sees an activation right behind its convolution, and moves it into the kernel.
    """
    for node in list(graph.nodes):
        flat = [arg for arg in node.args if isinstance(arg, Node)]
        if node.target is aten.unsqueeze.default and node.args[1] == 2 and _is_flattened(flat[0]):
            _replace(graph, node, flat[0].args[0])  # type: ignore[arg-type]
        elif node.target in _POINTWISE and flat and all(map(_is_flattened, flat)):
            _run_with_height(graph, node)


def _is_flattened(node: Node) -> bool:
    if node.target is not aten.squeeze.dim or node.args[1] != 2:
        return False
    source: Any = node.args[0]
    return len(source.meta["val"].shape) == 4


def _run_with_height(graph: Graph, node: Node) -> None:
    args = [arg.args[0] if isinstance(arg, Node) else arg for arg in node.args]
    with graph.inserting_before(node):
        whole = graph.call_function(node.target, tuple(args), node.kwargs)  # type: ignore[arg-type]
        flattened = graph.call_function(aten.squeeze.dim, (whole, 2))
    whole.meta = {**node.meta, "val": node.meta["val"].unsqueeze(2)}
    flattened.meta = dict(node.meta)
    _replace(graph, node, flattened)


def _drop_idle_transposes(graph: Graph) -> None:
    """There and back again: what attention with the sequence first does to one with the batch first."""
    for node in _calls(graph, aten.transpose.int):
        first: Any = node.args[0]
        if first.target is not aten.transpose.int:
            continue
        ndim = node.meta["val"].ndim
        if {dim % ndim for dim in node.args[1:]} == {dim % ndim for dim in first.args[1:]}:
            _replace(graph, node, first.args[0])


def _pool_uint8(graph: Graph) -> None:
    """Rounding keeps order, so the largest of the rounded is the rounded largest, and pooling can read a
    quarter of the bytes.
    """
    for quantize in _calls(graph, decomposed.quantize_per_tensor.default):
        pool = quantize.args[0]
        if isinstance(pool, Node) and pool.target is aten.max_pool2d.default and len(pool.users) == 1:
            pool.replace_input_with(pool.args[0], _rounded(graph, pool.args[0], quantize.args[1:]))  # type: ignore[arg-type]


def _rounded(graph: Graph, source: Node, parameters: tuple[Any, ...]) -> Node:
    """Quantize and back, right behind ``source``."""
    with graph.inserting_after(source):
        small = graph.call_function(decomposed.quantize_per_tensor.default, (source, *parameters))
    with graph.inserting_after(small):
        back = graph.call_function(decomposed.dequantize_per_tensor.default, (small, *parameters))
    small.meta, back.meta = {**source.meta, "val": source.meta["val"].to(torch.uint8)}, dict(source.meta)
    return back


def _share_quantizes(graph: Graph) -> None:
    first: dict[tuple[Any, ...], Node] = {}
    for node in _calls(graph, decomposed.quantize_per_tensor.default):
        key = tuple(node.args)
        if key in first:
            _replace(graph, node, first[key])
        else:
            first[key] = node


def _quantize_skips(graph: Graph) -> None:
    """Let an addition behind an int8 convolution read what the next convolution reads: uint8, a quarter of
    the traffic.
    """
    for quantize in _calls(graph, decomposed.quantize_per_tensor.default):
        source = quantize.args[0]
        if not isinstance(source, Node) or not _feeds(quantize, onednn.qconv_pointwise.default):
            continue
        skips = [
            user
            for user in source.users
            if user.target in (aten.add.Tensor, aten.add_.Tensor) and _adds_convolution(user, source)
        ]
        if not skips:
            continue
        with graph.inserting_after(quantize):
            back = graph.call_function(
                decomposed.dequantize_per_tensor.default, (quantize, *quantize.args[1:])
            )
            back.meta = dict(source.meta)
        for skip in skips:
            # In an export every value is defined before its readers, but this quantize may come after the
            # addition.
            if _comes_before(graph, quantize, skip):
                skip.replace_input_with(source, back)
    graph.eliminate_dead_code()


def _quantize_shortcuts(graph: Graph, known: Mapping[str, tuple[float, int]]) -> None:
    """Where two convolutions are added, let one return uint8: the other then adds it in its own kernel, and
    returns uint8 as well.
    """
    for add in _calls(graph, aten.add.Tensor, aten.add_.Tensor):
        both: tuple[Any, ...] = add.args
        alone = all(_is_convolution(arg) and len(arg.users) == 1 for arg in both)
        if len(both) != 2 or add.kwargs or not alone:
            continue
        skip = both[1]
        weight = skip.args[_PACKED].args[0]
        while weight.op == "call_function":  # given a height
            weight = weight.args[0]
        if weight.name in known:
            add.replace_input_with(skip, _rounded(graph, skip, (*known[weight.name], 0, 255, torch.uint8)))


def _is_convolution(value: Any) -> bool:
    return isinstance(value, Node) and value.target is onednn.qconv_pointwise.default


def _feeds(node: Node, target: Any) -> bool:
    return any(user.target is target for user in node.users)


def _adds_convolution(add: Node, skip: Node) -> bool:
    others = [arg for arg in add.args if isinstance(arg, Node) and arg is not skip]
    return any(other.target is onednn.qconv_pointwise.default for other in others)


def _comes_before(graph: Graph, first: Node, second: Node) -> bool:
    for node in graph.nodes:
        if node is first:
            return True
        if node is second:
            return False
    return False


def _merge_linears(graph: Graph) -> None:
    """Int8 linears that read the same uint8 tensor become one, whose output is cut apart again."""
    readers: dict[tuple[Any, ...], list[Node]] = {}
    for node in _calls(graph, onednn.qlinear_pointwise.default):
        packed, scales, bias = (node.args[position] for position in (_PACKED, _SCALES, _BIAS))
        if isinstance(packed, Node) and all(_is_constant(one) for one in (packed.args[0], scales, bias)):
            readers.setdefault(
                (*node.args[:_PACKED], bias is None, *map(str, node.args[_BIAS + 1 :])), []
            ).append(node)
    for group in readers.values():
        if len(group) > 1:
            _merge(graph, group)


def _keep_volumes_apart(graph: Graph) -> None:
    """The compiler knows one convolution for any number of dimensions, and moves activations and additions
    into it, which in three dimensions the kernel refuses. It does not know this addition.
    """
    for node in _calls(graph, onednn.qconv3d_pointwise.default):
        with graph.inserting_before(node):
            convolved = graph.call_function(onednn.qconv_pointwise.default, node.args)
            kept = graph.call_function(aten.add.Tensor, (convolved, 0.0))
        convolved.meta, kept.meta = dict(node.meta), dict(node.meta)
        _replace(graph, node, kept)


def _is_constant(value: Any) -> bool:
    return value is None or (isinstance(value, Node) and value.op in ("placeholder", "get_attr"))


def _merge(graph: Graph, group: list[Node]) -> None:
    first = group[0]
    weights: list[Any] = [node.args[_PACKED].args[0] for node in group]  # type: ignore[union-attr]

    def joined(parts: list[Any]) -> Any:
        return None if parts[0] is None else graph.call_function(aten.cat.default, (parts, 0))

    with graph.inserting_before(first):
        packed = graph.call_function(onednn.qlinear_prepack.default, (joined(weights), None))
        scales, bias = (joined([node.args[position] for node in group]) for position in (_SCALES, _BIAS))
        zeros = graph.call_function(aten.zeros_like.default, (scales,), {"dtype": torch.int32})
        arguments = (*first.args[:_PACKED], packed, scales, zeros, bias, *first.args[_BIAS + 1 :])
        whole = graph.call_function(onednn.qlinear_pointwise.default, arguments)
        start = 0
        for node, weight in zip(group, weights, strict=True):
            end = start + weight.meta["val"].shape[0]
            part = graph.call_function(aten.slice.Tensor, (whole, -1, start, end))
            part.meta = dict(node.meta)
            node.replace_all_uses_with(part)
            start = end
    for node in group:
        graph.erase_node(node)


def fill_empty_arguments(program: torch.export.ExportedProgram) -> None:
    """torch.export.save() cannot write an empty list of numbers; an op without a post-op does not read this
    one.
    """
    for node in _calls(
        program.graph,
        onednn.qlinear_pointwise.default,
        onednn.qlinear_pointwise.tensor,
        onednn.qconv_pointwise.default,
        onednn.qconv3d_pointwise.default,
    ):
        node.args = tuple([0.0] if argument == [] else argument for argument in node.args)


def fold_packing(module: nn.Module) -> None:
    """Pack constant weights now, once, instead of at every call."""
    if not isinstance(module, GraphModule):
        return
    graph = module.graph
    for index, node in enumerate(_calls(graph, onednn.qlinear_prepack.default, onednn.qconv_prepack.default)):
        values = [_constant(module, argument) for argument in node.args]
        if any(value is _VARIES for value in values):
            continue
        name = f"_octune_packed_{index}"
        setattr(module, name, node.target(*values))  # type: ignore[operator]
        with graph.inserting_before(node):
            packed = graph.create_node("get_attr", name)
        _replace(graph, node, packed)
    graph.eliminate_dead_code()
    module.recompile()


def quantize_as_layers_do(module: nn.Module, quantize: Callable[..., torch.Tensor]) -> None:
    """Let an exported graph quantize as eager layers do: they round after the zero point is added, the
    reference op before.
    """
    if not isinstance(module, GraphModule):
        return
    targets = (decomposed.quantize_per_tensor.default, decomposed.quantize_per_tensor.tensor)
    for node in _calls(module.graph, *targets):
        with module.graph.inserting_before(node):
            new = module.graph.call_function(quantize, node.args[:3])
        _replace(module.graph, node, new)
    module.recompile()


_VARIES = object()


def _constant(module: nn.Module, argument: Any) -> Any:
    """What an argument is in every call: weights, or what is computed from weights alone."""
    if not isinstance(argument, Node):
        return argument
    if argument.op == "get_attr":
        return _attribute(module, argument.target)
    if argument.op != "call_function" or argument.kwargs:
        return _VARIES
    values = [_constant(module, value) for value in argument.args]
    return _VARIES if any(value is _VARIES for value in values) else argument.target(*values)  # type: ignore[operator]


def _attribute(module: nn.Module, path: Any) -> Any:
    found: Any = module
    for part in str(path).split("."):
        found = getattr(found, part)
    return found
