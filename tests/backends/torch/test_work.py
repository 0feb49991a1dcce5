"""Multiply-adds of PyTorch models: every operator that runs, wherever it was called from."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from octune.backends import Settings, backend_for
from octune.backends.base import Backend
from octune.coverage import Work
from tests.backends.torch.models import image_batches, small_cnn, tiny_bert, token_batches


def work_of(model: nn.Module, *inputs: Any) -> tuple[Backend, Work]:
    backend = backend_for(model.eval(), Settings())
    call = backend.split(inputs if len(inputs) > 1 else inputs[0])[0]
    backend.prepare(call)
    work = backend.work(call)
    assert work is not None
    return backend, work


@pytest.mark.parametrize(
    ("model", "batch"),
    [
        (tiny_bert(), token_batches(1)[0][0]),
        (small_cnn(), image_batches(1)[0][0]),
        (nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)), torch.randn(3, 8)),
    ],
)
def test_the_total_is_that_of_pytorchs_own_counter(model: nn.Module, batch: Any) -> None:
    _, work = work_of(model, batch)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model.eval()
        model(**batch) if isinstance(batch, dict) else model(batch)
    attention = work.unseen.get("scaled_dot_product_attention", 0)  # PyTorch counts it on GPUs alone
    assert work.total - attention == counter.get_total_flops() // 2


def test_each_op_has_its_own() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.Flatten(), nn.Linear(8 * 4 * 4, 10))
    _, work = work_of(model, torch.randn(2, 3, 4, 4))
    assert work.ops == {"0": 2 * 16 * 8 * 27, "2": 2 * 128 * 10}
    assert work.unseen == {}


class Attends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.dense(x)
        return torch.softmax(x @ x.transpose(1, 2), -1) @ x


def test_what_is_not_an_op_is_listed_by_its_type() -> None:
    _, work = work_of(Attends(), torch.randn(2, 5, 8))
    assert work.ops == {"dense": 2 * 5 * 8 * 8}
    assert sum(work.unseen.values()) in (0, 2 * 2 * 5 * 5 * 8) or work.ops.keys() > {"dense"}
    assert work.others["softmax"] == 1


def test_an_lstm_and_attention_have_formulas_of_their_own() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(8, 6, num_layers=2, bidirectional=True, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.lstm(x)[0]
            return nn.functional.scaled_dot_product_attention(x, x, x)

    _, work = work_of(Model(), torch.randn(3, 5, 8))
    lstm = 3 * 5 * 2 * (24 * (8 + 6) + 24 * (12 + 6))
    assert work.total == lstm + 2 * 3 * 5 * 5 * 12


def test_a_fused_encoder_layer_is_taken_apart() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    _, work = work_of(layer, torch.randn(2, 3, 8))
    tokens = 2 * 3
    assert work.total == tokens * (3 * 64 + 64 + 2 * 8 * 16) + 2 * 2 * 3 * 3 * 8
    assert torch.backends.mha.get_fastpath_enabled()


def test_a_weight_that_a_function_reads_belongs_to_its_op() -> None:
    class Reads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.dense = nn.Linear(4, 6)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.linear(self.dense(x) @ self.dense.weight, self.dense.weight)

    _, work = work_of(Reads(), torch.randn(2, 4))
    assert work.total == 3 * 2 * 4 * 6
    assert work.unseen == {}
