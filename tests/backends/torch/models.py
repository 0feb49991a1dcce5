"""Small real models for the tests: random weights, but real architectures, kernels and shapes."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import BertConfig, BertForSequenceClassification


def tiny_bert(seed: int = 0) -> BertForSequenceClassification:
    """Two layers of width 64; weights larger than at initialisation, so that its outputs differ between
    inputs.
    """
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=200,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=64,
    )
    model = BertForSequenceClassification(config).eval()
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.Linear):
                module.weight.mul_(4)
    return model


def token_batches(count: int = 3, rows: int = 8, length: int = 12, seed: int = 0) -> list[Any]:
    """(inputs, label) with padding at the end of some rows."""
    generator = torch.Generator().manual_seed(seed)
    batches = []
    for _ in range(count):
        ids = torch.randint(5, 200, (rows, length), generator=generator)
        mask = torch.ones_like(ids)
        mask[::2, length // 2 :] = 0
        label = torch.randint(0, 2, (rows,), generator=generator)
        batches.append(({"input_ids": ids * mask, "attention_mask": mask}, label))
    return batches


class Block(nn.Module):
    """conv-bn-relu-conv-bn, added to its input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(y)) + x)


class SmallCnn(nn.Module):
    """A stem, two residual blocks, a depthwise convolution and a head."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
        )
        self.blocks = nn.Sequential(Block(width), Block(width))
        self.depthwise = nn.Conv2d(width, width, 3, padding=1, groups=width)
        self.head = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.depthwise(self.blocks(self.stem(x)))
        return self.head(x.mean(dim=(2, 3)))


def trained_norms(model: nn.Module, batch: torch.Tensor) -> nn.Module:
    """With BatchNorm statistics that are not those of initialisation."""
    model.train()
    with torch.no_grad():
        for _ in range(4):
            model(torch.randn_like(batch))
        model.head.weight.mul_(8)  # type: ignore[union-attr,operator]
    return model.eval()


def small_cnn(seed: int = 0) -> nn.Module:
    """Trained as little as that."""
    torch.manual_seed(seed)
    return trained_norms(SmallCnn(), torch.empty(16, 3, 16, 16))


def image_batches(count: int = 3, rows: int = 8, seed: int = 0) -> list[Any]:
    """(images, label)."""
    generator = torch.Generator().manual_seed(seed)
    return [
        (
            torch.randn(rows, 3, 16, 16, generator=generator),
            torch.randint(0, 10, (rows,), generator=generator),
        )
        for _ in range(count)
    ]
