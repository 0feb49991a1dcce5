"""Modules that are scripts in folders of their own, not packages: examples, benchmarks, docs."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[1]


def load_script(path: str) -> ModuleType:
    """``load_script("benchmarks/search/cases.py")``; its name cannot clash with a script of another
    folder.
    """
    name = "script_" + path.removesuffix(".py").replace("/", "_")
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, ROOT / path)
        if spec is None or spec.loader is None:
            raise ImportError(path)
        sys.modules[name] = importlib.util.module_from_spec(spec)  # its dataclasses look themselves up there
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]
