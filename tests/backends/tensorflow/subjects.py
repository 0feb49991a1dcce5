"""Small real TensorFlow models for the tests: scikit-learn's digits, and perceptrons that read them in every
form that TensorFlow has.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.neural_network import MLPClassifier
from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

from octune.backends.terms import Settings

v1 = tf.compat.v1
Arrays = list[np.ndarray[Any, Any]]
SIZE = {
    "performance": {"compile": "never", "iterations": 1, "warmup": 0},
    "tuning": {"objective": "modelsize"},
}


@dataclass(frozen=True)
class Digits:
    """Images, labels of the test images, and the weights of a trained perceptron."""

    train: np.ndarray[Any, Any]
    test: np.ndarray[Any, Any]
    labels: np.ndarray[Any, Any]
    weights: Arrays
    biases: Arrays

    def batches(self, count: int = 4, size: int = 16) -> list[Any]:
        """(inputs, label) batches for calibration; the labels play no part."""
        return [(self.train[i * size : (i + 1) * size], np.zeros(size)) for i in range(count)]

    def accuracy(self, logits: Any) -> float:
        return float((np.asarray(logits).argmax(-1) == self.labels).mean())

    def graph_accuracy(self, graph: Any) -> float:
        """What a user's evaluation of a frozen graph looks like."""
        with v1.Session(graph=graph) as session:
            return self.accuracy(session.run("logits:0", {"x:0": self.test}))


@cache
def digits() -> Digits:
    images, labels = load_digits(return_X_y=True)
    x = (images / 16).astype(np.float32)
    network = MLPClassifier((96, 64), max_iter=60, tol=1e-2, n_iter_no_change=3, random_state=0).fit(
        x[:1200], labels[:1200]
    )
    weights = [w.astype(np.float32) for w in network.coefs_]
    return Digits(
        x[:1200], x[1200:], labels[1200:], weights, [b.astype(np.float32) for b in network.intercepts_]
    )


def with_outliers(factor: float = 3000.0) -> tuple[Arrays, Arrays]:
    """The same function, with two hidden channels that are much larger than the rest: int8 in one scale loses
    all the others.
    """
    data = digits()
    weights, biases = [w.copy() for w in data.weights], [b.copy() for b in data.biases]
    busy = np.argsort(np.maximum(data.train @ weights[0] + biases[0], 0).mean(axis=0))[-2:]
    weights[0][:, busy] *= factor
    biases[0][busy] *= factor
    weights[1][busy] /= factor
    return weights, biases


def perceptron(x: Any, weights: Arrays, biases: Arrays) -> Any:
    """The network as ops, with the names that a TensorFlow 1 graph would have."""
    for index, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        with v1.name_scope(f"dense_{index}"):
            x = tf.nn.bias_add(
                tf.matmul(x, tf.constant(weight, name="kernel"), name="MatMul"),
                tf.constant(bias, name="bias"),
                name="BiasAdd",
            )
            x = tf.nn.relu(x, name="Relu") if index + 1 < len(weights) else x
    return tf.identity(x, name="logits")


def graph_def(weights: Arrays | None = None, biases: Arrays | None = None) -> Any:
    """A frozen graph: ``x:0`` in, ``logits:0`` out."""
    data = digits()
    graph = tf.Graph()
    with graph.as_default():
        perceptron(
            v1.placeholder(tf.float32, [None, 64], name="x"), weights or data.weights, biases or data.biases
        )
    return graph.as_graph_def()


def keras_model() -> Any:
    """The network as a functional Keras model."""
    data = digits()
    inputs = keras.Input((64,), name="pixels")
    x = inputs
    layers = [
        keras.layers.Dense(w.shape[1], activation="relu" if i < 2 else None, name=f"dense_{i}")
        for i, w in enumerate(data.weights)
    ]
    for layer in layers:
        x = layer(x)
    model = keras.Model(inputs, x)
    for layer, weight, bias in zip(layers, data.weights, data.biases, strict=True):
        layer.set_weights([weight, bias])
    return model


