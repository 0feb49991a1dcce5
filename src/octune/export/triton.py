"""Triton Inference Server: ``NAME/1/model.onnx`` and ``NAME/config.pbtxt``, for its ONNX Runtime backend.

Where OpenVINO won, the ONNX file beside it is exported, which holds the same plan: Triton's own OpenVINO
backend does not take batches of any size.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from octune.backends.terms import Servable, Tensor
from octune.errors import UnsupportedError
from octune.export.base import Layout, Saved
from octune.export.twin import onnx_twin

__all__ = ["TRITON", "model_config"]

VERSION = "1"
# The largest batch that Triton makes of requests which wait; a client may not send more at once either.
LARGEST_BATCH = 32
TYPES = {
    "bool": "TYPE_BOOL",
    "uint8": "TYPE_UINT8",
    "uint16": "TYPE_UINT16",
    "uint32": "TYPE_UINT32",
    "uint64": "TYPE_UINT64",
    "int8": "TYPE_INT8",
    "int16": "TYPE_INT16",
    "int32": "TYPE_INT32",
    "int64": "TYPE_INT64",
    "float16": "TYPE_FP16",
    "bfloat16": "TYPE_BF16",
    "float32": "TYPE_FP32",
    "float64": "TYPE_FP64",
    "object": "TYPE_STRING",
}


def _write(saved: Saved, form: str, folder: Path) -> None:
    saved.write(form, folder / VERSION)
    (folder / "config.pbtxt").write_text(model_config(saved.name, saved.servable, saved.threads))


def model_config(name: str, model: Servable, threads: int) -> str:
    """The text of ``config.pbtxt``: a ModelConfig message of Triton's protocol."""
    batched = _batched(model)
    lines = [
        f'name: "{name}"',
        'backend: "onnxruntime"',
        f"max_batch_size: {LARGEST_BATCH if batched else 0}",
        *_tensors("input", model.inputs, batched),
        *_tensors("output", model.outputs, batched),
        "instance_group [ { count: 1 kind: KIND_CPU } ]",
        # requests that wait are run together; none waits for others to come
        *(["dynamic_batching { }"] if batched else []),
        *(
            f'parameters {{ key: "{key}" value: {{ string_value: "{value}" }} }}'
            for key, value in (("intra_op_thread_count", threads), ("inter_op_thread_count", 1))
        ),
    ]
    return "\n".join(lines) + "\n"


def _batched(model: Servable) -> bool:
    """Whether the first size of every tensor is that of the batch. Triton wants at least one more."""
    return all(
        len(tensor.shape) > 1 and tensor.shape[0] is None for tensor in (*model.inputs, *model.outputs)
    )


def _tensors(kind: str, tensors: Sequence[Tensor], batched: bool) -> list[str]:
    return [f"{kind} [", ",\n".join(_tensor(tensor, batched) for tensor in tensors), "]"]


def _tensor(tensor: Tensor, batched: bool) -> str:
    if tensor.dtype not in TYPES:
        raise UnsupportedError(f"{tensor.name} is of type {tensor.dtype}, which Triton does not know.")
    sizes = tensor.shape[1:] if batched else tensor.shape
    dims = ", ".join(str(-1 if size is None else size) for size in sizes)
    shape = f"dims: [ {dims} ]" if sizes else "dims: [ 1 ] reshape: { shape: [ ] }"  # dims may not be empty
    return f'  {{ name: "{tensor.name}" data_type: {TYPES[tensor.dtype]} {shape} }}'


TRITON = Layout("triton", "Triton's ONNX Runtime backend", ("onnx",), _write, twin=onnx_twin)
