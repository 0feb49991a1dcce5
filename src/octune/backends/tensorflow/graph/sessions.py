"""Running graphs: sessions with the threads that were asked for, of which the last few are kept.

sessions = Sessions(threads=2)
sessions.run(graph, {"logits": "logits:0"}, {"x:0": array})
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import numpy as np
import tensorflow as tf

from octune.backends.tensorflow.graph.worker import Worker
from octune.backends.tensorflow.int8.streams import streams_of
from octune.machine import probe_machine

__all__ = ["Sessions", "new_session", "set_threads"]

KEPT = 3


def new_session(graph: Any, threads: int | None, *, optimized: bool = True) -> Any:
    """A session. Ops may run side by side: a small int8 matmul takes one thread only, so Q, K and V share the
    cores that way.

    A graph that runs only a few times is not worth optimizing.
    """
    config = tf.compat.v1.ConfigProto(use_per_session_threads=True)
    config.inter_op_parallelism_threads = config.intra_op_parallelism_threads = threads or 0
    config.graph_options.rewrite_options.disable_meta_optimizer = not optimized
    config.graph_options.place_pruned_graph = not optimized
    return tf.compat.v1.Session(graph=graph, config=config)


def set_threads(threads: int) -> str:
    """Give TensorFlow this number of threads. All sessions share one pool, made at its first use. Returns an
    empty string, or what went wrong.
    """
    before = tf.config.threading.get_intra_op_parallelism_threads()
    if before == threads:
        return ""
    try:
        tf.config.threading.set_intra_op_parallelism_threads(threads)
    except RuntimeError:
        had = f"{before} threads" if before else "all cores"
        return (
            f"{threads} threads were asked for, but TensorFlow already runs with {had}: set them before "
            "TensorFlow is first used"
        )
    return ""


class _Kept:
    """A graph, its session, and the questions that were prepared. One made of streams runs in a process
    of its own.
    """

    def __init__(self, graph: Any, threads: int | None) -> None:
        self.graph, self._threads = graph, threads
        self.prepared: dict[Any, Callable[..., list[Any]]] = {}
        streams = streams_of(graph)  # looks at every op: once for a graph, not for every run
        share = max(1, (threads or probe_machine().cores) // streams)
        config = tf.compat.v1.ConfigProto(
            inter_op_parallelism_threads=streams, intra_op_parallelism_threads=share
        )
        self.worker = Worker(graph, config) if streams > 1 else None

    @cached_property
    def session(self) -> Any:
        return new_session(self.graph, self._threads)

    def close(self) -> None:
        if self.worker is not None:
            self.worker.close()
        if "session" in self.__dict__:
            self.session.close()


class Sessions:
    """Sessions by graph. A session holds its graph and a copy of its weights, so only the last few are
    kept.
    """

    def __init__(self, threads: int | None = None) -> None:
        self._threads = threads
        self._kept: OrderedDict[int, _Kept] = OrderedDict()

    def session(self, graph: Any) -> Any:
        """The session of a graph."""
        return self._entry(graph).session

    def run(
        self, graph: Any, fetches: Mapping[str, str], feed: Mapping[str, Any]
    ) -> dict[str, np.ndarray[Any, Any]]:
        """Arrays by name. The same question asked again costs no preparation."""
        entry = self._entry(graph)
        if entry.worker is not None:
            return dict(zip(fetches, entry.worker.run(list(fetches.values()), feed), strict=True))
        key = (tuple(fetches.values()), tuple(feed))
        if key not in entry.prepared:
            entry.prepared[key] = entry.session.make_callable(list(fetches.values()), feed_list=list(feed))
        return dict(zip(fetches, map(np.asarray, entry.prepared[key](*feed.values())), strict=True))

    def _entry(self, graph: Any) -> _Kept:
        if id(graph) not in self._kept:
            self._kept[id(graph)] = _Kept(graph, self._threads)
        self._kept.move_to_end(id(graph))
        while len(self._kept) > KEPT:
            self._kept.popitem(last=False)[1].close()
        return self._kept[id(graph)]

    def close(self) -> None:
        """Let go of all sessions."""
        while self._kept:
            self._kept.popitem()[1].close()
