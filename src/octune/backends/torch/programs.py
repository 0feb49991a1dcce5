"""Exported programs (``.pt2``) as models: their linear, convolution, norm and embedding calls become modules
again.

    model = from_program(torch.export.load("model.pt2"))

A program has no modules, only calls on parameters. But the parameters keep the names that they had in the
model, so every call can get its module back under its old name, and from then on a program is a model like
any other.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule, Node

__all__ = ["from_program"]

aten: Any = torch.ops.aten


def from_program(program: torch.export.ExportedProgram) -> nn.Module:
    """A module that computes what the program does, with ``nn.Linear`` and the like where the program calls
    them.
    """
    model: GraphModule = program.module()
    made: dict[str, nn.Module] = {}
    for node in list(model.graph.nodes):
        if node.op == "call_function" and node.target in _REBUILD:
            _rebuild(model, node, made)
    model.graph.eliminate_dead_code()
    model.graph.lint()
    model.recompile()
    return model


def _rebuild(model: GraphModule, node: Node, made: dict[str, nn.Module]) -> None:
    which, build = _REBUILD[node.target]
    weight = node.args[which] if len(node.args) > which else None
    if not isinstance(weight, Node) or weight.op != "get_attr" or not str(weight.target).endswith(".weight"):
        return
    name = str(weight.target).removesuffix(".weight")
    constants = [_value(model, argument) for argument in node.args]
    if name not in made:
        module = build(*constants)
        if module is None:
            return
        made[name] = module.eval().requires_grad_(False)
        owner, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(owner), leaf, made[name])
    source = node.args[1] if which == 0 else node.args[0]
    with model.graph.inserting_before(node):
        call = model.graph.call_module(name, (source,))
    call.meta = dict(node.meta)
    node.replace_all_uses_with(call)
    model.graph.erase_node(node)


def _value(model: GraphModule, argument: Any) -> Any:
    """Parameters and buffers by value; everything that is computed stays a node."""
    if not isinstance(argument, Node) or argument.op != "get_attr":
        return argument
    found: Any = model
    for part in str(argument.target).split("."):
        found = getattr(found, part)
    return found


def _linear(x: Any, weight: torch.Tensor, bias: Any = None) -> nn.Module | None:
    if isinstance(bias, Node):
        return None
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias is not None, device="meta")
    return _with(layer, weight=weight, bias=bias)


def _conv(
    make: Callable[..., nn.Module],
    x: Any,
    weight: torch.Tensor,
    bias: Any = None,
    stride: Any = (1,),
    padding: Any = (0,),
    dilation: Any = (1,),
    groups: int = 1,
) -> nn.Module | None:
    if isinstance(bias, Node):
        return None
    rank = weight.ndim - 2
    where = (
        tuple(value) * rank if len(value) == 1 else tuple(value) for value in (stride, padding, dilation)
    )
    layer = make(
        weight.shape[1] * groups,
        weight.shape[0],
        tuple(weight.shape[2:]),
        *where,
        groups,
        bias is not None,
        device="meta",
    )
    return _with(layer, weight=weight, bias=bias)


def _conv_transpose(
    make: Callable[..., nn.Module],
    x: Any,
    weight: torch.Tensor,
    bias: Any = None,
    stride: Any = (1,),
    padding: Any = (0,),
    output_padding: Any = (0,),
    groups: int = 1,
    dilation: Any = (1,),
) -> nn.Module | None:
    if isinstance(bias, Node):
        return None
    rank = weight.ndim - 2
    stride, padding, output_padding, dilation = (
        tuple(value) * rank if len(value) == 1 else tuple(value)
        for value in (stride, padding, output_padding, dilation)
    )
    layer = make(
        weight.shape[0],
        weight.shape[1] * groups,
        tuple(weight.shape[2:]),
        stride,
        padding,
        output_padding,
        groups,
        bias is not None,
        dilation,
        device="meta",
    )
    return _with(layer, weight=weight, bias=bias)


def _embedding(weight: torch.Tensor, ids: Any, padding_idx: int = -1, *rest: Any) -> nn.Module:
    return _with(nn.Embedding(weight.shape[0], weight.shape[1], device="meta"), weight=weight)


def _batch_norm(
    x: Any,
    weight: Any,
    bias: Any,
    mean: Any,
    variance: Any,
    training: bool,
    momentum: float,
    eps: float,
    *rest: Any,
) -> nn.Module | None:
    if training or not all(isinstance(tensor, torch.Tensor) for tensor in (weight, bias, mean, variance)):
        return None
    made = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}
    layer = made[x.meta["val"].ndim](weight.shape[0], eps, momentum, device="meta")
    layer.running_mean, layer.running_var = mean, variance
    layer.num_batches_tracked = torch.tensor(0)
    return _with(layer, weight=weight, bias=bias)


def _with(layer: nn.Module, **tensors: torch.Tensor | None) -> nn.Module:
    for name, tensor in tensors.items():
        setattr(layer, name, None if tensor is None else nn.Parameter(tensor.detach(), requires_grad=False))
    return layer


# call -> (position of the weight, how to make its module)
_REBUILD: dict[Any, tuple[int, Callable[..., nn.Module | None]]] = {
    aten.linear.default: (1, _linear),
    aten.conv1d.default: (1, partial(_conv, nn.Conv1d)),
    aten.conv2d.default: (1, partial(_conv, nn.Conv2d)),
    aten.conv3d.default: (1, partial(_conv, nn.Conv3d)),
    aten.conv_transpose1d.default: (1, partial(_conv_transpose, nn.ConvTranspose1d)),
    aten.conv_transpose2d.input: (1, partial(_conv_transpose, nn.ConvTranspose2d)),
    aten.conv_transpose3d.input: (1, partial(_conv_transpose, nn.ConvTranspose3d)),
    aten.batch_norm.default: (1, _batch_norm),
    aten.embedding.default: (0, _embedding),
}
