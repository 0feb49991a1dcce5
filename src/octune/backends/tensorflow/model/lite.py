"""A ``.tflite`` file in the place of a graph: what is handed out where the LiteRT form of a model wins.

    model = as_model(Lite(content, threads=2), handover)    # the kind of model that came in
    lite_of(model).content                                  # the file again

LiteRT's interpreter runs the file. A graph calls it by an op of Python's, so that the model has the tensors,
the signature or the arguments that it came with, and code that scores models need not know. Such a graph runs
in the process that made it; what is saved is the file.
"""

from __future__ import annotations

import threading
import warnings
import weakref
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from octune.backends.litert import interpreter
from octune.backends.tensorflow.graph.graph import node_of
from octune.backends.tensorflow.model.handover import Handover
from octune.backends.terms import Tensor
from octune.errors import UnsupportedError

__all__ = ["Lite", "as_model", "lite_of"]

KEPT = "_octune_lite"  # the attribute of a model that holds its file


class Lite:
    """The file in an interpreter: arrays by name in, arrays by name out. One call at a time."""

    def __init__(self, content: bytes, threads: int) -> None:
        self.content, self._threads = content, threads
        self._runner = self.interpreter().get_signature_runner()
        self._turn = threading.Lock()
        self.takes = _tensors(self._runner.get_input_details())
        self.gives = _tensors(self._runner.get_output_details())

    def interpreter(self, **options: Any) -> Any:
        """A new interpreter of the file."""
        with warnings.catch_warnings():
            # TensorFlow's own says that it is to move to a package of its own
            warnings.simplefilter("ignore")
            return interpreter()(model_content=self.content, num_threads=self._threads, **options)

    def __call__(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        with self._turn:
            found: dict[str, Any] = self._runner(**arrays)
        return found


def _tensors(details: Mapping[str, Any]) -> dict[str, Tensor]:
    return {
        name: Tensor(
            name,
            str(np.dtype(one["dtype"])),
            tuple(int(size) if size >= 0 else None for size in one.get("shape_signature", one["shape"])),
        )
        for name, one in details.items()
    }


def lite_of(model: Any) -> Lite | None:
    """The file that a model runs; None for one that TensorFlow runs itself."""
    found: Lite | None = getattr(model, KEPT, None)
    return found


def as_model(lite: Lite, handover: Handover) -> Any:
    """The file as the kind of model that came in, with its names."""
    if not (set(handover.inputs) <= set(lite.takes) and set(handover.outputs) <= set(lite.gives)):
        raise UnsupportedError(
            "LiteRT's converter has renamed inputs or outputs: it has "
            f"{', '.join((*lite.takes, *lite.gives))}."
        )
    model = _graph(lite, handover) if handover.kind == "graph" else handover.wrap(_function(lite, handover))
    setattr(model, KEPT, lite)
    return model


def _graph(lite: Lite, handover: Handover) -> Any:
    nodes: dict[str, dict[int, str]] = {}
    for name, tensor in handover.outputs.items():
        nodes.setdefault(node_of(tensor), {})[int(tensor.partition(":")[2] or 0)] = name
    fed = {node_of(tensor) for tensor in handover.inputs.values()}
    graph = tf.Graph()
    with graph.as_default():
        given = {
            name: tf.compat.v1.placeholder(lite.takes[name].dtype, lite.takes[name].shape, node_of(tensor))
            for name, tensor in handover.inputs.items()
        }
        results = _called(lite, given, handover)
        for node, places in nodes.items():
            if node not in fed:  # a model may hand an input through
                first = next(iter(places.values()))
                values = [results[places.get(number, first)] for number in range(max(places) + 1)]
                tf.identity_n(values, name=node)
    return graph


def _function(lite: Lite, handover: Handover) -> Any:
    """Like ``flat_function``: tensors in the order of the inputs, a dict of tensors out."""
    specs = [tf.TensorSpec(lite.takes[name].shape, lite.takes[name].dtype, name) for name in handover.inputs]

    def call(*flat: Any) -> dict[str, Any]:
        return _called(lite, dict(zip(handover.inputs, flat, strict=True)), handover)

    return tf.function(call, input_signature=specs, autograph=False).get_concrete_function()


def _called(lite: Lite, given: Mapping[str, Any], handover: Handover) -> dict[str, Any]:
    # TensorFlow keeps the functions that graphs call for as long as the process lives; the file goes with its
    # model
    held, names = weakref.ref(lite), list(given)

    def run(*arrays: Any) -> list[Any]:
        file = held()
        if file is None:
            raise ReferenceError("The model that this function belongs to is gone.")
        found = file(dict(zip(names, arrays, strict=True)))
        return [found[name] for name in handover.outputs]

    types = [tf.as_dtype(lite.gives[name].dtype) for name in handover.outputs]
    values = tf.numpy_function(run, list(given.values()), types, stateful=False)
    results = dict(zip(handover.outputs, values, strict=True))
    for name, value in results.items():
        value.set_shape(lite.gives[name].shape)
    return results
