"""What may import what: the layers of the house, read from the sources."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import octune

ROOT = Path(octune.__file__).parent


def imports(path: Path) -> set[str]:
    """The modules of Octune that a file imports, inside functions too, except for typing alone."""
    tree = ast.parse(path.read_text())
    typing = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    found: set[str] = set()
    for node in ast.walk(tree):
        if node in typing:
            continue
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return {name.removeprefix("octune.") for name in found if name.startswith("octune.")}


@pytest.mark.parametrize(
    ("layer", "above"),
    [
        ("statistics", {"criterion", "referee", "score", "evaluation", "engine"}),
        ("criterion.py", {"referee", "evaluation", "engine", "search"}),
        ("referee.py", {"evaluation", "engine", "search"}),
        ("evaluation", {"tasks", "engine", "search", "job", "sources", "config"}),
        ("tasks", {"engine", "search", "job", "sources", "config", "backends"}),
        ("engine", {"search", "job", "sources", "config", "tasks", "report"}),
        ("result.py", {"engine", "evaluation", "search", "backends", "job"}),
    ],
)
def test_no_layer_imports_what_is_above_it(layer: str, above: set[str]) -> None:
    place = ROOT / layer
    for file in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
        assert not {name for name in imports(file) if name.split(".")[0] in above}, file


@pytest.mark.parametrize("name", ["job.py", "tune.py", "sources.py", "backends/base.py"])
def test_neutral_code_names_no_setting_of_one_framework(name: str) -> None:
    assert "stream" not in (ROOT / name).read_text().replace("streaming", "")


FRAMEWORKS = ("torch", "tensorflow", "onnx")


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_backend_knows_of_another_only_what_converters_need(name: str) -> None:
    others = tuple(f"backends.{other}" for other in FRAMEWORKS if other != name)
    for file in sorted((ROOT / "backends" / name).rglob("*.py")):
        found = {module for module in imports(file) if module.startswith(others)}
        converters = file.name in ("to_onnx.py", "openvino.py")
        allowed = converters and all(
            m.startswith("backends.onnx.converted") for m in found - {"backends.onnx"}
        )
        assert allowed or not found, file


def test_nothing_but_a_backend_imports_its_modules() -> None:
    private = tuple(f"backends.{name}" for name in FRAMEWORKS)
    for file in sorted(ROOT.rglob("*.py")):
        if "backends" not in file.relative_to(ROOT).parts:
            assert not {module for module in imports(file) if module.startswith(private)}, file
