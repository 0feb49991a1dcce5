"""Models that were not made by Octune: exported and quantized by other tools, once in a test run.

onnx_digits() / "dynamic.onnx"          # also fp32, qdq, qoperator, broken
tensorflow_digits() / "int8.tflite"     # also fp32.tflite, saved/, model.keras
digits_file(folder / "dev.npz")         # their test data
onnx_classifier(folder, path)           # a Hugging Face classifier as an ONNX file
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.digits import digits
from tests.once import once


def digits_file(path: Path, rows: int | None = None, *, labels: bool = True, name: str = "x") -> Path:
    arrays = {name: digits().test[:rows].numpy()}
    np.savez(path, **arrays, **({"labels": digits().labels[:rows].numpy()} if labels else {}))
    return path


def digits_network() -> torch.nn.Module:
    """For ``tests.foreign:digits_network``."""
    return digits().model()


def export(model: torch.nn.Module, args: Any, path: Path, **options: Any) -> None:
    """The old exporter, which needs no other package and takes a second."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(model, args, path, dynamo=False, opset_version=17, **options)


def onnx_digits() -> Path:
    return once("digits, ONNX", _onnx_digits)


def tensorflow_digits() -> Path:
    return once("digits, TensorFlow", _tensorflow_digits)


def _onnx_digits(folder: Path) -> None:
    from onnxruntime import quantization

    class Reader(quantization.CalibrationDataReader):  # type: ignore[misc]
        def __init__(self, scale: float = 1.0) -> None:
            self._left = iter([{"x": scale * batch.numpy()} for batch in digits().batches()])

        def get_next(self) -> Any:
            return next(self._left, None)

    fp32 = folder / "fp32.onnx"
    axes = {"x": {0: "rows"}, "logits": {0: "rows"}}
    export(
        digits().model(), (digits().test[:2],), fp32,
        input_names=["x"], output_names=["logits"], dynamic_axes=axes,
    )  # fmt: skip
    quantization.quantize_dynamic(fp32, folder / "dynamic.onnx")
    for name, form, scale in (("qdq", "QDQ", 1.0), ("qoperator", "QOperator", 1.0), ("broken", "QDQ", 0.1)):
        # Calibrated on images that are too dark, a model clips most of what it sees.
        quantization.quantize_static(
            fp32, folder / f"{name}.onnx", Reader(scale), quant_format=quantization.QuantFormat[form]
        )


def _tensorflow_digits(folder: Path) -> None:
    import keras
    import tensorflow as tf
    from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

    model = keras.Sequential([keras.Input((64,), name="x")])
    for layer in (module for module in digits().model() if isinstance(module, torch.nn.Linear)):
        last = layer.out_features == 10
        dense = keras.layers.Dense(layer.out_features, activation=None if last else "relu")
        model.add(dense)
        dense.set_weights([layer.weight.detach().numpy().T, layer.bias.detach().numpy()])
    model.save(folder / "model.keras")
    model.export(folder / "saved", verbose=False)
    loaded = tf.saved_model.load(str(folder / "saved"))
    frozen = convert_variables_to_constants_v2(loaded.signatures["serving_default"])
    (folder / "frozen.pb").write_bytes(frozen.graph.as_graph_def().SerializeToString())
    converter = tf.lite.TFLiteConverter.from_saved_model(str(folder / "saved"))
    (folder / "fp32.tflite").write_bytes(converter.convert())
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    converter.representative_dataset = lambda: ([row[None]] for row in digits().train[:50].numpy())
    converter.inference_input_type = converter.inference_output_type = tf.int8
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
    (folder / "int8.tflite").write_bytes(converter.convert())


def onnx_classifier(folder: Path, path: Path, output: str = "output_0") -> Path:
    """The classifier in a Hugging Face folder as an ONNX file that takes int64 ids by their usual names."""
    from transformers import AutoModelForSequenceClassification

    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32).eval()
    names = ["input_ids", "attention_mask", "token_type_ids"]
    ones = torch.ones((2, 8), dtype=torch.int64)
    axes = {name: {0: "rows", 1: "tokens"} for name in names}
    export(
        model, (ones, ones, torch.zeros_like(ones)), path,
        input_names=names, output_names=[output], dynamic_axes=axes | {output: {0: "rows"}},
    )  # fmt: skip
    return path
