"""``.tflite`` files, opened to be run, by ``ai-edge-litert`` or by TensorFlow's own interpreter.

Inputs and outputs have the names of the file's signature. Where they are int8, float arrays are taken and
given all the same, as in the model that the file was made from.
"""

from __future__ import annotations

import importlib
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from octune.backends.batches import Fitting, Inputs, Slot
from octune.backends.opened import Array, Covered, Opened, Port, Source, bytes_of, free_rows
from octune.coverage import Work
from octune.errors import MissingDependency, ModelError, summary
from octune.machine import probe_machine

__all__ = ["interpreter", "open_tflite"]

SIGNATURE = "serving_default"
# The ops with weights, and where the weight is among their inputs.
WEIGHTED = {"FULLY_CONNECTED": 1, "CONV_2D": 1, "DEPTHWISE_CONV_2D": 1, "TRANSPOSE_CONV": 1, "CONV_3D": 1}


def open_tflite(path: Path, source: Source) -> Opened:
    """The file in an interpreter."""
    if not path.is_file():
        raise ModelError(f"There is no file {path}. Expected a .tflite file.")
    make, threads = interpreter(), source.threads or probe_machine().cores
    try:
        made = partial(make, model_path=str(path), num_threads=threads)
        return OpenedTflite(made, source, bytes_of(path))
    except (ValueError, RuntimeError) as error:
        raise ModelError(f"{path} cannot be read as a .tflite file: {summary(error)}") from error


def interpreter() -> Any:
    """The class that runs such files, of whichever package is installed."""
    for module, *attributes in (("ai_edge_litert.interpreter",), ("tensorflow", "lite")):
        try:
            found: Any = importlib.import_module(module)
        except ImportError:
            continue
        for attribute in attributes:
            found = getattr(found, attribute)
        return found.Interpreter
    raise MissingDependency("ai-edge-litert or tensorflow", "tensorflow", "A .tflite file")


class OpenedTflite(Opened):
    """An interpreter, called by signature where the file has one, else by the names of its tensors."""

    def __init__(self, make: Callable[..., Any], source: Source, size: int) -> None:
        self._make, interpreter = make, make()
        signatures = interpreter.get_signature_list()
        key = SIGNATURE if SIGNATURE in signatures else min(signatures, default=None)
        self._interpreter = interpreter
        self._runner = interpreter.get_signature_runner(key) if key is not None else None
        if self._runner is not None:
            self._takes, self._gives = self._runner.get_input_details(), self._runner.get_output_details()
        else:
            self._takes = {_plain(one["name"]): one for one in interpreter.get_input_details()}
            self._gives = {_plain(one["name"]): one for one in interpreter.get_output_details()}
        slots = [_slot(name, details) for name, details in self._takes.items()]
        free, rows = free_rows(slots)
        super().__init__(
            source,
            list(map(Port.of, slots)),
            Fitting(free),
            size=size,
            ops=_covered(interpreter),
            rows=rows,
        )

    def _run(self, inputs: Inputs) -> dict[str, Array]:
        given = {name: _quantized(array, self._takes[name]) for name, array in inputs.kwargs.items()}
        found = self._runner(**given) if self._runner is not None else self._without_signature(given)
        return {name: _dequantized(found[name], details) for name, details in self._gives.items()}

    def _work(self, inputs: Inputs) -> Work | None:
        # An interpreter whose answers somebody holds cannot be told the sizes of other inputs, and where a
        # delegate computes, the sizes in between are not known.
        kinds = sys.modules[type(self._interpreter).__module__].OpResolverType
        fresh = self._make(experimental_op_resolver_type=kinds.BUILTIN_WITHOUT_DEFAULT_DELEGATES)
        for name, array in inputs.kwargs.items():
            fresh.resize_tensor_input(self._takes[name]["index"], array.shape)
        fresh.allocate_tensors()
        return _computed(fresh)

    def _without_signature(self, given: Mapping[str, Array]) -> dict[str, Array]:
        for name, array in given.items():
            details = self._takes[name]
            if tuple(details["shape"]) != array.shape:
                self._interpreter.resize_tensor_input(details["index"], array.shape)
        self._interpreter.allocate_tensors()
        for name, array in given.items():
            self._interpreter.set_tensor(self._takes[name]["index"], array)
        self._interpreter.invoke()
        return {name: self._interpreter.get_tensor(one["index"]) for name, one in self._gives.items()}


