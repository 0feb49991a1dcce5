"""Multiply-adds of TensorFlow graphs, node by node, from the shapes of one batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from octune.backends.batches import Inputs
from octune.backends.tensorflow.graph.graph import FrozenGraph
from octune.backends.tensorflow.int8.rewrite import Rewriter
from octune.coverage import Work
from tests.backends.tensorflow.graphs import bert, bert_feed, frozen, normal, weight

v1 = tf.compat.v1


def work_of(graph: FrozenGraph, feed: Any) -> tuple[Rewriter, Work]:
    rewriter = Rewriter(graph)
    return rewriter, rewriter.work(Inputs(kwargs=feed))


IMAGE, SEQUENCE = (2, 8, 8, 4), (2, 3, 8)


@pytest.mark.parametrize(
    ("build", "shape", "products"),
    [
        (lambda x: tf.nn.conv2d(x, weight(normal(3, 3, 4, 6)), 2, "SAME"), IMAGE, 2 * 16 * 6 * 36),
        (
            lambda x: tf.nn.depthwise_conv2d(x, weight(normal(3, 3, 4, 2)), [1, 1, 1, 1], "SAME"),
            IMAGE,
            2 * 64 * 8 * 9,
        ),
        (
            lambda x: tf.nn.conv2d_transpose(x, weight(normal(3, 3, 5, 4)), [2, 16, 16, 5], 2),
            IMAGE,
            2 * 64 * 4 * 5 * 9,
        ),
        (lambda x: tf.matmul(x, x, transpose_b=True), SEQUENCE, 2 * 3 * 3 * 8),
        (lambda x: tf.einsum("btd,dho->btho", x, weight(normal(8, 2, 5))), SEQUENCE, 2 * 3 * 8 * 10),
    ],
)
def test_every_node_that_multiplies_has_a_formula(
    build: Callable[[Any], Any], shape: tuple[int, ...], products: int
) -> None:
    def made() -> dict[str, Any]:
        x = v1.placeholder(tf.float32, [None] * (len(shape) - 1) + [shape[-1]], name="x")
        return {"y": tf.identity(build(x), name="y")}

    _, work = work_of(frozen(made), {"x:0": normal(*shape)})
    assert work.total == products
    assert not work.uncounted


def test_a_bert_is_counted_op_by_op_whatever_its_batch() -> None:
    batch, tokens = 2, 16
    rewriter, work = work_of(bert(), bert_feed(batch, tokens))
    sizes = {op.name: op.parameters for op in rewriter.ops()}
    assert not work.uncounted
    assert {count // sizes[name] for name, count in work.ops.items() if sizes[name]} <= {
        batch,
        batch * tokens,
    }
    other = rewriter.work(Inputs(kwargs=bert_feed(2 * batch, tokens)))
    assert other.total == 2 * work.total
    assert work.others["Softmax"] > 0
