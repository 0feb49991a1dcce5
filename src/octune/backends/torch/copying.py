"""Copies of a module that the user's code cannot reach through, and light ones that share its weights.

reference = private_copy(model)      # own storage, eval mode, fp32
candidate = light_copy(reference)    # own modules and parameter objects, shared storage
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from octune.errors import ModelError

__all__ = ["light_copy", "private_copy", "replace_module"]


def private_copy(model: nn.Module) -> tuple[nn.Module, list[str]]:
    """A deep copy in eval mode with fp32 weights, and notes on what had to be changed. The model stays as it is."""
    try:
        copied = copy.deepcopy(model)
    except Exception as error:
        raise ModelError(
            f"The model ({type(model).__qualname__}) cannot be copied: {type(error).__name__}: {error}. "
            "Octune works on a copy so that your model stays as it is; remove what cannot be deep-copied (open files, locks, generators)."
        ) from error
    notes = []
    devices = {tensor.device.type for tensor in (*copied.parameters(), *copied.buffers())} - {"cpu"}
    if devices:
        copied = copied.cpu()
        notes.append(f"the model was on {', '.join(sorted(devices))}; its copy was moved to the CPU")
    narrow = sorted({str(p.dtype).removeprefix("torch.") for p in copied.parameters() if p.dtype in (torch.float16, torch.bfloat16)})
    if narrow:
        copied = copied.float()
        # Code that was written for a narrow model sends it narrow inputs.
        copied.register_forward_pre_hook(_widen, with_kwargs=True)
        notes.append(f"the weights were {', '.join(narrow)}; the baseline runs them as float32")
    if model.training:
        notes.append("the model was in train mode; it is scored in eval mode")
    copied.eval()
    for parameter in copied.parameters():
        parameter.requires_grad_(False)
    _without_fast_paths(copied)
    return copied, notes


def _widen(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    def wide(value: Any) -> Any:
        return value.float() if isinstance(value, torch.Tensor) and value.dtype in (torch.float16, torch.bfloat16) else value

    return tuple(wide(value) for value in args), {name: wide(value) for name, value in kwargs.items()}


def _without_fast_paths(model: nn.Module) -> None:
    # nn.TransformerEncoderLayer has a fused path that reads the weights of its Linears and never calls them: a
    # swapped Linear would be passed over without a word. These two switches are how the module itself turns it off.
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoderLayer):
            module.activation_relu_or_gelu = 0
        elif isinstance(module, nn.TransformerEncoder):
            module.enable_nested_tensor = False
            module.use_nested_tensor = False


def light_copy(model: nn.Module, shared: Iterable[nn.Module] | None = None) -> nn.Module:
    """A deep copy whose parameters share their storage with the original: all of them, or those of the ``shared`` modules.

    What is handed to the user's code shares nothing; what is about to be replaced need not be copied.
    """
    parameters = model.parameters() if shared is None else (p for module in shared for p in module.parameters(recurse=False))
    memo: dict[int, object] = {id(p): nn.Parameter(p.detach(), requires_grad=False) for p in parameters}
    return copy.deepcopy(model, memo)


def replace_module(model: nn.Module, old: nn.Module, new: nn.Module) -> None:
    """Put ``new`` wherever ``old`` stands: a shared module stands in several places. Its hooks move along."""
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
