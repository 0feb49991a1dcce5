"""BERT as a frozen TensorFlow 1 graph, in the spelling of google-research/bert, from either kind of
checkpoint.

    graph = squad_graph("models/bert-large-squad", max_seq_length=384)   # reads a TFRecord file: records.py
    graph = classifier_graph("models/bert-sst2")        # input_ids, input_mask, segment_ids -> logits

A checkpoint is a Hugging Face folder (config.json, safetensors) or a google-research one (bert_config.json,
model.ckpt*); any size that its configuration describes, BERT-large included. The SQuAD graph contains its own
iterator, as graphs of that time do: feed ``input_file:0`` and ``batch_size:0`` to the op ``MakeIterator``
once, then fetch ``IteratorGetNext:3`` (unique ids), ``unstack:0`` and ``unstack:1`` (start and end logits)
until OutOfRangeError.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from safetensors import safe_open

from octune.errors import ModelError

tf1 = tf.compat.v1
Weights = Mapping[str, np.ndarray]
# in the order of IteratorGetNext; "unique_ids" is the fourth
FEATURES = ("input_ids", "input_mask", "segment_ids")
EPSILON = 1e-12
# Hugging Face's names of activations -> ours. Its "gelu" is the exact one; google-research's "gelu" is the
# tanh form.
ACTIVATIONS = {
    "gelu": "erf",
    "gelu_new": "tanh",
    "gelu_pytorch_tanh": "tanh",
    "gelu_fast": "tanh",
    "relu": "relu",
    "tanh_gelu": "tanh",
}


@dataclass(frozen=True)
class BertConfig:
    """The sizes of a BERT. ``activation`` is "erf" (exact GELU), "tanh" (GELU by tanh) or "relu"."""

    layers: int
    hidden: int
    heads: int
    activation: str
    epsilon: float = EPSILON

    @classmethod
    def read(cls, file: Path) -> BertConfig:
        data = json.loads(file.read_text())
        act = data["hidden_act"]
        if file.name == "bert_config.json" and act == "gelu":
            act = "tanh_gelu"
        if act not in ACTIVATIONS:
            raise ModelError(f"{file}: hidden_act is {act!r}. Expected one of: {', '.join(ACTIVATIONS)}.")
        epsilon = float(data.get("layer_norm_eps", EPSILON))
        return cls(
            data["num_hidden_layers"],
            data["hidden_size"],
            data["num_attention_heads"],
            ACTIVATIONS[act],
            epsilon,
        )


# -- checkpoints ---------------------------------------------------------------------------------------------


def read_checkpoint(folder: Path | str) -> tuple[BertConfig, Weights]:
    """Configuration and float32 weights, by google-research's names, of a checkpoint of either kind."""
    folder = Path(folder)
    if (folder / "bert_config.json").is_file():
        return BertConfig.read(folder / "bert_config.json"), _google_weights(folder)
    if (folder / "config.json").is_file():
        return BertConfig.read(folder / "config.json"), _hugging_face_weights(folder)
    raise ModelError(
        f"{folder} is not a BERT checkpoint. Expected bert_config.json (google-research) or config.json "
        "(Hugging Face) in it."
    )


def _google_weights(folder: Path) -> Weights:
    """The variables of the newest TensorFlow 1 checkpoint of a folder, without the optimizer's."""
    prefix = tf.train.latest_checkpoint(str(folder))
    if prefix is None:
        found = sorted(folder.glob("*.ckpt*.index"))
        if not found:
            raise ModelError(
                f"{folder} has no TensorFlow checkpoint. Expected model.ckpt-*.index beside bert_config.json."
            )
        prefix = str(found[-1].with_suffix(""))
    reader = tf.train.load_checkpoint(prefix)
    names = [
        name
        for name in reader.get_variable_to_shape_map()
        if not re.search(r"adam_[mv]$|global_step|^cls/(predictions|seq)", name)
    ]
    return {name: np.asarray(reader.get_tensor(name), dtype=np.float32) for name in names}


# Hugging Face's name of a module -> google-research's scope.
RENAMED = [
    (r"^bert\.encoder\.layer\.(\d+)", r"bert/encoder/layer_\1"),
    (r"\.(word|position|token_type)_embeddings\.weight$", r"/\1_embeddings"),
    (r"LayerNorm\.(weight|gamma)$", "LayerNorm/gamma"),
    (r"LayerNorm\.(bias|beta)$", "LayerNorm/beta"),
    (r"^qa_outputs\.weight$", "cls/squad/output_weights"),
    (r"^qa_outputs\.bias$", "cls/squad/output_bias"),
    (
        r"^classifier\.(weight|bias)$",
        lambda match: "output_weights" if match[1] == "weight" else "output_bias",
    ),
    (r"\.weight$", "/kernel"),
    (r"\.", "/"),
]


