"""Opening the PyTorch models that a configuration names."""

from __future__ import annotations

import json
from pathlib import Path
from zipfile import is_zipfile

import torch
from torch import nn

from octune.backends.torch.archive import read_program
from octune.backends.torch.programs import from_program
from octune.errors import MissingDependency, ModelError, summary

__all__ = ["open_model"]

EXPECTED = (
    "Expected a Hugging Face folder, a program saved by torch.export (.pt2), an .onnx, .pb or .keras file, a "
    "SavedModel folder, or package.module:factory that builds the model."
)
FILES = (".txt", ".json", ".yaml", ".safetensors", ".npz", ".zip")  # no name on the hub ends like a file


def open_model(source: str) -> nn.Module:
    """A Hugging Face folder or hub name, or a program saved by ``torch.export`` (``.pt2``)."""
    path = Path(source)
    if path.suffix == ".pt2":
        return _exported(path)
    if path.suffix in (".pt", ".pth", ".bin"):
        if not path.exists():
            raise ModelError(f"There is no file {source}. {EXPECTED}")
        raise ModelError(
            f"{source} holds pickled objects, which can run any code when they are read. {EXPECTED}"
        )
    return _hugging_face(source)


def _exported(path: Path) -> nn.Module:
    if not path.exists():
        raise ModelError(f"There is no file {path}. Expected a program saved by torch.export.save().")
    if not is_zipfile(path):
        raise ModelError(f"{path} is not a program saved by torch.export.save(): those are archives.")
    try:
        return from_program(read_program(path))
    except ModelError as error:
        raise ModelError(
            f"{error} If you trust the file, give a factory that returns torch.export.load(...).module()."
        ) from error
    except Exception as error:
        raise ModelError(f"{path} is not a program saved by torch.export.save(): {error}") from error


def _hugging_face(source: str) -> nn.Module:
    try:
        import transformers
    except ImportError as error:
        raise MissingDependency("transformers", "torch", f"Loading {source!r}") from error
    path = Path(source)
    if path.exists():
        _check_folder(path)
    else:
        _check_hub(source)
    try:
        config = transformers.AutoConfig.from_pretrained(source, trust_remote_code=False)
        names = config.architectures or []
        model_class = getattr(transformers, names[0], None) if names else None
        # transformers 5 loads a checkpoint in the type it was saved in; the baseline is fp32.
        model: nn.Module = (model_class or transformers.AutoModel).from_pretrained(
            source, dtype=torch.float32, trust_remote_code=False, use_safetensors=True
        )
    except (OSError, ValueError, json.JSONDecodeError) as error:
        where = "the folder" if path.exists() else "the hub (is the machine offline?)"
        raise ModelError(f"{source!r} cannot be loaded from {where}: {summary(error)}") from error
    return model.eval()


def _check_folder(path: Path) -> None:
    if not path.is_dir():
        raise ModelError(f"{path} is not a model of a known kind. {EXPECTED}")
    if (path / "octune.json").exists():
        raise ModelError(
            f"{path} is a model that Octune has saved. Give the fp32 model that it was made from."
        )
    if not (path / "config.json").exists():
        held = sorted(p.name for p in path.iterdir())[:8]
        raise ModelError(
            f"{path} has no config.json, so it is not a Hugging Face folder. It holds: {held}. {EXPECTED}"
        )


def _check_hub(source: str) -> None:
    """Refuse what no hub can have, and ask it once what it has: transformers asks for every file that a model
    may consist of, again and again.
    """
    path = Path(source)
    here = source.count("/") == 1 and path.parent.is_dir()
    if here or source.startswith((".", "/", "~")) or source.count("/") > 1 or path.suffix in FILES:
        raise ModelError(f"There is no file or folder {source}. {EXPECTED}")
    import huggingface_hub as hub

    if isinstance(hub.try_to_load_from_cache(source, "config.json"), str):
        return
    try:
        hub.HfApi().model_info(source, timeout=10)
    except hub.errors.RepositoryNotFoundError as error:
        raise ModelError(
            f"There is no folder {source} here, and the hub has no model of that name. {EXPECTED}"
        ) from error
    except Exception as error:
        raise ModelError(
            f"There is no folder {source} here, and the hub cannot be asked for a model of that name "
            f"({summary(error)}). {EXPECTED}"
        ) from error
