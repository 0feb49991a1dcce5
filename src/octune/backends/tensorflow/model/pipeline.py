"""Graphs that read their own data: placeholders for a file, a dataset, ``MakeIterator``, ``IteratorGetNext``.

    pipeline = Pipeline.of(frozen)                      # None if its outputs need no iterator
    for inputs in pipeline.batches(feed): ...           # what the iterator returns, batch by batch
    pipeline.run(graph, sessions, fetches, feed)        # everything, through the graph's own iterator

What ``IteratorGetNext`` returns can be fed again, so a batch that was read once serves calibration, probing
and timing like any other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from octune.backends.batches import Inputs, find_mask
from octune.backends.tensorflow.graph.graph import FrozenGraph, node_of, tensor
from octune.backends.tensorflow.graph.sessions import Sessions, new_session
from octune.backends.tensorflow.model.freeze import as_graph, upstream
from octune.errors import DataError, summary

__all__ = ["Feed", "Pipeline"]

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Feed:
    """What a graph with its own iterator is started with; it then reads batch after batch by itself."""

    values: Mapping[str, Array]


@dataclass(frozen=True)
class Pipeline:
    """The iterators of a graph. ``direct`` are placeholders that the model reads itself, besides those that
    start an iterator.
    """

    frozen: FrozenGraph
    iterators: tuple[str, ...]
    direct: tuple[str, ...]

    @classmethod
    def of(cls, frozen: FrozenGraph) -> Pipeline | None:
        """The pipeline of a graph, if its outputs depend on one."""
        nodes = {node.name: node for node in frozen.graph_def.node}
        fed = set(frozen.inputs.values())
        waiting, seen, direct = [node_of(name) for name in frozen.outputs.values()], set[str](), set[str]()
        while waiting:
            name = waiting.pop()
            if name in seen:
                continue
            seen.add(name)
            # Behind an iterator is the pipeline; what is fed needs nothing.
            if nodes[name].op != "IteratorGetNext":
                read = {tensor(reference) for reference in nodes[name].input}
                direct |= read & fed
                waiting.extend(
                    node_of(reference) for reference in nodes[name].input if tensor(reference) not in fed
                )
        iterators = tuple(name for name in nodes if name in seen and nodes[name].op == "IteratorGetNext")
        return (
            cls(frozen, iterators, tuple(name for name in frozen.inputs.values() if name in direct))
            if iterators
            else None
        )

    def batches(self, feed: Feed) -> Iterator[Inputs]:
        """What the iterators return, one batch at a time, to the end of the data."""
        targets = self.frozen.targets
        graph = as_graph(
            upstream(self.frozen.graph_def, [*self.iterators, *targets, *self.frozen.inputs.values()])
        )
        outputs = [
            output.name for name in self.iterators for output in graph.get_operation_by_name(name).outputs
        ]
        with new_session(graph, None) as session:
            self._start(session, targets, feed)
            while (arrays := _next(lambda: session.run(outputs, dict(feed.values)))) is not None:
                values = dict(zip(outputs, map(np.asarray, arrays), strict=True))
                mask = find_mask(values.items())
                mask = _guessed_mask(values) if mask is None else mask
                yield Inputs((), {**values, **{name: feed.values[name] for name in self.direct}}, mask)

    def run(self, graph: Any, sessions: Sessions, fetches: Mapping[str, str], feed: Feed) -> dict[str, Array]:
        """All of the data through the graph's own iterator; batches are joined."""
        # An iterator without an initialiser is used up after one pass, for the whole life of its session.
        session = sessions.session(graph) if self.frozen.targets else new_session(graph, None)
        self._start(session, self.frozen.targets, feed)
        direct = {name: feed.values[name] for name in self.direct}
        parts = []
        while (part := _next(lambda: session.run(dict(fetches), direct))) is not None:
            parts.append(part)
        if not parts:
            raise DataError(f"The graph's iterator gave no batch for {_said(feed)}: the file is empty.")
        return {name: _joined([np.asarray(part[name]) for part in parts]) for name in fetches}

    def _start(self, session: Any, targets: tuple[str, ...], feed: Feed) -> None:
        try:
            session.run(list(targets), dict(feed.values))
        except tf.errors.OpError as error:
            raise DataError(
                f"The graph's iterator cannot be started with {_said(feed)}: {summary(error)}"
            ) from error


def _next(run: Any) -> Any:
    try:
        return run()
    except tf.errors.OutOfRangeError:
        return None
    except (tf.errors.DataLossError, tf.errors.NotFoundError, tf.errors.InvalidArgumentError) as error:
        raise DataError(f"The graph's iterator cannot read its data: {summary(error)}") from error


def _joined(parts: list[Array]) -> Array:
    return np.concatenate(parts) if parts[0].ndim else np.stack(parts)


def _said(feed: Feed) -> str:
    return ", ".join(f"{name.removesuffix(':0')}={value}" for name, value in feed.values.items()) or "nothing"


def _guessed_mask(values: Mapping[str, Array]) -> npt.NDArray[np.bool_] | None:
    """The attention mask among unnamed tensors: whole numbers (batch, tokens) of ones, and then zeros to the
    end of the row.

    Segment ids begin with zero and token ids have other numbers, so nothing else of a BERT's inputs looks
    like that. In doubt, none.
    """
    found = []
    for array in values.values():
        if array.ndim == 2 and array.dtype.kind in "iub" and array.shape[1] > 1:
            flags = array.astype(bool)
            if (
                np.array_equal(flags, array)
                and flags[:, 0].all()
                and not (flags[:, 1:] & ~flags[:, :-1]).any()
            ):
                found.append(flags)
    return found[0] if len(found) == 1 else None
