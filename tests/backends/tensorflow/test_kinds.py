"""Kinds of ops as objects: what each says about itself, and that nothing else knows them by name."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import octune.backends.tensorflow.int8.find as finding
import octune.backends.tensorflow.int8.kinds as kinds
from octune.backends.batches import Inputs
from octune.backends.tensorflow.graph.graph import FrozenGraph
from octune.backends.tensorflow.int8.kinds import KINDS, Kind, kind_of
from octune.backends.tensorflow.int8.kinds.conv import Conv2D, DepthwiseConv2D
from octune.backends.tensorflow.int8.kinds.matmul import MatMul
from octune.backends.tensorflow.int8.rewrite import Rewriter
from octune.backends.tensorflow.probe.harm import first_order_harm
from octune.backends.tensorflow.probe.kernel_check import check, needed
from octune.plan import Scheme
from tests.backends.tensorflow.graphs import (
    calibrated,
    error,
    everything,
    frozen,
    normal,
    op_types,
    run,
    weight,
)

SHAPES = {
    "matmul": (12, 5),
    "conv2d": (3, 2, 4, 6),
    "depthwise_conv2d": (3, 2, 4, 2),
    "conv2d_transpose": (3, 2, 4, 6),
    "conv3d": (5, 3, 2, 4, 6),
}
v1 = tf.compat.v1


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_weights_survive_the_layout_of_repairs(kind: Kind) -> None:
    floats = normal(*SHAPES[kind.name])
    by_output, groups = kind.by_output(floats)
    assert len(by_output) == kind.columns(floats)
    assert by_output.shape[1] * groups == floats.shape[-2]
    np.testing.assert_array_equal(kind.from_output(by_output, floats.shape), floats)


def test_the_outputs_of_a_weight_are_where_the_kernel_has_them() -> None:
    floats = normal(3, 2, 4, 2)
    depthwise, _ = DepthwiseConv2D().by_output(floats)
    np.testing.assert_array_equal(depthwise[2 * 3 + 1, 0], floats[:, :, 3, 1])
    dense, _ = Conv2D().by_output(floats)
    np.testing.assert_array_equal(dense[1, 3], floats[:, :, 3, 1])


def test_ops_are_recognised_by_one_kind_each() -> None:
    assert len({kind.tf_op for kind in KINDS}) == len({kind.name for kind in KINDS}) == len(KINDS)
    assert all(kind_of(kind.tf_op) is kind for kind in KINDS)
    assert kind_of("Softmax") is None


def test_only_kinds_that_take_the_same_grids_share_their_input() -> None:
    assert Conv2D().grid == DepthwiseConv2D().grid != MatMul().grid
    low = MatMul().grid(-1.0, 3.0)
    assert not low.signed
    assert low.zero_point > 0
    around, above = Conv2D().grid(-1.0, 3.0), Conv2D().grid(0.0, 3.0)
    assert (around.signed, above.signed, above.zero_point) == (True, False, 0)


class Another(Conv2D):
    """A kind that no other file has heard of."""

    name = "another"


def _two_convolutions() -> FrozenGraph:
    def build() -> dict[str, tf.Tensor]:
        x = v1.placeholder(tf.float32, [None, 8, 8, 4], "x")
        first = tf.nn.relu(tf.nn.conv2d(x, weight(normal(3, 3, 4, 8)), 1, "SAME", name="first"))
        second = tf.nn.conv2d(first, weight(normal(1, 1, 8, 8)), 1, "SAME", name="second")
        head = tf.matmul(tf.reduce_mean(second, [1, 2]), weight(normal(8, 5)), name="head")
        return {"y": tf.identity(head, "y")}

    return frozen(build)


def test_a_new_kind_is_one_object_and_one_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is found, applied, timed, checked and probed without a change anywhere else."""
    graph, feed = _two_convolutions(), {"x:0": normal(4, 8, 8, 4)}
    known = Rewriter(graph)
    ranges = calibrated(known, [feed])
    for module in (kinds, finding):
        monkeypatch.setattr(module, "KINDS", (MatMul(), Another()))
    new = Rewriter(graph)
    assert [op.kind for op in new.ops()] == ["another", "another", "matmul"]
    assert new.taps() == known.taps()
    for scheme in (Scheme.int8(), Scheme.bf16(), Scheme.int8(repairs=("smooth",))):
        old, made = (each.rewrite(everything(each, scheme), ranges) for each in (known, new))
        assert op_types(old) == op_types(made)
        np.testing.assert_array_equal(run(old, "y:0", feed), run(made, "y:0", feed))
    plan = everything(new, Scheme.int8())
    assert error(run(new.rewrite(plan, ranges), "y:0", feed), run(graph.graph_def, "y:0", feed)) < 0.1
    values = run(new.reference, {name: name for name in needed(new, plan, ranges)}, feed)
    assert all(found.agrees for found in check(new, plan, ranges, values).values())
    op = new.ops()[1]
    _, fed, fetched = new.in_place(op, Scheme.int8(), ranges)
    assert (fed, fetched) == known.in_place(known.ops()[1], Scheme.int8(), ranges)[1:]
    schemes = {each.name: [Scheme.int8()] for each in new.ops()}
    harms = [
        first_order_harm(each, ["y:0"], schemes, ranges, [Inputs(kwargs=feed)], 1) for each in (known, new)
    ]
    assert harms[0] == harms[1]
    assert len(harms[1]) == 3
