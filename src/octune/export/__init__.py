"""Folders that servers and libraries take as they are, made from a saved model.

    from octune.export import export

    export("model-int8", "triton", "models", name="sst2")       # models/sst2/1/model.onnx, ...
    result.save("models/sst2", layout="triton")                 # the same

A layout is one file here with a :class:`Layout`, and its place in ``LAYOUTS``. No server runs a PyTorch
model, so that gets a twin in ONNX (twin.py), for which its fp32 model and data are needed; LiteRT's files are
such twins as well.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octune import artifact
from octune.errors import ConfigError, UnsupportedError
from octune.export.base import Layout, Saved
from octune.export.hf import HF
from octune.export.litert import LITERT
from octune.export.ovms import OVMS
from octune.export.tfserving import TFSERVING
from octune.export.triton import TRITON
from octune.scratch import scratch

if TYPE_CHECKING:
    from octune.request import Request
    from octune.result import Result

__all__ = ["LAYOUTS", "export", "layout_named", "save_as"]

LAYOUTS: dict[str, Layout] = {layout.name: layout for layout in (HF, TRITON, OVMS, TFSERVING, LITERT)}


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
    trust: bool = False,
    **fp32: Any,
) -> Path:
    """Write the model saved in ``folder`` to ``output`` in the layout of a server; returns where it is.

    ``name`` is what the server calls the model; the name of its folder if left out. ``huggingface`` is a
    folder with ``config.json`` and tokenizer, for a model that was saved without them. ``trust``: as for
    :func:`octune.load`.

    A PyTorch model is made again as ONNX, a TensorFlow model for LiteRT, and scored: give the fp32 ``model``
    and its data as to :func:`octune.tune` (``calibration``, ``evaluation``, ``metric``, ``criterion``,
    ``config``). Without a metric it must agree with fp32.
    """
    from octune.request import Request

    chosen = layout_named(layout)
    name = name or (None if chosen.per_model else Path(output).resolve().name)
    companions = Path(huggingface) if huggingface is not None else None
    saved = Saved.read(Path(folder), name, companions, trust=trust)
    try:
        request = Request(**fp32) if fp32 else None
    except TypeError as error:
        raise ConfigError(f"export() {error}. It takes the arguments of octune.tune().") from error
    return _write(chosen, saved, Path(output), request, overwrite=overwrite)


def save_as(result: Result, folder: Path, layout: str, *, overwrite: bool = False) -> Path:
    """A result's model in the layout of a server: ``folder`` is the model's own, below the server's."""
    chosen, folder = layout_named(layout), folder.absolute()
    with scratch() as place:
        saved = Saved.read(artifact.save(result, place / folder.name), run=result)
        request = None if result.saving is None else result.saving.request
        # its listener was closed when that run ended
        request = None if request is None else replace(request, listener=None)
        output = folder.parent if chosen.per_model else folder
        return _write(chosen, saved, output, request, overwrite=overwrite)


def _write(layout: Layout, saved: Saved, output: Path, request: Request | None, *, overwrite: bool) -> Path:
    """Write what was saved, or its twin if the server cannot read that."""
    layout.check(saved, output, overwrite=overwrite)  # before work is spent on a twin
    if layout.reads(saved):
        return layout.export(saved, output, overwrite=overwrite)
    what = (
        f"{layout.title} reads {' or '.join(layout.formats)}, and the framework of this model is "
        f"{saved.manifest['framework']}."
    )
    if layout.twin is None:
        raise UnsupportedError(f"{what} Choose another layout.")
    if request is None:
        config = saved.folder.parent / "config.yaml"  # in the workspace of 'octune tune'
        raise UnsupportedError(
            f"{what} Its plan can be applied to the converted fp32 model, and scored: name that model and "
            f"its data (--config {config if config.exists() else 'FILE'}, or --model, --task and --data)."
        )
    with scratch() as place:
        return layout.export(layout.twin(saved, request, place), output, overwrite=overwrite)
