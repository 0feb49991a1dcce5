"""Small real models as ONNX: exported from PyTorch, or built node by node."""

from __future__ import annotations

import io
import warnings
from functools import cache
from typing import Any

import onnx
import torch
from onnx import ModelProto

from tests.backends.torch.models import image_batches, small_cnn, tiny_bert, token_batches


def exported(
    model: torch.nn.Module, inputs: dict[str, torch.Tensor], outputs: list[str], opset: int = 17
) -> ModelProto:
    """A module as ONNX, with free batch and sequence axes."""
    buffer = io.BytesIO()
    axes = {
        name: {0: "batch", **({1: "sequence"} if not tensor.is_floating_point() else {})}
        for name, tensor in inputs.items()
    }
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            model,
            (),
            buffer,
            kwargs=dict(inputs),
            dynamo=False,
            opset_version=opset,
            input_names=list(inputs),
            output_names=outputs,
            dynamic_axes=axes | {name: {0: "batch"} for name in outputs},
        )
    return onnx.load_from_string(buffer.getvalue())


@cache
def bert() -> ModelProto:
    model = tiny_bert()
    model.set_attn_implementation("eager")
    return exported(model, dict(token_batches(1)[0][0]), ["logits"])


@cache
def cnn() -> ModelProto:
    return exported(small_cnn(), {"x": image_batches(1)[0][0]}, ["logits"])


def arrays(batches: list[Any]) -> list[Any]:
    """The same batches in numpy."""

    def convert(value: Any) -> Any:
        return (
            {name: tensor.numpy() for name, tensor in value.items()}
            if isinstance(value, dict)
            else value.numpy()
        )

    return [(convert(inputs), label.numpy()) for inputs, label in batches]
