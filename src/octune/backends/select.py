"""Which backend serves a model. A framework is touched only if its model is already here, so it was imported
already.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from octune.backends.base import Backend
from octune.backends.terms import Settings
from octune.errors import MissingDependency, ModelError, UnsupportedError
from octune.machine import probe_machine

__all__ = ["as_onnx", "backend_for", "backend_named", "imported", "installed"]

# name -> (module to look for in sys.modules, module and class of the backend, extra)
_BACKENDS = {
    "pytorch": ("torch", "octune.backends.torch", "TorchBackend", "torch"),
    "tensorflow": ("tensorflow", "octune.backends.tensorflow", "TensorFlowBackend", "tensorflow"),
    "onnx": ("onnx", "octune.backends.onnx", "OnnxBackend", "onnx"),
}


def backend_named(name: str) -> type[Backend]:
    """The backend class of that name, importing its framework."""
    if name not in _BACKENDS:
        raise UnsupportedError(
            f"There is no backend for {name!r} yet. Expected one of: {', '.join(_BACKENDS)}."
        )
    _, module, attribute, extra = _BACKENDS[name]
    try:
        backend: type[Backend] = getattr(importlib.import_module(module), attribute)
    except ImportError as error:
        missing = (error.name or "octune").split(".")[0]
        if missing != "octune":
            raise MissingDependency(missing, extra, f"A {name} model") from error
        raise
    return backend


def installed() -> list[type[Backend]]:
    """The backends whose frameworks are installed; imports them."""
    found = []
    for name in _BACKENDS:
        with suppress(MissingDependency):
            found.append(backend_named(name))
    return found


def backend_for(model: object, settings: Settings) -> Backend:
    """Open the backend that accepts ``model``."""
    if refused := probe_machine().refused:
        raise UnsupportedError(refused)
    return _backend_of(model)(model, settings)


def as_onnx(model: object, settings: Settings, batch: Any) -> tuple[Any, Settings]:
    """The model converted to ONNX by its own backend, and the settings for it; ``batch`` is an example of its
    data.
    """
    backend_named("onnx")  # says what to install, if it is not
    return _backend_of(model).to_onnx(model, settings, batch)


def imported() -> Iterator[type[Backend]]:
    """The backends whose frameworks this process has imported already: those that an object can be of."""
    return (backend_named(name) for name, (package, *_) in _BACKENDS.items() if package in sys.modules)


def _backend_of(model: object) -> type[Backend]:
    for backend in imported():
        if backend.accepts(model):
            return backend
    if isinstance(model, type):
        raise ModelError(
            f"The model is the class {model.__module__}.{model.__qualname__}. Expected an instance of it: "
            "call it, and load its trained weights."
        )
    raise ModelError(
        f"The model is a {type(model).__module__}.{type(model).__qualname__}, which no backend knows. "
        f"Expected one of: {', '.join(_BACKENDS)} (for PyTorch: a torch.nn.Module, for ONNX: an .onnx path "
        "or a ModelProto)."
    )
