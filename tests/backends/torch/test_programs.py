"""Exported programs go in like any other model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from octune.backends import Settings
from octune.backends.batches import Inputs
from octune.backends.torch import TorchBackend
from octune.backends.torch.compiled import export
from octune.errors import ModelError
from tests.backends.contract import calibrated, int8_plan
from tests.backends.torch.models import image_batches, small_cnn, tiny_bert, token_batches


def test_a_program_of_a_bert_is_quantized_under_its_old_names(tmp_path: Path) -> None:
    model, batches = tiny_bert(), token_batches()
    original = TorchBackend(model, Settings())
    program, _ = export(model, original.split(batches[0])[0])
    torch.export.save(program, tmp_path / "model.pt2")
    backend = TorchBackend(TorchBackend.open(str(tmp_path / "model.pt2")), Settings())
    assert {op.name for op in backend.ops()} == {op.name for op in original.ops()}
    ranges = calibrated(backend, batches)
    call = backend.split(batches[0])[0]
    wanted = original.run(original.fp32_model(), call)["logits"]
    np.testing.assert_allclose(
        backend.run(backend.fp32_model(), call)["logits"], wanted, rtol=1e-4, atol=1e-5
    )
    int8 = backend.run(backend.apply(int8_plan(backend, ranges), ranges), call)["logits"]
    ours = original.run(original.apply(int8_plan(original, ranges), calibrated(original, batches)), call)[
        "logits"
    ]
    np.testing.assert_allclose(int8, ours, atol=0.1 * np.abs(wanted).max())
    assert not np.array_equal(int8, wanted)


def test_a_program_of_a_cnn_has_its_batchnorms_folded(tmp_path: Path) -> None:
    model, batches = small_cnn(), image_batches()
    program, _ = export(model, Inputs((batches[0][0],)))
    torch.export.save(program, tmp_path / "model.pt2")
    backend = TorchBackend(TorchBackend.open(str(tmp_path / "model.pt2")), Settings())
    calibrated(backend, batches)
    assert any("folded into convolutions: 5 BatchNorms" in note for note in backend.notes)


@pytest.mark.parametrize("name", ["missing.pt2", "weights.pt", "nothing/here/at/all"])
def test_what_cannot_be_opened_is_refused(name: str, tmp_path: Path) -> None:
    torch.save(nn.Linear(2, 2).state_dict(), tmp_path / "weights.pt")
    with pytest.raises(ModelError):
        TorchBackend.open(str(tmp_path / name))
