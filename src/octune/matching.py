"""Two models that need not name things alike, run on the same data: which input and which output is which.

    pair = Pair(fp32, int8)                     # two opened models
    inputs, label = pair.split(batch)           # arrays by name
    pair.run(pair.int8, inputs)                 # its outputs under the names of fp32's

Inputs go by name, then by type and shape where only one fits. Outputs go by name, then by position where all
shapes agree. What cannot be matched is refused with both lists; nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from octune.backends.batches import LABELS, MASKS, Inputs
from octune.backends.opened import Opened, Port
from octune.errors import DataError, ModelError

__all__ = ["Pair", "match_inputs", "match_outputs"]

Array = npt.NDArray[Any]
Named = Mapping[str, Any]


class Pair:
    """Two models as an evaluator sees them: one splits and runs batches for both."""

    def __init__(self, fp32: Opened, int8: Opened) -> None:
        self.fp32, self.int8 = fp32, int8
        self.notes: list[str] = []
        self._inputs: dict[tuple[int, tuple[str, ...]], dict[str, str]] = {}
        self._outputs: dict[str, str] | None = None

    def fp32_model(self) -> Opened:
        """The model that the other is compared with."""
        return self.fp32

    def split(self, batch: Any) -> tuple[Named, Any]:
        """Arrays by name, and the label. A batch without names is read as fp32 reads it."""
        label = None
        if isinstance(batch, list | tuple) and len(batch) == 2 and isinstance(batch[0], Mapping):
            batch, label = batch
        if isinstance(batch, Mapping):
            inner = next((batch[name] for name in LABELS if name in batch), None)
            named = {str(name): value for name, value in batch.items() if name not in LABELS}
            return named, inner if label is None else label
        inputs, label = self.fp32.split(batch)
        names = [port.name for port in self.fp32.inputs]
        by_name = {name.removesuffix(":0"): value for name, value in inputs.kwargs.items()}
        return {**dict(zip(names, map(_array, inputs.args), strict=False)), **by_name}, label

    def call(self, model: Opened, inputs: Named) -> Inputs:
        """The inputs as one of the two takes them, ready to be run again and again."""
        key = id(model), tuple(inputs)
        if key not in self._inputs:
            self._inputs[key] = match_inputs(inputs, model)
        chosen = {port: inputs[name] for port, name in self._inputs[key].items()}
        return model.split(chosen)[0]

    def run(self, model: Opened, inputs: Named) -> dict[str, Array]:
        """The outputs that both have, under fp32's names."""
        found = model.run(self.call(model, inputs))
        if self._outputs is None:
            mine, other = (
                found if model is one else one.run(self.call(one, inputs)) for one in (self.fp32, self.int8)
            )
            self._outputs = match_outputs(mine, other, self.fp32, self.int8)
            if left := [name for name in mine if name not in self._outputs]:
                self.notes.append(
                    f"not compared, because {self.int8.name} has no such output: {', '.join(left)}"
                )
        if model is self.fp32:
            return {name: found[name] for name in self._outputs}
        return {name: found[other] for name, other in self._outputs.items()}


def _array(value: Any) -> Any:
    return value.numpy() if hasattr(value, "numpy") else value


def match_inputs(given: Named, model: Opened) -> dict[str, str]:
    """Input of the model -> name of an array in the data."""
    if len(model.inputs) == len(given) and all(port.name.isdigit() for port in model.inputs):
        return dict(zip((port.name for port in model.inputs), given, strict=True))  # it knows no names
    found = {port.name: port.name for port in model.inputs if port.name in given}
    left = {_plain(name): name for name in given if name not in found}
    for port in model.inputs:
        if port.name not in found and _plain(port.name) in left:
            found[port.name] = left.pop(_plain(port.name))
    open_ports = [port for port in model.inputs if port.required and port.name not in found]
    if found and model.config is not None:  # without a mask, all tokens of a Hugging Face model are real
        open_ports = [port for port in open_ports if port.name not in MASKS]
    names = set(left.values())
    if not found and len(open_ports) == len(names) == 1 and _numbers_fit(given[min(names)], open_ports[0]):
        # The shape of a module's input is only a guess: running it will tell.
        return {open_ports[0].name: min(names)}
    while open_ports:
        fitting = {port: [name for name in names if _fits(given[name], port)] for port in open_ports}
        # Only where there is no choice: two inputs that look alike could be either way round.
        certain = next((one for one, fit in fitting.items() if len(fit) == 1), None)
        if certain is None or sum(fitting[certain][0] in fit for fit in fitting.values()) > 1:
            break
        found[certain.name] = fitting[certain][0]
        names.remove(found[certain.name])
        open_ports.remove(certain)
    if open_ports or not found:
        data = ", ".join(f"{name} ({_described(array)})" for name, array in given.items())
        takes = ", ".join(map(str, model.inputs)) or "nothing that is known"
        missing = f" Nothing fits {', '.join(port.name for port in open_ports)}." if open_ports else ""
        raise DataError(
            f"The data does not fit {model}: it has {data}; the model takes {takes}.{missing} Name the "
            "arrays as the model's inputs are named."
        )
    return found


def match_outputs(
    mine: Mapping[str, Array], other: Mapping[str, Array], fp32: Opened, int8: Opened
) -> dict[str, str]:
    """fp32's output -> int8's, of those that can be compared."""
    same = {name: name for name in mine if name in other}
    if not same:
        pairs = dict(zip(mine, other, strict=False))
        if len(mine) == len(other) and _shapes_agree(mine, other, pairs):
            same = pairs
        elif len(other) == 1:
            ((only, array),) = other.items()
            fitting = [name for name in mine if mine[name].shape == array.shape]
            same = {fitting[0]: only} if len(fitting) == 1 else {}
    if not same or not _shapes_agree(mine, other, same):
        raise ModelError(
            f"The outputs of the two models cannot be matched: {fp32} gives {_listed(mine)}; {int8} gives "
            f"{_listed(other)}. Expected the same names, or the same number and shapes: is the second model "
            "made from the first?"
        )
    return same


def _shapes_agree(mine: Mapping[str, Array], other: Mapping[str, Array], pairs: Mapping[str, str]) -> bool:
    return all(mine[name].shape == other[match].shape for name, match in pairs.items())


def _plain(name: str) -> str:
    """A name without what converters add to it."""
    return name.rpartition("/")[2].partition(":")[0].removeprefix("serving_default_").lower()


def _numbers_fit(value: Any, port: Port) -> bool:
    return port.dtype is None or (np.asarray(value).dtype.kind in "iub") == (port.dtype.kind in "iub")


def _fits(value: Any, port: Port) -> bool:
    array, numbers = np.asarray(value), _numbers_fit(value, port)
    if port.shape is None:
        return numbers
    inner = zip(port.shape[1:], array.shape[1:], strict=False)
    return numbers and len(port.shape) == array.ndim and all(size in (None, got) for size, got in inner)


def _listed(outputs: Mapping[str, Array]) -> str:
    return ", ".join(f"{name} {list(array.shape)}" for name, array in outputs.items()) or "nothing"


def _described(value: Any) -> str:
    array = np.asarray(value)
    return f"{array.dtype}[{', '.join(map(str, array.shape))}]"
