"""Objects by name: ``package.module:name``, as a configuration or a saved model writes them.

build = resolve("mine.models:build")
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

__all__ = ["resolve"]


def resolve(reference: str) -> Any:
    """The object behind the name; the working directory counts as a place to import from. Raises ImportError
    or AttributeError.
    """
    module_name, _, attribute = reference.partition(":")
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    found: Any = importlib.import_module(module_name)
    for part in attribute.split("."):
        found = getattr(found, part)
    return found
