"""A Hugging Face folder: what optimum, sentence-transformers and text-embeddings-inference look for.

config.json, tokenizer.json, ...    as they came with the model
onnx/model.onnx                     for ONNX Runtime
openvino/openvino_model.xml, .bin   for OpenVINO, if that won
README.md                           the model card
report.html                         the report of the run, if the result is at hand
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from octune.errors import OctuneError
from octune.export.base import Layout, Saved
from octune.export.card import model_card
from octune.export.twin import onnx_twin
from octune.huggingface import CONFIG, copy_companions

if TYPE_CHECKING:
    from octune.result import Result

__all__ = ["HF"]

log = logging.getLogger("octune")

# Where each format belongs, and what it is called there; an ONNX file keeps the name model.onnx.
PLACES = {"onnx": ("onnx", None), "openvino": ("openvino", "openvino_model")}


def _refuse(saved: Saved, output: Path) -> str | None:
    if saved.huggingface is not None and (saved.huggingface / CONFIG).is_file():
        return None
    return (
        f"{saved.folder} has no {CONFIG} and no tokenizer: the model did not come from a Hugging Face "
        "folder. Name one whose configuration and tokenizer fit the model (--huggingface)."
    )


def _write(saved: Saved, form: str, folder: Path) -> None:
    assert saved.huggingface is not None  # or it was refused
    copy_companions(saved.huggingface, folder)
    for kind in saved.servable.formats:
        if kind in PLACES:
            place, stem = PLACES[kind]
            saved.write(kind, folder / place, stem)
    (folder / "README.md").write_text(model_card(saved))
    if saved.run is not None:
        _report(saved.run, folder / "report.html")


def _report(run: Result, path: Path) -> None:
    """The report beside the card, if there is one: a model can be served without."""
    from octune.report.html import write_report

    try:
        write_report(run, path)
    except OctuneError as error:  # what draws it is not installed, say
        log.info("no report is exported: %s", error)


HF = Layout(
    "hf", "A Hugging Face folder", tuple(PLACES), _write, per_model=False, refuse=_refuse, twin=onnx_twin
)
