"""Graphs that are called: what is handed out for a SavedModel, a Keras model or a concrete function.

    function = flat_function(graph_def, {"x": "x:0"}, {"output": "Identity:0"})
    model = KerasCallable(function, ("x",), gives="output")
    model(x)

All of it is plain TensorFlow: a flat function is a concrete function with one tensor for each argument name.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework.graph_pb2 import GraphDef

from octune.backends.tensorflow.graph.graph import node_of, tensor
from octune.backends.tensorflow.model import nested
from octune.backends.tensorflow.model.freeze import drop_blanks
from octune.errors import DataError

__all__ = ["GraphCallable", "KerasCallable", "call_shaped", "flat_function", "shaped_function"]


def flat_function(graph_def: GraphDef, inputs: Mapping[str, str], outputs: Mapping[str, str]) -> Any:
    """A concrete function: tensors in the order of ``inputs``, named like them; a dict of tensors comes
    back.
    """
    nodes = {node.name: node for node in graph_def.node}
    specs = [_spec(nodes[node_of(name)], argument) for argument, name in inputs.items()]
    fed = {node_of(name) for name in inputs.values()}
    body = GraphDef()
    body.versions.CopyFrom(graph_def.versions)
    body.library.CopyFrom(graph_def.library)
    body.node.extend(node for node in graph_def.node if node.name not in fed)
    drop_blanks(body)
    read = {tensor(reference) for node in body.node for reference in node.input}

    def call(*flat: Any) -> dict[str, Any]:
        given = dict(zip(inputs.values(), flat, strict=True))
        feeds = {name: value for name, value in given.items() if name in read}
        wanted = [name for name in outputs.values() if name not in given]
        made = dict(
            zip(
                wanted,
                tf.graph_util.import_graph_def(body, input_map=feeds, return_elements=wanted, name=""),
                strict=True,
            )
        )
        return {result: {**given, **made}[name] for result, name in outputs.items()}

    return tf.function(call, input_signature=specs, autograph=False).get_concrete_function()


def _spec(node: Any, argument: str) -> Any:
    return tf.TensorSpec(
        tf.TensorShape(node.attr["shape"].shape), tf.dtypes.as_dtype(node.attr["dtype"].type), name=argument
    )


def shaped_function(function: Any, takes: Mapping[str, Any], gives: Any) -> Any:
    """A concrete function with the parameters and the nesting of the one that was frozen, around a flat
    function.

    ``takes`` has the positional and the keyword parameters as pairs of a name and a nesting, and the
    constants that were traced in.
    """
    specs = {spec.name: spec for spec in nested.leaves(function.structured_input_signature)}
    parameters = [*takes["positional"], *takes["keyword"]]
    nestings = [leaf for name, leaf in parameters if name not in takes["constants"]]

    def call(*args: Any, **kwargs: Any) -> Any:
        given = {**dict(zip((name for name, _ in takes["positional"]), args, strict=False)), **kwargs}
        values = [given[name] for name, _ in parameters if name not in takes["constants"]]
        return nested.pack(
            gives,
            _call_flat(function, dict(zip(nested.leaves(nestings), nested.leaves(values), strict=True))),
        )

    kinds = inspect.Parameter
    positional = [kinds(name, kinds.POSITIONAL_OR_KEYWORD) for name, _ in takes["positional"]]
    keyword = [kinds(name, kinds.KEYWORD_ONLY) for name, _ in takes["keyword"]]
    call.__signature__ = inspect.Signature([*positional, *keyword])  # type: ignore[attr-defined]  # where tf.function reads it
    args, kwargs = _arguments(takes, specs)
    return tf.function(call, autograph=False).get_concrete_function(*args, **kwargs)


def call_shaped(
    function: Any, takes: Mapping[str, Any], gives: Any, values: Mapping[str, Any]
) -> dict[str, Any]:
    """Call a function made by :func:`shaped_function` with tensors by name; its results come back by name."""
    args, kwargs = _arguments(takes, values)
    return dict(zip(nested.leaves(gives), nested.leaves(function(*args, **kwargs)), strict=True))


def _arguments(takes: Mapping[str, Any], values: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    constants = takes["constants"]
    positional, keyword = (
        {
            name: constants[name] if name in constants else nested.pack(leaf, values)
            for name, leaf in takes[kind]
        }
        for kind in ("positional", "keyword")
    )
    return list(positional.values()), keyword


@dataclass
class _Call:
    """What a callable knows about its call. In one object, because tf.Module wraps every list and dict that
    it holds itself.
    """

    arguments: tuple[str, ...]
    dtypes: dict[str, Any]
    gives: Any = None
    seen: list[dict[str, Any]] | None = None


class GraphCallable(tf.Module):  # type: ignore[misc]  # TensorFlow has no types
    """A graph with the signature of the SavedModel that it was made from.

    Called by name or by position, it returns a dict, as the signature does; ``signatures`` holds the
    signature itself, so that ``tf.saved_model.save(model, folder, signatures=model.signatures)`` writes it
    again.
    """

    def __init__(
        self, function: Any, arguments: Sequence[str], signature: str = "serving_default", gives: Any = None
    ) -> None:
        super().__init__(name="octune")
        self._function, self._signature = function, signature
        dtypes = {spec.name: spec.dtype for spec in nested.leaves(function.structured_input_signature)}
        self._call = _Call(tuple(arguments), dtypes, gives)

    @property
    def signatures(self) -> dict[str, Any]:
        """The signature by its name."""
        return {self._signature: self._function}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The results by name, for tensors or arrays by position, by name, or all in one dict, list or
        tuple.
        """
        return self.flat(self._bind(args, kwargs))

    def flat(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The results by name, for all arguments by name."""
        call = self._call
        if call.seen is not None and not call.seen:
            call.seen.append({name: np.asarray(value) for name, value in values.items()})
        return _call_flat(
            self._function, {name: _as_tensor(values[name], call.dtypes[name]) for name in call.arguments}
        )

    @contextmanager
    def watched(self) -> Iterator[list[dict[str, Any]]]:
        """While this is open, the arguments of the first call are put into the list."""
        seen: list[dict[str, Any]] = []
        self._call.seen = seen
        try:
            yield seen
        finally:
            self._call.seen = None

    def _bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        names = self._call.arguments
        if len(args) == 1 and not kwargs and isinstance(args[0], Mapping) and set(args[0]) == set(names):
            return dict(args[0])
        if (
            len(args) == 1
            and isinstance(args[0], Mapping | list | tuple)
            and (len(names) > 1 or isinstance(args[0], Mapping))
        ):
            args = tuple(nested.leaves(args[0]))
        values = {**dict(zip(names, args, strict=False)), **kwargs}
        if set(values) != set(names) or len(args) > len(names):
            given = [*(f"{len(args)} by position" for _ in args[:1]), *kwargs]
            raise DataError(f"The model takes {list(names)}. Got {given} instead.")
        return values


class KerasCallable(GraphCallable):
    """A graph that takes and returns what the Keras model did that it was made from."""

    def __call__(self, *args: Any, training: bool = False, **kwargs: Any) -> Any:
        """What the Keras model answers in inference mode; ``training`` can only be false."""
        if training:
            raise DataError("A quantized model only runs in inference mode: training must be False.")
        return nested.pack(self._call.gives, self.flat(self._bind(args, kwargs)))

    def predict(self, inputs: Any, batch_size: int = 32, **ignored: Any) -> Any:
        """Arrays for all of the inputs, in batches, as Keras' own ``predict``; its other options are for
        display.
        """
        values = {name: np.asarray(value) for name, value in self._bind((inputs,), {}).items()}
        rows = len(next(iter(values.values())))
        parts = []
        for start in range(0, rows, batch_size):
            results = self.flat({name: value[start : start + batch_size] for name, value in values.items()})
            parts.append({name: np.asarray(value) for name, value in results.items()})
        return nested.pack(
            self._call.gives, {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        )


def _call_flat(function: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """Call a flat function by name. One that was loaded takes names; one that was made here takes its
    arguments in their order.
    """
    positional, _ = function.structured_input_signature
    results: dict[str, Any] = (
        function(*(values[spec.name] for spec in positional)) if positional else function(**values)
    )
    return results


def _as_tensor(value: Any, dtype: Any) -> Any:
    """A value as a tensor of this type."""
    if tf.is_tensor(value):
        return value if value.dtype == dtype else tf.cast(value, dtype)
    array = np.asarray(value)
    return (
        tf.constant(array)
        if dtype == tf.string
        else tf.constant(array.astype(dtype.as_numpy_dtype, copy=False))
    )
