"""TensorFlow models are served by plain TensorFlow, in a process that never saw Octune."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf

import octune
from octune import Plan, Result
from octune.errors import CriterionError, UnsupportedError
from octune.export import export
from tests.backends.tensorflow.subjects import SIZE, digits, graph_def, saved_model

# What TensorFlow Serving does: load the newest version, call serving_default.
SERVER = """
import json, sys
import numpy as np, tensorflow as tf
loaded = tf.saved_model.load(sys.argv[1])
serve = loaded.signatures["serving_default"]
inputs = json.load(sys.stdin)
outputs = serve(**{name: tf.constant(value, tf.float32) for name, value in inputs.items()})
assert "octune" not in sys.modules
print(json.dumps({name: np.asarray(value).tolist() for name, value in outputs.items()}))
"""


def served(folder: Path, **inputs: Any) -> dict[str, Any]:
    given = json.dumps({name: array.tolist() for name, array in inputs.items()})
    done = subprocess.run(
        [sys.executable, "-c", SERVER, str(folder)], input=given, capture_output=True, text=True, check=True
    )
    return {name: np.asarray(value) for name, value in json.loads(done.stdout.splitlines()[-1]).items()}


def tuned(source: Any, **config: Any) -> Result:
    data = digits()
    result = octune.tune(
        source, calibration=data.batches(), config={**SIZE, "criterion": {"relative": 0.1}, **config}
    )
    assert result.plan.names("int8")
    return result


@pytest.fixture(scope="module")
def fp32(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved_model(tmp_path_factory.mktemp("fp32") / "model")


@pytest.fixture(scope="module")
def folder(fp32: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved int8 model with all its ops in int8 but the second."""
    kept = {"quantization": {"ops": {".*dense_1.*": {"weight": {"dtype": ["fp32"]}}}}}
    result = tuned(fp32, **kept)
    assert len(result.plan.names("int8")) == 2
    return result.save(tmp_path_factory.mktemp("saved") / "digits")


def test_a_saved_model(folder: Path, tmp_path: Path) -> None:
    written = export(folder, "tfserving", tmp_path / "models")
    assert (written / "1/saved_model.pb").exists()
    pixels = digits().test[:8]
    answers = served(written / "1", pixels=pixels)
    own = octune.load(folder)(pixels=tf.constant(pixels))
    assert set(answers) == {"logits", "probabilities"}
    np.testing.assert_allclose(answers["logits"], own["logits"], atol=1e-5)
    with pytest.raises(UnsupportedError, match="--model"):
        export(folder, "triton", tmp_path / "triton")


def test_a_frozen_graph(tmp_path: Path) -> None:
    result = tuned(graph_def(), model={"inputs": ["x"], "outputs": ["logits"]})
    written = result.save(tmp_path / "models" / "digits", layout="tfserving")
    pixels = digits().test[:8]
    assert written == tmp_path / "models" / "digits"
    answers = served(written / "1", x=pixels)
    with tf.compat.v1.Session(graph=result.model) as session:
        own = session.run("logits:0", {"x:0": pixels})
    np.testing.assert_allclose(answers["logits"], own, atol=1e-5)


def test_a_twin_in_onnx(folder: Path, fp32: Path, tmp_path: Path) -> None:
    pytest.importorskip("tf2onnx")
    onnxruntime = pytest.importorskip("onnxruntime")
    data = digits()
    written = export(folder, "triton", tmp_path, model=str(fp32), calibration=data.batches(), criterion="10%")
    session = onnxruntime.InferenceSession(str(written / "1/model.onnx"))
    logits = session.run(["logits"], {"pixels": data.test})[0]
    own = octune.load(folder)(pixels=tf.constant(data.test))["logits"]
    assert np.mean(logits.argmax(1) == np.asarray(own).argmax(1)) > 0.97
    assert not np.array_equal(logits, own)


# -- LiteRT --------------------------------------------------------------------------------------------------


def interpreter(path: Path) -> Any:
    """The file in the interpreter of plain TensorFlow."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is to move to a package of its own
        return tf.lite.Interpreter(str(path))


def test_litert_follows_the_plan(folder: Path, fp32: Path, tmp_path: Path) -> None:
    data = digits()
    labelled = [(data.test[i : i + 100], data.labels[i : i + 100]) for i in range(0, 500, 100)]
    given = {"model": str(fp32), "evaluation": labelled, "metric": "accuracy", "criterion": "2%"}
    written = export(folder, "litert", tmp_path / "lite", **given)
    opened = interpreter(written / "model.tflite")
    int8 = [one["name"] for one in opened.get_tensor_details() if one["dtype"] == np.int8]
    assert len(int8) == 2
    assert not any("dense_1" in name for name in int8)
    logits = opened.get_signature_runner("serving_default")(pixels=data.test)["logits"]
    own = octune.load(folder)(pixels=tf.constant(data.test))["logits"]
    assert np.mean(logits.argmax(1) == np.asarray(own).argmax(1)) > 0.97
    card = (written / "README.md").read_text()
    assert "int8 (litert)" in card
    assert "n=500" in card


def test_litert_computes_gelu(tmp_path: Path) -> None:
    from octune.backends.tensorflow.backend import TensorFlowBackend
    from octune.backends.terms import Settings

    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [None, 8], name="x")
        tf.identity(tf.nn.gelu(x, approximate=False) + tf.math.erf(x), name="y")
    file, _ = TensorFlowBackend.to_litert(graph.as_graph_def(), Settings(("x",), ("y",)), Plan({}))
    (tmp_path / "gelu.tflite").write_bytes(file)
    given = np.linspace(-4, 4, 80, dtype=np.float32).reshape(10, 8)
    got = interpreter(tmp_path / "gelu.tflite").get_signature_runner()(x=given)["y"]
    np.testing.assert_allclose(got, tf.nn.gelu(given) + tf.math.erf(given), atol=2e-6)


def test_a_litert_file_that_fails_is_not_written(folder: Path, fp32: Path, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="--model"):
        export(folder, "litert", tmp_path / "lite")
    with pytest.raises(CriterionError, match="nothing was written"):
        export(
            folder,
            "litert",
            tmp_path / "lite",
            model=str(fp32),
            evaluation=[(digits().test, digits().labels)],
            metric="accuracy",
            criterion={"absolute": -0.5},
        )
    assert not (tmp_path / "lite").exists()


def test_an_onnx_model_is_not_for_tensorflow(saved: Path, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"reads savedmodel.* is onnx\. Choose another"):
        export(saved, "tfserving", tmp_path)
