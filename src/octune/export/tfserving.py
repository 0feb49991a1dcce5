"""TensorFlow Serving: a SavedModel with the signature ``serving_default`` in ``NAME/1/``."""

from __future__ import annotations

from pathlib import Path

from octune.export.base import Layout, Saved

__all__ = ["TFSERVING"]

VERSION = "1"


def _write(saved: Saved, form: str, folder: Path) -> None:
    saved.write(form, folder / VERSION)


TFSERVING = Layout("tfserving", "TensorFlow Serving", ("savedmodel",), _write)