def _hugging_face_weights(folder: Path) -> Weights:
    # The index may point to files elsewhere, and may itself be a link.
    index = (folder / "model.safetensors.index.json").resolve()
    files: dict[str, list[str]] = {}
    if index.is_file():
        folder = index.parent
        for name, file in json.loads(index.read_text())["weight_map"].items():
            files.setdefault(file, []).append(name)
    elif (folder / "model.safetensors").is_file():
        files["model.safetensors"] = []
    else:
        raise ModelError(
            f"{folder} has neither model.safetensors nor model.safetensors.index.json. Save the model as "
            "safetensors."
        )
    weights: dict[str, np.ndarray] = {}
    for file, names in files.items():
        with safe_open(folder / file, framework="numpy") as tensors:
            for name in names or tensors.keys():
                if name.endswith("position_ids"):
                    continue
                renamed = name
                for pattern, replacement in RENAMED:
                    renamed = re.sub(pattern, replacement, renamed)
                value = tensors.get_tensor(name).astype(np.float32)
                # A Linear keeps [out, in], a TensorFlow dense layer [in, out].
                weights[renamed] = np.ascontiguousarray(value.T) if renamed.endswith("/kernel") else value
    return weights


# -- the graph -----------------------------------------------------------------------------------------------


class _Bert:
    """Adds BERT to the default graph. Weights are constants, so the graph is frozen from the start."""

    def __init__(self, config: BertConfig, weights: Weights) -> None:
        self.config, self._weights = config, weights

    def weight(self, name: str) -> Any:
        """A weight by its full name, as a frozen variable: a constant and the identity that read it."""
        if name not in self._weights:
            raise ModelError(f"The checkpoint has no weight {name!r}. Was it fine-tuned for this task?")
        with _root_scope():
            return tf.identity(tf.constant(self._weights[name], name=name), name=f"{name}/read")

    def dense(self, x: Any, scope: str) -> Any:
        """``scope/MatMul`` and ``scope/BiasAdd`` over a matrix."""
        kernel, bias = self.weight(f"{scope}/kernel"), self.weight(f"{scope}/bias")
        with _root_scope():
            return tf.nn.bias_add(tf.matmul(x, kernel, name=f"{scope}/MatMul"), bias, name=f"{scope}/BiasAdd")

    def layer_norm(self, x: Any, scope: str) -> Any:
        gamma, beta = self.weight(f"{scope}/gamma"), self.weight(f"{scope}/beta")
        with tf1.name_scope(f"{scope}/"):
            mean, variance = tf.nn.moments(x, axes=[-1], keepdims=True)
            return tf.nn.batch_normalization(x, mean, variance, beta, gamma, self.config.epsilon)

    def activation(self, x: Any) -> Any:
        if self.config.activation == "relu":
            return tf.nn.relu(x)
        if self.config.activation == "erf":
            return x * (0.5 * (1.0 + tf.math.erf(x / tf.sqrt(2.0))))
        return x * (0.5 * (1.0 + tf.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * tf.pow(x, 3)))))

    def embeddings(self, input_ids: Any, segment_ids: Any, sizes: Any) -> Any:
        """Words, segments (as a matmul with one-hot rows) and positions; a [batch, length, hidden] tensor."""
        batch, length = sizes
        hidden = self.config.hidden
        scope = "bert/embeddings"
        words, segments, positions = (
            self.weight(f"{scope}/{kind}_embeddings") for kind in ("word", "token_type", "position")
        )
        with tf1.name_scope(f"{scope}/"):
            x = tf.reshape(tf.gather(words, tf.reshape(input_ids, [-1])), [batch, length, hidden])
            one_hot = tf.one_hot(tf.reshape(segment_ids, [-1]), depth=segments.shape[0])
            x += tf.reshape(tf.matmul(one_hot, segments), [batch, length, hidden])
            x += tf.expand_dims(tf.slice(positions, [0, 0], [length, -1]), 0)
        return self.layer_norm(x, f"{scope}/LayerNorm")

    def encoder(self, x: Any, input_mask: Any, sizes: Any) -> Any:
        """All layers over matrices of [batch * length, hidden], as google-research does: 3-D tensors only
        inside attention.
        """
        batch, length = sizes
        with tf1.name_scope("bert/encoder/"):
            mask = tf.ones([batch, length, 1]) * tf.cast(
                tf.reshape(input_mask, [batch, 1, length]), tf.float32
            )
            x = tf.reshape(x, [-1, self.config.hidden])
        for number in range(self.config.layers):
            scope = f"bert/encoder/layer_{number}"
            context = self.attention(x, mask, sizes, f"{scope}/attention/self")
            x = self.residual(context, x, f"{scope}/attention/output")
            inner = self.dense(x, f"{scope}/intermediate/dense")
            with tf1.name_scope(f"{scope}/intermediate/dense/"):
                inner = self.activation(inner)
            x = self.residual(inner, x, f"{scope}/output")
        return x

    def residual(self, x: Any, skip: Any, scope: str) -> Any:
        x = self.dense(x, f"{scope}/dense")
        with tf1.name_scope(f"{scope}/"):
            x = x + skip
        return self.layer_norm(x, f"{scope}/LayerNorm")

    def attention(self, x: Any, mask: Any, sizes: Any, scope: str) -> Any:
        batch, length = sizes
        heads, width = self.config.heads, self.config.hidden // self.config.heads
        query, key, value = (self.dense(x, f"{scope}/{name}") for name in ("query", "key", "value"))
        with tf1.name_scope(f"{scope}/"):

            def by_head(tensor: Any) -> Any:
                return tf.transpose(tf.reshape(tensor, [batch, length, heads, width]), [0, 2, 1, 3])

            scores = tf.multiply(
                tf.matmul(by_head(query), by_head(key), transpose_b=True), 1.0 / math.sqrt(width)
            )
            scores += (1.0 - tf.expand_dims(mask, axis=[1])) * -10000.0
            context = tf.transpose(tf.matmul(tf.nn.softmax(scores), by_head(value)), [0, 2, 1, 3])
            return tf.reshape(context, [-1, heads * width])

    def logits(self, x: Any, scope: str) -> Any:
        """``MatMul`` and ``BiasAdd`` of the current scope: the layer that fine-tuning added."""
        weight, bias = self.weight(f"{scope}output_weights"), self.weight(f"{scope}output_bias")
        return tf.nn.bias_add(tf.matmul(x, weight, transpose_b=True), bias)


