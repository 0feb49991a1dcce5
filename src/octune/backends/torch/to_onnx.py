"""PyTorch models as ONNX, for ``model.target: onnx``.

    proto = to_onnx(module, batch)

TorchScript's exporter is used: it needs nothing but torch and onnx. Inputs are those of the batch; batch and
sequence lengths stay free.
"""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Mapping
from typing import Any

import onnx
import torch
from onnx import ModelProto
from torch import nn

from octune.backends.onnx.converted import EXPORT_OPSET, check_answers
from octune.backends.torch.batches import Trying, named_outputs
from octune.backends.torch.copying import private_copy
from octune.backends.torch.wrappers import unwrapped
from octune.errors import UnsupportedError, summary
from octune.scratch import scratch

__all__ = ["module_of", "to_onnx"]


def to_onnx(model: nn.Module, batch: Any) -> ModelProto:
    """The model as ONNX; raises UnsupportedError if it cannot be exported, or if the export computes
    something else.
    """
    copied, _ = private_copy(unwrapped(model)[0])
    call, _ = Trying(copied)(batch)
    set_attention: Any = getattr(copied, "set_attn_implementation", None)
    if set_attention is not None:  # runtimes fuse attention that is written in single steps
        set_attention("eager")
    names = [
        name
        for name, p in inspect.signature(copied.forward).parameters.items()
        if p.kind is not p.VAR_POSITIONAL
    ]
    names += [f"input_{position}" for position in range(len(names), len(call.args))]
    tensors = {
        name: value
        for name, value in (*zip(names, call.args, strict=False), *call.kwargs.items())
        if isinstance(value, torch.Tensor)
    }
    with torch.inference_mode():
        answers = named_outputs(call(copied))
    # the exporter takes no numbers for names
    wanted = {f"output_{name}" if name.isdigit() else name: array for name, array in answers.items()}

    class Plain(nn.Module):
        """Tensors in, a tuple of tensors out."""

        def __init__(self) -> None:
            super().__init__()
            self.octune_model = copied

        def forward(self, *values: Any) -> tuple[Any, ...]:
            given = dict(zip(tensors, values, strict=True))
            args = [given.get(name, value) for name, value in zip(names, call.args, strict=False)]
            made = self.octune_model(
                *args, **{name: given.get(name, value) for name, value in call.kwargs.items()}
            )
            made = (
                list(made.values())
                if isinstance(made, Mapping)
                else made
                if isinstance(made, list | tuple)
                else [made]
            )
            return tuple(value for value in made if isinstance(value, torch.Tensor))

    axes = {name: _free(tensor) for name, tensor in tensors.items()} | {name: {0: "batch"} for name in wanted}
    with (
        scratch() as folder,
        warnings.catch_warnings(),
        torch.no_grad(),
    ):
        warnings.simplefilter("ignore")
        path = folder / "model.onnx"
        try:
            torch.onnx.export(
                Plain(),
                tuple(tensors.values()),
                str(path),
                dynamo=False,
                opset_version=EXPORT_OPSET,
                input_names=list(tensors),
                output_names=list(wanted),
                dynamic_axes=axes,
            )
            made = onnx.load(str(path))
        except Exception as error:
            raise UnsupportedError(
                f"The model cannot be exported to ONNX: {type(error).__name__}: {summary(error)}. "
                "Export it yourself and give the .onnx file, or leave model.target out."
            ) from error
    for node in made.graph.node:
        # the module in the wrapper, and what is in it where that is a container which is called itself
        node.name = re.sub(r"^/octune_model/(octune_model\.)?", "/", node.name)
    check_answers(made, {name: tensor.numpy() for name, tensor in tensors.items()}, wanted)
    return made


def module_of(node: str) -> str:
    """The module that a node comes from, by the scopes in its name: ``encoder/layer.0/dense/MatMul`` is in
    ``encoder.layer.0.dense``, and ``layer1/layer1.0/conv1/Conv``, whose container is called itself, in
    ``layer1.0.conv1``.
    """
    path: list[str] = []
    for part in node.strip("/").split("/")[:-1]:
        if path and part.startswith(f"{path[-1]}."):
            path.pop()
        path.append(part)
    return ".".join(path)


def _free(tensor: torch.Tensor) -> dict[int, str]:
    """Which dimensions stay free: the batch, and the sequence of token ids."""
    return (
        {0: "batch", 1: "sequence"}
        if tensor.ndim == 2 and not tensor.is_floating_point()
        else {0: "batch"}
        if tensor.ndim
        else {}
    )
