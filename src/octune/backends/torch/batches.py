"""Any form of batch becomes one :class:`Call`: what to pass to the model, by position and by name.

A tensor or array is one input; a tuple ``(inputs, label)`` is split; a longer tuple is passed by position; a
dict (a BatchEncoding too) is passed by name. Labels inside a dict are taken as the label, and passed on only
to a model that asks for them.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

from octune.errors import DataError, summary

__all__ = ["Call", "Splitter", "in_float32", "named_outputs", "the_input"]

LABELS = ("labels", "label")
MASKS = ("attention_mask", "input_mask", "mask")


@dataclass(frozen=True)
class Call:
    """One call of a model."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, model: nn.Module) -> Any:
        return model(*self.args, **self.kwargs)

    def tensors(self) -> Iterator[torch.Tensor]:
        """All tensors that are passed, in order."""
        for value in (*self.args, *self.kwargs.values()):
            yield from _tensors(value)

    def mask(self) -> torch.Tensor | None:
        """Which tokens are real, as booleans of shape (batch, sequence), if the batch says so."""
        for name in MASKS:
            value = self.kwargs.get(name)
            if isinstance(value, torch.Tensor) and value.ndim == 2:
                return value.bool()
        return None

    def resized(self, rows: int) -> Call:
        """The same call on that many samples: the first ones, or repeated from the start."""
        size = self.batch_size
        index = torch.arange(rows) % size

        def cut(value: Any) -> Any:
            return (
                value[index]
                if isinstance(value, torch.Tensor) and value.ndim and value.shape[0] == size
                else value
            )

        return Call(
            tuple(cut(value) for value in self.args),
            {name: cut(value) for name, value in self.kwargs.items()},
        )

    @property
    def batch_size(self) -> int:
        """The first dimension of the first tensor."""
        first = next((tensor for tensor in self.tensors() if tensor.ndim), None)
        return 1 if first is None else int(first.shape[0])


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)


class Splitter:
    """Tells inputs from label. What a tuple means is settled once, by trying it on the model."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        parameters = inspect.signature(model.forward).parameters.values()
        self._names = (
            None if any(p.kind is p.VAR_KEYWORD for p in parameters) else {p.name for p in parameters}
        )
        self._tuple_form: Callable[[tuple[Any, ...]], tuple[Call, Any]] | None = None

    def __call__(self, batch: Any) -> tuple[Call, Any]:
        """The call and the label (None if there is none)."""
        if isinstance(batch, Call):
            return batch, None
        if isinstance(batch, list | tuple):
            if not batch:
                raise DataError("A batch is an empty tuple. Expected (inputs, label), or inputs.")
            if self._tuple_form is None:
                self._tuple_form = self._settle(tuple(batch))
            return self._tuple_form(tuple(batch))
        return self._inputs(batch)

    def _inputs(self, value: Any) -> tuple[Call, Any]:
        if isinstance(value, Mapping):
            label = next((value[name] for name in LABELS if name in value), None)
            kept = {name: _to_tensor(item, name) for name, item in value.items() if self._wanted(name)}
            if not kept:
                raise DataError(
                    f"A batch has the keys {list(value)}, none of which the model takes. Expected: "
                    f"{sorted(self._names or ())}."
                )
            return Call(kwargs=kept), label
        if isinstance(value, list | tuple):
            return Call(tuple(_to_tensor(item, f"input {i}") for i, item in enumerate(value))), None
        return Call((_to_tensor(value, "input"),)), None

    def _wanted(self, name: str) -> bool:
        return (self._names is None and name not in LABELS) or (
            self._names is not None and name in self._names
        )

    def _settle(self, batch: tuple[Any, ...]) -> Callable[[tuple[Any, ...]], tuple[Call, Any]]:
        def pair(batch: tuple[Any, ...]) -> tuple[Call, Any]:
            call, inner = self._inputs(batch[0])
            return call, batch[1] if batch[1] is not None else inner

        def whole(batch: tuple[Any, ...]) -> tuple[Call, Any]:
            return self._inputs(batch)

        def label_last(batch: tuple[Any, ...]) -> tuple[Call, Any]:
            return self._inputs(batch[:-1])[0], batch[-1]

        forms = [pair, whole] if len(batch) == 2 else [whole, label_last]
        failures = []
        for form in forms:
            try:
                call, _ = form(batch)
                with torch.inference_mode():
                    call(self._model)
            except Exception as error:
                failures.append(f"{form.__name__}: {type(error).__name__}: {summary(error)}")
            else:
                return form
        kinds = ", ".join(_kind(item) for item in batch)
        raise DataError(
            f"The model cannot be run on a batch of ({kinds}). Expected (inputs, label), where inputs is a "
            "tensor, "
            f"a tuple for model(*inputs) or a dict for model(**inputs). Tried {'; '.join(failures)}."
        )


def in_float32(tensor: torch.Tensor) -> torch.Tensor:
    """Floats of any width as float32, which is what a baseline takes; whole numbers and booleans as they
    are.
    """
    return tensor.float() if tensor.is_floating_point() else tensor


def the_input(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> torch.Tensor:
    """The one input of a module, however it was passed."""
    tensor: torch.Tensor = args[0] if args else next(iter(kwargs.values()))
    return tensor


def _kind(value: Any) -> str:
    shape = getattr(value, "shape", None)
    return f"{type(value).__name__}{list(shape) if shape is not None else ''}"


def _to_tensor(value: Any, name: str) -> Any:
    if isinstance(value, torch.Tensor):
        return in_float32(value.detach().cpu())
    if isinstance(value, np.ndarray | np.generic):
        if value.dtype == object or value.dtype.kind in "US":
            raise DataError(
                f"A batch holds {name} as an array of {value.dtype}. Expected numbers; tokenize text first."
            )
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
    raise DataError(
        f"A batch holds {name} as a {type(value).__name__}. Expected a tensor or an array; tokenize text "
        "first."
    )


def named_outputs(outputs: Any) -> dict[str, np.ndarray[Any, Any]]:
    """Arrays by name: a Hugging Face output by its own names, a tuple by position, a tensor as "output"."""
    if isinstance(outputs, torch.Tensor):
        return {"output": _array(outputs)}
    if isinstance(outputs, Mapping):
        return {
            str(name): _array(value) for name, value in outputs.items() if isinstance(value, torch.Tensor)
        }
    if isinstance(outputs, list | tuple):
        return {
            str(index): _array(value)
            for index, value in enumerate(outputs)
            if isinstance(value, torch.Tensor)
        }
    if dataclasses.is_dataclass(outputs) and not isinstance(outputs, type):
        return {
            name: _array(value) for name, value in vars(outputs).items() if isinstance(value, torch.Tensor)
        }
    raise DataError(
        f"The model returned a {type(outputs).__name__}. Expected a tensor, a tuple or a dict of tensors."
    )


def _array(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    return in_float32(tensor.detach()).numpy()
