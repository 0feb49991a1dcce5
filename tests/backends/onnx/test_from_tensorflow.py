"""TensorFlow models that are tuned as ONNX."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto

import octune
from octune.backends import Settings, as_onnx
from octune.errors import UnsupportedError

tf = pytest.importorskip("tensorflow")
pytest.importorskip("tf2onnx")

from tests.backends.tensorflow.graphs import bert, bert_feed  # noqa: E402  without TensorFlow there is nothing to import
from tests.backends.tensorflow.subjects import PIPELINE, keras_model, pipeline_graph  # noqa: E402

CONFIG = {"tuning": {"objective": "modelsize"}, "performance": {"iterations": 1}}


def batches(graph: Any, count: int = 3) -> list[dict[str, Any]]:
    by_tensor = {tensor: name for name, tensor in graph.inputs.items()}
    return [
        {by_tensor[tensor]: array for tensor, array in bert_feed(batch=4, seed=seed).items()}
        for seed in range(count)
    ]


def test_a_graph_is_tuned_as_onnx_under_its_own_names() -> None:
    graph = bert()
    data = batches(graph)
    model = {"target": "onnx", "inputs": list(graph.inputs), "outputs": list(graph.outputs.values())}
    result = octune.tune(graph.graph_def, calibration=data, config={**CONFIG, "model": model})
    assert result.environment["framework"] == "onnx"
    assert result.met
    assert {port.name for port in result.model.get_inputs()} == set(graph.inputs)
    outputs = [port.name for port in result.model.get_outputs()]
    assert len(result.plan.names("int8")) >= 6
    with tf.compat.v1.Session(graph=tf.Graph()) as session:
        tf.import_graph_def(graph.graph_def, name="")
        feed = {tensor: data[0][name] for name, tensor in graph.inputs.items()}
        wanted = session.run(list(graph.outputs.values()), feed)
    got = result.model.run(outputs, data[0])
    for a, b in zip(wanted, got, strict=True):
        assert np.abs(a - b).max() < 0.2 * np.abs(a).max()


def test_a_keras_model_computes_the_same() -> None:
    model = keras_model()
    arrays = [
        np.random.default_rng(0).standard_normal((3, *port.shape[1:])).astype(port.dtype)
        for port in model.inputs
    ]
    names = [port.name for port in model.inputs]
    batch = dict(zip(names, arrays, strict=True)) if len(names) > 1 else arrays[0]
    made, _ = as_onnx(model, Settings(), batch)  # compares the answers itself
    assert isinstance(made, ModelProto)
    assert len(made.graph.input) == len(names)


def test_one_that_would_not_fit_is_refused_with_the_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = bert()
    monkeypatch.setattr("octune.backends.tensorflow.to_onnx.COPIES", 10**9)
    with pytest.raises(
        UnsupportedError, match=r"needs about .* GB .* GB are free\. Convert it on a larger machine"
    ):
        as_onnx(
            graph.graph_def, Settings(tuple(graph.inputs), tuple(graph.outputs.values())), batches(graph)[0]
        )


def test_a_graph_with_its_own_iterator_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="iterator, which ONNX does not have"):
        as_onnx(pipeline_graph(), PIPELINE, None)


def test_without_the_converter_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tf2onnx", None)
    with pytest.raises(UnsupportedError, match="pip install tf2onnx"):
        as_onnx(bert().graph_def, Settings(), None)
