"""tune() and quantize() against the models that users really bring, and what is saved of them. All on a real,
small model.
"""

from __future__ import annotations

import gc
import json
import math
import subprocess
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import octune  # noqa: E402
from octune import Plan, Result, Scheme  # noqa: E402
from octune.errors import ArtifactError, ModelError, PlanError  # noqa: E402
from tests.digits import Digits, config, network  # noqa: E402
from tests.end_to_end.user_code import only_on_trials, raise_, tune  # noqa: E402

# -- the user's model ----------------------------------------------------------------------------------------


def fingerprint(model: nn.Module) -> dict[str, Any]:
    """Everything that must be as it was."""
    return {
        "tensors": {
            name: (t.dtype, t.shape, t.data_ptr(), t.detach().contiguous().view(torch.uint8).tolist())
            for name, t in model.state_dict().items()
        },
        "parameters": {
            name: (id(p), p.requires_grad, p.grad is None) for name, p in model.named_parameters()
        },
        "modules": {
            name: (
                id(m),
                type(m),
                m.training,
                tuple(m._forward_hooks),
                tuple(m._forward_pre_hooks),
                tuple(m._backward_hooks),
                set(m.__dict__),
            )
            for name, m in model.named_modules()
        },
    }


def hooked(model: nn.Sequential) -> nn.Sequential:
    model[0].register_forward_hook(lambda module, args, output: output * 1.0)
    model[2].register_forward_pre_hook(lambda module, args: None)
    return model


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("plain", lambda model: model),
        ("train mode", lambda model: model.train()),
        ("half weights", lambda model: model.half()),
        ("bfloat16 weights", lambda model: model.bfloat16()),
        ("hooks", hooked),
        ("frozen", lambda model: model.requires_grad_(False)),
        ("one part in train mode", lambda model: [model[2].train(), model][1]),
    ],
)
def test_the_users_model_is_not_changed(data: Digits, name: str, change: Callable[[Any], Any]) -> None:
    model = change(data.model())
    before = fingerprint(model)
    result = tune(data, data.accuracy, model=model)
    assert fingerprint(model) == before
    assert result.met
    assert result.plan.counts() == {"int8": 3}
    assert result.model is not model
    if "train" in name.split()[0]:
        assert any("train mode" in note for note in result.notes)
    if "weights" in name:
        assert any("float32" in note for note in result.notes)


def test_the_users_model_is_not_reached_through_the_result(data: Digits) -> None:
    model = data.model()
    before = fingerprint(model)
    result = tune(
        data, only_on_trials(data, lambda model: raise_(RuntimeError("no"))), model=model, max_trials=1
    )
    assert result.best is result.baseline
    with torch.no_grad():
        for parameter in result.model.parameters():
            parameter.zero_()
    assert fingerprint(model) == before


def test_hooks_are_called_on_the_quantized_model_too(data: Digits) -> None:
    model = data.model()
    # a hook that is part of what the model computes
    model[0].register_forward_hook(lambda module, args, output: output * 0.0)
    result = tune(data, lambda model: 1.0, model=model)
    with torch.no_grad():
        assert torch.allclose(result.model(data.test), model(data.test), atol=0.05)
        assert float(result.model(data.test).std(dim=0).max()) == 0.0


