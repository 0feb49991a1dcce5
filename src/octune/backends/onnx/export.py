"""PyTorch and TensorFlow models as ONNX, for ``model.target: onnx``.

    proto = to_onnx(module, batch)

TorchScript's exporter is used: it needs nothing but torch and onnx. Inputs are those of the first batch;
batch and sequence lengths stay free. For TensorFlow see ``from_tensorflow``.
"""

from __future__ import annotations

import inspect
import sys
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto

from octune.backends.base import Settings
from octune.backends.onnx.from_tensorflow import EXPORT_OPSET, from_tensorflow
from octune.backends.select import backend_named
from octune.errors import UnsupportedError, summary

__all__ = ["is_tensorflow", "to_onnx"]

CLOSE = 1e-3


def to_onnx(model: Any, batch: Any, settings: Settings | None = None) -> ModelProto | str | Path:
    """The model as ONNX; raises UnsupportedError if it cannot be exported, or if the export computes
    something else.
    """
    if isinstance(model, ModelProto | str | Path):
        return model
    if "torch" in sys.modules and isinstance(model, sys.modules["torch"].nn.Module):
        made, inputs, wanted = _exported(model, batch)
    elif is_tensorflow(model):
        made, inputs, wanted = from_tensorflow(model, settings or Settings(), batch)
    else:
        kind = f"{type(model).__module__}.{type(model).__qualname__}"
        raise UnsupportedError(
            f"model.target is onnx, and the model is a {kind}. Expected a model of PyTorch or TensorFlow."
        )
    _check_answers(made, inputs, wanted)
    return made


def is_tensorflow(model: Any) -> bool:
    """Whether a model is one that the TensorFlow backend takes."""
    return "tensorflow" in sys.modules and backend_named("tensorflow").accepts(model)


def _exported(model: Any, batch: Any) -> tuple[ModelProto, dict[str, Any], dict[str, Any]]:
    import torch

    from octune.backends.torch.batches import Trying, named_outputs
    from octune.backends.torch.copying import private_copy

    copied, _ = private_copy(model)
    call, _ = Trying(copied)(batch)
    written_out: Any = getattr(copied, "set_attn_implementation", None)
    if written_out is not None:  # runtimes fuse attention that is written in single steps
        written_out("eager")
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
        wanted = named_outputs(call(copied))

    class Plain(torch.nn.Module):
        """Tensors in, a tuple of tensors out."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = copied

        def forward(self, *values: Any) -> tuple[Any, ...]:
            given = dict(zip(tensors, values, strict=True))
            args = [given.get(name, value) for name, value in zip(names, call.args, strict=False)]
            made = self.inner(*args, **{name: given.get(name, value) for name, value in call.kwargs.items()})
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
        tempfile.TemporaryDirectory(prefix="octune-export-") as folder,
        warnings.catch_warnings(),
        torch.no_grad(),
    ):
        warnings.simplefilter("ignore")
        path = Path(folder) / "model.onnx"
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
        node.name = node.name.replace("/inner/", "/", 1)
    return made, {name: tensor.numpy() for name, tensor in tensors.items()}, wanted


def _free(tensor: Any) -> dict[int, str]:
    """Which dimensions stay free: the batch, and the sequence of token ids."""
    return (
        {0: "batch", 1: "sequence"}
        if tensor.ndim == 2 and not tensor.is_floating_point()
        else {0: "batch"}
        if tensor.ndim
        else {}
    )


def _check_answers(made: ModelProto, inputs: dict[str, Any], wanted: dict[str, Any]) -> None:
    """An exporter that follows one path through the model may lose another: what it made must compute what
    the model computes.
    """
    from octune.backends.onnx.runtimes import session
    from octune.backends.onnx.source import open_model

    running = session(open_model(made)[0], None)
    taken = {item.name for item in running.get_inputs()}
    got = running.run(list(wanted), {name: array for name, array in inputs.items() if name in taken})
    for (name, array), value in zip(wanted.items(), got, strict=True):
        largest = max(1.0, float(np.abs(array).max(initial=0.0)))
        if array.shape != value.shape or not np.allclose(array, value, rtol=CLOSE, atol=CLOSE * largest):
            raise UnsupportedError(
                f"Exported to ONNX, the model returns another {name!r} for the first batch. Export it "
                "yourself, or leave model.target out."
            )
