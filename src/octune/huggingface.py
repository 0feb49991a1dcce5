"""What a Hugging Face folder holds beside its weights: configuration, tokenizer, processors, licence.

    folder = origin(model, "models/bert-sst2")         # where a model came from, if that is such a folder
    copy_companions(folder, Path("model-int8/huggingface"))

A model without its tokenizer cannot be used, so a saved model keeps these files. Nothing here needs the
library of that name, except to find what it has downloaded.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from octune.errors import ArtifactError
from octune.plain_json import loads

__all__ = ["FOLDER", "companions", "copy_companions", "has_tokenizer", "origin"]

FOLDER = "huggingface"  # in a saved model
CONFIG = "config.json"
# Everything that AutoConfig, AutoTokenizer, AutoProcessor and sentence-transformers read, but no weights.
NAMES = (
    CONFIG,
    "generation_config.json",
    "tokenizer*.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "*.model",
    "*processor_config.json",
    "chat_template.*",
    "modules.json",
    "config_sentence_transformers.json",
    "sentence_*_config.json",
    "LICENSE*",
)
MODULES = "modules.json"
SIGNS = (CONFIG, "tokenizer.json", "tokenizer_config.json")  # by which such a folder is known


def origin(model: Any, source: str | None, *tokenizers: str) -> Path | None:
    """The Hugging Face folder that a model came from, by the name it was opened with or by its own word; else
    the folder of a tokenizer.
    """
    own = getattr(model, "name_or_path", None)  # what transformers sets
    names = (source, own if isinstance(own, str) else None, *tokenizers)
    return next((folder for name in names if name and (folder := _folder(name)) is not None), None)


def companions(folder: Path) -> list[Path]:
    """The files that belong to the model and are not its weights."""
    found = {path for pattern in NAMES for path in folder.glob(pattern) if path.is_file()}
    return sorted(found | _modules(folder))


def has_tokenizer(folder: Path) -> bool:
    """Whether a folder holds the files of a tokenizer."""
    return any(
        path.name.startswith(("tokenizer", "vocab")) or path.suffix == ".model" for path in companions(folder)
    )


def copy_companions(folder: Path, target: Path) -> None:
    """Copy them; where a folder holds none, nothing is made."""
    for path in companions(folder):
        place = target / path.relative_to(folder)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, place)


def _folder(name: str) -> Path | None:
    """The folder behind a path or a hub name. An ``.onnx`` file has its tokenizer beside it, or one folder
    up.
    """
    path = Path(name)
    if not path.exists():
        return _downloaded(name)
    places = [path] if path.is_dir() else list(path.parents)[:2]
    return next((place for place in places if any((place / name).is_file() for name in SIGNS)), None)


def _downloaded(name: str) -> Path | None:
    """Where the hub's library keeps a model that it has downloaded."""
    try:
        from huggingface_hub import try_to_load_from_cache

        cached = try_to_load_from_cache(name, CONFIG)
    except (ImportError, ValueError):  # not installed, or not the name of a repository
        return None
    return Path(cached).parent if isinstance(cached, str) else None


def _modules(folder: Path) -> set[Path]:
    """All files of the modules that sentence-transformers puts behind the model: pooling, dense layers."""
    try:
        listed = loads((folder / MODULES).read_text())
        paths = [str(module["path"]) for module in listed if module.get("path")]
    except FileNotFoundError:
        return set()
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ArtifactError(f"{folder / MODULES} cannot be read: {error}.") from error
    inside = [folder / path for path in paths if (folder / path).resolve().is_relative_to(folder.resolve())]
    return {path for module in inside for path in module.rglob("*") if path.is_file()}
