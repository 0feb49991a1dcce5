"""What kind of node a process runs on: what int8 scores depend on besides model, data and plan.

here = describe()
difference(here, there)         # "" where both give the same scores, else what differs
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from octune import __version__
from octune.machine import probe_machine

__all__ = ["describe", "difference"]

LIBRARIES = (
    "numpy",
    "torch",
    "tensorflow",
    "tensorflow-cpu",
    "onnx",
    "onnxruntime",
    "openvino",
    "transformers",
)


def describe() -> dict[str, Any]:
    """The CPU class and the versions of this process, as plain data; imports no framework."""
    machine = probe_machine()
    libraries = {"python": platform.python_version(), "octune": __version__}
    for name in LIBRARIES:
        try:
            libraries[name] = version(name)
        except PackageNotFoundError:
            continue
    return {
        "cpu": machine.cpu,
        "class": {
            "architecture": machine.architecture,
            "features": list(machine.features),
            "compiler": machine.compiler is not None,
        },
        "libraries": libraries,
    }


def difference(here: Mapping[str, Any], there: Mapping[str, Any]) -> str:
    """Why what is scored there cannot be compared with what is scored here; empty if it can."""
    mine, other = here["class"], there["class"]
    if mine["architecture"] != other["architecture"]:
        return f"its CPU is {other['architecture']}, and here it is {mine['architecture']}"
    lacking = [name for name in mine["features"] if name not in other["features"]]
    more = [name for name in other["features"] if name not in mine["features"]]
    if lacking or more:
        said = [f"lacks {', '.join(lacking)}"] if lacking else []
        said += [f"has {', '.join(more)}"] if more else []
        return f"its CPU is of another class: it {' and '.join(said)}"
    if mine["compiler"] and not other["compiler"]:
        return "it has no C++ compiler, and winners are compiled here"
    for name in {**here["libraries"], **there["libraries"]}:
        a, b = here["libraries"].get(name), there["libraries"].get(name)
        if a != b:
            return f"it has {name} {b or '-'}, and here it is {a or '-'}"
    return ""
