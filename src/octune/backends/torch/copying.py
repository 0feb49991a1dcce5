"""Copies of a module that share nothing with the user's, and light ones that share its weights.

reference = private_copy(model)      # own storage, eval mode, fp32
candidate = light_copy(reference)    # own modules and parameter objects, shared storage
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map_only

from octune.backends.torch.batches import in_float32
from octune.backends.torch.functions.weights import StandIn
from octune.backends.torch.parametrized import computed_weights, store_weights
from octune.backends.torch.wrappers import unwrap_parts
from octune.errors import ModelError

__all__ = ["light_copy", "private_copy", "replace_module"]

OTHER_FLOATS = (torch.float16, torch.bfloat16, torch.float64)


def private_copy(model: nn.Module) -> tuple[nn.Module, list[str]]:
    """A deep copy in eval mode with fp32 weights, and notes on what had to be changed. The model stays as it
    is.
    """
    _refuse_scripts(model)
    if any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers())):
        raise ModelError(
            f"The model ({type(model).__qualname__}) is on the meta device, where weights have no values. "
            "Expected a model with its trained weights: build it on the CPU and load them."
        )
    try:
        copied = copy.deepcopy(model, dict(computed_weights(model)))
    except Exception as error:
        raise ModelError(
            f"The model ({type(model).__qualname__}) cannot be copied: {type(error).__name__}: {error}. "
            "Octune works on a copy so that your model stays as it is; remove what cannot be deep-copied "
            "(open files, locks, generators)."
        ) from error
    notes = unwrap_parts(copied)
    devices = {tensor.device.type for tensor in (*copied.parameters(), *copied.buffers())} - {"cpu"}
    if devices:
        copied = copied.cpu()
        notes.append(f"the model was on {', '.join(sorted(devices))}; its copy was moved to the CPU")
    others = sorted(
        {str(p.dtype).removeprefix("torch.") for p in copied.parameters() if p.dtype in OTHER_FLOATS}
    )
    if others:
        copied = copied.float()
        # Code that was written for weights of another type sends inputs of that type.
        copied.register_forward_pre_hook(_inputs_in_float32, with_kwargs=True)
        notes.append(
            f"the weights were {', '.join(others)}; the baseline runs them as float32, and a saved model "
            "takes float32 inputs"
        )
    if model.training:
        notes.append("the model was in train mode; it is scored in eval mode")
    copied.eval()
    notes += store_weights(copied)
    for parameter in copied.parameters():
        parameter.requires_grad_(False)
    _without_fast_paths(copied)
    return copied, notes


def _refuse_scripts(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            subject = f"The model's part {name!r}" if name else "The model"
            raise ModelError(
                f"{subject} is a torch.jit.ScriptModule ({type(module).__name__}), whose ops cannot be "
                "replaced. Expected a plain "
                "nn.Module: give the one that was scripted or traced, or export the model to ONNX and give "
                "the .onnx file."
            )


def _inputs_in_float32(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    inputs: tuple[tuple[Any, ...], dict[str, Any]] = tree_map_only(torch.Tensor, in_float32, (args, kwargs))
    return inputs


def _without_fast_paths(model: nn.Module) -> None:
    # nn.TransformerEncoderLayer has a fused path that reads the weights of its Linears and never calls them:
    # a swapped Linear would silently be bypassed. These two switches are how the module itself turns it off.
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoderLayer):
            module.activation_relu_or_gelu = 0
        elif isinstance(module, nn.TransformerEncoder):
            module.enable_nested_tensor = False
            module.use_nested_tensor = False


def light_copy(model: nn.Module, shared: Iterable[nn.Module] | None = None) -> nn.Module:
    """A deep copy whose parameters share their storage with the original: all of them, or those of the
    ``shared`` modules.

    What is handed to the user's code must share nothing; what is about to be replaced need not be copied.
    """
    parameters = (
        model.parameters()
        if shared is None
        else (p for module in shared for p in module.parameters(recurse=False))
    )
    memo: dict[int, object] = {id(p): nn.Parameter(p.detach(), requires_grad=False) for p in parameters}
    copied = copy.deepcopy(model, memo)
    for module in copied.modules():  # an exported program makes buffers of all tensors that it is copied with
        for name in [name for name, tensor in module._buffers.items() if isinstance(tensor, StandIn)]:
            module.__dict__[name] = module._buffers.pop(name)
    return copied


def replace_module(model: nn.Module, old: nn.Module, new: nn.Module) -> None:
    """Put ``new`` wherever ``old`` is: a shared module is in several places. Its hooks are kept."""
    for name in (
        "_forward_hooks",
        "_forward_pre_hooks",
        "_forward_hooks_with_kwargs",
        "_forward_pre_hooks_with_kwargs",
        "_forward_hooks_always_called",
    ):
        setattr(new, name, getattr(old, name))
    new.train(old.training)
    for parent in model.modules():
        for name, child in parent._modules.items():
            if child is old:
                parent._modules[name] = new
