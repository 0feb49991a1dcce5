"""The kinds of modules that can be quantized. A new kind is one file here and one entry in ``KINDS``.

kind = kind_of(module)              # a Conv2d, for example; None for modules that always stay as they are
kind.obstacle                       # why this module cannot be quantized, or ""
kind.layer(scheme, stats, limit=limit)
"""

from __future__ import annotations

from torch import nn

from octune.backends.torch.kinds.base import Kind
from octune.backends.torch.kinds.conv import Conv1d, Conv2d, Conv3d
from octune.backends.torch.kinds.embedding import Embedding, EmbeddingBag
from octune.backends.torch.kinds.linear import Linear, TransposedLinear
from octune.backends.torch.kinds.recurrent import GRU, LSTM, PlainRNN
from octune.backends.torch.kinds.transposed import ConvTranspose1d, ConvTranspose2d, ConvTranspose3d
from octune.backends.torch.layers import Layer

__all__ = [
    "KINDS",
    "LAYERS",
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "ConvTranspose3d",
    "Embedding",
    "EmbeddingBag",
    "GRU",
    "Kind",
    "LSTM",
    "Linear",
    "PlainRNN",
    "TransposedLinear",
    "kind_of",
]

KINDS: tuple[type[Kind], ...] = (
    Linear,
    TransposedLinear,
    Conv1d,
    Conv2d,
    Conv3d,
    ConvTranspose1d,
    ConvTranspose2d,
    ConvTranspose3d,
    Embedding,
    EmbeddingBag,
    LSTM,
    GRU,
    PlainRNN,
)
# By the names that saved models know them by.
LAYERS: dict[str, type[Layer]] = {layer.kind: layer for kind in KINDS for layer in kind.layers.values()}


def kind_of(module: nn.Module) -> Kind | None:
    """What kind of op a module is; None if it is not one that can be quantized."""
    return next((kind(module) for kind in KINDS if kind.recognises(module)), None)
