"""ONNX models from end to end: outlier channels that break int8 are repaired, files go in and come out,
PyTorch models are exported.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import octune
from octune.backends import Settings, as_onnx
from octune.errors import ConfigError, MissingDependency, ModelError, UnsupportedError
from tests.backends.onnx.models import cnn
from tests.backends.onnx.outliers import Case, cnn_case, transformer_case
from tests.backends.torch.models import image_batches, tiny_bert, token_batches

# On models this small speed decides by luck; size does not.
SIZE = {"tuning": {"objective": "modelsize"}, "performance": {"iterations": 3}}


def counted(case: Case) -> tuple[Any, list[str]]:
    calls: list[str] = []

    def evaluate(model: Any) -> Any:
        calls.append(model.runtime)
        return case.hits(model)

    return evaluate, calls


@pytest.mark.slow
@pytest.mark.parametrize(("name", "least"), [("cnn", 7), ("transformer", 32)])
def test_outlier_channels_are_repaired_and_nearly_everything_is_int8(name: str, least: int) -> None:
    make = cnn_case if name == "cnn" else transformer_case
    case, clean = make(), make(inject=False)
    evaluate, calls = counted(case)
    result = octune.tune(case.model, calibration=case.batches(), evaluate=evaluate, config=SIZE)
    fp32 = result.baseline.score
    assert fp32 is not None
    (
        np.testing.assert_allclose(fp32.value, clean.hits(_session(clean)).mean(), atol=0.002),
        "the injection changes nothing in fp32",
    )
    assert result.met
    assert result.plan.counts()["int8"] >= least
    assert len(calls) <= 5  # the baseline and at most four candidates
    assert any(scheme.repairs for scheme in result.plan.values())
    np.testing.assert_allclose(case.hits(result.model).mean(), result.best.score.value)  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["cnn", "transformer"])
def test_int8_without_repairs_fails(name: str) -> None:
    case = cnn_case() if name == "cnn" else transformer_case()
    evaluate, _ = counted(case)
    plan = octune.Plan(
        {
            op.name: next((s for s in op.schemes if s.mode == "static"), octune.Scheme.fp32())
            for op in _ops(case)
        }
    )
    model = octune.quantize(case.model, calibration=case.batches(), plan=plan)
    assert evaluate(model).mean() < 0.99 * evaluate(_session(case)).mean()


def _session(case: Case) -> Any:
    return _backend(case).fp32_model()


def _ops(case: Case) -> Any:
    return _backend(case).ops()


def _backend(case: Case) -> Any:
    from octune.backends import Settings
    from octune.backends.onnx import OnnxBackend

    return OnnxBackend(case.model, Settings(threads=2))


def test_a_file_goes_in_and_a_folder_comes_out(tmp_path: Path) -> None:
    case = cnn_case()
    onnx.save(case.model, tmp_path / "model.onnx")
    result = octune.tune(tmp_path / "model.onnx", calibration=case.batches(), evaluate=case.hits, config=SIZE)
    folder = result.save(tmp_path / "int8")
    np.save(tmp_path / "x.npy", case.images[:20])
    code = (
        "import numpy as np, octune; m = octune.load('int8');"
        "np.save('y.npy', m.run(['logits'], {'x': np.load('x.npy')})[0]); print(m.get_inputs()[0].name, "
        "m.get_outputs()[0].name)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, cwd=tmp_path, capture_output=True, text=True
    )
    assert done.stdout.split() == ["x", "logits"]
    assert np.array_equal(np.load(tmp_path / "y.npy"), result.model.run(None, {"x": case.images[:20]})[0])
    assert (folder / "model.onnx").exists()


def test_a_configuration_names_the_file_the_data_and_the_metric(tmp_path: Path) -> None:
    case = cnn_case()
    onnx.save(case.model, tmp_path / "model.onnx")
    np.savez(tmp_path / "train.npz", x=case.images[:64])
    np.savez(tmp_path / "test.npz", x=case.images[1200:], label=case.labels[1200:])
    config = {
        **SIZE,
        "model": {"path": str(tmp_path / "model.onnx")},
        "calibration": {"data": str(tmp_path / "train.npz")},
        "evaluation": {"data": str(tmp_path / "test.npz"), "metric": "accuracy"},
    }
    result = octune.tune(config=config)
    assert result.met
    assert result.plan.counts()["int8"] >= 6


def test_a_task_for_a_file_needs_a_tokenizer(tmp_path: Path) -> None:
    onnx.save(cnn(), tmp_path / "model.onnx")
    config = {
        "model": {"path": str(tmp_path / "model.onnx")},
        "evaluation": {"data": {"task": "sst-2", "folder": str(tmp_path)}},
    }
    with pytest.raises(UnsupportedError, match=r"evaluation\.data\.tokenizer"):
        octune.tune(config=config)


@pytest.mark.slow
def test_dynamic_only_without_calibration_data() -> None:
    case = transformer_case(inject=False)
    result = octune.tune(case.model, evaluate=case.hits, config=SIZE)
    modes = {scheme.mode for scheme in result.plan.values() if not scheme.is_float}
    assert modes <= {"dynamic", "token"}
    assert result.met


class TestExport:
    def test_a_pytorch_model_is_exported(self) -> None:
        model, batches = tiny_bert(), token_batches(4)
        wanted = [model(**inputs).logits.argmax(-1).numpy() for inputs, _ in batches]

        def evaluate(candidate: Any) -> Any:
            got = [
                candidate.run(["logits"], {k: v.numpy() for k, v in inputs.items()})[0].argmax(-1)
                for inputs, _ in batches
            ]
            return np.concatenate([a == b for a, b in zip(wanted, got, strict=True)]).astype(float)

        result = octune.tune(
            model, calibration=batches, evaluate=evaluate, config={**SIZE, "model": {"target": "onnx"}}
        )
        assert result.baseline.score is not None
        assert result.baseline.score.value == 1.0
        assert result.environment["framework"] == "onnx"
        assert "/bert/encoder/layer.0/attention/self/query/MatMul" in result.plan

    def test_with_a_metric_and_other_lengths(self) -> None:
        batches = [batch for length in (12, 7) for batch in token_batches(2, length=length)]
        config = {**SIZE, "model": {"target": "onnx"}}
        result = octune.tune(
            tiny_bert(), calibration=batches, evaluation=batches, metric="accuracy", config=config
        )
        assert result.baseline.score is not None
        assert result.baseline.score.n == 32

    def test_an_onnx_model_stays_as_it_is(self) -> None:
        batches = image_batches(2)
        config = {**SIZE, "model": {"target": "onnx"}}
        result = octune.tune(cnn(), calibration=batches, evaluation=batches, metric="accuracy", config=config)
        assert result.environment["framework"] == "onnx"

    def test_what_cannot_be_exported_says_so(self) -> None:
        with pytest.raises(ModelError, match=r"object, which no backend knows. Expected one of: pytorch"):
            as_onnx(object(), Settings(), None)
        with pytest.raises(ConfigError, match="exporting needs a batch"):
            octune.tune(tiny_bert(), evaluate=lambda model: 1.0, config={"model": {"target": "onnx"}})

    def test_another_target_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="target"):
            octune.tune(tiny_bert(), evaluate=lambda model: 1.0, config={"model": {"target": "caffe"}})


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in sys.modules if name.startswith(("octune.backends.onnx", "onnxruntime"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    (tmp_path / "model.onnx").write_bytes(b"")
    with pytest.raises(MissingDependency, match=r"octune\[onnx\]"):
        octune.tune(tmp_path / "model.onnx", evaluate=lambda model: 1.0)
