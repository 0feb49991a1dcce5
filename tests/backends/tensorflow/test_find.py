"""What is found in a graph, what is said about the rest, and what the machine allows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import octune.backends.tensorflow.int8.support as module
from octune.backends.tensorflow.clean.formula import activation_of, regions
from octune.backends.tensorflow.graph.graph import FrozenGraph, Graph, attribute, weight_bytes
from octune.backends.tensorflow.int8.kinds import KINDS
from octune.backends.tensorflow.int8.rewrite import Rewriter
from octune.backends.tensorflow.int8.support import support
from octune.backends.tensorflow.int8.weights import Int8Weight, Weights
from octune.backends.tensorflow.probe.kernel_check import check, needed
from octune.int8 import Limit, limit_for
from octune.machine import Machine, pretending
from octune.plan import Op, Plan, Scheme
from tests.machines import AMX, AVX2, VNNI

from .graphs import (
    bert,
    bert_feed,
    calibrated,
    dense,
    everything,
    frozen,
    google_gelu,
    normal,
    run,
    v1,
    weight,
)


def activation_name(function: Any) -> str | None:
    """What a function of one tensor is taken for."""
    graph = Graph.of(frozen(lambda: {"y": function(v1.placeholder(tf.float32, [None, 4], "x"))}))
    found = (activation_of(graph, region) for region in regions(graph, "x:0", closed=True))
    return next((one.name for one in found if one), None)


def test_activations_are_told_apart() -> None:
    assert activation_name(google_gelu) == "GeluApproximate"
    assert activation_name(tf.nn.gelu) == "GeluExact"
    assert activation_name(lambda x: x * tf.sigmoid(1.702 * x)) is None
    assert activation_name(lambda x: tf.nn.relu(x) * 1.001) == "Relu"  # and the scaling stays
    assert activation_name(lambda x: x * 0.5) is None
    assert activation_name(lambda x: tf.nn.relu(x + tf.constant([0.0, 1.0, 2.0, 3.0]))) is None


def test_a_tensor_with_another_reader_is_not_swallowed() -> None:
    def build() -> dict[str, tf.Tensor]:
        x = tf.square(v1.placeholder(tf.float32, [None, 4], "x"))
        inner = tf.tanh(x, "inner")
        return {"y": x * inner, "z": inner}

    graph = Graph.of(frozen(build))
    assert all(
        region.nodes[-1] == "inner" or "inner" not in region.nodes
        for region in regions(graph, "Square:0", closed=False)
    )


def test_ops_of_one_shape_have_one_signature() -> None:
    signatures = {
        op.name.split("/")[1]: op.signature for op in Rewriter(bert()).ops() if op.name.startswith("layer_")
    }
    assert signatures["query"] == signatures["key"] == signatures["attention_output"]
    assert len({signatures["query"], signatures["intermediate"], signatures["output"]}) == 3


def test_looking_does_not_change_the_graph_that_was_given() -> None:
    graph = bert()
    before = graph.graph_def.SerializeToString(deterministic=True)
    rewriter = Rewriter(graph)
    rewriter.rewrite(everything(rewriter, Scheme.int8()), calibrated(rewriter, [bert_feed()]))
    assert graph.graph_def.SerializeToString(deterministic=True) == before


def test_attributes_left_at_their_defaults_are_read_as_such() -> None:
    """Saved models leave them out; a BatchNorm whose is_training is left out is in training, and must not be
    folded.
    """

    def build() -> dict[str, tf.Tensor]:
        x = tf.nn.conv2d(v1.placeholder(tf.float32, [2, 6, 6, 3], "x"), weight(normal(3, 3, 3, 4)), 1, "SAME")
        ones = weight(np.ones(4, np.float32))
        y, _, _ = v1.nn.fused_batch_norm(x, ones, ones, None, None, is_training=True)
        return {"y": tf.identity(y, "y")}

    graph = frozen(build)
    for node in graph.graph_def.node:
        for name in ("is_training", "data_format", "dilations", "explicit_paddings"):
            if name in node.attr and node.op in ("Conv2D", "FusedBatchNormV3"):
                del node.attr[name]
    rewriter, x = Rewriter(graph), {"x:0": normal(2, 6, 6, 3)}
    np.testing.assert_allclose(
        run(rewriter.reference, "y:0", x), run(graph.graph_def, "y:0", x), rtol=1e-4, atol=1e-5
    )
    assert rewriter.ops()[0].can("int8")


def test_asking_for_an_attribute_does_not_make_one() -> None:
    node = frozen(lambda: {"y": v1.placeholder(tf.float32, [1], "x")}).graph_def.node[0]
    assert not attribute(node, "transpose_b").b
    assert "transpose_b" not in node.attr


def weighted(rewriter: Rewriter) -> list[Op]:
    """The ops that multiply weights: without the products of attention and the table of words."""
    return [op for op in rewriter.ops() if op.kind not in ("attention", "embedding")]


def test_what_tensorflow_has_no_int8_kernel_for_is_listed_with_that_as_the_reason() -> None:
    def build() -> dict[str, tf.Tensor]:
        image = v1.placeholder(tf.float32, [None, None, 4, 4, 3], "image")
        ids = v1.placeholder(tf.int32, [None, 5], "ids")
        cube = tf.nn.conv3d(image, weight(normal(2, 2, 2, 3, 6)), [1] * 5, "SAME", name="cube")
        up = tf.nn.conv3d_transpose(
            cube, weight(normal(3, 3, 3, 5, 6)), tf.stack([tf.shape(image)[0], 8, 8, 8, 5]), 2, name="up"
        )
        words = tf.gather(weight(normal(2000, 16)), ids, name="words")
        few = tf.gather(weight(normal(20, 16)), ids, name="few")
        return {"y": tf.matmul(words, few, transpose_b=True, name="scores"), "z": up}

    ops = {op.kind: op for op in Rewriter(frozen(build)).ops()}
    assert {kind: op.name for kind, op in ops.items()} == {
        "conv3d": "cube", "conv3d_transpose": "up", "embedding": "words", "attention": "scores",
    }  # fmt: skip
    assert not any(op.can("int8") for op in ops.values())
    assert ops["embedding"].parameters == 2000 * 16
    assert "sizes of its input and output are not known" in ops["conv3d"].note
    assert "no int8 kernel for transposed convolutions" in ops["conv3d_transpose"].note
    assert "no int8 kernel for batched products of two activations" in ops["attention"].note


@pytest.mark.parametrize("machine", [AVX2, VNNI, AMX], ids=lambda machine: machine.generation)
def test_int8_is_offered_on_every_cpu_and_bf16_where_it_is_computed(machine: Machine) -> None:
    with pretending(machine):
        able, ops = support(), weighted(Rewriter(bert()))
    assert all(able.runs(kind.kernel) for kind in KINDS)
    assert (able.layernorm, able.why) == (True, "")
    assert all(op.can("int8") for op in ops)
    assert all(op.can("bf16") == (machine is AMX) for op in ops)


def test_a_tensorflow_without_int8_ops_says_so_and_offers_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_has", lambda op: "Quantized" not in op)
    able = support(AMX)
    assert "has no _QuantizedMatMul" in able.why
    ops = weighted(Rewriter(bert(), able))
    assert all(op.schemes == (Scheme.bf16(), Scheme.fp32()) for op in ops)
    assert all("_QuantizedMatMul" in op.note for op in ops)


def test_a_graph_for_a_newer_cpu_can_be_made_on_any() -> None:
    """Made and not run: this CPU need not have what the nodes ask for."""

    def build() -> dict[str, tf.Tensor]:
        x = v1.placeholder(tf.float32, [None, 8, 8, 4], "x")
        y = tf.nn.relu(tf.nn.conv2d(x, weight(normal(3, 3, 4, 16)), 1, "SAME", name="conv"))
        return {
            "y": dense(tf.reduce_mean(y, [1, 2]), 8, "half"),
            "z": dense(tf.reduce_max(y, [1, 2]), 8, "whole"),
        }

    graph = frozen(build)
    with pretending(AMX):
        rewriter = Rewriter(graph, limit=limit_for(portable=False))
    ranges = calibrated(rewriter, [{"x:0": normal(2, 8, 8, 4)}])
    plan = Plan({"conv": Scheme.bf16(), "half/MatMul": Scheme.bf16(), "whole/MatMul": Scheme.int8()})
    made = {node.name: node for node in rewriter.rewrite(plan, ranges).node}
    halves = {node.op: node for node in made.values() if node.attr["T"].type == tf.bfloat16.as_datatype_enum}
    assert set(halves) == {"Conv2D", "MatMul"}
    for node in halves.values():
        image, kernel = (made[name.partition(":")[0]] for name in node.input)
        assert image.op == "Cast"
        assert image.attr["DstT"].type == kernel.attr["dtype"].type == tf.bfloat16.as_datatype_enum
    (product,) = [node for node in made.values() if node.op == "_QuantizedMatMul"]
    assert (product.attr["T1"].type, product.attr["T2"].type) == (
        tf.quint8.as_datatype_enum,
        tf.qint8.as_datatype_enum,
    )
    assert np.abs(tf.make_ndarray(made[product.input[1]].attr["value"].tensor).astype(int)).max() == 127


def test_a_wrong_kernel_is_told_with_its_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """An op whose zero point is read wrongly still runs; only its numbers tell."""
    graph, feed = bert(), bert_feed()
    rewriter = Rewriter(graph)
    ranges, plan = calibrated(rewriter, [feed]), everything(rewriter, Scheme.int8())
    tensors = needed(rewriter, plan, ranges)
    values = dict(zip(tensors, run(rewriter.reference, list(tensors), feed), strict=True))
    assert all(found.agrees for found in check(rewriter, plan, ranges, values).values())
    real = rewriter.graph_def

    def spoiled(emission: Any) -> Any:
        made = real(emission)
        next(node for node in made.node if node.name == "layer_0/query/BiasAdd").attr[
            "input_quant_mode"
        ].s = b"SCALED"
        return made

    monkeypatch.setattr(rewriter, "graph_def", spoiled)
    found = check(rewriter, plan, ranges, values)
    assert [name for name, one in found.items() if not one.agrees] == ["layer_0/query/MatMul"]
    assert found["layer_0/query/MatMul"].error > 0.1 > found["layer_0/query/MatMul"].bound


def test_bytes_are_those_of_the_constants() -> None:
    graph: FrozenGraph = frozen(
        lambda: {"y": dense(v1.placeholder(tf.float32, [None, 10], "x"), 20, "layer")}
    )
    assert weight_bytes(graph.graph_def) == 4 * (10 * 20 + 20)


def test_int8_weights_are_made_once_and_the_oldest_go_first() -> None:
    rewriter = Rewriter(bert())
    fused_ops = list(rewriter._fused_ops.values())[:3]
    roomy, narrow = (
        Weights(rewriter._graph, Limit.PAIRS),
        Weights(rewriter._graph, Limit.PAIRS, room=2 * 64 * 64),
    )

    def made(cache: Weights, number: int, *, signed: bool = False) -> Int8Weight:
        return cache.int8(fused_ops[number], Scheme.int8(), signed=signed)

    assert made(roomy, 0) is made(roomy, 0)
    assert made(roomy, 0) is not made(roomy, 0, signed=True)
    first = made(narrow, 0)
    assert made(narrow, 1) is made(narrow, 1)
    made(narrow, 2)
    assert made(narrow, 0) is not first
