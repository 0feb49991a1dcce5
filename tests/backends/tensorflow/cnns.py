"""Small convolutional networks, trained on scikit-learn's digits, with outlier channels that leave fp32 as it
was.
"""

from __future__ import annotations

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

v1 = tf.compat.v1
Array = np.ndarray[Any, np.dtype[Any]]
Params = dict[str, Array]
SIZE = 16  # images are made that large, from 8 x 8


@dataclass(frozen=True)
class Data:
    train: Array
    labels: Array
    test: Array
    test_labels: Array

    def batches(self, count: int = 10, size: int = 20) -> list[Array]:
        return [self.train[start : start + size] for start in range(0, count * size, size)]

    def accuracy(self, graph: tf.Graph) -> float:
        with v1.Session(graph=graph) as session:
            logits = session.run("logits:0", {"x:0": self.test})
        return float((logits.argmax(axis=1) == self.test_labels).mean())


def digits() -> Data:
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(images))
    x = np.kron(images.reshape(-1, 8, 8)[order] / 16, np.ones((SIZE // 8, SIZE // 8)))[..., None].astype(
        np.float32
    )
    y = labels[order].astype(np.int32)
    return Data(x[:1000], y[:1000], x[1000:], y[1000:])


class Weights:
    """The weights of a network: made when they are first asked for, or given."""

    def __init__(self, values: Params | None = None, seed: int = 0) -> None:
        self.values: dict[str, Any] = dict(values or {})
        self._given, self._random = values is not None, np.random.default_rng(seed)

    def __call__(self, name: str, shape: tuple[int, ...], fan: int) -> Any:
        if self._given:
            return tf.constant(self.values[name], name=name)
        if name not in self.values:
            start = self._random.normal(size=shape) * np.sqrt(2 / fan) if fan else np.zeros(shape)
            self.values[name] = tf.Variable(start.astype(np.float32))
        return self.values[name]


def conv(w: Weights, x: Any, name: str, filters: int, size: int = 3, stride: int = 1) -> Any:
    channels = int(x.shape[-1])
    y = tf.nn.conv2d(
        x, w(f"{name}/w", (size, size, channels, filters), size * size * channels), stride, "SAME", name=name
    )
    return tf.nn.bias_add(y, w(f"{name}/b", (filters,), 0))


def depthwise(w: Weights, x: Any, name: str, size: int = 3) -> Any:
    channels = int(x.shape[-1])
    y = tf.nn.depthwise_conv2d(
        x, w(f"{name}/w", (size, size, channels, 1), size * size), [1, 1, 1, 1], "SAME", name=name
    )
    return tf.nn.bias_add(y, w(f"{name}/b", (channels,), 0))


def dense(w: Weights, x: Any, name: str, columns: int) -> Any:
    rows = int(x.shape[-1])
    return tf.nn.bias_add(
        tf.matmul(x, w(f"{name}/w", (rows, columns), rows), name=name), w(f"{name}/b", (columns,), 0)
    )


def plain(w: Weights, x: Any, activation: Callable[[Any], Any] = tf.nn.relu) -> Any:
    """Six convolutions, one of them depthwise, two poolings and two dense layers."""
    x = activation(conv(w, x, "conv0", 16))
    x = tf.nn.max_pool2d(activation(conv(w, x, "conv1", 32)), 2, 2, "VALID")
    x = activation(depthwise(w, x, "depthwise"))
    x = activation(conv(w, x, "conv2", 48, 1))
    x = tf.nn.max_pool2d(activation(conv(w, x, "conv3", 48)), 2, 2, "VALID")
    x = activation(conv(w, x, "conv4", 48))
    x = tf.nn.relu(dense(w, tf.reshape(x, [-1, x.shape[1:].num_elements()]), "dense0", 64))
    return dense(w, x, "dense1", 10)


PLAIN_CHAIN = ("conv0", "conv1", "depthwise", "conv2", "conv3", "conv4", "dense0", "dense1")


def residual(w: Weights, x: Any) -> Any:
    """Two blocks with a shortcut, the second one behind a convolution with stride 2."""
    x = tf.nn.relu(conv(w, x, "stem", 32))
    x = tf.nn.max_pool2d(x, 2, 2, "SAME")
    for block in range(2):
        y = tf.nn.relu(conv(w, x, f"block{block}/a", 32))
        x = tf.nn.relu(conv(w, y, f"block{block}/b", 32) + x)
        x = tf.nn.relu(conv(w, x, f"down{block}", 32, stride=2))
    return dense(w, tf.reduce_mean(x, [1, 2]), "dense", 10)


def train(network: Callable[[Weights, Any], Any], data: Data, steps: int = 150) -> Params:
    """Adam by hand, so that no optimizer of another library is needed."""
    weights = Weights()
    network(weights, tf.constant(data.train[:1]))
    variables = list(weights.values.values())
    moments = [[tf.Variable(tf.zeros_like(v)) for v in variables] for _ in range(2)]

    @tf.function(reduce_retracing=True)  # type: ignore[untyped-decorator]  # TensorFlow has no types
    def step(x: Any, y: Any, rate: Any, number: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, network(weights, x)))
        for variable, gradient, first, second in zip(
            variables, tape.gradient(loss, variables), *moments, strict=True
        ):
            first.assign(0.9 * first + 0.1 * gradient)
            second.assign(0.99 * second + 0.01 * gradient**2)
            variable.assign_sub(
                rate * first / (1 - 0.9**number) / (tf.sqrt(second / (1 - 0.99**number)) + 1e-7)
            )

    random = np.random.default_rng(1)
    for number in range(steps):
        chosen = random.choice(len(data.train), 64)
        rate = 3e-3 * min(1.0, 2 * (1 - number / steps))
        step(
            tf.constant(data.train[chosen]),
            tf.constant(data.labels[chosen]),
            tf.constant(rate),
            tf.constant(number + 1.0),
        )
    return {name: variable.numpy() for name, variable in weights.values.items()}


def with_outliers(
    params: Params, chain: tuple[str, ...], factors: tuple[float, ...], seed: int = 3
) -> Params:
    """The same function: what some channels give is larger by a factor, and the weights that read them
    smaller.
    """
    random, made = np.random.default_rng(seed), {name: value.copy() for name, value in params.items()}
    for number, (producer, consumer) in enumerate(pairwise(chain)):
        channels = made[f"{producer}/b"].size
        chosen = random.choice(channels, 2, replace=False)
        factor = np.ones(channels, np.float32)
        factor[chosen] = factors[number % len(factors)]
        # A depthwise weight is [height, width, channels, 1], and so has its outputs where others have their
        # inputs.
        outputs = factor[:, None] if producer == "depthwise" else factor
        made[f"{producer}/w"] *= outputs
        made[f"{producer}/b"] *= factor
        read = made[f"{consumer}/w"]
        read /= np.tile(factor, read.shape[-2] // channels)[:, None]
    return made


def frozen(network: Callable[[Weights, Any], Any], params: Params) -> Any:
    """A GraphDef: ``x:0`` in, ``logits:0`` out."""
    with tf.Graph().as_default() as graph:
        tf.identity(
            network(Weights(params), v1.placeholder(tf.float32, [None, SIZE, SIZE, 1], name="x")),
            name="logits",
        )
    return graph.as_graph_def()
