"""Folders that servers and libraries take as they are, made from a saved model.

    octune.export.export("model-int8", "triton", "models", name="sst2")     # models/sst2/1/model.onnx, ...
    result.save("models", layout="hf")

A layout is one file here with a :class:`Layout`, and its place in ``LAYOUTS``.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from octune import artifact
from octune.errors import ConfigError
from octune.export.base import Layout, Saved
from octune.export.hf import HF
from octune.export.ovms import OVMS
from octune.export.triton import TRITON

if TYPE_CHECKING:
    from octune.result import Result

__all__ = ["LAYOUTS", "export", "layout_named", "save_as"]

LAYOUTS: dict[str, Layout] = {layout.name: layout for layout in (HF, TRITON, OVMS)}


def layout_named(name: str) -> Layout:
    """The layout of that name."""
    if name not in LAYOUTS:
        raise ConfigError(f"There is no layout {name!r}. Expected one of: {', '.join(LAYOUTS)}.")
    return LAYOUTS[name]


def export(
    folder: str | Path,
    layout: str,
    output: str | Path,
    *,
    name: str | None = None,
    huggingface: str | Path | None = None,
    overwrite: bool = False,
) -> Path:
    """Write the model saved in ``folder`` to ``output`` in the layout of a server; returns where it is.

    ``name`` is what the server calls the model; the folder's own name if left out. ``huggingface`` is a
    folder with ``config.json`` and tokenizer, for a model that was saved without them.
    """
    chosen = layout_named(layout)
    saved = Saved.read(Path(folder), name, Path(huggingface) if huggingface is not None else None)
    return chosen.export(saved, Path(output), overwrite=overwrite)


def save_as(result: Result, output: Path, layout: str, *, overwrite: bool = False) -> Path:
    """A result's model in the layout of a server."""
    layout_named(layout)
    with tempfile.TemporaryDirectory(prefix="octune-export-") as place:
        saved = artifact.save(result, Path(place) / (output.name or "model"))
        return export(saved, layout, output, overwrite=overwrite)
