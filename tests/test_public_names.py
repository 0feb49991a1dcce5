"""The public face: these names, no more and no fewer, and no framework behind them until a model brings
one.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

import octune
from octune import errors


def test_public_names_are_pinned() -> None:
    assert octune.__all__ == [
        "Absolute",
        "Analysis",
        "Bench",
        "Check",
        "Config",
        "Criterion",
        "Listener",
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
        "bench",
        "check",
        "load",
        "quantize",
        "replay",
        "save",
        "tune",
    ]


def test_public_names_are_sorted_and_there() -> None:
    assert octune.__all__ == sorted(octune.__all__)
    assert all(hasattr(octune, name) for name in octune.__all__)


HEAVY = [
    "torch",
    "torchao",
    "transformers",
    "tensorflow",
    "keras",
    "onnx",
    "onnxruntime",
    "openvino",
    "ray",
    "optuna",
    "sklearn",
    "scipy",
    "pandas",
    "matplotlib",
    "jinja2",
    "safetensors",
    "mlflow",
    "tensorboard",
]


@pytest.mark.parametrize(
    "code",
    ["import octune", "octune --help", "octune tune --help", "octune --version", "octune config --schema"],
)
def test_nothing_heavy_is_imported_before_it_is_needed(code: str) -> None:
    """Absent from a fresh process after ``import octune``, and after commands that run no model."""
    command, *arguments = code.split()
    if command == "octune":
        code = f"sys.argv = {['octune', *arguments]!r}; from octune.cli import main; main()"
    check = f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    script = f"import sys, atexit; atexit.register(lambda: {check}); {code}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"


@pytest.mark.parametrize(
    ("code", "late"),
    [
        ("import octune.backends.torch", ["torch._dynamo", "torch._inductor", "sympy", "transformers"]),
        (
            "import numpy as np; from octune.statistics.intervals import margins; "
            "margins(np.ones(4), 0.05, (1.0, 1.0), np.ones(4))",
            ["scipy.stats"],
        ),
    ],
    ids=["the PyTorch backend", "an interval"],
)
def test_what_takes_long_to_import_is_imported_where_it_is_used(code: str, late: list[str]) -> None:
    """They would double the time that every command takes to start."""
    script = f"{code}; import sys; print([name for name in {late!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_error_is_an_octune_error_and_listed() -> None:
    assert errors.__all__ == sorted(errors.__all__)
    for name in errors.__all__:
        assert issubclass(getattr(errors, name), errors.OctuneError), name
        assert name in (errors.__doc__ or ""), f"{name} is not drawn in the tree"
    assert "pip install 'octune[torch]'" in str(errors.MissingDependency("torch", "torch", "A pytorch model"))
