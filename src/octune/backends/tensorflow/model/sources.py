"""TensorFlow models by their path: a frozen ``.pb``, a SavedModel folder, a ``.keras`` file."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import tensorflow as tf

from octune.backends.tensorflow.model.keras_files import load_keras
from octune.backends.tensorflow.model.metagraph import MetaGraph
from octune.backends.tensorflow.model.storage import read_graph_def
from octune.errors import ModelError, summary

__all__ = ["open_model"]

log = logging.getLogger("octune")


def open_model(source: str) -> Any:
    """The model that a configuration names, ready for the backend."""
    path = Path(source)
    expected = "Expected a frozen graph (.pb), a SavedModel folder, a .keras file, or package.module:factory."
    if not path.exists():
        raise ModelError(f"There is no file or folder {source}. {expected}")
    if path.is_file() and path.name == "saved_model.pb":
        path = path.parent  # the file by which people recognise a SavedModel
    try:
        if path.is_dir():
            if not any((path / name).exists() for name in ("saved_model.pb", "saved_model.pbtxt")):
                raise ModelError(
                    f"{source} has no saved_model.pb. It holds: "
                    f"{sorted(p.name for p in path.iterdir())[:8]}. {expected}"
                )
            return _saved_model(path)
        if path.suffix == ".pb":
            return read_graph_def(path)
        if path.suffix in (".keras", ".h5"):
            return load_keras(path)
    except (OSError, ValueError, TypeError, KeyError, RuntimeError, tf.errors.OpError) as error:
        raise ModelError(
            f"{source} cannot be loaded by TensorFlow {tf.__version__}: {summary(error)}"
        ) from error
    raise ModelError(f"{source} is not a model that TensorFlow can read. {expected}")


def _saved_model(folder: Path) -> Any:
    """The objects that were saved, or, where they cannot be rebuilt, the graph of a signature."""
    try:
        return tf.saved_model.load(str(folder))
    except Exception as error:  # rebuilding runs code of any library
        log.debug("the objects of %s cannot be rebuilt", folder, exc_info=True)
        try:
            return MetaGraph.read(folder)
        except (ModelError, OSError, ValueError, RuntimeError, tf.errors.OpError) as second:
            raise ModelError(
                f"{folder} cannot be loaded by TensorFlow {tf.__version__}: {summary(error)}; nor can its "
                f"graph alone: {summary(second)}"
            ) from second
