"""Batches for a module: tensors, passed as its ``forward`` takes them, and arrays from what it returns."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence

from octune.backends.batches import LABELS, Inputs, Reading, Splitter, find_mask
from octune.errors import DataError

__all__ = ["Trying", "in_float32", "named_outputs", "named_tensors", "same_answers", "the_input"]


class Trying(Splitter):
    """Reads a tuple by trying it on the model, once for tuples of the same types."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._signature = inspect.signature(model.forward)
        parameters = list(self._signature.parameters.values())
        named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        any_name = any(p.kind is p.VAR_KEYWORD for p in parameters)
        super().__init__(
            {p.name: p.name for p in named if not (any_name and p.name in LABELS)},
            [p.name for p in named if p.default is p.empty],
            any_name=any_name,
        )
        self._positional = [
            p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        ]
        self._settled: dict[tuple[type, ...], str] = {}

    def readings(self, batch: Any) -> Iterator[Reading]:
        known = self._settled.get(_types(batch))
        return (reading for reading in super().readings(batch) if known in (None, reading.what))

    def read(self, reading: Reading, batch: Any) -> tuple[Inputs, Any]:
        inputs, label = super().read(reading, batch)
        if isinstance(batch, list | tuple) and _types(batch) not in self._settled:
            with torch.inference_mode():
                inputs(self._model)
            self._settled[_types(batch)] = reading.what
        return inputs, label

    def fit(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Inputs:
        self._signature.bind(*args, **kwargs)  # raises if the number is wrong
        return self.call(
            tuple(_to_tensor(value, f"input {i}") for i, value in enumerate(args)),
            {name: _to_tensor(value, name) for name, value in kwargs.items()},
        )

    def call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Inputs:
        """A call of the model with these tensors."""
        mask = find_mask([*zip(self._positional, args, strict=False), *kwargs.items()])
        return Inputs(args, kwargs, mask)


def _types(batch: Any) -> tuple[type, ...]:
    return tuple(map(type, batch)) if isinstance(batch, list | tuple) else ()


def in_float32(tensor: torch.Tensor) -> torch.Tensor:
    """Floats of any width as float32, which is what a baseline takes; whole numbers and booleans as is."""
    return tensor.float() if tensor.is_floating_point() else tensor


def the_input(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> torch.Tensor:
    """The one input of a module, however it was passed."""
    given = args[0] if args else next(iter(kwargs.values()))
    tensor: torch.Tensor = given.data if isinstance(given, PackedSequence) else given
    return tensor


def _to_tensor(value: Any, name: str) -> Any:
    if isinstance(value, torch.Tensor):
        return in_float32(value.detach().cpu())
    if isinstance(value, np.ndarray | np.generic):
        if value.dtype == object or value.dtype.kind in "US":
            raise DataError(f"{name} is an array of {value.dtype}, not of numbers; tokenize text first")
        array = np.ascontiguousarray(value)
        if not array.flags.writeable:
            array = array.copy()
        return in_float32(torch.from_numpy(array))
    if isinstance(value, Mapping):
        return {key: _to_tensor(item, f"{name}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        if value and all(isinstance(item, int | float) and not isinstance(item, bool) for item in value):
            return torch.tensor(value)
        return type(value)(_to_tensor(item, f"{name}[{i}]") for i, item in enumerate(value))
    if value is None or isinstance(value, bool | int | float):
        return value
    advice = "; tokenize text first" if isinstance(value, str | bytes) else ""
    raise DataError(f"{name} is of type {type(value).__name__}, not a tensor or an array{advice}")


def named_outputs(outputs: Any) -> dict[str, np.ndarray[Any, Any]]:
    """Arrays by name: a Hugging Face output by its own names, a tuple by position, a tensor as "output"."""
    return {name: _array(value) for name, value in named_tensors(outputs).items()}


def named_tensors(outputs: Any) -> dict[str, torch.Tensor]:
    """The same as tensors; what else a model returns is left out."""
    if isinstance(outputs, torch.Tensor):
        return {"output": outputs}
    if isinstance(outputs, Mapping):
        found = {str(name): value for name, value in outputs.items()}
    elif isinstance(outputs, list | tuple):
        found = {str(index): value for index, value in enumerate(outputs)}
    elif dataclasses.is_dataclass(outputs) and not isinstance(outputs, type):
        found = vars(outputs)
    else:
        raise DataError(
            f"The model returned a {type(outputs).__name__}. Expected a tensor, a tuple or a dict of tensors."
        )
    return {name: value for name, value in found.items() if isinstance(value, torch.Tensor)}


def _array(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    return in_float32(tensor.detach()).numpy()


def same_answers(model: nn.Module, call: Inputs, wanted: Mapping[str, np.ndarray[Any, Any]]) -> bool:
    """Whether a model that was rewritten still answers as it did, but for rounding."""
    with torch.inference_mode():
        got = named_outputs(call(model))
    return all(_close(got[name], wanted[name]) for name in wanted)


def _close(got: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any]) -> bool:
    reach = float(abs(wanted).max()) or 1.0
    return got.shape == wanted.shape and float(abs(got - wanted).max()) <= 1e-3 * reach
