"""Any model can be opened and run, and answers what it answers elsewhere."""

from __future__ import annotations

import shutil
import warnings
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import octune
from octune.errors import ModelError
from octune.opening import Opened, open_model
from tests.digits import config, digits
from tests.foreign import export, onnx_digits, tensorflow_digits

FACTORY = "tests.foreign:digits_network"
MULTIPLY_ADDS = 64 * 96 + 96 * 64 + 64 * 10  # of one image


@pytest.fixture(scope="module")
def answers() -> np.ndarray[Any, Any]:
    with torch.no_grad():
        return digits().model()(digits().test[:20]).numpy()


@pytest.fixture(scope="module")
def images() -> np.ndarray[Any, Any]:
    return digits().test[:20].numpy()


def tuned(source: Any) -> octune.Result:
    labelled = [(x.numpy(), y.numpy()) for x, y in digits().labelled()]
    return octune.tune(
        source, calibration=digits().batches(), evaluation=labelled, metric="accuracy", config=config()
    )


def shares(model: Opened, inputs: Any) -> dict[str, float]:
    covered = model.coverage(inputs)
    assert covered is not None
    assert (covered.bf16, covered.uncounted) == (0.0, {})
    assert covered.multiply_adds == MULTIPLY_ADDS * len(inputs)
    return {"int8": covered.int8, "fp32": covered.fp32}


def test_module_and_factory(images: Any, answers: Any) -> None:
    for source in (digits().model(), FACTORY):
        with closing(open_model(source)) as model:
            assert np.allclose(model.run(images)["output"], answers)
            assert [port.name for port in model.inputs] == ["input"]
            assert str(model.ops) == "0 of 3"
            assert model.size == 4 * sum(p.numel() for p in digits().model().parameters())
    assert open_model(FACTORY).name == FACTORY


def test_pytorch_models_of_other_quantizers(images: Any, answers: Any) -> None:
    from torchao.quantization import Int8DynamicActivationInt8WeightConfig, Int8WeightOnlyConfig, quantize_

    float_bytes = open_model(digits().model()).size
    dynamic, weights_only = digits().model(), digits().model()
    quantize_(dynamic, Int8DynamicActivationInt8WeightConfig())
    quantize_(weights_only, Int8WeightOnlyConfig())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        own = torch.ao.quantization.quantize_dynamic(digits().model(), {torch.nn.Linear})
    for int8, covered in ((dynamic, "3 of 3"), (weights_only, "0 of 3"), (own, "3 of 3")):
        with closing(open_model(int8)) as model:
            assert str(model.ops) == covered
            assert shares(model, images) == {
                "int8": float(covered == "3 of 3"),
                "fp32": float(covered != "3 of 3"),
            }
            assert model.size < float_bytes / 3
            assert 0 < np.abs(model.run(images)["output"] - answers).max() < np.ptp(answers) / 4


def test_onnx_files_of_any_quantizer(images: Any, answers: Any) -> None:
    file = onnx_digits() / "fp32.onnx"
    fp32 = open_model(file)
    assert (fp32.kind, str(fp32.ops), fp32.size) == ("ONNX file", "0 of 3", file.stat().st_size)
    assert str(fp32.inputs[0]) == "x (float32[?, 64])"
    assert str(fp32.coverage(images)) == "100% fp32 in Gemm"
    assert np.allclose(fp32.run({"x": images})["logits"], answers, atol=1e-4)
    for name in ("dynamic", "qdq", "qoperator"):
        model = open_model(onnx_digits() / f"{name}.onnx")
        assert str(model.ops) == "3 of 3", name
        assert shares(model, images) == {"int8": 1.0, "fp32": 0.0}, name
        assert model.size < fp32.size
        error = np.abs(model.run(images)["logits"] - answers).max()
        assert 0 < error < np.ptp(answers) / 4


def test_openvino_files(images: Any, answers: Any, tmp_path: Path) -> None:
    openvino = pytest.importorskip("openvino")
    for name, covered in (("fp32", "0 of 3"), ("qdq", "3 of 3")):
        model = openvino.convert_model(onnx_digits() / f"{name}.onnx")
        openvino.save_model(model, tmp_path / f"{name}.xml", compress_to_fp16=False)
        with closing(open_model(tmp_path / f"{name}.xml")) as opened:
            assert (opened.kind, str(opened.ops)) == ("OpenVINO file", covered)
            assert shares(opened, images) == {"int8": float(name == "qdq"), "fp32": float(name == "fp32")}
            assert str(opened.inputs[0]) == "x (float32[?, 64])"
            assert np.abs(opened.run(images)["logits"] - answers).max() < np.ptp(answers) / 4
            assert opened.size > (tmp_path / f"{name}.bin").stat().st_size