def _plain(name: str) -> str:
    """``serving_default_x:0`` is what a converter makes of an input ``x``."""
    return name.removeprefix(f"{SIGNATURE}_").partition(":")[0]


def _slot(name: str, details: Mapping[str, Any]) -> Slot:
    signature = details.get("shape_signature", details["shape"])
    shape = tuple(int(size) if size > 0 else None for size in signature)
    return Slot(name, name, np.dtype(np.float32 if _scale(details) else details["dtype"]), shape)


def _scale(details: Mapping[str, Any]) -> float:
    """The scale of an input or output in int8; 0 where it is not quantized."""
    return float(details["quantization"][0])


def _quantized(array: Array, details: Mapping[str, Any]) -> Array:
    scale, zero = details["quantization"]
    if not scale:
        return array
    limits = np.iinfo(details["dtype"])
    return np.asarray(np.clip(np.rint(array / scale) + zero, limits.min, limits.max), details["dtype"])


def _dequantized(array: Array, details: Mapping[str, Any]) -> Array:
    scale, zero = details["quantization"]
    return np.asarray((array.astype(np.float32) - zero) * scale, np.float32) if scale else np.array(array)


def _covered(interpreter: Any) -> Covered | None:
    """An op whose weight is int8 computes in int8: with a float input, it quantizes that itself."""
    try:  # not part of the public interface
        ops = interpreter._get_ops_details()
    except AttributeError:
        return None
    types = {one["index"]: np.dtype(one["dtype"]) for one in interpreter.get_tensor_details()}
    int8 = total = 0
    for op in ops:
        slot = WEIGHTED.get(op["op_name"])
        if slot is not None:
            total += 1
            int8 += types.get(int(op["inputs"][slot])) == np.int8
    return Covered(int8, total)


Sizes = Sequence[int]
# Multiply-adds by the sizes of what an op reads and makes.
FORMULAS: Mapping[str, Callable[[Sequence[Sizes], Sizes], int]] = {
    "FULLY_CONNECTED": lambda read, made: prod(made) * read[1][-1],
    "CONV_2D": lambda read, made: prod(made) * prod(read[1][1:]),
    "CONV_3D": lambda read, made: prod(made) * prod(read[1][:-1]),
    "DEPTHWISE_CONV_2D": lambda read, made: prod(made) * prod(read[1][1:3]),
    "TRANSPOSE_CONV": lambda read, made: prod(read[2]) * prod(read[1][:-1]),
    "BATCH_MATMUL": lambda read, made: prod(made) * read[0][-1],
}
UNCOUNTED = ("LSTM", "RNN", "SVDF", "EMBEDDING_LOOKUP_SPARSE")


def _computed(interpreter: Any) -> Work | None:
    try:  # not part of the public interface
        ops = interpreter._get_ops_details()
    except AttributeError:
        return None
    tensors = {one["index"]: one for one in interpreter.get_tensor_details()}
    int8, floats, uncounted = Counter[str](), Counter[str](), Counter[str]()
    for op in ops:
        name = op["op_name"]
        if name in FORMULAS:
            read = [tensors[int(index)] for index in op["inputs"] if int(index) in tensors]
            made = tensors[int(op["outputs"][0])]
            products = int(
                FORMULAS[name]([list(map(int, one["shape"])) for one in read], list(map(int, made["shape"])))
            )
            if np.dtype(read[1]["dtype"]) == np.int8:
                int8["int8"] += products
            else:
                floats[name] += products
        elif any(word in name for word in UNCOUNTED):
            uncounted[name] += 1
    return Work(int8, floats, uncounted)
