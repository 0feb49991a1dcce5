"""Two nets that read digits, trained in seconds, with channels made a hundred times larger where fp32 cannot
tell and int8 can.

A channel is multiplied where it is made and divided where it is read, so the function stays the same.
Per-tensor ranges of activations are then taken by a few channels, and int8 loses the rest.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt
import torch
from onnx import ModelProto
from sklearn.datasets import load_digits
from torch import nn

from octune.backends.onnx.runtimes import OnnxModel
from tests.backends.onnx.models import exported

TRAINING = 1200
STRONG = 300.0


class Cnn(nn.Module):
    """Six convolutions and two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        widths = [1, 16, 16, 32, 32, 32, 32]
        self.convs = nn.ModuleList(nn.Conv2d(a, b, 3, padding=1) for a, b in itertools.pairwise(widths))
        self.hidden, self.head = nn.Linear(32 * 4, 64), nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for index, conv in enumerate(self.convs):
            x = torch.relu(conv(x))
            if index in (1, 3):
                x = torch.max_pool2d(x, 2)
        return self.head(torch.relu(self.hidden(x.flatten(1))))


class Layer(nn.Module):
    """Attention and a perceptron, each after a normalisation and added to its input."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.fc1, self.fc2 = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, width = x.shape
        y = self.first(x)
        q, k, v = (
            part(y).reshape(rows, length, self.heads, -1).transpose(1, 2) for part in (self.q, self.k, self.v)
        )
        weights = (q @ k.transpose(2, 3) / (width / self.heads) ** 0.5).softmax(-1)
        x = x + self.o((weights @ v).transpose(1, 2).reshape(rows, length, width))
        return x + self.fc2(torch.relu(self.fc1(self.second(x))))


class Transformer(nn.Module):
    """Four layers that read an image row by row."""

    def __init__(self, width: int = 64, heads: int = 4) -> None:
        super().__init__()
        self.embed, self.place = nn.Linear(8, width), nn.Parameter(0.1 * torch.randn(8, width))
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(4))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x) + self.place
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x.mean(1)))


@dataclass(frozen=True)
class Case:
    """A model, data to calibrate on, and labelled data."""

    model: ModelProto
    images: npt.NDArray[np.float32]
    labels: npt.NDArray[np.int64]

    def batches(self, count: int = 8, size: int = 16) -> list[npt.NDArray[np.float32]]:
        return [self.images[i * size : (i + 1) * size] for i in range(count)]

    def hits(self, model: OnnxModel) -> npt.NDArray[np.float64]:
        """One number for every image that was not trained on: whether it was read right."""
        (logits,) = model.run(None, {"x": self.images[TRAINING:]})
        return np.asarray(logits.argmax(1) == self.labels[TRAINING:], np.float64)


def _scaled(
    out_weight: torch.Tensor,
    out_bias: torch.Tensor,
    reader: torch.Tensor,
    channels: list[int],
    spread: int = 1,
) -> None:
    """Make output channels of one op larger, and the weights that read them smaller. ``spread``: features for
    every channel.
    """
    for rank, channel in enumerate(channels):
        factor = STRONG / (1 + 3 * rank)
        out_weight[channel] *= factor
        out_bias[channel] *= factor
        reader[:, channel * spread : (channel + 1) * spread] /= factor


def _inject_cnn(model: Cnn) -> None:
    convs = model.convs
    for i, j, channels in ((0, 1, [3]), (2, 3, [5, 9]), (3, 4, [7])):
        _scaled(convs[i].weight, convs[i].bias, convs[j].weight, channels)
    _scaled(convs[5].weight, convs[5].bias, model.hidden.weight, [11], spread=4)


def _inject_transformer(model: Transformer) -> None:
    for index in (1, 2):
        layer = model.layers[index]
        for norm, readers, channel in (
            (layer.first, (layer.q, layer.k, layer.v), 5),
            (layer.second, (layer.fc1,), 17),
        ):
            norm.weight[channel] *= STRONG
            norm.bias[channel] *= STRONG
            for reader in readers:
                reader.weight[:, channel] /= STRONG
        _scaled(layer.fc1.weight, layer.fc1.bias, layer.fc2.weight, [3, 40])


def _trained(model: nn.Module, x: torch.Tensor, y: torch.Tensor, epochs: int) -> nn.Module:
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(epochs):
        for rows in torch.randperm(TRAINING).split(60):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
    return model.eval()


def _case(kind: type[Cnn] | type[Transformer], epochs: int, inject: bool) -> Case:
    images, labels = load_digits(return_X_y=True)
    shape = (-1, 1, 8, 8) if kind is Cnn else (-1, 8, 8)
    x, y = torch.tensor(images / 16, dtype=torch.float32).reshape(shape), torch.tensor(labels)
    state, threads = torch.random.get_rng_state(), torch.get_num_threads()
    torch.manual_seed(0)
    torch.set_num_threads(1)  # nets this small are slower on two
    model = _trained(kind(), x, y, epochs)
    torch.set_num_threads(threads)
    torch.random.set_rng_state(state)
    if inject:
        with torch.no_grad():
            (_inject_cnn if isinstance(model, Cnn) else _inject_transformer)(model)  # type: ignore[arg-type]
    return Case(exported(model, {"x": x[:4]}, ["logits"]), x.numpy(), y.numpy())


@cache
def cnn_case(inject: bool = True) -> Case:
    return _case(Cnn, 10, inject)


@cache
def transformer_case(inject: bool = True) -> Case:
    return _case(Transformer, 14, inject)
