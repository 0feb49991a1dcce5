"""Open any model to run it, whoever made it: by its path, or the object itself.

    with closing(open_model("model-int8")) as model:    # a folder that Octune saved
        model.kind, model.name                          # "Octune folder (onnx)", "model-int8"
        model.inputs                                    # (Port(name, dtype, shape, required), ...)
        model.run({"input_ids": ids, ...})              # -> {"logits": array}
        model.size, model.ops                           # bytes; "38 of 40" ops with weights compute in int8
    model.coverage(inputs)                          # of the multiply-adds: 98% int8, 2% fp32 in MatMul

What can be opened: a folder that Octune saved, an ``.onnx`` file (fp32, Q/DQ, QOperator or dynamic), an
OpenVINO ``.xml``, a SavedModel, a frozen ``.pb``, a ``.tflite`` or ``.keras`` file, a Hugging Face folder or
hub name, a ``.pt2`` program, ``package.module:factory``, and the objects that all of these become. Nothing is
changed: it runs as it would where it is deployed. This is what ``octune check`` compares.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from octune.artifact import MANIFEST, load, manifest
from octune.backends.base import Backend
from octune.backends.opened import Covered, Opened, Port, Source
from octune.backends.select import backend_named, imported
from octune.errors import ModelError
from octune.plain_json import loads
from octune.plan import Plan
from octune.sources import import_name, is_reference
from octune.trust import made_here

__all__ = ["Covered", "Opened", "Port", "import_framework", "open_model"]

# suffix -> (backend, what people call such a file)
FILES = {
    ".onnx": ("onnx", "ONNX file"),
    ".xml": ("onnx", "OpenVINO file"),
    ".pb": ("tensorflow", "frozen graph"),
    ".keras": ("tensorflow", "Keras file"),
    ".h5": ("tensorflow", "Keras file"),
    ".pt2": ("pytorch", "torch.export program"),
}
# Where libraries and servers have the model in a folder that is not one itself: Hugging Face's with ONNX in
# it, a version of Triton, OpenVINO Model Server or TensorFlow Serving.
INSIDE = (
    "onnx/model.onnx", "model.onnx", "openvino/openvino_model.xml", "openvino_model.xml",
    "1/model.onnx", "1/model.xml", "1/saved_model.pb",
)  # fmt: skip
OWN = (MANIFEST, "saved_model.pb", "saved_model.pbtxt")
LITE = (".tflite", ".lite")
PICKLED = (".pt", ".pth", ".bin", ".pkl")
EXPECTED = (
    "Expected a folder that Octune saved, an .onnx, .xml, .tflite, .pb, .keras or .pt2 file, a SavedModel or "
    "Hugging Face folder, or package.module:factory."
)


def open_model(source: Any, *, threads: int | None = None, trust: bool = False) -> Opened:
    """The model, ready to run; ``threads``: None is all cores. Code that a saved folder holds or names runs
    only if it was made here, or with ``trust``. Raises ModelError or ArtifactError.
    """
    if not isinstance(source, str | Path):
        return _object(source, Source(_type(source), _type(source), threads=threads))
    name = str(source)
    if is_reference(name):
        made = import_name(name, "The model")
        made = made() if callable(made) and not _runs(made) else made
        return _object(made, Source(f"{_type(made)} of a factory", name, threads=threads))
    path = _found(Path(source))
    return _folder(path, threads, trust) if path.is_dir() else _file(path, threads)


def _found(path: Path) -> Path:
    """Where the model itself is: what people name may be around it, or one of its files."""
    if path.is_dir() and not any(any(path.glob(name)) for name in (*OWN, "*.safetensors*", "pytorch_model*")):
        path = next((path / name for name in INSIDE if (path / name).is_file()), path)
    if path.is_file() and path.name == "saved_model.pb":
        return path.parent  # the file by which people recognise a SavedModel
    return path


def import_framework(source: str | Path) -> None:
    """Import what a model needs and open nothing yet, so that what it takes can be told from what its
    framework takes. What cannot be opened is left for :func:`open_model` to say.
    """
    path = _found(Path(source))
    if is_reference(str(source)):
        import_name(str(source), "The model")
    elif (path / MANIFEST).is_file():
        backend_named(manifest(path)["framework"])
    elif (path / "config.json").is_file():
        backend_named("pytorch")
        transformers = importlib.import_module("transformers")
        for name in loads((path / "config.json").read_text()).get("architectures") or ():
            getattr(transformers, name, None)  # imports the code of that model
    elif path.suffix.lower() in LITE:
        importlib.import_module("octune.backends.litert").interpreter()
    elif path.is_dir() or path.suffix.lower() in FILES:
        backend_named(FILES.get(path.suffix.lower(), ("tensorflow", ""))[0])


def _folder(path: Path, threads: int | None, trust: bool) -> Opened:
    if (path / MANIFEST).exists():
        data = manifest(path)
        framework, trusted = data["framework"], trust or made_here(data["digest"])
        source = Source(f"Octune folder ({framework})", str(path), path, data["backend"], threads, trusted)
        opened = backend_named(framework).opened(load(path, trust=trusted), source)
        if opened.ops is None:  # native code alone: the plan says what went into it
            opened.ops = Covered(Plan.from_json(data["plan"]).counts().get("int8", 0), len(data["plan"]))
        return opened
    if any((path / name).exists() for name in OWN[1:]):
        return _opened("tensorflow", Source("SavedModel", str(path), path, threads=threads))
    if (path / "config.json").exists():
        return _opened("pytorch", Source("Hugging Face folder", str(path), path, threads=threads))
    held = sorted(one.name for one in path.iterdir())
    raise ModelError(
        f"{path} is not a model's folder: it has no {MANIFEST}, saved_model.pb or config.json. It holds: "
        f"{held[:8]}. {EXPECTED}"
    )


def _file(path: Path, threads: int | None) -> Opened:
    suffix = path.suffix.lower()
    if suffix in LITE:
        from octune.backends.litert import open_tflite

        return open_tflite(path, Source("LiteRT file", str(path), path, threads=threads))
    if suffix in FILES:
        framework, kind = FILES[suffix]
        if framework == "onnx":
            return backend_named(framework).opened(path, Source(kind, str(path), path, threads=threads))
        return _opened(framework, Source(kind, str(path), path, threads=threads))
    if path.exists() or suffix in PICKLED:
        why = "its pickled objects can run any code" if suffix in PICKLED else "its kind is not known"
        raise ModelError(f"{path} cannot be opened: {why}. {EXPECTED}")
    if path.is_absolute() or len(path.parts) > 2 or str(path).startswith("."):
        raise ModelError(f"There is no file or folder {path}. {EXPECTED}")
    return _opened("pytorch", Source("Hugging Face model", str(path), threads=threads))


def _opened(framework: str, source: Source) -> Opened:
    backend = backend_named(framework)
    return backend.opened(backend.open(source.name), source)


def _object(model: Any, source: Source) -> Opened:
    if isinstance(model, Opened):
        return model
    if isinstance(model, str | Path):
        return open_model(model, threads=source.threads)  # a factory may name a folder, and cannot trust it
    backend = _runs(model)
    if backend is None:
        raise ModelError(f"{source.name} is a {_type(model)}, which cannot be run here. {EXPECTED}")
    return backend.opened(model, source)


def _runs(model: object) -> type[Backend] | None:
    """The backend that can run an object; its framework is here already, or the object would not be."""
    return next((backend for backend in imported() if backend.runs(model)), None)


def _type(model: object) -> str:
    return f"{type(model).__module__.partition('.')[0]} {type(model).__qualname__}"