def saved_model(folder: Path) -> Path:
    """A SavedModel folder with the signature ``serving_default(pixels) -> logits, probabilities``."""
    module = tf.Module()
    model = keras_model()
    module.model = model

    @tf.function(input_signature=[tf.TensorSpec([None, 64], tf.float32, name="pixels")])
    def serve(pixels: Any) -> dict[str, Any]:
        logits = model(pixels, training=False)
        return {"probabilities": tf.nn.softmax(logits), "logits": logits}

    module.serve = serve
    tf.saved_model.save(module, str(folder), signatures={"serving_default": serve})
    return folder


def trained_with_keras_2(folder: Path) -> Path:
    """A SavedModel as Keras 2 wrote it after training: an optimizer with a slot for a variable, which newer
    versions of Keras do not know how to rebuild.
    """
    data, module = digits(), tf.Module()
    module.kernels, module.biases = ([tf.Variable(v) for v in vs] for vs in (data.weights, data.biases))

    @tf.function(input_signature=[tf.TensorSpec([None, 64], tf.float32, name="pixels")])
    def serve(pixels: Any) -> dict[str, Any]:
        x = pixels
        for index, (kernel, bias) in enumerate(zip(module.kernels, module.biases, strict=True)):
            x = tf.matmul(x, kernel) + bias
            x = tf.nn.relu(x) if index < 2 else x
        return {"probabilities": tf.nn.softmax(x), "logits": x}

    tf.saved_model.save(module, str(folder), signatures={"serving_default": serve})
    file = folder / "saved_model.pb"
    proto = SavedModel.FromString(file.read_bytes())
    objects = proto.meta_graphs[0].object_graph_def.nodes
    trained = next(index for index, node in enumerate(objects) if node.HasField("variable"))
    momentum = objects.add()
    momentum.variable.CopyFrom(objects[trained].variable)
    momentum.variable.name = "momentum"
    optimizer = objects.add()
    optimizer.user_object.identifier = "optimizer"
    optimizer.slot_variables.add(
        original_variable_node_id=trained, slot_name="momentum", slot_variable_node_id=len(objects) - 2
    )
    objects[0].children.add(node_id=len(objects) - 1, local_name="optimizer")
    file.write_bytes(proto.SerializeToString())
    return folder


def first_generation(folder: Path) -> Path:
    """A SavedModel as TensorFlow 1 wrote it, whose signature feeds a placeholder with a default, and one
    that nothing reads.
    """
    with session() as running, running.graph.as_default():
        x, logits = (running.graph.get_tensor_by_name(name) for name in ("x:0", "logits:0"))
        scale = v1.placeholder_with_default(tf.constant(1.0), [], name="scale")
        signature = v1.saved_model.predict_signature_def(
            {"pixels": x, "scale": scale, "unused": v1.placeholder(tf.int32, [None], name="unused")},
            {"logits": tf.multiply(logits, scale, name="scaled")},
        )
        builder = v1.saved_model.Builder(str(folder))
        builder.add_meta_graph_and_variables(running, ["serve"], {"serving_default": signature})
        builder.save()
    return folder


def session() -> Any:
    """A TensorFlow 1 session with variables, an optimizer and a saver around them: what training leaves
    behind.
    """
    data = digits()
    graph = tf.Graph()
    with graph.as_default():
        x = v1.placeholder(tf.float32, [None, 64], name="x")
        labels = v1.placeholder(tf.int64, [None], name="labels")
        y = x
        for index, (weight, bias) in enumerate(zip(data.weights, data.biases, strict=True)):
            with v1.variable_scope(f"dense_{index}"):
                # both generations of variables
                kernel = v1.get_variable("kernel", initializer=weight, use_resource=index != 1)
                y = tf.nn.bias_add(
                    tf.matmul(y, kernel, name="MatMul"),
                    v1.get_variable("bias", initializer=bias),
                    name="BiasAdd",
                )
                y = tf.nn.relu(y) if index < 2 else y
        y = tf.identity(y, name="logits")
        loss = tf.reduce_mean(
            tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=y), name="loss"
        )
        v1.train.GradientDescentOptimizer(0.1).minimize(loss)
        v1.train.Saver()
        initialiser = v1.global_variables_initializer()
    made = v1.Session(graph=graph)
    made.run(initialiser)
    return made


