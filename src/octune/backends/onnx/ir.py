"""OpenVINO's own files (``.xml`` with ``.bin`` beside it), opened to be run: what NNCF and OpenVINO write."""

from __future__ import annotations

from collections import Counter
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from octune.backends.batches import Fitting, Inputs, Slot
from octune.backends.onnx.runtimes.openvino import core, settings
from octune.backends.opened import Array, Covered, Opened, Port, Source, bytes_of, free_rows
from octune.coverage import Work
from octune.errors import MissingDependency, ModelError, summary
from octune.machine import probe_machine

__all__ = ["OpenedIR"]

WEIGHTED = {"FullyConnected", "Convolution", "Deconvolution"}
# Multiply as well, in ways that their shapes alone do not tell.
UNCOUNTED = {"RNNSeq", "RNNCell", "MHA", "ScaledDotProductAttention", "Inverse", "GatherMatmul"}
INT8 = ("i8", "u8")


class OpenedIR(Opened):
    """A compiled model. Which ops run in int8, it says itself."""

    def __init__(self, path: Path, source: Source) -> None:
        if not path.is_file():
            raise ModelError(
                f"There is no file {path}. Expected an OpenVINO model: an .xml file and its .bin."
            )
        try:
            self._path, self._threads = path, source.threads or probe_machine().cores
            self._compiled = self._compile({})
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
            ops=_covered(self._compiled),
            rows=rows,
        )
        self._outputs = [_name(number, port) for number, port in enumerate(self._compiled.outputs)]
        self._places = {slot.name: number for number, slot in enumerate(slots)}
        self._request = self._compiled.create_infer_request()

    def _run(self, inputs: Inputs) -> dict[str, Array]:
        self._request.infer({self._places[name]: array for name, array in inputs.kwargs.items()})
        values = (self._request.get_output_tensor(number).data.copy() for number in range(len(self._outputs)))
        return dict(zip(self._outputs, values, strict=True))

    def _compile(self, shapes: dict[int, list[int]]) -> Any:
        model = core().read_model(str(self._path))
        if shapes:
            model.reshape(shapes)
        return core().compile_model(model, "CPU", settings(self._threads))

    def _work(self, inputs: Inputs) -> Work:
        """For these shapes it is compiled anew: what runs says its own shapes only where they are fixed."""
        shapes = {self._places[name]: list(array.shape) for name, array in inputs.kwargs.items()}
        ops, floats, uncounted = Counter[str](), Counter[str](), Counter[str]()
        for op in self._compile(shapes).get_runtime_model().get_ops():
            kind, precision = _said(op, "layerType"), _said(op, "runtimePrecision")
            if kind in UNCOUNTED:
                uncounted[kind] += 1
            elif kind in WEIGHTED or kind == "MatMul":
                if precision in INT8:
                    ops["int8"] += _products(kind, op)
                elif precision == "bf16":
                    ops["bf16"] += _products(kind, op)
                else:
                    floats[kind] += _products(kind, op)
        return Work(dict(ops), floats, uncounted)


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


def _said(op: Any, key: str) -> str:
    return str(op.get_rt_info()[key].astype(str))


def _products(kind: str, op: Any) -> int:
    made, *read = (
        [int(one.get_length()) for one in port.get_partial_shape()] for port in (op.output(0), *op.inputs())
    )
    if kind == "Convolution":  # weights may have an axis for groups
        return prod(made) // made[1] * prod(read[1])
    if kind == "Deconvolution":
        return prod(read[0]) // read[0][1] * prod(read[1])
    return prod(made) * int(read[0][-1])


def _covered(compiled: Any) -> Covered:
    weighted = [op for op in compiled.get_runtime_model().get_ops() if _said(op, "layerType") in WEIGHTED]
    return Covered(sum(_said(op, "runtimePrecision") in INT8 for op in weighted), len(weighted))
