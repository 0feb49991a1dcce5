"""OpenVINO Model Server: ``NAME/1/model.xml`` and ``.bin``, or ``NAME/1/model.onnx``; and ``config.json``
beside them, which lists the models of the folder with the settings that they were timed with.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from octune.export.base import Layout, Saved
from octune.export.twin import onnx_twin
from octune.folders import write_whole

__all__ = ["OVMS"]

VERSION = "1"
CONFIG = "config.json"
MODELS = "model_config_list"


def _write(saved: Saved, form: str, folder: Path) -> None:
    # An ONNX file beyond 2 GB names the file of its tensors, so it keeps its name.
    saved.write(form, folder / VERSION, "model" if form == "openvino" else None)


def _refuse(saved: Saved, output: Path) -> str | None:
    try:
        _listed(saved, output)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return (
            f"{output / CONFIG} is not a configuration of OpenVINO Model Server ({error}). Repair it or "
            "remove it."
        )
    return None


def _listed(saved: Saved, output: Path) -> dict[str, Any]:
    """The server's configuration with this model on its list; others that are there stay."""
    path = output / CONFIG
    data: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    others = [item for item in data.get(MODELS, []) if item["config"]["name"] != saved.name]
    return data | {MODELS: [*others, {"config": _settings(saved)}]}


def _list(saved: Saved, output: Path) -> None:
    write_whole(output / CONFIG, (json.dumps(_listed(saved, output), indent=2) + "\n").encode())


def _settings(saved: Saved) -> dict[str, Any]:
    return {
        "name": saved.name,
        "base_path": saved.name,  # relative to the configuration
        "target_device": "CPU",
        "plugin_config": {
            "PERFORMANCE_HINT": "LATENCY",
            "NUM_STREAMS": "1",
            "INFERENCE_NUM_THREADS": str(saved.threads),
            # as it was scored; on CPUs with AMX the default would be bf16
            "INFERENCE_PRECISION_HINT": "bf16" if saved.manifest["best"]["form"].endswith("-bf16") else "f32",
        },
    }


OVMS = Layout(
    "ovms",
    "OpenVINO Model Server",
    ("openvino", "onnx"),
    _write,
    refuse=_refuse,
    finish=_list,
    twin=onnx_twin,
)
