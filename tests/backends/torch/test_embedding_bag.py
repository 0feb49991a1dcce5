"""Bags of rows: what nn.EmbeddingBag computes, from int8 and bf16 tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from octune.backends import Settings
from octune.backends.torch import TorchBackend
from octune.backends.torch.kinds import EmbeddingBag
from octune.int8 import Limit
from octune.plan import Plan, Scheme
from tests.backends.contract import calibrated, int8_plan

IDS = torch.tensor([4, 1, 0, 9, 2, 2, 0, 7])
CALLS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {"input": IDS.reshape(2, 4)}),
    ({}, {"input": IDS, "offsets": torch.tensor([0, 3, 3, 6])}),
    ({"padding_idx": 0}, {"input": IDS, "offsets": torch.tensor([0, 2, 3])}),
    ({"include_last_offset": True}, {"input": IDS, "offsets": torch.tensor([0, 2, 8])}),
    ({}, {"input": IDS.int(), "offsets": torch.tensor([0, 2, 7]).int()}),
]


@pytest.mark.parametrize("scheme", [Scheme.int8("weight"), Scheme.bf16()], ids=str)
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("number", range(len(CALLS)))
def test_bags_are_those_of_a_float_table(scheme: Scheme, mode: str, number: int) -> None:
    torch.manual_seed(0)
    arguments, call = CALLS[number]
    module = nn.EmbeddingBag(10, 16, mode=mode, **arguments).requires_grad_(False)
    layer = EmbeddingBag(module).layer(scheme, None, limit=Limit.PAIRS)
    wanted, got = module(**call), layer(**call)
    assert torch.allclose(got, wanted, atol=0.02 * float(module.weight.abs().max()) * 4)
    assert not torch.equal(got, wanted)


def test_weights_of_samples() -> None:
    torch.manual_seed(0)
    module = nn.EmbeddingBag(10, 16, mode="sum").requires_grad_(False)
    layer = EmbeddingBag(module).layer(Scheme.int8("weight"), None, limit=Limit.PAIRS)
    call = {"input": IDS, "offsets": torch.tensor([0, 5]), "per_sample_weights": torch.rand(8)}
    assert torch.allclose(layer(**call), module(**call), atol=0.1)


def test_a_table_that_renormalises_is_listed() -> None:
    (op,) = TorchBackend(nn.Sequential(nn.EmbeddingBag(10, 4, max_norm=1.0)), Settings()).ops()
    assert op.schemes == (Scheme.fp32(),)
    assert "max_norm" in op.note


class Words(nn.Module):
    """A bag of words and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.EmbeddingBag(500, 32), nn.Linear(32, 4)

    def forward(self, ids: torch.Tensor, starts: torch.Tensor | None = None) -> torch.Tensor:
        return self.head(self.words(ids, starts))


@pytest.mark.parametrize(
    "batch",
    [
        {"ids": torch.randint(0, 500, (6, 9), generator=torch.Generator().manual_seed(0))},
        {"ids": torch.randint(0, 500, (40,)), "starts": torch.tensor([0, 9, 13, 30])},
    ],
    ids=["padded", "with offsets"],
)
def test_found_looked_at_timed_applied_and_saved(batch: dict[str, torch.Tensor], tmp_path: Path) -> None:
    torch.manual_seed(0)
    backend = TorchBackend(Words().eval(), Settings())
    ranges = calibrated(backend, [batch])
    op = backend.ops()[0]
    assert (op.name, op.kind, op.parameters) == ("words", "embedding_bag", 500 * 32)
    plan, call = int8_plan(backend, ranges), backend.split(batch)[0]
    schemes = [scheme for scheme in op.schemes if scheme.dtype != "fp32"]
    harm = backend.harm({"words": schemes}, ranges, [call])
    assert all(0 < harm["words", scheme] < 0.01 for scheme in schemes)
    assert all(backend.alone(op, scheme, ranges)() is not None for scheme in op.schemes)
    wanted = backend.run(backend.apply(Plan(), ranges), call)["output"]
    int8 = backend.apply(plan, ranges)
    got = backend.run(int8, call)["output"]
    assert np.abs(got - wanted).max() < 0.05 * np.abs(wanted).max()
    metadata = backend.writer()(int8, tmp_path)
    for factory in (None, Words):
        loaded = TorchBackend.load(tmp_path, metadata, factory)
        np.testing.assert_array_equal(backend.run(loaded, call)["output"], got)