def test_evaluate_in_train_mode_does_not_reach_other_trials(data: Digits) -> None:
    class Normed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.norm = data.model(), nn.BatchNorm1d(10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.norm(self.net(x))

    def careless(model: nn.Module) -> float:
        model.train()  # running statistics are now updated in place
        return data.accuracy(model)

    model = Normed().eval()
    result = tune(data, careless, model=model)
    for found in (result.model, model):
        assert torch.equal(found.norm.running_mean, torch.zeros(10))
        assert int(found.norm.num_batches_tracked) == 0


def test_a_half_model_is_evaluated_with_half_inputs(data: Digits) -> None:
    result = tune(data, lambda model: data.accuracy(lambda x: model(x.half())), model=data.model().half())
    assert result.met


def test_a_linear_that_is_called_by_keyword(data: Digits) -> None:
    class Keyword(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.last = data.model(), nn.Linear(10, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(input=self.net(x))

    result = tune(data, lambda model: data.accuracy(model.net), model=Keyword())
    assert result.met


def test_a_model_that_cannot_be_copied(data: Digits) -> None:
    model = data.model()
    model.source = (n for n in range(3))  # type: ignore[assignment]
    with pytest.raises(ModelError, match="cannot be copied"):
        tune(data, data.accuracy, model=model)


def test_a_model_with_nothing_to_quantize(data: Digits) -> None:
    result = tune(data, lambda model: 1.0, model=nn.Sequential(nn.ReLU()))
    assert isinstance(result, Result)
    assert result.best is result.baseline
    assert "not smaller than fp32 here, so fp32 is handed back" in result.stopped_because
    assert any("no op that can be quantized" in note for note in result.notes)
    assert torch.equal(result.model(data.test), torch.relu(data.test))
    assert str(result)


def test_a_quantized_model_is_not_quantized_again(data: Digits, tuned: Result) -> None:
    with pytest.raises(ModelError, match="already quantized"):
        tune(data, data.accuracy, model=tuned.model)


def test_an_op_that_calibration_never_saw_says_so(data: Digits) -> None:
    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.unused = data.model(), nn.Linear(64, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.net(x)

    result = tune(data, data.accuracy, model=Branches())
    assert result.kept == {"unused": "never ran in calibration"}
    assert "unused stays fp32: never ran in calibration" in str(result)


def test_nan_in_calibration_data_keeps_everything_float(data: Digits) -> None:
    result = tune(data, data.accuracy, calibration=[torch.full((4, 64), math.nan)])
    assert result.best is result.baseline
    assert all("infinite or NaN" in op.note for op in result.ops)


def test_global_random_state_is_left_alone(data: Digits) -> None:
    model = data.model()
    before = torch.random.get_rng_state()
    octune.tune(
        model,
        calibration=data.batches(),
        evaluate=data.accuracy,
        config={"performance": {"compile": "never", "iterations": 1}},
    )
    assert torch.equal(torch.random.get_rng_state(), before)


# -- quantize ------------------------------------------------------------------------------------------------


def test_quantize_with_calibration(data: Digits, caplog: pytest.LogCaptureFixture) -> None:
    model = data.model()
    before = fingerprint(model)
    quantized = octune.quantize(model, calibration=data.batches(), config=config())
    assert fingerprint(model) == before
    assert {getattr(m, "kind", "") for m in quantized if not isinstance(m, nn.ReLU)} == {"int8_linear"}
    assert data.accuracy(quantized) > 0.9
    assert "accuracy was not checked" in caplog.text


def test_quantize_without_calibration(data: Digits, caplog: pytest.LogCaptureFixture) -> None:
    quantized = octune.quantize(data.model(), config=config())
    assert {getattr(m, "kind", "") for m in quantized if not isinstance(m, nn.ReLU)} == {
        "int8_dynamic_linear"
    }
    assert data.accuracy(quantized) > 0.9
    assert "only dynamic schemes" in caplog.text


def test_quantize_with_a_plan(data: Digits, tuned: Result) -> None:
    quantized = octune.quantize(data.model(), calibration=data.batches(), plan=tuned.plan)
    # model + plan + ranges, and nothing else
    assert torch.equal(quantized(data.test), tuned.model(data.test))
    part = octune.quantize(data.model(), plan=Plan({"0": Scheme.int8("dynamic")}))
    assert type(part[2]) is nn.Linear
    as_mapping = octune.quantize(data.model(), plan={"0": Scheme.int8("dynamic")})  # type: ignore[arg-type]
    assert as_mapping[0].kind == "int8_dynamic_linear"


def test_quantize_with_an_impossible_plan(data: Digits) -> None:
    with pytest.raises(PlanError, match="'fc', which the model does not have"):
        octune.quantize(data.model(), plan=Plan({"fc": Scheme.fp32()}))
    with pytest.raises(PlanError, match="needs calibration data"):
        octune.quantize(data.model(), plan=Plan({"0": Scheme.int8()}))


# -- save and load -------------------------------------------------------------------------------------------

LOAD = """
import sys, numpy as np, octune, torch
torch.set_num_threads(1)
model = octune.load(sys.argv[1])
x = torch.from_numpy(np.load(sys.argv[2]))
with torch.no_grad():
    np.save(sys.argv[3], model(x).numpy())
"""


@pytest.fixture(scope="module")
def saved(tuned: Result, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tuned.save(tmp_path_factory.mktemp("models") / "digits")


def copy_of(saved: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "copy"
    folder.mkdir(parents=True)
    for path in saved.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


def test_a_saved_model_loads_in_a_process_that_knows_nothing(
    data: Digits, tuned: Result, saved: Path, tmp_path: Path
) -> None:
    # The digits are sixteenths, which lie exactly between two uint8 values: a little noise, so that no
    # rounding of ties has a say.
    x = data.test + 1e-3 * torch.randn(data.test.shape, generator=torch.Generator().manual_seed(0))
    np.save(tmp_path / "x.npy", x.numpy())
    names = [str(saved), str(tmp_path / "x.npy"), str(tmp_path / "y.npy")]
    done = subprocess.run([sys.executable, "-c", LOAD, *names], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    with torch.no_grad():
        assert np.array_equal(np.load(tmp_path / "y.npy"), tuned.model(x).numpy())


def test_a_saved_model_loads_with_a_factory(data: Digits, tuned: Result, saved: Path) -> None:
    model = octune.load(saved, factory=network)
    assert isinstance(model, nn.Sequential)
    assert torch.equal(model(data.test), tuned.model(data.test))


def test_the_wrong_factory_is_refused(saved: Path) -> None:
    with pytest.raises(ArtifactError):
        octune.load(saved, factory=lambda: nn.Sequential(nn.Linear(64, 10)))


def test_a_manifest_tells_the_story(saved: Path, tuned: Result) -> None:
    manifest = json.loads((saved / "octune.json").read_text())
    assert Plan.from_json(manifest["plan"]) == tuned.plan
    assert manifest["plan_digest"] == tuned.plan.digest
    assert manifest["met"] is True
    assert not [path for path in saved.iterdir() if path.suffix in (".pkl", ".pickle", ".pt", ".bin")]


@pytest.mark.parametrize("harm", ["truncated", "tampered", "emptied", "deleted"])
def test_a_damaged_file_is_refused(saved: Path, tmp_path: Path, harm: str) -> None:
    for name in sorted(path.name for path in saved.iterdir() if path.name != "octune.json"):
        folder = copy_of(saved, tmp_path / name)
        content = (folder / name).read_bytes()
        middle = len(content) // 2
        if harm == "deleted":
            (folder / name).unlink()
        elif harm == "tampered":
            (folder / name).write_bytes(
                content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
            )
        else:
            (folder / name).write_bytes(content[:-1] if harm == "truncated" else b"")
        with pytest.raises(ArtifactError, match=name):
            octune.load(folder)


@pytest.mark.parametrize("length", [0, 1, 100, -2])
def test_a_truncated_manifest_is_refused(saved: Path, tmp_path: Path, length: int) -> None:
    folder = copy_of(saved, tmp_path)
    path = folder / "octune.json"
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(ArtifactError, match=r"octune\.json"):
        octune.load(folder)


@pytest.mark.parametrize(
    "content",
    [
        "[]",
        "{}",
        "null",
        '{"format": 1, "files": []}',
        '{"format": 1, "files": {"../x": "0"}}',
        '{"format": 99, "files": {}}',
    ],
)
def test_a_manifest_that_makes_no_sense_is_refused(saved: Path, tmp_path: Path, content: str) -> None:
    folder = copy_of(saved, tmp_path)
    (folder / "octune.json").write_text(content)
    with pytest.raises(ArtifactError):
        octune.load(folder)


def test_a_tampered_manifest_is_refused(saved: Path, tmp_path: Path) -> None:
    folder = copy_of(saved, tmp_path)
    manifest = json.loads((folder / "octune.json").read_text())
    layer = next(iter(manifest["backend"]["layers"].values()))
    layer["settings"]["scale"] *= 2
    (folder / "octune.json").write_text(json.dumps(manifest))
    with pytest.raises(ArtifactError):
        octune.load(folder, factory=network)


def test_what_is_no_saved_model(tmp_path: Path) -> None:
    for folder, said in ((tmp_path, "is not a saved model"), (tmp_path / "none", "There is no folder")):
        with pytest.raises(ArtifactError, match=said):
            octune.load(folder)


def test_saving_does_not_overwrite_without_being_told(tuned: Result, saved: Path, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="exists and is not empty"):
        tuned.save(saved)
    (tmp_path / "thesis.txt").write_text("three years of work")
    with pytest.raises(ArtifactError, match="not a saved model"):
        tuned.save(tmp_path, overwrite=True)
    assert (tmp_path / "thesis.txt").exists()
    folder = tuned.save(tmp_path / "new" / "folder")
    assert tuned.save(folder, overwrite=True) == folder
    assert sorted(path.name for path in folder.parent.iterdir()) == ["folder"]  # nothing is left lying around


def test_saving_where_nothing_can_be_written(tuned: Result, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ArtifactError):
        tuned.save(tmp_path / "file" / "model")


def test_the_fp32_model_can_be_saved_when_it_is_what_was_handed_back(data: Digits, tmp_path: Path) -> None:
    result = tune(data, only_on_trials(data, lambda model: raise_(RuntimeError("no"))), max_trials=1)
    model = octune.load(result.save(tmp_path / "model"))
    with torch.no_grad():
        assert torch.allclose(model(data.test), data.model()(data.test), atol=1e-6)


def test_a_model_tuned_without_calibration_data_can_be_loaded(data: Digits, tmp_path: Path) -> None:
    result = octune.tune(data.model(), evaluate=data.accuracy, config=config())
    model = octune.load(result.save(tmp_path / "model"))
    with torch.no_grad():
        assert torch.allclose(model(data.test), result.model(data.test), atol=1e-5)


def test_what_quantize_returns_can_be_saved(data: Digits, tmp_path: Path) -> None:
    quantized = octune.quantize(data.model(), calibration=data.batches(), config=config())
    octune.save(quantized, tmp_path / "model")
    loaded = octune.load(tmp_path / "model", factory=network)
    assert torch.equal(loaded(data.test), quantized(data.test))
    told = json.loads((tmp_path / "model" / "octune.json").read_text())
    assert told["met"] is False
    assert "accuracy was not checked" in told["stopped_because"]
    with pytest.raises(ArtifactError, match="exists and is not empty"):
        octune.save(quantized, tmp_path / "model")
    with pytest.raises(ArtifactError, match=r"Sequential is not what octune\.quantize returned"):
        octune.save(data.model(), tmp_path / "other")
    maker = weakref.ref(quantized)
    del quantized
    gc.collect()
    assert maker() is None, "what is remembered keeps the model alive"