def test_folders_around_a_model(images: Any, answers: Any, tmp_path: Path) -> None:
    """As libraries and servers want them: the model is found inside."""
    for place in ("hf/onnx/model.onnx", "triton/1/model.onnx"):
        (tmp_path / place).parent.mkdir(parents=True)
        shutil.copyfile(onnx_digits() / "fp32.onnx", tmp_path / place)
    (tmp_path / "hf/config.json").write_text("{}")
    for name in ("hf", "triton"):
        with closing(open_model(tmp_path / name)) as model:
            assert model.kind == "ONNX file"
            assert np.allclose(model.run(images)["logits"], answers, atol=1e-4)


def test_a_fixed_number_of_rows_is_no_obstacle(images: Any, answers: Any, tmp_path: Path) -> None:
    export(digits().model(), (digits().test[:3],), tmp_path / "three.onnx")
    model = open_model(tmp_path / "three.onnx")
    assert model.rows == 3
    (found,) = model.run(images).values()
    assert np.allclose(found, answers, atol=1e-4)


def test_what_octune_saved(images: Any, tmp_path: Path) -> None:
    for source, name in ((digits().model(), "pytorch"), (str(onnx_digits() / "fp32.onnx"), "onnx")):
        result = tuned(source)
        result.save(tmp_path / name)
        with closing(open_model(tmp_path / name)) as model:
            assert (model.kind, str(model.ops)) == (f"Octune folder ({name})", "3 of 3")
            (found,) = model.run(images).values()
            told = result.coverage
            assert told is not None
            assert shares(model, images)["int8"] == pytest.approx(told.int8)
        with closing(open_model(result.model)) as alive:
            assert str(alive.ops) == "3 of 3"
            (same,) = alive.run(images).values()
        assert np.array_equal(found, same)


def test_an_exported_program(images: Any, answers: Any, tmp_path: Path) -> None:
    rows = torch.export.Dim.AUTO
    program = torch.export.export(digits().model(), (digits().test[:3],), dynamic_shapes=({0: rows},))
    torch.export.save(program, tmp_path / "model.pt2")
    with closing(open_model(tmp_path / "model.pt2")) as model:
        assert (model.kind, str(model.ops)) == ("torch.export program", "0 of 3")
        assert np.allclose(model.run(images)["output"], answers, atol=1e-5)
        assert [(port.dtype, port.shape) for port in model.inputs] == [(np.float32, (None, 64))]
        assert np.allclose(model.run({model.inputs[0].name: images})["output"], answers, atol=1e-5)


@pytest.mark.slow
def test_tensorflow_in_every_form(images: Any, answers: Any, tmp_path: Path) -> None:
    folder = tensorflow_digits()
    tuned(str(folder / "saved")).save(tmp_path / "octune")
    exact = {
        "frozen.pb": "frozen graph",
        "model.keras": "Keras file",
        "saved": "SavedModel",
        "fp32.tflite": "LiteRT file",
    }
    for name, kind in exact.items():
        with closing(open_model(folder / name)) as model:
            (found,) = model.run(images).values()
            assert (model.kind, str(model.ops)) == (kind, "0 of 3"), name
            assert shares(model, images) == {"int8": 0.0, "fp32": 1.0}, name
            assert [(port.name, port.shape) for port in model.inputs] == [("x", (None, 64))], name
            assert np.allclose(found, answers, atol=1e-4)
    for path in (folder / "int8.tflite", tmp_path / "octune"):
        with closing(open_model(path)) as model:
            (found,) = model.run(images).values()
            assert str(model.ops) == "3 of 3", path
            assert shares(model, images)["int8"] > 0.9, path
            assert 0 < np.abs(found - answers).max() < np.ptp(answers) / 4


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("/nowhere/model.onnx", "There is no file"),
        ("/nowhere/model", "There is no file or folder"),
        ("/nowhere/model.tflite", "There is no file"),
        ("model.pt", "pickled"),
        (Path(__file__), "its kind is not known"),
        (Path(__file__).parent, "not a model's folder"),
        (3, "cannot be run here"),
    ],
)
def test_what_is_no_model_is_refused(source: Any, said: str) -> None:
    with pytest.raises(ModelError, match=said):
        open_model(source)


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    for name in ("model.onnx", "model.xml", "model.tflite", "model.pb", "model.pt2"):
        (tmp_path / name).write_bytes(b"not a model" * 100)
        with pytest.raises(ModelError, match=name):
            open_model(tmp_path / name)
