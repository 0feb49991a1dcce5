"""A real fine-tuned BERT in TensorFlow, as a SavedModel and written with Keras' own layers, tuned with
default settings.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import octune
from octune.tasks import load_task
from tests.examples.load import load_example

tf = pytest.importorskip("tensorflow")
pytest.importorskip("torch")
pytestmark = [pytest.mark.shared, pytest.mark.slow]

NAMES = {"input_ids": "input_ids", "attention_mask": "input_mask", "token_type_ids": "segment_ids"}


def saved_model(folder: Path, target: Path) -> str:
    """The graph of the checkpoint, as a folder with a signature."""
    definition = load_example("tensorflow/bert_squad/model.py").classifier_graph(folder).as_graph_def()

    def serve(*tensors: Any) -> dict[str, Any]:
        fed = {f"{name}:0": tensor for name, tensor in zip(NAMES.values(), tensors, strict=True)}
        return {"logits": tf.graph_util.import_graph_def(definition, fed, ["logits:0"])[0]}

    specs = [tf.TensorSpec([None, None], tf.int32, name=name) for name in NAMES.values()]
    module = tf.Module()
    module.serve = tf.function(serve, input_signature=specs)
    tf.saved_model.save(module, str(target), signatures=module.serve)
    return str(target)


def keras_model(folder: Path, _: Path) -> Any:
    """BERT with Keras' layers, and the checkpoint's weights in them."""
    import keras

    from octune.backends.torch.sources import open_model

    config = json.loads((folder / "config.json").read_text())
    weights = {name: tensor.numpy() for name, tensor in open_model(str(folder)).state_dict().items()}
    width, heads = config["hidden_size"], config["num_attention_heads"]

    def take(name: str) -> list[np.ndarray[Any, Any]]:
        return [weights[f"{name}.weight"].T, weights[f"{name}.bias"]]

    ids, mask, segments = (keras.Input((None,), dtype="int32", name=name) for name in NAMES.values())
    placed: list[tuple[Any, list[Any]]] = []

    def layer(made: Any, values: list[Any]) -> Any:
        placed.append((made, values))
        return made

    def embedding(kind: str) -> Any:
        table = weights[f"bert.embeddings.{kind}_embeddings.weight"]
        return layer(keras.layers.Embedding(*table.shape), [table])

    def dense(name: str, activation: Any = None) -> Any:
        return layer(
            keras.layers.Dense(weights[f"{name}.weight"].shape[0], activation=activation), take(name)
        )

    def norm(name: str) -> Any:
        values = [weights[f"{name}.LayerNorm.{part}"] for part in ("weight", "bias")]
        return layer(keras.layers.LayerNormalization(epsilon=config["layer_norm_eps"]), values)

    def attention(name: str) -> Any:
        values = []
        for part in ("query", "key", "value"):
            kernel, bias = take(f"{name}.self.{part}")
            values += [kernel.reshape(width, heads, -1), bias.reshape(heads, -1)]
        kernel, bias = take(f"{name}.output.dense")
        return layer(
            keras.layers.MultiHeadAttention(heads, width // heads),
            [*values, kernel.reshape(heads, -1, width), bias],
        )

    class Positions(keras.layers.Layer):  # type: ignore[misc]
        def call(self, tokens: Any) -> Any:
            return keras.ops.expand_dims(keras.ops.arange(keras.ops.shape(tokens)[1]), 0)

        def compute_output_spec(self, tokens: Any) -> Any:
            return keras.KerasTensor((1, None), "int32")

    x = norm("bert.embeddings")(
        embedding("word")(ids) + embedding("token_type")(segments) + embedding("position")(Positions()(ids))
    )
    seen = keras.ops.expand_dims(mask, 1)
    for number in range(config["num_hidden_layers"]):
        name = f"bert.encoder.layer.{number}"
        x = norm(f"{name}.attention.output")(x + attention(f"{name}.attention")(x, x, attention_mask=seen))
        inner = dense(
            f"{name}.intermediate.dense", lambda value: keras.activations.gelu(value, approximate=False)
        )(x)
        x = norm(f"{name}.output")(x + dense(f"{name}.output.dense")(inner))
    logits = dense("classifier")(dense("bert.pooler.dense", "tanh")(x[:, 0]))
    model = keras.Model([ids, mask, segments], logits)
    for made, values in placed:
        made.set_weights(values)
    return model


@pytest.mark.parametrize("build", [saved_model, keras_model])
def test_sst2(shared: Path, build: Callable[[Path, Path], Any], tmp_path: Path) -> None:
    folder = shared / "models" / "minilm-l6-sst2"
    data = load_task("sst2", shared / "data" / "glue", tokenizer=str(folder))

    def renamed(batches: Any, limit: int | None = None) -> list[Any]:
        return [
            ({NAMES[name]: array for name, array in inputs.items()}, label)
            for inputs, label in islice(batches, limit)
        ]

    judged = renamed(data.evaluation)
    result = octune.tune(
        build(folder, tmp_path / "fp32"),
        calibration=renamed(data.calibration, 8),
        evaluation=judged,
        metric="accuracy",
    )
    assert result.met, str(result)
    assert result.baseline.score is not None
    assert result.baseline.score.value > 0.85
    matmuls = [op for op in result.ops if op.kind == "matmul"]
    assert sum(result.plan[op.name].dtype == "int8" for op in matmuls) >= 0.9 * len(matmuls)
    served = tf.saved_model.load(str(result.save(tmp_path / "int8"))).signatures["serving_default"]
    inputs = {name: tf.constant(array, tf.int32) for name, array in judged[0][0].items()}
    again = np.asarray(next(iter(served(**inputs).values())))
    right = np.mean(again.argmax(1) == np.asarray(judged[0][1]))
    assert right > 0.7
