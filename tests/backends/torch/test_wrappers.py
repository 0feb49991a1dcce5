"""Models in torch.compile, DataParallel and the like are tuned as what is inside, under the names it has."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed
from torch import nn
from torch.optim.swa_utils import AveragedModel

import octune
from octune.backends import Settings
from octune.backends.torch import TorchBackend
from octune.errors import ModelError
from tests.backends.contract import calibrated, int8_plan

WRAPPERS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "torch.compile": torch.compile,  # type: ignore[dict-item]
    "DataParallel": nn.DataParallel,
    "AveragedModel": AveragedModel,
    "torch.compile, DataParallel": lambda model: torch.compile(nn.DataParallel(model)),  # type: ignore[dict-item]
}
BATCH = (torch.randn(16, 8, generator=torch.Generator().manual_seed(0)), torch.arange(16) % 4)


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4)).eval()


@pytest.mark.parametrize("name", WRAPPERS)
def test_a_wrapped_model_is_quantized_as_what_is_inside(name: str, tmp_path: Path) -> None:
    wrapped = WRAPPERS[name](net())
    plain, backend = TorchBackend(net(), Settings()), TorchBackend(wrapped, Settings())
    assert backend.ops() == plain.ops()
    assert backend.fingerprint() == plain.fingerprint()
    assert any(f"the model: taken out of {name}," in note for note in backend.notes)
    ranges = calibrated(backend, [BATCH])
    model, call = backend.apply(int8_plan(backend, ranges), ranges), backend.split(BATCH)[0]
    wanted = backend.run(model, call)["output"]
    assert not np.array_equal(wanted, backend.run(net(), call)["output"])
    metadata = backend.writer()(model, tmp_path)
    for factory in (None, net, lambda: WRAPPERS[name](net())):
        loaded = TorchBackend.load(tmp_path, metadata, factory)
        np.testing.assert_array_equal(backend.run(loaded, call)["output"], wanted)


def test_distributed() -> None:
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        backend = TorchBackend(nn.parallel.DistributedDataParallel(net()), Settings())
    finally:
        torch.distributed.destroy_process_group()
    assert [op.name for op in backend.ops()] == ["0", "2"]


def test_wrapped_parts_are_taken_out_and_the_model_itself_stays_as_it_is() -> None:
    model = nn.Sequential(torch.compile(net()), nn.DataParallel(nn.Linear(4, 4)))  # type: ignore[arg-type]
    before = [type(module) for module in model.modules()]
    backend = TorchBackend(model, Settings())
    assert [op.name for op in backend.ops()] == ["0.0", "0.2", "1"]
    assert any("parts of the model: taken out of" in note for note in backend.notes)
    assert [type(module) for module in model.modules()] == before


def test_a_model_compiled_in_place_is_copied_without_its_code() -> None:
    model = net()
    model.compile()
    backend = TorchBackend(model, Settings())
    assert len(calibrated(backend, [BATCH])) == 2  # hooks saw both
    assert model._compiled_call_impl is not None


def test_a_class_of_its_own_on_top_of_a_wrapper_is_left_as_it_is() -> None:
    class Doubled(nn.DataParallel):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(x)

    assert [op.name for op in TorchBackend(Doubled(net()), Settings()).ops()] == ["module.0", "module.2"]


def test_a_compiled_model_is_tuned_and_int8_passes() -> None:
    torch.manual_seed(0)
    big = nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 512), nn.ReLU(), nn.Linear(512, 4))
    batches = [(torch.randn(64, 512), torch.arange(64) % 4) for _ in range(2)]
    result = octune.tune(
        torch.compile(big.eval()),  # type: ignore[arg-type]
        calibration=batches,
        evaluation=batches,
        metric=lambda outputs, labels: float((outputs.argmax(-1) == labels).mean()),
        criterion={"absolute": 0.5},
        config={"performance": {"compile": "never"}},
        progress=False,
    )
    first = result.trials[0]  # which of the trials is fastest depends on the machine
    assert first.passed
    assert set(first.plan.names("int8")) == {"0", "2", "4"}


def test_a_scripted_model_is_refused_with_what_to_do() -> None:
    with pytest.raises(ModelError, match=r"ScriptModule.*give the one that was scripted"):
        TorchBackend(torch.jit.script(net()), Settings())
