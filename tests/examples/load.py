"""Modules of the examples, which are scripts in folders of their own, not packages."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def load_example(path: str) -> ModuleType:
    """``load_example("tensorflow/bert_squad/model.py")``; its name cannot clash with a module of another
    example.
    """
    name = "example_" + path.removesuffix(".py").replace("/", "_")
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, EXAMPLES / path)
        if spec is None or spec.loader is None:
            raise ImportError(path)
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]
