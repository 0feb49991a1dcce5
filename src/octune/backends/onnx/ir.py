"""OpenVINO's own files (``.xml`` with ``.bin`` beside it), opened to be run: what NNCF and OpenVINO write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from octune.backends.batches import Fitting, Inputs, Slot
from octune.backends.onnx.runtimes.openvino import core, settings
from octune.backends.opened import Array, Coverage, Opened, Port, Source, bytes_of, free_rows
from octune.errors import MissingDependency, ModelError, summary
from octune.machine import probe_machine

__all__ = ["OpenedIR"]

WEIGHTED = {"FullyConnected", "Convolution", "Deconvolution"}


class OpenedIR(Opened):
    """A compiled model. Which ops run in int8, it says itself."""

    def __init__(self, path: Path, source: Source) -> None:
        if not path.is_file():
            raise ModelError(
                f"There is no file {path}. Expected an OpenVINO model: an .xml file and its .bin."
            )
        try:
            threads = source.threads or probe_machine().cores
            self._compiled = core().compile_model(core().read_model(str(path)), "CPU", settings(threads))
        except ImportError as error:
            raise MissingDependency("openvino", "onnx", f"Opening {path}") from error
        except RuntimeError as error:
            raise ModelError(f"{path} cannot be read by OpenVINO: {summary(error)}") from error
        slots = [_slot(number, port) for number, port in enumerate(self._compiled.inputs)]
        free, rows = free_rows(slots)
        super().__init__(
            source,
            list(map(Port.of, slots)),
            Fitting(free),
            size=bytes_of(path, path.with_suffix(".bin")),
            coverage=_coverage(self._compiled),
            rows=rows,
        )
        self._outputs = [_name(number, port) for number, port in enumerate(self._compiled.outputs)]
        self._places = {slot.name: number for number, slot in enumerate(slots)}
        self._request = self._compiled.create_infer_request()

    def _run(self, inputs: Inputs) -> dict[str, Array]:
        self._request.infer({self._places[name]: array for name, array in inputs.kwargs.items()})
        values = (self._request.get_output_tensor(number).data.copy() for number in range(len(self._outputs)))
        return dict(zip(self._outputs, values, strict=True))


def _name(number: int, port: Any) -> str:
    """The shortest of a tensor's names; a number where it has none."""
    return min(port.names, key=lambda name: (len(name), name), default=str(number))


def _slot(number: int, port: Any) -> Slot:
    name, shape = _name(number, port), port.partial_shape
    sizes = (
        None
        if shape.rank.is_dynamic
        else tuple(None if one.is_dynamic else one.get_length() for one in shape)
    )
    return Slot(name, name, np.dtype(port.element_type.to_dtype()), sizes)


def _coverage(compiled: Any) -> Coverage:
    kinds = [op.get_rt_info() for op in compiled.get_runtime_model().get_ops()]
    precisions = [
        str(info["runtimePrecision"].astype(str))
        for info in kinds
        if info["layerType"].astype(str) in WEIGHTED
    ]
    return Coverage(sum(one in ("i8", "u8") for one in precisions), len(precisions))
