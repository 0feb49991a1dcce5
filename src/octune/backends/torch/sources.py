"""Opening the PyTorch models that a configuration names."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import nn

from octune.backends.torch.programs import from_program
from octune.errors import MissingDependency, ModelError, summary

__all__ = ["open_model"]


def open_model(source: str) -> nn.Module:
    """A Hugging Face folder or hub name, or a program saved by ``torch.export`` (``.pt2``)."""
    path = Path(source)
    if path.suffix == ".pt2":
        return _exported(path)
    if path.suffix in (".pt", ".pth", ".bin"):
        raise ModelError(
            f"{source} holds pickled objects, which can run any code when they are read. "
            "Give a Hugging Face folder, a torch.export program (.pt2), or package.module:factory that "
            "builds the model."
        )
    return _hugging_face(source)


def _exported(path: Path) -> nn.Module:
    if not path.exists():
        raise ModelError(f"There is no file {path}. Expected a program saved by torch.export.save().")
    try:
        return from_program(torch.export.load(path))
    except Exception as error:
        raise ModelError(f"{path} is not a program saved by torch.export.save(): {error}") from error


def _hugging_face(source: str) -> nn.Module:
    try:
        import transformers
    except ImportError as error:
        raise MissingDependency("transformers", "torch", f"Loading {source!r}") from error
    path = Path(source)
    if path.exists() and not (path / "config.json").exists():
        raise ModelError(
            f"{source} has no config.json, so it is not a Hugging Face folder. It holds: "
            f"{sorted(p.name for p in path.iterdir())[:8]}."
        )
    if not path.exists() and (source.startswith((".", "/", "~")) or source.count("/") > 1):
        raise ModelError(
            f"There is no folder {source}. Expected a Hugging Face folder, a hub name such as "
            "bert-base-uncased, or package.module:factory."
        )
    try:
        config = transformers.AutoConfig.from_pretrained(source)
        names = config.architectures or []
        model_class = getattr(transformers, names[0], None) if names else None
        # transformers 5 loads a checkpoint in the type it was saved in; the baseline is fp32.
        model: nn.Module = (model_class or transformers.AutoModel).from_pretrained(
            source, dtype=torch.float32
        )
    except (OSError, ValueError, json.JSONDecodeError) as error:
        where = "the folder" if path.exists() else "the hub (is the machine offline?)"
        raise ModelError(f"{source!r} cannot be loaded from {where}: {summary(error)}") from error
    return model.eval()
