"""Which number formats are fast in TensorFlow on this machine, measured on one matrix product."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from octune.backends.tensorflow.graph.graph import FrozenGraph
from octune.backends.tensorflow.graph.sessions import new_session
from octune.backends.tensorflow.int8.rewrite import Rewriter
from octune.backends.tensorflow.int8.support import support
from octune.backends.tensorflow.model.freeze import as_graph
from octune.backends.terms import SelfTest
from octune.calibration import Observer, Ranges
from octune.cost.latency import interleaved
from octune.plan import Scheme

__all__ = ["self_test"]


def self_test() -> SelfTest:
    """The speed of every scheme that runs here relative to fp32, and why int8 is not among them, if it is
    not.
    """
    random = np.random.default_rng(0)
    graph = tf.Graph()
    with graph.as_default():
        x = tf.compat.v1.placeholder(tf.float32, [None, 768], name="x")
        weight = tf.constant(random.standard_normal((768, 3072)).astype(np.float32))
        tf.nn.bias_add(tf.matmul(x, weight, name="MatMul"), tf.zeros([3072]), name="y")
    rewriter = Rewriter(FrozenGraph(graph.as_graph_def(), {"x": "x:0"}, {"y": "y:0"}))
    (op,) = rewriter.ops()
    rows = random.standard_normal((128, 768)).astype(np.float32)
    observer = Observer()
    observer.update(rows)
    stats = observer.stats()
    ranges = Ranges({} if stats is None else {op.name: stats})
    schemes = {
        "fp32": Scheme.fp32(),
        "int8 static": Scheme.int8(),
        "int8 dynamic": Scheme.int8("dynamic"),
        "bf16": Scheme.bf16(),
    }

    def call(scheme: Scheme) -> Callable[[], object]:
        part, fed, fetched = rewriter.alone(op, scheme, ranges)
        alone = as_graph(part)
        run = new_session(alone, None).make_callable(alone.get_tensor_by_name(fetched).op, feed_list=[fed])
        return lambda: run(rows)

    times = interleaved(
        {name: call(scheme) for name, scheme in schemes.items() if scheme in op.schemes},
        warmup=5,
        iterations=30,
    )
    speed = {
        name: times["fp32"].median_ms / timed.median_ms for name, timed in times.items() if name != "fp32"
    }
    return SelfTest(speed, [why] if (why := support().why) else ())
