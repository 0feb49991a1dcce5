"""Modules of the examples, which are scripts in folders of their own, not packages."""

from __future__ import annotations

from types import ModuleType

from tests.scripts import ROOT, load_script

EXAMPLES = ROOT / "examples"


def load_example(path: str) -> ModuleType:
    """``load_example("tensorflow/bert_squad/model.py")``"""
    return load_script(f"examples/{path}")
