"""Weights that are computed at every call, by weight or spectral normalisation and other parametrizations.

    notes = store_weights(model)        # each becomes the plain parameter that it computes to in eval mode

What a model computes does not change by that, and its ops can be quantized like any others.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from octune.errors import plural

__all__ = ["computed_weights", "store_weights"]

OLDER = (WeightNorm, SpectralNorm)  # as hooks, before there were parametrizations


def store_weights(model: nn.Module) -> list[str]:
    """Put computed weights in the place of what computes them, in a model in eval mode; returns a note."""
    count = 0
    for module in list(model.modules()):
        made: Any = module.parametrizations if parametrize.is_parametrized(module) else ()
        for name in list(made):
            parametrize.remove_parametrizations(module, name, leave_parametrized=True)
            _store(module, name)
            count += 1
        for key, hook in _hooks(module):
            hook.remove(module)
            del module._forward_pre_hooks[key]
            _store(module, hook.name)
            count += 1
    if not count:
        return []
    return [f"computed by parametrizations, and stored now, for fp32 as well: {plural(count, 'weight')}"]


def computed_weights(model: nn.Module) -> dict[int, torch.Tensor]:
    """Copies of what hooks have computed, by the identity of the tensors, which copying refuses."""
    found = (getattr(module, hook.name) for module in model.modules() for _, hook in _hooks(module))
    return {id(weight): weight.detach().clone() for weight in found}


def _hooks(module: nn.Module) -> list[tuple[int, Any]]:
    return [(key, hook) for key, hook in module._forward_pre_hooks.items() if isinstance(hook, OLDER)]


def _store(module: nn.Module, name: str) -> None:
    weight = getattr(module, name)
    if not isinstance(weight, nn.Parameter):  # of a frozen model
        delattr(module, name)
        module.register_parameter(name, nn.Parameter(weight.detach(), requires_grad=False))
