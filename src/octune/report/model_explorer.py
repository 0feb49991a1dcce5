"""Numbers for the nodes of a graph, as Google's Model Explorer shows them over a model: harm, and
milliseconds saved.

    write_overlays(facts, Path("overlay.json"))     # overlay.json has harm, overlay-ms.json milliseconds

A file holds one number per node, under the node's id. Ids are the names of ops for ONNX and TensorFlow
graphs. A program that ``torch.export`` saved calls its ops linear, linear_1, ..., but names the weights after
their modules, so there the number stands at the weight.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from octune.errors import OctuneError
from octune.folders import write_whole
from octune.report.html.facts import Facts
from octune.report.html.views.ops import OpRow, op_rows

__all__ = ["overlay", "write_overlays"]

# From light to dark; the same hues as in the report.
COLOURS = {"harm": ("#fdf1e9", "#b84300"), "ms": ("#eaf4fb", "#0067b0")}
VALUES: dict[str, Callable[[OpRow], float | None]] = {
    "harm": lambda op: op.harm,
    "ms": lambda op: op.saved_ms,
}


def overlay(facts: Facts, what: str) -> dict[str, Any]:
    """The node data of one quantity: ``harm`` of int8, or ``ms`` that the plan saves."""
    low, high = COLOURS[what]
    found = {op.name: value for op in op_rows(facts) if (value := VALUES[what](op)) is not None}
    weights = facts.environment.get("framework") == "pytorch"
    keys = {key: value for name, value in found.items() for key in _keys(name, weights)}
    return {
        "results": {key: {"value": value} for key, value in keys.items()},
        "gradient": [
            {"stop": 0, "bgColor": low, "textColor": "#000000"},
            {"stop": 1, "bgColor": high, "textColor": "#ffffff"},
        ],
    }


def _keys(name: str, weights: bool) -> list[str]:
    return [name, f"p_{name.replace('.', '_')}_weight"] if weights else [name]


def write_overlays(facts: Facts, path: Path) -> list[Path]:
    """Harm in ``path``, milliseconds beside it where ops were timed; returns the files that were written."""
    files = {path: overlay(facts, "harm")}
    if not files[path]["results"]:
        raise OctuneError(
            f"The run in {facts.journal.folder} has not measured its ops yet: no overlay to write."
        )
    times = overlay(facts, "ms")
    if times["results"]:
        files[path.with_name(f"{path.stem}-ms{path.suffix}")] = times
    try:
        for file, data in files.items():
            write_whole(file, (json.dumps(data, indent=1) + "\n").encode())
    except OSError as error:
        raise OctuneError(f"The overlay could not be written to {path}: {error}.") from error
    return list(files)
