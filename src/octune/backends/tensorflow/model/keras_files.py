"""Keras files (``.keras``, ``.h5``), looked at before Keras opens them: what runs code or reads files.

    model = load_keras(Path("model.keras"))

Keras refuses most of that itself in its safe mode, which is used; what a version of it lets through, and what
its mode does not cover in the older format, is refused here.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zipfile import ZipFile

from octune.archives import check_archive
from octune.errors import ModelError
from octune.plain_json import loads

__all__ = ["load_keras"]

MODULES = re.compile(
    r"builtins|keras(\.src)?(\.(activations|backend|constraints|dtype_policies|engine|initializers|layers|legacy"
    r"|losses|metrics|models|ops|optimizers|quantizers|random|regularizers|trainers)[\w.]*)?"
)
# Python code in the file, a PyTorch module as a pickle, another model by its path.
CODE = {"Lambda", "__lambda__", "TorchModuleWrapper", "TFSMLayer", "JaxLayer", "FlaxLayer"}
ADVICE = "If you trust the file, give a factory that loads it: model.path: package.module:factory."


def load_keras(path: Path) -> Any:
    """The model in the file; ModelError if it brings code, or reads other files."""
    import keras

    for part in _configurations(path):
        for described in _objects(part):
            _check(described, path)
    return keras.saving.load_model(path, compile=False, safe_mode=True)


def _configurations(path: Path) -> Iterator[Any]:
    """What the file says of its layers, after its archives were checked."""
    if path.suffix != ".keras":
        yield from _of_hdf5(path, path)
        return
    check_archive(path, ModelError)
    with ZipFile(path) as archive:
        for name in archive.namelist():
            if name.endswith(".json"):
                yield loads(archive.read(name))
            elif name.endswith(".h5"):
                yield from _of_hdf5(io.BytesIO(archive.read(name)), path)


def _of_hdf5(file: Any, path: Path) -> Iterator[Any]:
    import h5py

    with h5py.File(file, "r") as opened:
        _check_links(opened, path)
        for name, value in opened.attrs.items():
            if name in ("model_config", "training_config"):
                yield loads(value)


def _check_links(group: Any, path: Path) -> None:
    import h5py

    for name in group:
        link, held = group.get(name, getlink=True), None
        if isinstance(link, h5py.HardLink):
            held = group[name]
        if held is None or (isinstance(held, h5py.Dataset) and (held.external or held.is_virtual)):
            raise ModelError(
                f"{path} keeps {name!r} in another file, or as a link: it is not opened. {ADVICE}"
            )
        if isinstance(held, h5py.Group):
            _check_links(held, path)


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    """Every object that is described, here or inside."""
    if isinstance(value, dict):
        if "class_name" in value:
            yield value
        for inner in value.values():
            yield from _objects(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _objects(inner)


def _check(described: dict[str, Any], path: Path) -> None:
    import keras

    name, module = str(described["class_name"]), described.get("module")
    if name in CODE:
        raise ModelError(f"{path} has a {name}, which is code or another file: it is not opened. {ADVICE}")
    config = described.get("config")
    if isinstance(config, dict) and isinstance(config.get("vocabulary"), str):
        raise ModelError(f"{path} reads its vocabulary from {config['vocabulary']!r}. {ADVICE}")
    known = keras.saving.get_registered_object(described.get("registered_name") or "") is not None
    if module is not None and not known and not MODULES.fullmatch(str(module)):
        raise ModelError(
            f"{path} names {module}.{name}, which is not a part of Keras: it is not imported. Register the "
            f"class (keras.saving.register_keras_serializable). {ADVICE}"
        )
