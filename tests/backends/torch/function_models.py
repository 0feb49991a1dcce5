"""Small models as people write them, whose weights are used by functions, and what should be found there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn


def parameter(*size: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(*size) / 8)


def vectors(count: int = 2) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(4, 12, 64, generator=generator) for _ in range(count)]


def tokens(count: int = 2) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(0, 200, (4, 12), generator=generator) for _ in range(count)]


def images(count: int = 2) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(4, 3, 16, 16, generator=generator) for _ in range(count)]


class Encoder(nn.Module):
    """A classifier on PyTorch's own encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(200, 64)
        layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1)
        self.head = nn.Linear(64, 5)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.encoder(self.words(ids))[:, 0])
        return out


class Decoder(nn.Module):
    """Cross attention, a causal mask, and padding."""

    def __init__(self) -> None:
        super().__init__()
        self.decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(64, 4, 128, batch_first=True), 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(5)
        out: torch.Tensor = self.decoder(x[:, :5], x, tgt_mask=mask, memory_key_padding_mask=x[..., 0] > 1.5)
        return out


class Vision(nn.Module):
    """A vision transformer: patches by a convolution, a class token, attention that is asked for weights."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 64, 4, stride=4)
        self.token, self.places = parameter(1, 1, 64), parameter(1, 17, 64)
        self.norm, self.attention = nn.LayerNorm(64), nn.MultiheadAttention(64, 4, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64))
        self.head = parameter(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], dim=1) + self.places
        y = self.norm(x)
        x = x + self.attention(y, y, y)[0]
        x = x + self.mlp(x)
        return x[:, 0] @ self.head


class Packed(nn.Module):
    """Attention of its own, with packed parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv_weight, self.qkv_bias = parameter(192, 64), parameter(192)
        self.out, self.up, self.down = parameter(64, 64), parameter(64, 128), parameter(128, 64)
        self.places = parameter(50, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x + self.places[: x.shape[1]]
        q, k, v = F.linear(h, self.qkv_weight, self.qkv_bias).chunk(3, -1)
        h = h + F.scaled_dot_product_attention(q, k, v) @ self.out.t()
        return h + torch.matmul(torch.relu(h @ self.up), self.down)


class Einsums(nn.Module):
    """Relative attention by einsum, with the sequence first, as XLNet has it."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.o = parameter(64, 4, 16), parameter(64, 4, 16), parameter(64, 4, 16)
        self.each = parameter(4, 16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x.transpose(0, 1)
        q, k = (torch.einsum("ibh,hnd->ibnd", h, weight) for weight in (self.q, self.k))
        q = torch.einsum("ibnd,nde->ibne", q, self.each)
        weights = torch.einsum("ibnd,jbnd->bnij", q, k).softmax(-1)
        mixed = torch.einsum("bnij,jbnd->ibnd", weights, k)
        return torch.einsum("ibnd,hnd->ibh", mixed, self.o).transpose(0, 1)


class Branching(nn.Module):
    """What it computes depends on the numbers, and the other branch reads a weight in another way."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = parameter(64, 64), parameter(64, 64), parameter(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.linear(x, self.first)
        y = F.linear(y, self.second) if x.sum() > 0 else 2 * (y @ self.second) + self.second.sum()
        return F.linear(y, self.third * 2)


class Convolutions(nn.Module):
    """A stored filter, a fixed one, and a padding that has no kernel of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.bias, self.norm = parameter(16, 3, 3, 3), parameter(16), nn.BatchNorm2d(16)
        self.mirrored = nn.Conv2d(16, 16, 3, padding=1, padding_mode="reflect")
        self.register_buffer("blur", torch.ones(16, 1, 3, 3) / 9)
        self.head = parameter(10, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(F.conv2d(x, self.stem, self.bias, stride=2, padding=1)))
        x = F.conv2d(self.mirrored(x), self.blur, groups=16)  # type: ignore[arg-type]
        return F.linear(x.mean((2, 3)), self.head)


class Tied(nn.Module):
    """Words are predicted with the table that they are looked up in."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.dense, self.places = nn.Embedding(200, 64), nn.Linear(64, 64), parameter(30, 64)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        h = self.words(ids) + F.embedding(ids % 30, self.places)
        return F.linear(torch.relu(self.dense(h)), self.words.weight)


class Mirrored(nn.Module):
    """An autoencoder that decodes with the weight that it encodes with."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.bias = nn.Linear(64, 48), parameter(64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(torch.relu(self.encode(x)), self.encode.weight.t(), self.bias)


class Adapted(nn.Linear):
    """A linear layer with a low-rank one beside it."""

    def __init__(self) -> None:
        super().__init__(64, 32)
        self.down, self.up = parameter(8, 64), parameter(32, 8)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input) + F.linear(F.linear(input, self.down), self.up)


class Experts(nn.Module):
    """A weight of which every row of the batch uses a part."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = parameter(3, 32, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = x.new_zeros(*x.shape[:-1], 32)
        for number in torch.arange(3):
            out = out + F.linear(x, self.experts[number])
        return out


class Mixture(nn.Module):
    """Every sequence goes through all experts, each of which has a matrix of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = parameter(3, 64, 256), parameter(3, 256, 64)
        self.gate = parameter(3, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.relu(torch.bmm(x.flatten(0, 1).expand(3, -1, -1), self.up))
        y = torch.einsum("eti,eio->teo", h, self.down)
        weights = F.linear(x.flatten(0, 1), self.gate).softmax(-1)
        return (y * weights.unsqueeze(-1)).sum(1).view_as(x)


class Listed(nn.Module):
    """Weights in a list, in a dictionary and in a row, cast to the type of what they multiply."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ParameterList([parameter(64, 64), parameter(64, 64)])
        self.named = nn.ParameterDict({"last": parameter(16, 64)})
        self.row = parameter(2, 64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for weight in self.layers:
            x = torch.tanh(F.linear(x, weight.type_as(x)))
        for weight in self.row:
            x = torch.tanh(x @ weight.to(x))
        return F.linear(x, self.named["last"])


class Cells(nn.Module):
    """A decoder that runs step by step, with a cell of each class."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LSTMCell(64, 64), nn.GRUCell(64, 64, bias=False)
        self.plain, self.last = nn.RNNCell(64, 64, nonlinearity="relu"), nn.RNNCell(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state, others, made = None, [None, None, None], []
        for step in x[:, :5].unbind(1):
            state = self.first(step, state)
            y, kept = state[0], list[torch.Tensor]()
            for cell, own in zip((self.second, self.plain, self.last), others, strict=True):
                kept.append(y := cell(y, own))
            others = kept
            made.append(y)
        return torch.stack(made, 1)


@dataclass(frozen=True)
class Case:
    """A model, its data, and what should be found."""

    make: Callable[[], nn.Module]
    batches: list[Any]
    ops: dict[str, str]
    floats: dict[str, str] = field(default_factory=dict)  # with a part of the reason
    size: float = 0.45
    exports: bool = True


def linears(*names: str) -> dict[str, str]:
    return dict.fromkeys(names, "linear")


MODELS = [
    Case(
        Encoder,
        tokens(),
        {
            "words": "embedding",
            **linears(
                "encoder.layers.0.self_attn.in_proj",
                "encoder.layers.0.self_attn.out_proj",
                "encoder.layers.0.linear1",
                "encoder.layers.0.linear2",
                "head",
            ),
        },
    ),
    Case(
        Decoder,
        vectors(),
        linears(
            "decoder.layers.0.self_attn.in_proj",
            "decoder.layers.0.self_attn.out_proj",
            "decoder.layers.0.multihead_attn.in_proj_q",
            "decoder.layers.0.multihead_attn.in_proj_kv",
            "decoder.layers.0.multihead_attn.out_proj",
            "decoder.layers.0.linear1",
            "decoder.layers.0.linear2",
        ),
    ),
    Case(
        Vision,
        images(),
        {
            "patches": "conv2d",
            **linears("attention.in_proj", "attention.out_proj", "mlp.0", "mlp.2", "head"),
        },
    ),
    Case(Packed, vectors(), linears("qkv", "out", "up", "down")),
    Case(
        Einsums,
        vectors(),
        {**linears("q", "k", "o"), "each": "einsum"},
        {"each": "not a product with one large matrix"},
    ),
    Case(
        Branching,
        [x.abs() for x in vectors()],
        linears("first", "second", "third"),
        {"third": "computed at every call"},
        size=0.6,
        exports=False,
    ),
    Case(
        Convolutions,
        images(),
        {"stem": "conv2d", "mirrored": "conv2d", "blur": "conv2d", "head": "linear"},
    ),
    Case(
        Tied,
        tokens(),
        {
            "words": "embedding",
            "places": "embedding",
            **linears("words.weight_linear", "dense"),
        },
        size=0.55,  # the table is kept twice
    ),
    Case(Mirrored, vectors(), linears("encode", "encode.weight_1"), size=0.8),  # the weight is kept twice
    Case(Adapted, vectors(), linears("down", "up", "weight")),
    Case(
        Mixture,
        vectors(),
        linears(*(f"{name}_{number}" for name in ("up", "down") for number in range(3)), "gate"),
    ),
    Case(Listed, vectors(), linears("layers.0", "layers.1", "row_0", "row_1", "named.last")),
    Case(
        Cells,
        vectors(),
        linears(
            *(f"{name}.weight_{of}" for name in ("first", "second", "plain", "last") for of in ("ih", "hh"))
        ),
    ),
    Case(Experts, vectors(), linears("experts_0", "experts_1", "experts_2"), exports=False),
]
