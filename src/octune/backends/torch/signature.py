"""What a PyTorch model takes, as far as that can be known without running it.

signature(model)        # [Port("input_ids", int64, (None, None), values=30522), ...]

A compiled model and an exported program know the call that they were made for, and a Hugging Face model has a
configuration. Any other module with one input is judged by the first of its layers.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import zip_longest
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.fx import GraphModule

from octune.backends.batches import LABELS, MASKS
from octune.backends.opened import Port
from octune.backends.torch.compiled import CompiledModel
from octune.backends.torch.portable import ProgramModel

__all__ = ["signature"]

IDS, FLOATS = np.dtype(np.int64), np.dtype(np.float32)
TOKENS = (None, None)
MAIN = ("input_ids", "pixel_values")


def signature(model: nn.Module) -> list[Port]:
    """The inputs in order; type and shape are None where nothing tells."""
    if isinstance(model, CompiledModel | ProgramModel):
        ports = list(_compiled(model))
        if isinstance(model, ProgramModel):
            ports = [_sized(port, sizes) for port, sizes in zip_longest(ports, model.sizes[: len(ports)])]
        model = getattr(model, "eager", None) or model
    else:
        ports = list(_declared(model))
    config = next((part.config for part in model.modules() if hasattr(part, "config")), None)
    main = getattr(model, "main_input_name", None) or next((p.name for p in ports if p.name in MAIN), None)
    if config is not None and main is not None:
        return [_configured(port, main, config) for port in ports]
    needed = [port for port in ports if port.required]
    if len(needed) == 1 and needed[0].shape is None:
        return [_read_by_first_layer(port, model) if port is needed[0] else port for port in ports]
    return ports


def _declared(model: nn.Module) -> Iterator[Port]:
    example: Mapping[str, Any] = {}
    if isinstance(model, GraphModule):  # a program knows what it was exported with
        example = {node.name: node.meta.get("val") for node in model.graph.find_nodes(op="placeholder")}
    for parameter in inspect.signature(model.forward).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD) or parameter.name in LABELS:
            continue
        dtype, shape = None, None
        if isinstance(value := example.get(parameter.name), torch.Tensor):
            dtype = _dtype(str(value.dtype))
            shape = tuple(size if isinstance(size, int) else None for size in value.shape)
        yield Port(parameter.name, dtype, shape, required=parameter.default is parameter.empty)


def _compiled(model: CompiledModel | ProgramModel) -> Iterator[Port]:
    signature = model.signature
    names = [str(number) for number in range(len(signature.positional))]
    if isinstance(model, ProgramModel):
        names = model.parameters_in_order[: len(names)]
    elif model.eager is not None:
        names = [*inspect.signature(model.eager.forward).parameters][: len(names)]
    for name, (dtype, _, shape) in zip(names, signature.positional, strict=True):
        yield Port(name, _dtype(dtype), shape)
    for name, dtype, _, shape in signature.named:
        yield Port(name, _dtype(dtype), shape)


def _sized(port: Port, sizes: list[int] | None) -> Port:
    """An input of numbers with the sizes that it had when the program was exported. An int8 graph takes any
    number of features, and computes nonsense.
    """
    if sizes is None or port.shape is None or port.dtype != FLOATS:
        return port
    return replace(port, shape=(port.shape[0], *sizes[1:]))


def _configured(port: Port, main: str, config: Any) -> Port:
    """An input of a Hugging Face model, or of a model around one. All are optional there; the ``main`` one
    and the mask are what it is called with.
    """
    if port.name == "pixel_values" and port.shape is None:
        size = getattr(config, "image_size", None)
        height, width = size if isinstance(size, list | tuple) else (size, size)
        port = replace(port, dtype=FLOATS, shape=(None, getattr(config, "num_channels", 3), height, width))
    elif port.name in (main, "attention_mask") and port.name.endswith(("_ids", *MASKS)):
        port = replace(port, dtype=port.dtype or IDS, shape=port.shape or TOKENS)
    vocabulary = getattr(config, "vocab_size", None) if port.name == main else None
    longest = getattr(config, "max_position_embeddings", None)
    return replace(port, required=port.shape is not None, values=vocabulary, longest=longest)


def _read_by_first_layer(port: Port, model: nn.Module) -> Port:
    """The only input of a model, by the first layer with weights. It may be wrong where the model changes the
    input before, and running it will tell.
    """
    layer: Any
    for layer in model.modules():
        if hasattr(layer, "num_embeddings"):
            return replace(port, dtype=IDS, shape=TOKENS, values=int(layer.num_embeddings))
        if hasattr(layer, "in_channels"):
            rank = len(layer.kernel_size)
            return replace(port, dtype=FLOATS, shape=(None, int(layer.in_channels), *(None,) * rank))
        if hasattr(layer, "in_features"):
            return replace(port, dtype=FLOATS, shape=(None, int(layer.in_features)))
    return port


def _dtype(name: str) -> np.dtype[Any] | None:
    plain = name.removeprefix("torch.")
    return np.dtype(plain) if plain != "bfloat16" else None