@contextmanager
def _root_scope() -> Iterator[None]:
    """Names below count from the root of the graph, whatever scope is open."""
    with tf1.name_scope(None):
        yield


def squad_graph(checkpoint: Path | str, max_seq_length: int = 384) -> tf.Graph:
    """A graph that reads a TFRecord file of SQuAD features and computes start and end logits."""
    config, weights = read_checkpoint(checkpoint)

    def build() -> None:
        file = tf1.placeholder(tf.string, [], name="input_file")
        batch_size = tf1.placeholder(tf.int64, [], name="batch_size")
        columns = {name: tf.io.FixedLenFeature([max_seq_length], tf.int64) for name in FEATURES}
        columns["unique_ids"] = tf.io.FixedLenFeature([], tf.int64)

        def parse(record: Any) -> Any:
            return {
                name: tf.cast(value, tf.int32)
                for name, value in tf.io.parse_single_example(record, columns).items()
            }

        features = tf1.data.make_initializable_iterator(
            tf1.data.TFRecordDataset(file).map(parse).batch(batch_size)
        ).get_next()
        bert = _Bert(config, weights)
        input_ids, input_mask, segment_ids = (features[name] for name in FEATURES)
        sizes = (tf.shape(input_ids)[0], max_seq_length)
        x = bert.encoder(bert.embeddings(input_ids, segment_ids, sizes), input_mask, sizes)
        logits = tf.reshape(bert.logits(x, "cls/squad/"), [sizes[0], max_seq_length, 2])
        tf.unstack(tf.transpose(logits, [2, 0, 1]), axis=0)

    return _frozen(build)


def classifier_graph(checkpoint: Path | str) -> tf.Graph:
    """A graph with the placeholders input_ids, input_mask and segment_ids, of any batch size and length, and
    the output ``logits``.
    """
    config, weights = read_checkpoint(checkpoint)

    def build() -> None:
        input_ids, input_mask, segment_ids = (
            tf1.placeholder(tf.int32, [None, None], name=name) for name in FEATURES
        )
        bert = _Bert(config, weights)
        shape = tf.shape(input_ids)
        sizes = (shape[0], shape[1])
        x = bert.encoder(bert.embeddings(input_ids, segment_ids, sizes), input_mask, sizes)
        with tf1.name_scope("bert/pooler/"):
            first = tf.reshape(x, [*sizes, config.hidden])[:, 0, :]
        pooled = bert.dense(first, "bert/pooler/dense")
        with tf1.name_scope("bert/pooler/dense/"):
            pooled = tf.tanh(pooled)
        with tf1.name_scope("loss/"):
            logits = bert.logits(pooled, "")
        tf.identity(logits, name="logits")

    return _frozen(build)


def _frozen(build: Callable[[], None]) -> tf.Graph:
    graph = tf.Graph()
    with graph.as_default():
        build()
    return graph
