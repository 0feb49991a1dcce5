"""Exported programs (``.pt2``) as models: their linear, convolution, norm and embedding calls become modules
again.

    model = from_program(torch.export.load("model.pt2"))

A program has no modules, only calls on parameters. But the parameters keep the names that they had in the
model, so every call can get its module back under its old name, and from then on a program is a model like
any other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule, Node

from octune.backends.torch.functions.calls import make_module, read_call

__all__ = ["from_program"]

aten: Any = torch.ops.aten
Found = tuple[torch.Tensor, Any, Callable[[], nn.Module]]  # the weight, the input, and what makes the module


def from_program(program: torch.export.ExportedProgram) -> nn.Module:
    """A module that computes what the program does, with ``nn.Linear`` and the like where the program calls
    them.
    """
    model: GraphModule = program.module()
    made: dict[str, nn.Module] = {}
    for node in list(model.graph.nodes):
        if node.op == "call_function" and node.target in _REBUILT:
            _rebuild(model, node, made)
    model.graph.eliminate_dead_code()
    model.graph.lint()
    model.recompile()
    return model


def _rebuild(model: GraphModule, node: Node, made: dict[str, nn.Module]) -> None:
    values = [_value(model, argument) for argument in node.args]
    given = zip(node.args, values, strict=True)
    names = {id(value): str(arg.target) for arg, value in given if isinstance(arg, Node) and value is not arg}
    read = _batch_norm if node.target is aten.batch_norm.default else _layer
    found = read(node.target, values)
    if found is None:
        return
    weight, x, make = found
    name, dot, leaf = names[id(weight)].rpartition(".weight")
    if not dot or leaf:
        return
    if name not in made:
        made[name] = make().eval().requires_grad_(False)
        owner, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(owner), leaf, made[name])
    with model.graph.inserting_before(node):
        call = model.graph.call_module(name, (x,))
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


def _layer(target: Any, values: Sequence[Any]) -> Found | None:
    call = read_call(target, tuple(values), {}, stored=lambda value: isinstance(value, torch.Tensor))
    if call is None or isinstance(call.bias, Node):
        return None
    return (
        call.weight,
        call.inputs[0],
        partial(make_module, call.kind, call.weight, call.bias, dict(call.options)),
    )


def _batch_norm(target: Any, values: Sequence[Any]) -> Found | None:
    x, *tensors, training, momentum, eps, _ = values
    if training or not all(isinstance(tensor, torch.Tensor) for tensor in tensors):
        return None
    weight, bias, mean, variance = tensors

    def make() -> nn.Module:
        kinds = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}
        layer = kinds[x.meta["val"].ndim](len(weight), eps, momentum, device="meta")
        layer.weight, layer.bias = nn.Parameter(weight.detach()), nn.Parameter(bias.detach())
        layer.running_mean, layer.running_var = mean, variance
        layer.num_batches_tracked = torch.tensor(0)
        return layer

    return weight, x, make


_REBUILT = {
    aten.linear.default,
    aten.conv1d.default,
    aten.conv2d.default,
    aten.conv3d.default,
    aten.conv_transpose1d.default,
    aten.conv_transpose2d.input,
    aten.conv_transpose3d.input,
    aten.batch_norm.default,
    aten.embedding.default,
}
