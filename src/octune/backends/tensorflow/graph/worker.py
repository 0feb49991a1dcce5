"""A graph in a process of its own, for thread settings that this process cannot have.

    worker = Worker(graph, ConfigProto(inter_op_parallelism_threads=2, intra_op_parallelism_threads=1))
    worker.run(["logits:0"], {"input_ids:0": array})        # -> [array]

All sessions of a process share the threads inside ops, and the first session decides how many these are. So a
graph that needs other threads than fp32 can be timed side by side with it only in another process.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

import octune
from octune.errors import ModelError
from octune.scratch import Scratch

__all__ = ["Worker"]

Arrays = list[np.ndarray[Any, Any]]


def _search_path() -> str:
    """Where another process finds the Octune that runs here, installed or not."""
    package = Path(octune.__file__).parent
    return os.pathsep.join(filter(None, [str(package.parent), os.environ.get("PYTHONPATH")]))


class Worker:
    """Starts its process when it is made; ends it when it is closed, or with this process."""

    def __init__(self, graph: Any, config: Any) -> None:
        # A file, not the pipe: the graph of a large model is gigabytes.
        self._folder = Scratch()
        path = self._folder.path / "graph.pb"
        path.write_bytes(graph.as_graph_def().SerializeToString())
        command = [
            sys.executable,
            "-c",
            f"from {__name__} import serve; serve()",
            str(path),
            config.SerializeToString().hex(),
        ]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": _search_path(), "TF_CPP_MIN_LOG_LEVEL": "3"},
            start_new_session=True,  # Ctrl-C is for the process that waits for answers
        )

    def run(self, fetches: Sequence[str], feed: Mapping[str, Any]) -> Arrays:
        """Arrays in the order of ``fetches``."""
        inner, outer = self._process.stdin, self._process.stdout
        if inner is None or outer is None:
            raise ValueError("a closed worker")
        try:
            pickle.dump((tuple(fetches), dict(feed)), inner, protocol=pickle.HIGHEST_PROTOCOL)
            inner.flush()
            answer = pickle.load(outer)
        except (EOFError, BrokenPipeError) as error:
            code = self._process.wait()
            raise ModelError(
                f"TensorFlow ended with code {code} while it ran the graph in a process of its own."
            ) from error
        if isinstance(answer, str):
            raise ModelError(answer)
        arrays: Arrays = answer
        return arrays

    def close(self) -> None:
        """End the process."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._process.kill()
        self._process.wait()
        self._folder.close()


def serve() -> None:
    """The other side: answers until the pipe is closed."""
    path, config = sys.argv[1:3]
    inner, outer = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what is printed must not end up among the answers
    import tensorflow as tf

    graph = tf.Graph()
    with graph.as_default():
        tf.import_graph_def(tf.compat.v1.GraphDef.FromString(Path(path).read_bytes()), name="")
    with tf.compat.v1.Session(
        graph=graph, config=tf.compat.v1.ConfigProto.FromString(bytes.fromhex(config))
    ) as session:
        _answer(session, inner, outer)


def _answer(session: Any, inner: BinaryIO, outer: BinaryIO) -> None:
    prepared: dict[Any, Any] = {}
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's alone
    while True:
        try:
            fetches, feed = pickle.load(inner)
        except EOFError:
            return
        answer: Arrays | str
        try:
            key = (fetches, tuple(feed))
            is_new = key not in prepared
            if is_new:
                prepared[key] = session.make_callable(list(fetches), feed_list=list(feed))
            answer = [np.asarray(value) for value in prepared[key](*feed.values())]
            if is_new and trim is not None:
                # making a graph ready takes ten times its memory, and half of that stays in pools that are
                # not needed any more
                trim(0)
        except Exception as error:
            answer = f"{type(error).__name__}: {error}"
        pickle.dump(answer, outer, protocol=pickle.HIGHEST_PROTOCOL)
        outer.flush()
