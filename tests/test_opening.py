"""Any model can be opened and run, and answers what it answers elsewhere."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import octune
from octune.errors import ModelError
from octune.opening import open_model
from tests.digits import config, digits


@pytest.fixture(scope="module")
def answers() -> np.ndarray[Any, Any]:
    with torch.no_grad():
        return digits().model()(digits().test[:20]).numpy()


@pytest.fixture(scope="module")
def images() -> np.ndarray[Any, Any]:
    return digits().test[:20].numpy()


@pytest.fixture(scope="module")
def onnx_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("onnx") / "digits.onnx"
    torch.onnx.export(
        digits().model(),
        (digits().test[:2],),
        path,
        input_names=["x"],
        output_names=["logits"],
        dynamic_axes={"x": {0: "rows"}, "logits": {0: "rows"}},
        dynamo=False,
    )
    return path


@pytest.fixture(scope="module")
def keras_model() -> Any:
    import keras

    model = keras.Sequential([keras.Input((64,), name="x")])
    for layer in (module for module in digits().model() if isinstance(module, torch.nn.Linear)):
        last = layer.out_features == 10
        dense = keras.layers.Dense(layer.out_features, activation=None if last else "relu")
        model.add(dense)
        dense.set_weights([layer.weight.detach().numpy().T, layer.bias.detach().numpy()])
    return model


def tuned(source: Any) -> octune.Result:
    labelled = [(x.numpy(), y.numpy()) for x, y in digits().labelled()]
    return octune.tune(
        source, calibration=digits().batches(), evaluation=labelled, metric="accuracy", config=config()
    )


def factory() -> torch.nn.Module:
    return digits().model()


def test_module_and_factory(images: Any, answers: Any) -> None:
    for source in (factory(), f"{__name__}:factory"):
        with closing(open_model(source)) as model:
            assert np.allclose(model.run(images)["output"], answers)
            assert [port.name for port in model.inputs] == ["input"]
            assert str(model.coverage) == "0 of 3"
            assert model.size == 4 * sum(p.numel() for p in factory().parameters())
    assert open_model(f"{__name__}:factory").name == f"{__name__}:factory"


def test_onnx_files_of_any_quantizer(onnx_file: Path, images: Any, answers: Any, tmp_path: Path) -> None:
    from onnxruntime import quantization

    class Reader(quantization.CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self._left = iter([{"x": images}])

        def get_next(self) -> Any:
            return next(self._left, None)

    quantization.quantize_dynamic(onnx_file, tmp_path / "dynamic.onnx")
    for name, form in (("qdq", "QDQ"), ("qoperator", "QOperator")):
        quantization.quantize_static(
            onnx_file, tmp_path / f"{name}.onnx", Reader(), quant_format=quantization.QuantFormat[form]
        )
    fp32 = open_model(onnx_file)
    assert (fp32.kind, str(fp32.coverage), fp32.size) == ("ONNX file", "0 of 3", onnx_file.stat().st_size)
    assert str(fp32.inputs[0]) == "x (float32[?, 64])"
    assert np.allclose(fp32.run({"x": images})["logits"], answers, atol=1e-4)
    for name in ("dynamic", "qdq", "qoperator"):
        model = open_model(tmp_path / f"{name}.onnx")
        assert str(model.coverage) == "3 of 3", name
        assert model.size < fp32.size
        error = np.abs(model.run(images)["logits"] - answers).max()
        assert 0 < error < np.ptp(answers) / 4


def test_a_fixed_number_of_rows_is_no_obstacle(images: Any, answers: Any, tmp_path: Path) -> None:
    torch.onnx.export(digits().model(), (digits().test[:3],), tmp_path / "three.onnx", dynamo=False)
    model = open_model(tmp_path / "three.onnx")
    assert model.rows == 3
    (found,) = model.run(images).values()
    assert np.allclose(found, answers, atol=1e-4)


def test_what_octune_saved(images: Any, tmp_path: Path, onnx_file: Path) -> None:
    for source, name in ((factory(), "pytorch"), (str(onnx_file), "onnx")):
        result = tuned(source)
        result.save(tmp_path / name)
        with closing(open_model(tmp_path / name)) as model:
            assert (model.kind, str(model.coverage)) == (f"Octune folder ({name})", "3 of 3")
            (found,) = model.run(images).values()
        with closing(open_model(result.model)) as alive:
            assert str(alive.coverage) == "3 of 3"
            (same,) = alive.run(images).values()
        assert np.array_equal(found, same)


@pytest.mark.slow
def test_tensorflow_in_every_form(keras_model: Any, images: Any, answers: Any, tmp_path: Path) -> None:
    import tensorflow as tf

    keras_model.save(tmp_path / "model.keras")
    keras_model.export(tmp_path / "saved", verbose=False)
    converter = tf.lite.TFLiteConverter.from_saved_model(str(tmp_path / "saved"))
    (tmp_path / "fp32.tflite").write_bytes(converter.convert())
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    converter.representative_dataset = lambda: ([row[None]] for row in digits().train[:50].numpy())
    converter.inference_input_type = converter.inference_output_type = tf.int8
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
    (tmp_path / "int8.tflite").write_bytes(converter.convert())
    tuned(str(tmp_path / "saved")).save(tmp_path / "octune")
    exact = {"model.keras": "Keras file", "saved": "SavedModel", "fp32.tflite": "LiteRT file"}
    for name, kind in exact.items():
        with closing(open_model(tmp_path / name)) as model:
            (found,) = model.run(images).values()
            assert (model.kind, str(model.coverage)) == (kind, "0 of 3"), name
            assert [(port.name, port.shape) for port in model.inputs] == [("x", (None, 64))], name
            assert np.allclose(found, answers, atol=1e-4)
    for name in ("int8.tflite", "octune"):
        with closing(open_model(tmp_path / name)) as model:
            (found,) = model.run(images).values()
            assert str(model.coverage) == "3 of 3", name
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
    for name in ("model.onnx", "model.tflite", "model.pb", "model.pt2"):
        (tmp_path / name).write_bytes(b"not a model" * 100)
        with pytest.raises(ModelError, match=name):
            open_model(tmp_path / name)
