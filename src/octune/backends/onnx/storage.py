"""Saving a model as plain files, and loading it where the fp32 model was never seen.

``model.onnx`` is the Q/DQ graph for any runtime; beyond 2 GB its tensors are in ``model.onnx.data``. A
runtime that won may have its own form beside it.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import onnx
from onnx.helper import tensor_dtype_to_np_dtype

from octune.backends.onnx.files import GRAPH, check_data, write_graph
from octune.backends.onnx.runtimes import ONNX_RUNTIME, RUNTIMES, OnnxModel, named
from octune.backends.terms import Servable, Tensor
from octune.errors import ArtifactError
from octune.machine import probe_machine

__all__ = ["load", "save", "servable", "versions"]

log = logging.getLogger("octune")


def versions() -> dict[str, str]:
    """The versions of the packages that results depend on."""
    runtimes = {runtime.package: runtime.version() for runtime in RUNTIMES if runtime.installed()}
    return {"onnx": onnx.__version__, **runtimes}


def save(model: OnnxModel, folder: Path) -> dict[str, Any]:
    """Write the files; returns what :func:`load` needs, as plain data."""
    runtime = named(model.runtime)
    if model.graph is None or runtime is None:
        raise ArtifactError("This model was itself loaded from a folder; copy that folder instead.")
    write_graph(model.graph, folder / GRAPH)
    runtime.write(model, folder)
    return {"runtime": model.runtime, "versions": versions(), "machine": probe_machine().to_json()}


def load(folder: Path, metadata: Mapping[str, Any], *, trusted: bool = False) -> OnnxModel:
    """The model on the runtime that won, or on ONNX Runtime where that one is not installed."""
    made_for, here = metadata["machine"], probe_machine()
    if lacking := here.lacks(made_for):
        log.warning(
            "the model was tuned on a CPU with %s, which this one lacks: it may be slower here",
            ", ".join(lacking),
        )
    file = folder / GRAPH
    if not file.exists():
        raise ArtifactError(f"{folder} has no {GRAPH}. Copy the whole folder again.")
    if not trusted:
        check_data(onnx.load(str(file), load_external_data=False), file)
    runtime = named(metadata["runtime"])
    if runtime is None or not runtime.installed():
        log.warning(
            "the model was tuned for %s, which is not installed: ONNX Runtime is used. pip install "
            "'octune[onnx]'",
            metadata["runtime"] if runtime is None else runtime.title,
        )
        runtime = ONNX_RUNTIME
    return runtime.read(file, here.cores)


def servable(folder: Path, metadata: Mapping[str, Any]) -> Servable:
    """The files that servers read, those of the runtime that won first."""
    proto = onnx.load(str(folder / GRAPH), load_external_data=False).graph
    stored = {item.name for item in proto.initializer}
    files = {runtime.form: runtime.files(folder) for runtime in RUNTIMES}
    won = named(metadata["runtime"]) or ONNX_RUNTIME
    return Servable(
        {
            form: partial(_copy, files[form])
            for form in sorted(files, key=lambda form: form != won.form)
            if files[form]
        },
        [_tensor(item) for item in proto.input if item.name not in stored],
        [_tensor(item) for item in proto.output],
    )


def _copy(files: Sequence[Path], folder: Path) -> None:
    for path in files:
        shutil.copyfile(path, folder / path.name)


def _tensor(item: onnx.ValueInfoProto) -> Tensor:
    declared = item.type.tensor_type
    return Tensor(
        item.name,
        str(tensor_dtype_to_np_dtype(declared.elem_type)),
        tuple(size.dim_value if size.HasField("dim_value") else None for size in declared.shape.dim),
    )
