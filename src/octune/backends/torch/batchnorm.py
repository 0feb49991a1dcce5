"""Folding BatchNorm into the convolution before it, found by watching the model run.

No tracing: a BatchNorm belongs to a convolution if its input is the very tensor that the convolution gave,
every time. Folding is then checked on a real batch, and taken back where the output changes (the tensor had
another reader).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_weights

from octune.backends.batches import Inputs
from octune.backends.torch.batches import named_outputs, the_input
from octune.backends.torch.copying import light_copy, replace_module
from octune.backends.torch.geometry import geometry_of

__all__ = ["fold_batchnorms"]

Pair = tuple[str, str]


def fold_batchnorms(model: nn.Module, call: Inputs) -> tuple[nn.Module, list[str]]:
    """A light copy with BatchNorms folded, and the names of those that were. The same model if there are
    none.
    """
    pairs = _pairs(model, call)
    if not pairs:
        return model, []
    with torch.inference_mode():
        wanted = named_outputs(call(model))
    folded = _fold(model, pairs)
    if not _same(folded, call, wanted):
        # One of them had a second reader: find out which, one at a time.
        pairs = [pair for pair in pairs if _same(_fold(model, [pair]), call, wanted)]
        folded = _fold(model, pairs)
    return folded, [bn for _, bn in pairs]


def _fold(model: nn.Module, pairs: list[Pair]) -> nn.Module:
    folded = light_copy(model)
    for conv_name, bn_name in pairs:
        conv, bn = folded.get_submodule(conv_name), folded.get_submodule(bn_name)
        # _pairs chose them so
        assert isinstance(conv, nn.Conv2d)
        assert isinstance(bn, nn.BatchNorm2d)
        assert bn.running_mean is not None
        assert bn.running_var is not None
        weight, bias = fuse_conv_bn_weights(
            conv.weight, conv.bias, bn.running_mean, bn.running_var, bn.eps, bn.weight, bn.bias
        )
        conv.weight = nn.Parameter(weight.detach(), requires_grad=False)
        conv.bias = nn.Parameter(bias.detach(), requires_grad=False)
        replace_module(folded, bn, nn.Identity())
    return folded.eval()


def _same(model: nn.Module, call: Inputs, wanted: dict[str, Any]) -> bool:
    with torch.inference_mode():
        got = named_outputs(call(model))
    return all(_close(got[name], wanted[name]) for name in wanted)


def _close(got: Any, wanted: Any) -> bool:
    reach = float(abs(wanted).max()) or 1.0
    return got.shape == wanted.shape and float(abs(got - wanted).max()) <= 1e-3 * reach


def _pairs(model: nn.Module, call: Inputs) -> list[Pair]:
    names = {module: name for name, module in model.named_modules()}
    made_by: dict[int, nn.Module] = {}
    alive: list[torch.Tensor] = []  # keeps the tensors, so that their ids stay theirs
    sources: dict[nn.Module, set[nn.Module | None]] = {}

    def after_conv(module: nn.Module, args: Any, output: torch.Tensor) -> None:
        made_by[id(output)] = module
        alive.append(output)

    def before_bn(module: nn.Module, args: Any, kwargs: Any) -> None:
        sources.setdefault(module, set()).add(made_by.get(id(the_input(args, kwargs))))

    norms = [m for m in names if type(m) is nn.BatchNorm2d and m.track_running_stats]
    if not norms:
        return []
    handles = [
        m.register_forward_hook(after_conv)
        for m in names
        if isinstance(m, nn.Conv2d) and geometry_of(m) is not None
    ]
    handles += [m.register_forward_pre_hook(before_bn, with_kwargs=True) for m in norms]
    try:
        with torch.inference_mode():
            call(model)
    finally:
        for handle in handles:
            handle.remove()
    found = [
        (conv, bn)
        for bn, convs in sources.items()
        if len(convs) == 1 and (conv := next(iter(convs))) is not None
    ]
    convs = [conv for conv, _ in found]
    return [(names[conv], names[bn]) for conv, bn in found if convs.count(conv) == 1]
