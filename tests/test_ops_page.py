"""The table of what can be int8 is the one that the code gives."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from octune.plan import Scheme

for framework in ("torch", "tensorflow", "onnx"):
    pytest.importorskip(framework)

FILE = Path(__file__).parent.parent / "docs" / "make_ops.py"


@pytest.fixture(scope="module")
def maker() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_ops", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["make_ops"] = module
    spec.loader.exec_module(module)
    return module


def test_the_page_is_up_to_date(maker: ModuleType) -> None:
    text = maker.PAGE.read_text()
    assert maker.page(text) == text, "run python docs/make_ops.py"


def test_every_kind_is_on_the_page_with_its_schemes(maker: ModuleType) -> None:
    known = {
        "torch": {"linear": [Scheme.int8(), Scheme.bf16()]},
        "tensorflow": {},
        "onnx": {"new": [Scheme.fp32()]},
    }
    table = maker.table(known)
    assert "| linear layers, matmuls with a stored weight | S bf16 | - | - |" in table
    assert "| `new` | - | - | float, listed |" in table


def test_every_row_names_what_all_others_do(maker: ModuleType) -> None:
    assert all(len(row.peers) == len(maker.PEERS) for row in maker.ROWS)
    assert len({row.title for row in maker.ROWS}) == len(maker.ROWS)
