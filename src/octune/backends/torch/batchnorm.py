"""Folding BatchNorm into the convolution before it, found by watching the model run.

No tracing: a BatchNorm belongs to a convolution if its input is, every time, the very tensor that the
convolution returned. Folding is then checked on a real batch, and undone where the output changes (the tensor
had another reader). ``kinds`` says which BatchNorm can be folded into which convolution.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_weights

from octune.backends.batches import Inputs
from octune.backends.torch.batches import named_outputs, same_answers, the_input
from octune.backends.torch.copying import light_copy, replace_module
from octune.backends.torch.hooks import hooks
from octune.backends.torch.kinds import kind_of
from octune.backends.torch.kinds.transposed import outputs_first

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
    if not same_answers(folded, call, wanted):
        # One of them had a second reader: find out which, one at a time.
        pairs = [pair for pair in pairs if same_answers(_fold(model, [pair]), call, wanted)]
        folded = _fold(model, pairs)
    return folded, [bn for _, bn in pairs]


def _fold(model: nn.Module, pairs: list[Pair]) -> nn.Module:
    folded = light_copy(model)
    for conv_name, bn_name in pairs:
        conv: Any = folded.get_submodule(conv_name)
        bn: Any = folded.get_submodule(bn_name)
        turned = partial(outputs_first, groups=conv.groups) if conv.transposed else _as_is
        weight, bias = fuse_conv_bn_weights(
            turned(conv.weight), conv.bias, bn.running_mean, bn.running_var, bn.eps, bn.weight, bn.bias
        )
        conv.weight = nn.Parameter(turned(weight.detach()).contiguous(), requires_grad=False)
        conv.bias = nn.Parameter(bias.detach(), requires_grad=False)
        replace_module(folded, bn, nn.Identity())
    return folded.eval()


def _as_is(weight: torch.Tensor) -> torch.Tensor:
    return weight


def _pairs(model: nn.Module, call: Inputs) -> list[Pair]:
    names = {module: name for name, module in model.named_modules()}
    kinds = {module: kind for module in names if (kind := kind_of(module)) and kind.batchnorm}
    foldable = {kind.batchnorm for kind in kinds.values()}
    norms = [m for m in names if type(m) in foldable and m.track_running_stats]
    if not norms:
        return []
    made_by: dict[int, nn.Module] = {}
    alive: list[torch.Tensor] = []  # keeps the tensors, so that their ids stay theirs
    sources: dict[nn.Module, set[nn.Module | None]] = {}

    def after_conv(module: nn.Module, args: Any, output: torch.Tensor) -> None:
        made_by[id(output)] = module
        alive.append(output)

    def before_bn(module: nn.Module, args: Any, kwargs: Any) -> None:
        sources.setdefault(module, set()).add(made_by.get(id(the_input(args, kwargs))))

    convs = [module for module, kind in kinds.items() if not kind.obstacle]
    before = [bn.register_forward_pre_hook(before_bn, with_kwargs=True) for bn in norms]
    after = [conv.register_forward_hook(after_conv) for conv in convs]
    with hooks([*before, *after]), torch.inference_mode():
        call(model)
    found = [
        (conv, bn)
        for bn, makers in sources.items()
        if len(makers) == 1 and (conv := next(iter(makers))) is not None and type(bn) is kinds[conv].batchnorm
    ]
    folded = [conv for conv, _ in found]
    return [(names[conv], names[bn]) for conv, bn in found if folded.count(conv) == 1]
