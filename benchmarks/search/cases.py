"""Two small models that read scikit-learn's digits, trained in seconds, and made hard for int8.

    case = cnn(seed=0)              # or transformer(seed=0)
    case.model, case.calibration, case.evaluation

Hard means: some channels between two ops are made hundreds of times larger, and the weights that read them as
much smaller. In fp32 the model computes the same; in plain int8 these channels take the range of all others.
Real transformers have outliers of this kind.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from sklearn.datasets import load_digits
from torch import nn

__all__ = ["CASES", "Case", "cnn", "transformer"]

TRAIN = 1000
BATCH = 64
Batches = list[tuple[torch.Tensor, torch.Tensor]]


@dataclass(frozen=True)
class Case:
    """A model, and data to calibrate and to score it on."""

    name: str
    model: nn.Module
    calibration: Batches
    evaluation: Batches

    def accuracy(self, model: nn.Module) -> float:
        """The share of right answers."""
        with torch.inference_mode():
            hits = sum(int((model(x).argmax(1) == y).sum()) for x, y in self.evaluation)
        return hits / sum(len(y) for _, y in self.evaluation)


class Cnn(nn.Module):
    """Six convolutions and two linears."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        widths = [1, width, width, 2 * width, 2 * width, 2 * width, 2 * width]
        self.convs = nn.ModuleList(nn.Conv2d(a, b, 3, padding=1) for a, b in pairwise(widths))
        self.hidden, self.head = nn.Linear(2 * width * 4, 128), nn.Linear(128, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for index, conv in enumerate(self.convs):
            x = conv(x).relu()
            if index in (1, 3):
                x = nn.functional.max_pool2d(x, 2)
        return self.head(self.hidden(x.flatten(1)).relu())  # type: ignore[no-any-return]


class Layer(nn.Module):
    """Attention and a feed-forward part with a gate, each behind a LayerNorm: eight matmuls."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value, self.output = (nn.Linear(width, width) for _ in range(4))
        self.up, self.gate, self.mix, self.down = (
            nn.Linear(*size) for size in ((width, 2 * width),) * 2 + ((2 * width,) * 2, (2 * width, width))
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm1(x)
        q, k, v = (
            part(y).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        mixed = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = x + self.output(mixed)
        y = self.norm2(x)
        return x + self.down(self.mix(self.up(y) * self.gate(y).sigmoid()).relu())  # type: ignore[no-any-return]


class Transformer(nn.Module):
    """Reads the eight rows of an image; four layers of eight matmuls between an embedding and a head."""

    def __init__(self, width: int = 96, layers: int = 4, heads: int = 4) -> None:
        super().__init__()
        self.embed, self.place = nn.Linear(8, width), nn.Parameter(torch.zeros(8, width))
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x.squeeze(1)) + self.place
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x.mean(dim=1)))  # type: ignore[no-any-return]


def cnn(seed: int = 0, factor: float = 300.0, channels: int = 2) -> Case:
    """The convolutional net, with outlier channels between some of its convolutions."""
    model = Cnn()
    train, evaluation = _data()
    _train(model, train, seed, steps=160, rate=2e-3)
    pick = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for index in (0, 2, 4):
            makes, reads = model.convs[index], model.convs[index + 1]
            _grow(makes, reads, torch.randperm(makes.out_channels, generator=pick)[:channels], factor)
    return Case("cnn", model.eval(), train[:4], evaluation)


def transformer(seed: int = 0, factor: float = 300.0, channels: int = 2) -> Case:
    """The transformer, with outlier channels in values, behind LayerNorms and inside feed-forward parts."""
    model = Transformer()
    train, evaluation = _data()
    _train(model, train, seed, steps=240, rate=2e-3)
    pick = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for index in (0, 2):
            layer = model.layers[index]
            _grow(
                layer.value,
                layer.output,
                torch.randperm(layer.value.out_features, generator=pick)[:channels],
                factor,
            )
            _grow(
                layer.mix,
                layer.down,
                torch.randperm(layer.mix.out_features, generator=pick)[:channels],
                factor,
            )
        layer = model.layers[3]
        chosen = torch.randperm(layer.norm2.weight.numel(), generator=pick)[:channels]
        layer.norm2.weight[chosen] *= factor
        layer.norm2.bias[chosen] *= factor
        for reads in (layer.up, layer.gate):
            reads.weight[:, chosen] /= factor
    return Case("transformer", model.eval(), train[:4], evaluation)


CASES: dict[str, Callable[[int], Case]] = {"cnn": cnn, "transformer": transformer}


def _grow(makes: nn.Module, reads: nn.Module, channels: torch.Tensor, factor: float) -> None:
    """Channels ``factor`` times as large between two ops, and the weights that read them as much smaller."""
    makes.get_parameter("weight")[channels] *= factor
    makes.get_parameter("bias")[channels] *= factor
    reads.get_parameter("weight")[:, channels] /= factor


def _data() -> tuple[Batches, Batches]:
    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    x, y = (
        torch.tensor(images / 16, dtype=torch.float32).reshape(-1, 1, 8, 8)[order],
        torch.tensor(labels)[order],
    )
    batches = [(x[start : start + BATCH], y[start : start + BATCH]) for start in range(0, len(x), BATCH)]
    return batches[: TRAIN // BATCH], batches[TRAIN // BATCH :]


def _train(model: nn.Module, train: Batches, seed: int, steps: int, rate: float) -> None:
    """A few epochs of Adam; ``seed`` decides the weights it begins with."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.zero_()
            elif parameter.ndim > 1:
                fan = parameter[0].numel()
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * (1.5 / fan) ** 0.5)
    optimizer = torch.optim.Adam(model.parameters(), rate)
    threads = torch.get_num_threads()
    # or sums would be taken in an order of their own every time, and every training give another model
    torch.set_num_threads(1)
    for step in range(steps):
        x, y = train[step % len(train)]
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    torch.set_num_threads(threads)
    model.requires_grad_(False)
