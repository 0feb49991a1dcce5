"""Frozen graphs: written to a file, and run to the end of their own iterator."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from octune.errors import DataError, ModelError

__all__ = ["iterator_sess_run", "write_graph"]


def write_graph(out_graph_def: Any, out_graph_file: str | Path) -> None:
    """Write a frozen graph, given as a GraphDef or a tf.Graph, to a .pb file."""
    definition = out_graph_def.as_graph_def() if hasattr(out_graph_def, "as_graph_def") else out_graph_def
    if not hasattr(definition, "SerializeToString"):
        raise ModelError(
            f"write_graph needs a GraphDef: graph.as_graph_def(). Got {type(out_graph_def).__name__} instead."
        )
    path = Path(out_graph_file)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(definition.SerializeToString())


def iterator_sess_run(
    sess: Any,
    iter_op: Any,
    feed_dict: Mapping[Any, Any],
    output_tensor: Any,
    iteration: int = -1,
    measurer: Any = None,
) -> Any:
    """Start a graph's own iterator, then fetch ``output_tensor`` to the end of its data, or ``iteration``
    times.

    Batches come back joined, in the form of ``output_tensor``: a tensor, a list or a dict. ``measurer`` has
    ``start()`` and ``end()``, which are called around every batch.
    """
    import tensorflow as tf

    sess.run(iter_op, feed_dict)
    parts: list[Any] = []
    while iteration == -1 or len(parts) < iteration:
        try:
            if measurer is not None:
                measurer.start()
            part = sess.run(output_tensor)
            if measurer is not None:
                measurer.end()
        except tf.errors.OutOfRangeError:
            break
        parts.append(part)
    if not parts:
        raise DataError(
            "The graph's iterator returned no batch. Check the file that feed_dict names, and iteration."
        )
    if isinstance(parts[0], Mapping):
        return {name: _joined([part[name] for part in parts]) for name in parts[0]}
    if isinstance(parts[0], list | tuple):
        return [_joined(list(column)) for column in zip(*parts, strict=True)]
    return _joined(parts)


def _joined(parts: list[Any]) -> Any:
    return np.concatenate([np.atleast_1d(part) for part in parts])
