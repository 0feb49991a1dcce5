"""Small graphs with random weights, in the spellings that real models use."""

from __future__ import annotations

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from octune.backends.tensorflow.graph.graph import FrozenGraph
from octune.backends.tensorflow.int8.rewrite import Rewriter
from octune.calibration import Observer, Ranges
from octune.plan import Plan, Scheme

v1 = tf.compat.v1
Array = np.ndarray[Any, np.dtype[Any]]


def frozen(build: Callable[[], Mapping[str, tf.Tensor]], targets: tuple[str, ...] = ()) -> FrozenGraph:
    """The graph that ``build`` makes; its placeholders are the inputs, what it returns are the outputs."""
    with tf.Graph().as_default() as graph:
        outputs = build()
    inputs = {op.name: f"{op.name}:0" for op in graph.get_operations() if op.type == "Placeholder"}
    return FrozenGraph(
        graph.as_graph_def(), inputs, {name: tensor.name for name, tensor in outputs.items()}, targets
    )


def run(graph_def: Any, fetches: Any, feed: Mapping[str, Array]) -> Any:
    """One session run."""
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(graph_def, name="")
        with v1.Session(graph=graph) as session:
            return session.run(fetches, dict(feed))


def calibrated(rewriter: Rewriter, feeds: list[Mapping[str, Array]]) -> Ranges:
    """Ranges of all taps."""
    taps = rewriter.taps()
    observers = {name: Observer() for name in taps}
    for feed in feeds:
        values = run(rewriter.reference, {name: tap.tensor for name, tap in taps.items()}, feed)
        for name, value in values.items():
            observers[name].update(value, channel_axis=taps[name].channel_axis)
    return Ranges(
        {name: stats for name, observer in observers.items() if (stats := observer.stats())}, len(feeds)
    )


def everything(rewriter: Rewriter, scheme: Scheme) -> Plan:
    """Every op that can, in that scheme."""
    return Plan({op.name: scheme for op in rewriter.ops() if scheme in op.schemes})


def error(got: Array, wanted: Array) -> float:
    """Relative, in the Euclidean norm."""
    return float(np.linalg.norm(np.asarray(got) - wanted) / max(float(np.linalg.norm(wanted)), 1e-12))


def op_types(graph_def: Any) -> list[str]:
    return [node.op for node in graph_def.node]


def normal(*shape: int, scale: float = 1.0, seed: int = 0) -> Array:
    return (np.random.default_rng((seed, *shape)).normal(size=shape) * scale).astype(np.float32)


# -- spellings -----------------------------------------------------------------------------------------------


def google_gelu(x: tf.Tensor) -> tf.Tensor:
    cdf = 0.5 * (1.0 + tf.tanh(np.float32(np.sqrt(2 / np.pi)) * (x + 0.044715 * tf.pow(x, 3))))
    return x * cdf


def contrib_layer_norm(x: tf.Tensor, width: int, seed: int = 0) -> tf.Tensor:
    """As tf.contrib.layers.layer_norm wrote it: moments and batch_normalization."""
    mean, variance = tf.nn.moments(x, [-1], keepdims=True)
    return tf.nn.batch_normalization(
        x,
        mean,
        variance,
        weight(normal(width, scale=0.1, seed=seed)),
        weight(1 + normal(width, scale=0.1, seed=seed + 1)),
        1e-12,
    )


def weight(value: Array) -> tf.Tensor:
    """A frozen variable: Const and Identity."""
    return tf.identity(tf.constant(value))


def dense(x: tf.Tensor, columns: int, name: str, seed: int = 0) -> tf.Tensor:
    rows = x.shape[-1]
    with tf.name_scope(name):
        kernel = weight(normal(rows, columns, scale=rows**-0.5, seed=seed))
        return tf.nn.bias_add(
            tf.matmul(x, kernel, name="MatMul"), weight(normal(columns, scale=0.1, seed=seed))
        )


def bert(
    layers: int = 2,
    width: int = 64,
    heads: int = 4,
    inner: int = 256,
    vocabulary: int = 100,
    sequence: int | None = 16,
) -> FrozenGraph:
    """A BERT as google-research writes it: 2-D matmuls, tanh GELU, layer normalisation spelled as batch
    normalisation.
    """

    def build() -> dict[str, tf.Tensor]:
        ids = v1.placeholder(tf.int32, [None, sequence], "input_ids")
        mask = v1.placeholder(tf.int32, [None, sequence], "input_mask")
        sizes = tf.shape(ids)
        batch, length = sizes[0], sequence or sizes[1]
        x = tf.gather(weight(normal(vocabulary, width)), ids) + weight(normal(512, width, seed=1))[:length]
        x = tf.reshape(contrib_layer_norm(x, width), [-1, width])
        bias = (1.0 - tf.cast(mask, tf.float32)[:, None, None, :]) * -10000.0
        for index in range(layers):
            with tf.name_scope(f"layer_{index}"):
                parts = []
                for number, role in enumerate(("query", "key", "value")):
                    part = dense(x, width, role, seed=10 * index + number)
                    parts.append(
                        tf.transpose(tf.reshape(part, [batch, length, heads, width // heads]), [0, 2, 1, 3])
                    )
                scores = tf.matmul(parts[0], parts[1], transpose_b=True) * (width / heads) ** -0.5 + bias
                context = tf.transpose(tf.matmul(tf.nn.softmax(scores), parts[2]), [0, 2, 1, 3])
                context = tf.reshape(context, [-1, width])
                x = contrib_layer_norm(
                    dense(context, width, "attention_output", seed=10 * index + 3) + x, width, seed=index
                )
                hidden = google_gelu(dense(x, inner, "intermediate", seed=10 * index + 4))
                x = contrib_layer_norm(
                    dense(hidden, width, "output", seed=10 * index + 5) + x, width, seed=index + 50
                )
        first = tf.reshape(x, [batch, length, width])[:, 0, :]
        pooled = tf.tanh(dense(first, width, "pooler", seed=99))
        return {
            "sequence": tf.reshape(x, [batch, length, width], name="sequence"),
            "logits": dense(pooled, 2, "classifier"),
        }

    return frozen(build)


def bert_feed(batch: int = 2, sequence: int = 16, vocabulary: int = 100, seed: int = 0) -> dict[str, Array]:
    random = np.random.default_rng(seed)
    return {
        "input_ids:0": random.integers(0, vocabulary, (batch, sequence), np.int32),
        "input_mask:0": np.ones((batch, sequence), np.int32),
    }
