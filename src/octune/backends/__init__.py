"""One package a framework, behind one small base. No framework is imported until a model of its kind is
brought.
"""

from octune.backends.base import Backend
from octune.backends.select import as_onnx, backend_for, backend_named
from octune.backends.terms import Outputs, Settings

__all__ = ["Backend", "Outputs", "Settings", "as_onnx", "backend_for", "backend_named"]
