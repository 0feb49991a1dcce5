"""The public face: these names, no more and no fewer, and no framework behind them until a model brings
one.
"""

from __future__ import annotations

import subprocess
import sys

import octune
from octune import errors


def test_public_names_are_pinned() -> None:
    assert octune.__all__ == [
        "Absolute",
        "Analysis",
        "Config",
        "Criterion",
        "OctuneError",
        "Op",
        "Plan",
        "Relative",
        "Result",
        "Scheme",
        "Score",
        "Trial",
        "Verdict",
        "analyze",
        "load",
        "quantize",
        "replay",
        "tune",
    ]


def test_public_names_are_sorted_and_there() -> None:
    assert octune.__all__ == sorted(octune.__all__)
    assert all(hasattr(octune, name) for name in octune.__all__)


def test_importing_octune_imports_no_framework() -> None:
    heavy = "torch tensorflow onnx onnxruntime openvino transformers ray plotly jinja2 torchao"
    code = (
        f"import sys, octune, octune.cli; print([name for name in {heavy.split()!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_error_is_an_octune_error_and_listed() -> None:
    assert errors.__all__ == sorted(errors.__all__)
    for name in errors.__all__:
        assert issubclass(getattr(errors, name), errors.OctuneError), name
        assert name in (errors.__doc__ or ""), f"{name} is not drawn in the tree"
    assert "pip install 'octune[torch]'" in str(errors.MissingDependency("torch", "torch", "A pytorch model"))
