"""Shows the activations of a running graph to a visitor, one tensor at a time, while they are computed.

    watcher = Watcher(rewriter.weightless, rewriter.taps(), outputs, threads)
    watcher(inputs, visit)

The tensors are handed over inside the run, by ops that are added to a copy of the graph: nothing is gathered,
so one pass over a batch needs no more memory than running it, however many tensors are looked at.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from octune.backends.batches import Inputs, real_rows
from octune.backends.tensorflow.graph.graph import Tap
from octune.backends.tensorflow.graph.sessions import new_session
from octune.backends.tensorflow.graph.weightless import Weightless
from octune.backends.tensorflow.model.freeze import as_graph
from octune.backends.terms import Visit
from octune.errors import DataError, summary

__all__ = ["Watcher"]


class Watcher:
    """A graph that shows what flows through it. Close it to let go of the graph."""

    def __init__(
        self, weightless: Weightless, taps: Mapping[str, Tap], outputs: Iterable[str], threads: int | None
    ) -> None:
        self._names: dict[str, list[tuple[str, Tap]]] = {}
        for name, tap in taps.items():
            self._names.setdefault(tap.tensor, []).append((name, tap))
        self._visit: Visit | None = None
        self._mask: npt.NDArray[np.bool_] | None = None
        self._error: BaseException | None = None
        self._lock = threading.Lock()
        self.threads, self._weights = threads, weightless.arrays
        graph = as_graph(weightless.graph_def)
        with graph.as_default():
            self._ops = [self._show(graph.get_tensor_by_name(name)) for name in self._names]
            # What comes behind the last of them runs as well: data that it cannot run on must be found
            # here.
            self._ops.extend(tf.identity(graph.get_tensor_by_name(name)).op for name in outputs)
        self._session = new_session(graph, threads, optimized=False)

    def __call__(self, inputs: Inputs, visit: Visit) -> None:
        """One batch through the graph."""
        self._visit, self._mask, self._error = visit, inputs.mask, None
        try:
            self._session.run(self._ops, {**self._weights, **inputs.kwargs})
        except (tf.errors.OpError, ValueError, TypeError) as error:
            if self._error is not None:
                raise self._error from None
            raise DataError(
                f"The model cannot be run on the calibration data: {type(error).__name__}: {summary(error)}"
            ) from error

    def fetch(self, names: Iterable[str], inputs: Inputs) -> dict[str, npt.NDArray[Any]]:
        """Tensors of the graph on one batch, as arrays."""
        listed = list(names)
        return dict(zip(listed, self._session.run(listed, {**self._weights, **inputs.kwargs}), strict=True))

    def close(self) -> None:
        """Let go of the graph and its weights."""
        self._session.close()

    def _show(self, watched: Any) -> Any:
        name = watched.name

        def show(array: npt.NDArray[Any]) -> None:
            try:
                with self._lock:
                    self._shown(name, array)
            except BaseException as error:
                self._error = error  # TensorFlow would only keep its text
                raise

        return tf.numpy_function(show, [watched], [], name=f"octune_watch/{name.replace(':', '_')}")

    def _shown(self, tensor: str, array: npt.NDArray[Any]) -> None:
        if self._visit is None:
            return
        for name, tap in self._names[tensor]:
            if array.dtype.kind != "f" or array.ndim == 0:
                self._visit(name, None, shape=array.shape)
                continue
            real = real_rows(array, self._mask)
            values = np.asarray(array if real is None else real, dtype=np.float32)
            self._visit(
                name, values, shape=array.shape, channel_axis=tap.channel_axis if real is None else -1
            )
