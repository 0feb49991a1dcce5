"""The models that are timed: architectures of transformers with seeded random weights, so that nothing is downloaded.

    subject = SUBJECTS["bert-base"](quick=False)
    subject.model(**subject.inputs("b1 s128"))

Speed does not depend on what the weights are. Accuracy does: errors of such models say that the kernels compute what they
should, and nothing about a task.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

__all__ = ["SUBJECTS", "Inputs", "Subject", "bert"]

Inputs = dict[str, torch.Tensor]
VOCABULARY = 30522
SEED = 0


@dataclass(frozen=True)
class Subject:
    """One model with the shapes it is timed on. ``free`` names the dimensions that compiled forms must leave open."""

    name: str
    title: str
    model: nn.Module
    shapes: Mapping[str, tuple[int, ...]]
    draw: Callable[[tuple[int, ...], torch.Generator], Inputs]
    batch: tuple[int, ...]
    free: Mapping[int, tuple[str, int, int]]

    def inputs(self, shape: str) -> Inputs:
        """What the model is timed on; the same for everybody."""
        return self.draw(self.shapes[shape], torch.Generator().manual_seed(SEED + 1))

    def batches(self, count: int, seed: int) -> list[Inputs]:
        """Batches to calibrate on, or (another seed) to compare outputs on."""
        generator = torch.Generator().manual_seed(seed)
        return [self.draw(self.batch, generator) for _ in range(count)]


def _tokens(shape: tuple[int, ...], generator: torch.Generator) -> Inputs:
    ids = torch.randint(1000, VOCABULARY, shape, generator=generator)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "token_type_ids": torch.zeros_like(ids)}


def _images(shape: tuple[int, ...], generator: torch.Generator) -> Inputs:
    return {"pixel_values": torch.randn(shape, generator=generator)}


def _transformers() -> Any:
    return importlib.import_module("transformers")  # not needed to read this module; most of it is untyped


def bert(**config: Any) -> nn.Module:
    """A BERT classifier with seeded random weights."""
    library = _transformers()
    torch.manual_seed(SEED)
    model: nn.Module = library.BertForSequenceClassification(library.BertConfig(**config))
    return model.eval()


def _text(name: str, title: str, **config: Any) -> Subject:
    shapes = {"b1 s128": (1, 128), "b8 s128": (8, 128), "b1 s384": (1, 384)}
    free = {0: ("batch", 1, 1024), 1: ("tokens", 2, 512)}
    return Subject(name, title, bert(**config), shapes, _tokens, (8, 128), free)


def _bert_base(quick: bool) -> Subject:
    layers = 2 if quick else 12
    return _text("bert-base", f"BERT-base, {layers} layers", num_hidden_layers=layers)


def _minilm(quick: bool) -> Subject:
    layers = 2 if quick else 6
    return _text(
        "minilm",
        f"MiniLM-L6 (width 384), {layers} layers",
        hidden_size=384,
        num_hidden_layers=layers,
        num_attention_heads=12,
        intermediate_size=1536,
    )


def _learn_statistics(model: nn.Module) -> None:
    """Fresh BatchNorm statistics (mean 0, variance 1) would let activations grow from block to block until int8 means nothing."""
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    for norm in norms:
        norm.momentum = None  # the plain average over all passes
    generator = torch.Generator().manual_seed(SEED)
    model.train()
    with torch.no_grad():
        for _ in range(3):
            model(**_images((4, 3, 128, 128), generator))
    model.eval()


def _resnet50(quick: bool) -> Subject:
    library = _transformers()
    torch.manual_seed(SEED)
    depths = [1, 2, 1, 1] if quick else [3, 4, 6, 3]
    model: nn.Module = library.ResNetForImageClassification(library.ResNetConfig(depths=depths, num_labels=1000))
    _learn_statistics(model)
    shapes = {"b1 224x224": (1, 3, 224, 224), "b8 224x224": (8, 3, 224, 224)}
    title = "ResNet-50" if not quick else f"ResNet, {sum(depths)} bottleneck blocks"
    return Subject("resnet50", title, model, shapes, _images, (8, 3, 224, 224), {0: ("batch", 1, 1024)})


SUBJECTS: dict[str, Callable[[bool], Subject]] = {"bert-base": _bert_base, "minilm": _minilm, "resnet50": _resnet50}