def concrete_function() -> Any:
    """A concrete function with a nested argument, a constant that was traced in, and a nested result."""
    data = digits()
    kernels = [tf.Variable(w) for w in data.weights]

    @tf.function
    def call(batch: Any, scale: Any, training: bool = False) -> Any:
        x = batch["pixels"] * scale
        for index, (kernel, bias) in enumerate(zip(kernels, data.biases, strict=True)):
            x = tf.matmul(x, kernel) + bias
            x = tf.nn.relu(x) if index < 2 else x
        return {"logits": x, "more": (tf.nn.softmax(x), scale)}

    made = call.get_concrete_function(
        {"pixels": tf.TensorSpec([None, 64], tf.float32)}, tf.TensorSpec([], tf.float32), training=False
    )
    made.kernels = kernels  # a function does not keep its variables alive
    return made


def records(path: Path, images: np.ndarray[Any, Any]) -> str:
    """The images as a TFRecord file."""
    with tf.io.TFRecordWriter(str(path)) as writer:
        for index, image in enumerate(images):
            feature = {
                "image": tf.train.Feature(float_list=tf.train.FloatList(value=image)),
                "number": tf.train.Feature(int64_list=tf.train.Int64List(value=[index])),
            }
            writer.write(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())
    return str(path)


def pipeline_graph() -> Any:
    """A frozen graph that reads its own file: ``input_file`` and ``batch_size``, ``MakeIterator``,
    ``IteratorGetNext``, ``logits``.
    """
    data = digits()
    graph = tf.Graph()
    with graph.as_default():
        file = v1.placeholder(tf.string, [], name="input_file")
        size = v1.placeholder(tf.int64, [], name="batch_size")
        features = {
            "image": tf.io.FixedLenFeature([64], tf.float32),
            "number": tf.io.FixedLenFeature([], tf.int64),
        }
        dataset = (
            tf.data.TFRecordDataset(file)
            .map(lambda record: tf.io.parse_single_example(record, features))
            .batch(size)
        )
        iterator = v1.data.make_initializable_iterator(dataset)
        perceptron(iterator.get_next()["image"], data.weights, data.biases)
    return graph


PIPELINE = Settings(inputs=("input_file", "batch_size"), outputs=("IteratorGetNext:1", "logits"))


def small_cnn(width: int = 32) -> Any:
    """A stem, a residual block, a depthwise convolution and a head, with batch normalisations that have seen
    data.
    """
    keras.utils.set_random_seed(0)
    random = np.random.default_rng(0)
    layers = keras.layers

    def block(x: Any, name: str, conv: Any) -> Any:
        return layers.BatchNormalization(name=f"{name}_norm")(conv(x))

    inputs = keras.Input((16, 16, 3), name="image")
    x = layers.ReLU()(
        block(inputs, "stem", layers.Conv2D(width, 3, padding="same", use_bias=False, name="stem"))
    )
    y = layers.ReLU()(
        block(x, "first", layers.Conv2D(width, 3, padding="same", use_bias=False, name="first"))
    )
    y = block(y, "second", layers.Conv2D(width, 3, padding="same", use_bias=False, name="second"))
    x = layers.ReLU()(layers.Add()([x, y]))
    x = layers.ReLU()(
        block(x, "depthwise", layers.DepthwiseConv2D(3, padding="same", use_bias=False, name="depthwise"))
    )
    x = layers.Dense(10, name="head")(layers.GlobalAveragePooling2D()(x))
    model = keras.Model(inputs, x)
    for layer in model.layers:
        if isinstance(layer, layers.BatchNormalization):
            layer.set_weights(
                [random.uniform(0.5, 1.5, w.shape).astype(np.float32) for w in layer.get_weights()]
            )
    return model


def images(count: int = 3, size: int = 8) -> list[Any]:
    """(inputs, label) batches of smooth random pictures."""
    random = np.random.default_rng(1)
    coarse = random.standard_normal((count, size, 4, 4, 3)).astype(np.float32)
    return [(np.kron(batch, np.ones((1, 4, 4, 1), np.float32)), np.zeros(size)) for batch in coarse]
