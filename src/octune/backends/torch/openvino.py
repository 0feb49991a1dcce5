"""A plan of a PyTorch model on OpenVINO: the fp32 model exported to ONNX, where the same ops get the same
schemes and ranges, behind the face of the module.

    model = on_openvino(reference, eager, plan, ranges, call, settings)     # an nn.Module like the one given

Calls that the exported graph does not take (another set of inputs, another type) go to the eager model.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from octune.backends.batches import Inputs
from octune.backends.terms import Settings
from octune.backends.torch.front import Front
from octune.calibration import Ranges
from octune.errors import UnsupportedError
from octune.plan import Plan

if TYPE_CHECKING:
    from octune.backends.onnx.converted import OnnxModel

__all__ = ["OpenVinoModule", "load_openvino", "on_openvino"]


class OpenVinoModule(Front):
    """OpenVINO behind the face of the module that the graph was made from. ``takes`` are the inputs that it
    was exported with, ``names`` all that the module takes, in order; ``in_fp32`` are int8 ops of the plan
    that have no int8 form there.
    """

    eager: nn.Module

    def __init__(
        self,
        runs: OnnxModel,
        takes: Sequence[str],
        names: Sequence[str],
        eager: nn.Module,
        in_fp32: Sequence[str] = (),
    ) -> None:
        super().__init__(eager)
        self.in_fp32 = tuple(in_fp32)
        self.runs, self.takes, self.names = runs, tuple(takes), tuple(names)
        self._like: Any = None  # what the module returns, known from a first call of the eager one

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        feed = self._feed(args, kwargs)
        if feed is None or self._like is None:
            answer = self.eager(*args, **kwargs)
            self._like = answer if self._like is None and feed is not None else self._like
            if feed is None:
                return answer
        values = self.runs.run(None, feed)
        tensors = [torch.from_numpy(np.ascontiguousarray(value)) for value in values]
        return _shaped(self._like, tensors)

    def _feed(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any] | None:
        """What the graph is given for a call; None if it does not take that call."""
        given = dict(zip(self.names, args, strict=False)) | dict(kwargs)
        given = {name: value for name, value in given.items() if value is not None}
        if set(given) != set(self.takes) or len(args) > len(self.names):
            return None
        feed = {}
        for port in self.runs.get_inputs():
            value = given[port.name]
            if not _fits(value, port.type, port.shape):
                return None
            feed[port.name] = value.detach().numpy()
        return feed

    def __deepcopy__(self, memo: dict[int, Any]) -> OpenVinoModule:
        eager = copy.deepcopy(self.eager, memo)
        return OpenVinoModule(self.runs.fresh(), self.takes, self.names, eager, self.in_fp32)

    def save(self, folder: Path) -> dict[str, Any]:
        """Write the graph; the plain data that comes back is what :func:`load_openvino` needs."""
        from octune.backends.onnx import converted

        folder.mkdir()
        told = {"takes": self.takes, "names": self.names, "in_fp32": self.in_fp32}
        return {**{key: list(value) for key, value in told.items()}, **converted.save(self.runs, folder)}


def load_openvino(
    folder: Path, told: Mapping[str, Any], eager: nn.Module, *, trusted: bool
) -> OpenVinoModule:
    """What :meth:`OpenVinoModule.save` wrote."""
    from octune.backends.onnx import converted

    runs = converted.load(folder, told, trusted=trusted)
    return OpenVinoModule(runs, told["takes"], told["names"], eager, told["in_fp32"])


def on_openvino(
    reference: nn.Module, eager: nn.Module, plan: Plan, ranges: Ranges, call: Inputs, settings: Settings
) -> OpenVinoModule:
    """A plan on OpenVINO; ``eager`` is the model under it. UnsupportedError says why it cannot be made."""
    from octune.backends.onnx import converted  # ONNX need not be installed
    from octune.backends.torch.to_onnx import module_of, to_onnx

    with torch.inference_mode():
        like = call(eager)
    if not _plain(like):
        raise UnsupportedError("the model returns more than tensors")
    names = _parameters(reference)
    if len(call.args) > len(names):
        raise UnsupportedError("the model takes inputs that have no names")
    given = dict(zip(names, call.args, strict=False)) | dict(call.kwargs)
    given = {name: value for name, value in given.items() if value is not None}
    if not all(isinstance(value, torch.Tensor) for value in given.values()):
        raise UnsupportedError("it is called with inputs that are not tensors")
    runs, missing = converted.on_openvino(
        to_onnx(reference, call),
        Settings(threads=torch.get_num_threads(), portable=settings.portable),
        plan,
        ranges,
        module_of,
        {name: value.numpy() for name, value in given.items()},
    )
    return OpenVinoModule(runs, tuple(given), names, eager, missing)


def _parameters(module: nn.Module) -> list[str]:
    parameters = inspect.signature(module.forward).parameters.values()
    return [p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]


def _fits(value: Any, type_: str, shape: Sequence[Any]) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and value.device.type == "cpu"
        and type_ == f"tensor({str(value.dtype).removeprefix('torch.').replace('float32', 'float')})"
        and value.ndim == len(shape)
        and all(
            not isinstance(size, int) or size == got for size, got in zip(shape, value.shape, strict=True)
        )
    )


def _plain(like: Any) -> bool:
    """Whether an answer is tensors alone, in a structure that can be made again."""
    if isinstance(like, torch.Tensor):
        return True
    if isinstance(like, Mapping):
        return all(isinstance(value, torch.Tensor) for value in like.values())
    if isinstance(like, list | tuple):
        return all(isinstance(value, torch.Tensor) for value in like)
    return False


def _shaped(like: Any, tensors: Sequence[torch.Tensor]) -> Any:
    """The tensors as the module returns them."""
    if isinstance(like, torch.Tensor):
        return tensors[0]
    if isinstance(like, Mapping):
        named, kind = dict(zip(like, tensors, strict=True)), _class_of(like)
        return kind(**named) if dataclasses.is_dataclass(like) else kind(named)
    kind = _class_of(like)
    return kind(*tensors) if hasattr(like, "_fields") else kind(tensors)


def _class_of(like: object) -> Any:
    return type(like)
