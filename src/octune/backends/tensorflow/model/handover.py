"""What a user may bring, and what comes out for it: the same kind of thing.

    taken = take(model, settings)           # Taken: the frozen graph, and how it was handed over
    taken.handover.build(graph_def)         # the same kind of model, around another graph

| in                                                | out                                          |
|---|---|
| GraphDef, ``tf.Graph``, ``tf.compat.v1.Session``  | a ``tf.Graph`` with the same tensor names    |
| a loaded SavedModel, or its :class:`MetaGraph`    | a callable with its signature                |
| a Keras model                                     | a callable that is called like that model    |
| a concrete function                               | a concrete function with the same arguments  |
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import tensorflow as tf
from tensorflow.core.framework.graph_pb2 import GraphDef

from octune.backends.batches import Slot
from octune.backends.tensorflow.graph.graph import FrozenGraph, node_of
from octune.backends.tensorflow.model import nested
from octune.backends.tensorflow.model.callables import (
    GraphCallable,
    KerasCallable,
    flat_function,
    shaped_function,
)
from octune.backends.tensorflow.model.freeze import (
    as_graph,
    freeze_function,
    freeze_graph,
    freeze_session,
)
from octune.backends.tensorflow.model.metagraph import DEFAULT_SIGNATURE, MetaGraph, chosen, left_out
from octune.backends.terms import Settings
from octune.errors import ModelError, nearest, summary

__all__ = ["Handover", "Taken", "is_model", "take"]

ConcreteFunction = tf.types.experimental.ConcreteFunction
PolymorphicFunction = tf.types.experimental.PolymorphicFunction
MODELS = (GraphDef, tf.Graph, tf.compat.v1.Session, ConcreteFunction, PolymorphicFunction, MetaGraph)
Kind = Literal["graph", "saved_model", "keras", "function"]


@dataclass(frozen=True)
class Handover:
    """How a model came in, and how it is handed out again. ``takes`` and ``gives`` are nestings of argument
    and result names; see :mod:`nested`.
    """

    kind: Kind
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    takes: Any = None
    gives: Any = None
    signature: str = DEFAULT_SIGNATURE

    def build(self, graph_def: GraphDef) -> Any:
        """A model of this kind around a graph with these inputs and outputs."""
        if self.kind == "graph":
            return as_graph(graph_def)
        return self.wrap(flat_function(graph_def, self.inputs, self.outputs))

    def wrap(self, function: Any) -> Any:
        """A model of this kind around a flat function: tensors by name in, tensors by name out."""
        if self.kind == "saved_model":
            return GraphCallable(function, tuple(self.inputs), self.signature)
        if self.kind == "keras":
            return KerasCallable(function, tuple(self.inputs), gives=self.gives)
        return shaped_function(function, self.takes, self.gives)

    def to_json(self) -> dict[str, Any]:
        """Plain data, for the manifest of a saved model."""
        return {
            "kind": self.kind,
            # Pairs, because their order counts and a manifest is sorted by key.
            "inputs": [list(pair) for pair in self.inputs.items()],
            "outputs": [list(pair) for pair in self.outputs.items()],
            "takes": nested.to_json(self.takes),
            "gives": nested.to_json(self.gives),
            "signature": self.signature,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Handover:
        """The inverse of :meth:`to_json`."""
        takes, gives = nested.from_json(data["takes"]), nested.from_json(data["gives"])
        return cls(data["kind"], dict(data["inputs"]), dict(data["outputs"]), takes, gives, data["signature"])


@dataclass(frozen=True)
class Taken:
    """A model as Octune works on it."""

    frozen: FrozenGraph
    handover: Handover
    notes: tuple[str, ...] = field(default=())

    def slots(self) -> list[Slot]:
        """What the model takes, in order."""
        nodes = {node.name: node for node in self.frozen.graph_def.node}
        makers = {name: nodes[node_of(tensor)] for name, tensor in self.frozen.inputs.items()}
        if all(node.op == "Placeholder" for node in makers.values()):
            found = {
                n: (node.attr["dtype"].type, tf.TensorShape(node.attr["shape"].shape))
                for n, node in makers.items()
            }
        else:  # any tensor may be fed
            graph = as_graph(self.frozen.graph_def)
            tensors = {name: graph.get_tensor_by_name(tensor) for name, tensor in self.frozen.inputs.items()}
            found = {name: (tensor.dtype, tensor.shape) for name, tensor in tensors.items()}
        return [
            Slot(
                name,
                self.frozen.inputs[name],
                np.dtype(tf.dtypes.as_dtype(dtype).as_numpy_dtype),
                tuple(shape) if shape.rank is not None else None,
            )
            for name, (dtype, shape) in found.items()
        ]


def is_model(model: object) -> bool:
    """Whether :func:`take` knows this kind of thing."""
    return isinstance(model, MODELS) or _is_keras(model) or _is_saved_model(model)


def take(model: Any, settings: Settings) -> Taken:
    """Freeze any kind of model; raises ModelError if that cannot be done."""
    if isinstance(model, GraphDef):
        return _graph(freeze_graph(model, settings.inputs, settings.outputs))
    if isinstance(model, tf.Graph):
        return _graph(
            freeze_graph(model.as_graph_def(add_shapes=False), settings.inputs, settings.outputs, model)
        )
    if isinstance(model, tf.compat.v1.Session):
        return _graph(freeze_session(model, settings.inputs, settings.outputs))
    if _is_keras(model):
        taken = _keras(model)
    elif isinstance(model, MetaGraph):
        taken = _signed(model.frozen, model.signature, model.notes)
    elif _is_saved_model(model):
        taken = _saved_model(model)
    elif isinstance(model, ConcreteFunction):
        taken = _function(model)
    else:
        taken = _function(_only_concrete(model))
    _check_names(settings, taken.handover)
    return taken


def _graph(frozen: FrozenGraph) -> Taken:
    return Taken(frozen, Handover("graph", frozen.inputs, frozen.outputs))


# -- SavedModel ----------------------------------------------------------------------------------------------


def _is_saved_model(model: object) -> bool:
    return isinstance(getattr(model, "signatures", None), Mapping) and isinstance(
        model, tf.__internal__.tracking.Trackable
    )


def _saved_model(model: Any) -> Taken:
    signatures = dict(model.signatures)
    name = chosen(signatures)
    function = signatures[name]
    arguments = [spec.name for spec in nested.leaves(function.structured_input_signature)]
    frozen = freeze_function(function, arguments, sorted(function.structured_outputs))
    return _signed(frozen, name, left_out(signatures, name))


def _signed(frozen: FrozenGraph, signature: str, notes: tuple[str, ...]) -> Taken:
    return Taken(frozen, Handover("saved_model", frozen.inputs, frozen.outputs, signature=signature), notes)


# -- Keras ---------------------------------------------------------------------------------------------------


def _is_keras(model: object) -> bool:
    return any(
        base.__name__ == "Model" and base.__module__.partition(".")[0] == "keras"
        for base in type(model).__mro__
    )


def _keras(model: Any) -> Taken:
    import keras

    if keras.backend.backend() != "tensorflow":
        raise ModelError(
            f"The Keras model runs on {keras.backend.backend()}. Set KERAS_BACKEND=tensorflow, or give that "
            "framework's model."
        )
    takes, specs = _keras_arguments(model)
    arguments = [spec.name for spec in specs]

    def call(*flat: Any) -> Any:
        return model(nested.pack(takes, dict(zip(arguments, flat, strict=True))), training=False)

    try:
        function = tf.function(call, input_signature=specs, autograph=False).get_concrete_function()
    except (TypeError, ValueError, tf.errors.OpError) as error:
        raise ModelError(
            f"The Keras model cannot be traced: {type(error).__name__}: {summary(error)}"
        ) from error
    gives = _named_results(function.structured_outputs)
    frozen = freeze_function(function, arguments, list(nested.leaves(gives)))
    return Taken(frozen, Handover("keras", frozen.inputs, frozen.outputs, takes, gives))


def _keras_arguments(model: Any) -> tuple[Any, list[Any]]:
    """The nesting of input names, and a TensorSpec for each, in order."""
    inputs = getattr(model, "_inputs_struct", None)  # absent where the inputs are a plain list
    inputs = inputs if inputs is not None else getattr(model, "inputs", None)
    if inputs is None or (isinstance(inputs, list) and not inputs):
        return _built_arguments(model)
    specs: dict[str, Any] = {}

    def name(leaf: Any, path: nested.Path) -> str:
        # In a dict the key is what callers pass by; in a list it is the input's own name.
        wanted = str(path[-1]) if path and isinstance(path[-1], str) else leaf.name
        unique = wanted if wanted not in specs else f"{wanted}_{len(specs)}"
        specs[unique] = tf.TensorSpec(tuple(leaf.shape), leaf.dtype, name=unique)
        return unique

    single = isinstance(inputs, list) and len(inputs) == 1
    return nested.name_leaves(inputs[0] if single else inputs, name), list(specs.values())


def _built_arguments(model: Any) -> tuple[Any, list[Any]]:
    """A subclassed model knows only the shape that it was built with."""
    shape = (getattr(model, "_build_shapes_dict", None) or {}).get("input_shape")
    if not isinstance(shape, tuple) or not all(size is None or isinstance(size, int) for size in shape):
        raise ModelError(
            f"The inputs of the Keras model {model.name!r} are not known: it is a subclass without "
            "keras.Input. Give a concrete "
            "function instead: tf.function(lambda x: model(x, "
            "training=False)).get_concrete_function(tf.TensorSpec(...))."
        )
    parameters = list(inspect.signature(model.call).parameters)
    spec = tf.TensorSpec(
        (None, *shape[1:]), model.compute_dtype, name=parameters[0] if parameters else "inputs"
    )
    return spec.name, [spec]


# -- functions -----------------------------------------------------------------------------------------------


def _only_concrete(function: Any) -> Any:
    try:
        return function.get_concrete_function()
    except (TypeError, ValueError) as error:
        raise ModelError(
            "A tf.function without an input_signature stands for many graphs. Give one of them: "
            "function.get_concrete_function(tf.TensorSpec(...))."
        ) from error


def _function(function: Any) -> Taken:
    used: list[str] = []

    def name(spec: Any, path: nested.Path) -> str | None:
        if not isinstance(spec, tf.TypeSpec):
            return None  # a constant that was traced in, such as training=False
        wanted = spec.name or f"argument_{len(used)}"
        used.append(wanted if wanted not in used else f"{wanted}_{len(used)}")
        return used[-1]

    arguments, keywords = function.structured_input_signature
    positional = list(function.function_type.parameters)[: len(arguments)]
    names = [*positional, *(f"argument_{index}" for index in range(len(positional), len(arguments)))]
    given = {
        **dict(zip(names, arguments, strict=True)),
        **{parameter: keywords[parameter] for parameter in sorted(keywords)},
    }
    constants = {
        parameter: value
        for parameter, value in given.items()
        if value is None or isinstance(value, bool | int | float | str)
    }
    nestings = {parameter: nested.name_leaves(value, name) for parameter, value in given.items()}
    takes = {
        "positional": [[parameter, nestings[parameter]] for parameter in names],
        "keyword": [[parameter, nestings[parameter]] for parameter in sorted(keywords)],
        "constants": constants,
    }
    gives = _named_results(function.structured_outputs)
    frozen = freeze_function(function, used, list(nested.leaves(gives)))
    return Taken(frozen, Handover("function", frozen.inputs, frozen.outputs, takes, gives))


def _named_results(outputs: Any) -> Any:
    """Results by the names that :meth:`Backend.run` knows them by: a dict's keys, ``output`` for a single
    tensor, else a number.
    """

    def name(leaf: Any, path: nested.Path) -> str | None:
        if leaf is None:
            return None
        joined = "_".join(map(str, path))
        return f"output_{joined}" if joined[:1].isdigit() else joined or "output"

    return nested.name_leaves(outputs, name)


def _check_names(settings: Settings, handover: Handover) -> None:
    """Names of a model with a signature are the signature's; naming others is a mistake."""
    for role, given, known in (
        ("inputs", settings.inputs, handover.inputs),
        ("outputs", settings.outputs, handover.outputs),
    ):
        legal = {*known, *known.values(), *(tensor.removesuffix(":0") for tensor in known.values())}
        for name in given:
            if name not in legal:
                raise ModelError(
                    f"model.{role} names {name!r}, which the model's signature does not have. Nearest names: "
                    f"{', '.join(nearest(node_of(name), known))}. They can be left out: the signature says "
                    "what goes in and out."
                )
