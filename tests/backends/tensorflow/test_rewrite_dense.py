"""Matmuls in all their spellings, rewritten to int8 and compared with fp32."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from octune.backends.tensorflow.graph.graph import FrozenGraph
from octune.backends.tensorflow.int8.rewrite import Rewriter
from octune.errors import PlanError
from octune.plan import Plan, Scheme
from octune.repair import SMOOTH
from tests.machines import runnable

from .graphs import (
    bert,
    bert_feed,
    calibrated,
    contrib_layer_norm,
    dense,
    error,
    everything,
    frozen,
    google_gelu,
    normal,
    op_types,
    run,
    v1,
    weight,
)

STATIC = Scheme.int8("static")
SCHEMES = [
    STATIC,
    Scheme.int8("static", granularity="per_tensor"),
    Scheme.int8("static", repairs=(SMOOTH.name,)),
    Scheme.int8("dynamic"),
    Scheme.bf16(),
]
WORST = 0.04


def converted(
    graph: FrozenGraph, feed: dict[str, np.ndarray], scheme: Scheme = STATIC
) -> tuple[Rewriter, tf.compat.v1.GraphDef, float]:
    """The rewriter, the graph with every op in that scheme, and the worst relative error of its outputs on
    ``feed``.
    """
    rewriter = Rewriter(graph)
    ranges = calibrated(rewriter, [feed])
    plan = everything(rewriter, scheme)
    assert plan, "no op takes this scheme"
    made = rewriter.rewrite(plan, ranges)
    outputs = list(graph.outputs.values())
    wanted, plain, got = (run(g, outputs, feed) for g in (graph.graph_def, rewriter.reference, made))
    assert max(error(a, b) for a, b in zip(plain, wanted, strict=True)) < 1e-5, (
        "cleaning must not change anything"
    )
    return rewriter, made, max(error(a, b) for a, b in zip(got, wanted, strict=True))


# -- what is behind a matmul ---------------------------------------------------------------------------------

ACTIVATIONS: dict[str, tuple[str, Callable[[tf.Tensor], tf.Tensor]]] = {
    "none": ("", lambda x: x),
    "relu": ("Relu", tf.nn.relu),
    "maximum": ("Relu", lambda x: tf.maximum(x, 0.0)),
    "relu6": ("Relu6", tf.nn.relu6),
    "clip": ("Relu6", lambda x: tf.clip_by_value(x, 0.0, 6.0)),
    "elu": ("Elu", tf.nn.elu),
    "leaky": ("LeakyRelu", lambda x: tf.nn.leaky_relu(x, 0.3)),
    "tanh": ("Tanh", tf.tanh),
    "sigmoid": ("Sigmoid", tf.sigmoid),
    "gelu of BERT": ("GeluApproximate", google_gelu),
    "gelu of TensorFlow, tanh": ("GeluApproximate", lambda x: tf.nn.gelu(x, approximate=True)),
    "gelu of TensorFlow, erf": ("GeluExact", tf.nn.gelu),
    "gelu, erfc": ("GeluExact", lambda x: 0.5 * x * tf.math.erfc(-x * np.float32(np.sqrt(0.5)))),
    "gelu, cube by hand": (
        "GeluApproximate",
        lambda x: x * 0.5 * (1.0 + tf.tanh(0.7978845608 * x * (1.0 + 0.044715 * x * x))),
    ),
}


@pytest.mark.parametrize("spelling", ACTIVATIONS)
def test_activations_are_fused_in_any_spelling(spelling: str) -> None:
    kernel, activation = ACTIVATIONS[spelling]
    graph = frozen(
        lambda: {
            "y": tf.identity(activation(dense(v1.placeholder(tf.float32, [None, 24], "x"), 40, "layer")), "y")
        }
    )
    _, made, off = converted(graph, {"x:0": normal(33, 24)})
    fused = next(node for node in made.node if node.op == "_QuantizedMatMul").attr["fused_ops"].list.s
    assert [op.decode() for op in fused] == ["BiasAdd", *([kernel] if kernel else []), "Dequantize"]
    assert off < WORST
    assert not {"Tanh", "Erf", "Erfc", "Pow", "Relu", "BiasAdd", "MatMul"} & set(op_types(made))


def test_a_function_without_a_kernel_stays_float() -> None:
    graph = frozen(lambda: {"y": tf.nn.silu(dense(v1.placeholder(tf.float32, [None, 24], "x"), 40, "layer"))})
    _, made, off = converted(graph, {"x:0": normal(33, 24)})
    assert off < WORST
    assert "Sigmoid" in op_types(made)


@settings(max_examples=12)
@given(
    rows=st.integers(1, 9),
    inner=st.integers(1, 70),
    columns=st.integers(1, 70),
    transposed=st.booleans(),
    bias=st.sampled_from(["", "BiasAdd", "AddV2"]),
)
def test_shapes(rows: int, inner: int, columns: int, transposed: bool, bias: str) -> None:
    kernel = normal(columns, inner) if transposed else normal(inner, columns)

    def build() -> dict[str, tf.Tensor]:
        y = tf.matmul(v1.placeholder(tf.float32, [None, inner], "x"), weight(kernel), transpose_b=transposed)
        shift = weight(normal(columns))
        y = y if not bias else tf.nn.bias_add(y, shift) if bias == "BiasAdd" else shift + y
        return {"y": tf.identity(y, "y")}

    graph, x = frozen(build), normal(rows, inner)
    rewriter = Rewriter(graph)
    made = rewriter.rewrite(everything(rewriter, STATIC), calibrated(rewriter, [{"x:0": x}]))
    wanted, got = (run(g, "y:0", {"x:0": x}) for g in (graph.graph_def, made))
    assert got.shape == wanted.shape
    # Sums of few products may cancel, so the error is held against the size of what is summed.
    assert np.linalg.norm(got - wanted) < WORST * (
        np.linalg.norm(x) * np.linalg.norm(kernel) / np.sqrt(max(rows, columns)) + np.linalg.norm(wanted)
    )


def test_a_residual_goes_into_the_matmul() -> None:
    def build() -> dict[str, tf.Tensor]:
        x = v1.placeholder(tf.float32, [None, 24], "x")
        return {"y": tf.identity(x + dense(x, 24, "layer"), "y"), "x again": tf.identity(x * 2.0)}

    _, made, off = converted(frozen(build), {"x:0": normal(33, 24)})
    fused = next(node for node in made.node if node.op == "_QuantizedMatMul").attr["fused_ops"].list.s
    assert list(fused) == [b"BiasAdd", b"Add", b"Dequantize"]
    assert off < WORST


@pytest.mark.parametrize("shape", [(1, 24), (24,), (None, 1)])
def test_an_addend_that_broadcasts_is_not_fused(shape: tuple[int | None, ...]) -> None:
    def build() -> dict[str, tf.Tensor]:
        x = v1.placeholder(tf.float32, [None, 24], "x")
        return {"y": tf.identity(v1.placeholder(tf.float32, shape, "z") + dense(x, 24, "layer"), "y")}

    _, _, off = converted(
        frozen(build), {"x:0": normal(33, 24), "z:0": normal(*(size or 33 for size in shape))}
    )
    assert off < WORST


def test_an_addend_of_another_size_is_an_error_and_not_garbage() -> None:
    """The kernel would read past its end: where shapes are open, they are compared at run time."""

    def build() -> dict[str, tf.Tensor]:
        x, z = (v1.placeholder(tf.float32, [None, width], name) for name, width in (("x", 24), ("z", 16)))
        return {"y": tf.identity(z + dense(x, 16, "layer"), "y")}

    graph, feed = frozen(build), {"x:0": normal(8, 24), "z:0": normal(8, 16)}
    _, made, off = converted(graph, feed)
    assert off < WORST
    with pytest.raises(tf.errors.InvalidArgumentError):
        run(made, "y:0", {**feed, "z:0": normal(1, 16)})


# -- between matmuls -----------------------------------------------------------------------------------------


def test_int8_flows_from_one_matmul_to_the_next() -> None:
    def build() -> dict[str, tf.Tensor]:
        x = v1.placeholder(tf.float32, [None, 24], "x")
        return {"y": tf.identity(dense(google_gelu(dense(x, 48, "first")), 24, "second"), "y")}

    rewriter, made, off = converted(frozen(build), {"x:0": normal(33, 24)})
    assert op_types(made).count("QuantizeV2") == 1
    assert off < WORST
    fp32_between = rewriter.rewrite(
        Plan({"first/MatMul": STATIC, "second/MatMul": Scheme.fp32()}),
        calibrated(rewriter, [{"x:0": normal(33, 24)}]),
    )
    assert op_types(fp32_between).count("_QuantizedMatMul") == 1


def test_readers_that_want_different_ranges_do_not_share() -> None:
    def build() -> dict[str, tf.Tensor]:
        hidden = tf.nn.relu(dense(v1.placeholder(tf.float32, [None, 24], "x"), 48, "first"))
        return {"a": dense(hidden, 8, "a"), "b": dense(hidden, 8, "b")}

    graph, feed = frozen(build), {"x:0": normal(400, 24) ** 3}  # a long tail, which mse cuts
    rewriter = Rewriter(graph)
    plan = everything(rewriter, STATIC).with_({"b/MatMul": Scheme.int8("static", range_method="mse")})
    made = rewriter.rewrite(plan, calibrated(rewriter, [feed]))
    assert op_types(made).count("QuantizeV2") == 3
    for name in graph.outputs.values():
        assert error(run(made, name, feed), run(graph.graph_def, name, feed)) < WORST


@pytest.mark.parametrize("scheme", runnable(SCHEMES))
def test_query_key_and_value_share_one_quantize(scheme: Scheme) -> None:
    def build() -> dict[str, tf.Tensor]:
        x = v1.placeholder(tf.float32, [None, 7, 24], "x")
        rows = [tf.reshape(x, [-1, 24]) for _ in range(3)]
        return {name: dense(row, 24, name) for name, row in zip("qkv", rows, strict=True)}

    _, made, off = converted(frozen(build), {"x:0": normal(5, 7, 24)}, scheme)
    assert op_types(made).count("QuantizeV2") == (0 if scheme.is_float else 1)
    assert off < WORST


@pytest.mark.parametrize("scheme", runnable(SCHEMES))
def test_bert(scheme: Scheme) -> None:
    graph = bert()
    _, made, off = converted(graph, bert_feed(batch=32), scheme)
    assert off < 0.06
    assert op_types(made).count("_MklLayerNorm") == 5
    assert len(made.SerializeToString()) < 0.6 * len(graph.graph_def.SerializeToString())


# -- Einsum and friends --------------------------------------------------------------------------------------

EINSUMS = {
    "abc,cd->abd": ((3, 5, 12), (12, 8)),
    "abc,cde->abde": ((3, 5, 12), (12, 4, 2)),
    "abcd,cde->abe": ((3, 5, 4, 6), (4, 6, 10)),
    "abc,dc->abd": ((3, 5, 12), (8, 12)),
    "ab,bc->ac": ((3, 12), (12, 8)),
    "abcd,edc->abe": ((3, 5, 4, 6), (10, 6, 4)),
}


@pytest.mark.parametrize("known", ["static", "batch open", "all open"])
@pytest.mark.parametrize("equation", EINSUMS)
def test_einsum_with_a_constant(equation: str, known: str) -> None:
    shape, kernel = EINSUMS[equation]
    free = 2 if len(shape) > 2 else 1
    opened = {"static": shape, "batch open": (None, *shape[1:]), "all open": (None,) * free + shape[free:]}[
        known
    ]
    bias = (
        normal(*kernel[1:]) if equation == "abc,cde->abde" else normal(10 if equation.endswith("abe") else 8)
    )

    def build() -> dict[str, tf.Tensor]:
        y = tf.einsum(
            equation, v1.placeholder(tf.float32, opened, "x"), weight(normal(*kernel)), name="projection"
        )
        return {"y": tf.identity(y + weight(bias), "y")}

    rewriter, made, off = converted(frozen(build), {"x:0": normal(*shape)})
    assert [op.name for op in rewriter.ops()] == ["projection/Einsum"]
    assert "Einsum" not in op_types(made)
    assert "AddV2" not in op_types(made)
    assert off < WORST


def test_an_einsum_that_is_no_matmul_is_left_alone_with_a_reason() -> None:
    def build() -> dict[str, tf.Tensor]:
        x = v1.placeholder(tf.float32, [None, 5, 12], "x")
        return {"y": tf.einsum("abc,bcd->abd", x, weight(normal(5, 12, 8)), name="grouped")}

    (op,) = Rewriter(frozen(build)).ops()
    assert op.schemes == (Scheme.fp32(),)
    assert "abc,bcd->abd" in op.note


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("sizes", [(None, 5), (None, None), (3, 5)])
def test_batched_matmul_with_a_constant(sizes: tuple[int | None, ...], transposed: bool) -> None:
    def build() -> dict[str, tf.Tensor]:
        x = v1.placeholder(tf.float32, [*sizes, 12], "x")
        y = tf.matmul(x, weight(normal(8, 12) if transposed else normal(12, 8)), transpose_b=transposed)
        return {"y": tf.nn.relu(tf.nn.bias_add(y, weight(normal(8)))), "shape": tf.shape(y)}

    _, made, off = converted(frozen(build), {"x:0": normal(3, 5, 12)})
    assert "BatchMatMulV2" not in op_types(made)
    assert off < WORST


def test_tensordot() -> None:
    def build() -> dict[str, tf.Tensor]:
        x = v1.placeholder(tf.float32, [None, None, 12], "x")
        hidden = tf.nn.gelu(
            tf.nn.bias_add(tf.tensordot(x, weight(normal(12, 24)), [[2], [0]]), weight(normal(24)))
        )
        return {
            "y": tf.nn.bias_add(tf.tensordot(hidden, weight(normal(24, 12)), [[2], [0]]), weight(normal(12)))
            + x
        }

    _, made, off = converted(frozen(build), {"x:0": normal(3, 5, 12)})
    assert op_types(made).count("QuantizeV2") == 1
    assert off < WORST


@pytest.mark.parametrize("scheme", runnable(SCHEMES))
def test_keras_encoder(scheme: Scheme) -> None:
    keras = pytest.importorskip("keras")
    from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

    keras.utils.set_random_seed(0)
    x = inputs = keras.Input((None, 16))
    x = keras.layers.LayerNormalization()(x + keras.layers.MultiHeadAttention(2, 8)(x, x))
    y = keras.layers.EinsumDense("abc,cd->abd", output_shape=(None, 16), bias_axes="d")(
        keras.layers.Dense(32, activation="gelu")(x)
    )
    model = keras.Model(inputs, keras.layers.Dense(3)(keras.layers.LayerNormalization(epsilon=1e-5)(x + y)))
    concrete = tf.function(lambda x: model(x, training=False)).get_concrete_function(
        tf.TensorSpec((None, None, 16))
    )
    function = convert_variables_to_constants_v2(concrete)
    graph = FrozenGraph(
        function.graph.as_graph_def(), {"x": function.inputs[0].name}, {"y": function.outputs[0].name}
    )
    rewriter, made, off = converted(graph, {function.inputs[0].name: normal(3, 5, 16)}, scheme)
    assert off < 0.06
    assert sum(op.can("int8") for op in rewriter.ops()) == 7
    assert op_types(made).count("_MklLayerNorm") == 2


# -- layer normalisation and smoothing -----------------------------------------------------------------------


def two_pass_layer_norm(x: tf.Tensor, width: int) -> tf.Tensor:
    mean = tf.reduce_mean(x, -1, keepdims=True)
    variance = tf.reduce_mean(tf.square(x - mean), -1, keepdims=True)
    return (x - mean) / tf.sqrt(variance + 1e-6) * weight(1 + normal(width, scale=0.2)) + weight(
        normal(width)
    )


@pytest.mark.parametrize("spelling", [contrib_layer_norm, two_pass_layer_norm])
@pytest.mark.parametrize("shape", [(None, 24), (None, None, 24)])
def test_layer_norm_becomes_one_op(
    spelling: Callable[[tf.Tensor, int], tf.Tensor], shape: tuple[int | None, ...]
) -> None:
    graph = frozen(lambda: {"y": tf.identity(spelling(v1.placeholder(tf.float32, shape, "x"), 24), "y")})
    rewriter = Rewriter(graph)
    x = normal(*(size or 6 for size in shape), scale=5)
    assert op_types(rewriter.reference).count("_MklLayerNorm") == 1
    assert "Mean" not in op_types(rewriter.reference)
    np.testing.assert_allclose(
        run(rewriter.reference, "y:0", {"x:0": x}),
        run(graph.graph_def, "y:0", {"x:0": x}),
        rtol=1e-4,
        atol=1e-4,
    )


def test_a_norm_over_another_axis_is_left_alone() -> None:
    def build() -> dict[str, tf.Tensor]:
        x = v1.placeholder(tf.float32, [None, 7, 24], "x")
        mean, variance = tf.nn.moments(x, [1], keepdims=True)
        return {
            "y": tf.nn.batch_normalization(x, mean, variance, weight(normal(24)), weight(normal(24)), 1e-6)
        }

    assert "_MklLayerNorm" not in op_types(Rewriter(frozen(build)).reference)


@pytest.mark.parametrize("alone", [True, False])
def test_smoothing_saves_an_input_with_an_outlier_channel(alone: bool) -> None:
    def build() -> dict[str, tf.Tensor]:
        x = v1.placeholder(tf.float32, [None, 32], "x")
        mean, variance = tf.nn.moments(x, [-1], keepdims=True)
        gamma = np.where(np.arange(32) == 3, 200.0, 1.0).astype(np.float32)
        x = tf.nn.batch_normalization(x, mean, variance, weight(normal(32)), weight(gamma), 1e-6)
        outputs = {name: dense(x, 24, name) for name in ("query", "key")}
        return outputs if alone else {**outputs, "x": tf.identity(x)}

    _, _, off = converted(frozen(build), {"x:0": normal(64, 32)})
    _, made, repaired = converted(
        frozen(build), {"x:0": normal(64, 32)}, Scheme.int8("static", repairs=(SMOOTH.name,))
    )
    assert op_types(made).count("QuantizeV2") == 1
    # Folded into the layer normalisation where only smoothed ops read it, else one Mul for both.
    assert op_types(made).count("Mul") == (0 if alone else 1)
    assert op_types(made).count("_MklLayerNorm") == 1
    assert repaired < 0.5 * off


# -- what is kept, what is left alone ------------------------------------------------------------------------


def test_names_are_kept_and_plans_are_checked() -> None:
    graph = bert()
    rewriter = Rewriter(graph)
    ranges = calibrated(rewriter, [bert_feed()])
    made = {node.name for node in rewriter.rewrite(everything(rewriter, STATIC), ranges).node}
    named = {name.partition(":")[0] for name in (*graph.inputs.values(), *graph.outputs.values())}
    assert named <= made
    with pytest.raises(PlanError, match="no/such/op"):
        rewriter.rewrite(Plan({"no/such/op": STATIC}), ranges)
    with pytest.raises(PlanError, match="calibration"):
        rewriter.rewrite(Plan({rewriter.ops()[0].name: STATIC}), type(ranges)())


def test_an_output_inside_a_pattern_is_kept() -> None:
    def build() -> dict[str, tf.Tensor]:
        inner = dense(v1.placeholder(tf.float32, [None, 24], "x"), 24, "layer")
        return {"before": inner, "after": google_gelu(inner)}

    _, _, off = converted(frozen(build), {"x:0": normal(33, 24)})
    assert off < WORST


def test_loops_and_functions_are_left_alone_and_listed() -> None:
    def loop(control_flow_v2: bool) -> FrozenGraph:
        (v1.enable_control_flow_v2 if control_flow_v2 else v1.disable_control_flow_v2)()

        def build() -> dict[str, tf.Tensor]:
            x, kernel = v1.placeholder(tf.float32, [None, 8], "x"), tf.constant(normal(8, 8))
            y = tf.while_loop(
                lambda i, h: i < 3, lambda i, h: (i + 1, tf.tanh(tf.matmul(h, kernel))), [0, x]
            )[1]
            return {"y": dense(y, 4, "head")}

        try:
            return frozen(build)
        finally:
            v1.enable_control_flow_v2()

    for version in (False, True):
        rewriter, _, off = converted(loop(version), {"x:0": normal(5, 8)})
        noted = [op for op in rewriter.ops() if not op.can("int8")]
        assert len(noted) == 1
        assert "inside" in noted[0].note
        assert off < WORST


def test_float16_and_transposed_inputs_are_left_alone() -> None:
    def build() -> dict[str, tf.Tensor]:
        x = v1.placeholder(tf.float32, [8, None], "x")
        half = tf.matmul(
            tf.cast(tf.transpose(x), tf.float16), tf.constant(normal(8, 4).astype(np.float16)), name="half"
        )
        return {
            "half": tf.cast(half, tf.float32),
            "turned": tf.matmul(x, weight(normal(8, 4)), transpose_a=True, name="turned"),
        }

    ops = {op.name: op for op in Rewriter(frozen(build)).ops()}
    assert "float16" in ops["half"].note
    assert "transpose" in ops["turned"].note
    assert not any(op.can("int8") for op in ops.values())


def test_variables_that_a_graph_waits_for_do_not_stay() -> None:
    """Frozen Keras models end in a NoOp that waits for every variable to be read."""

    def build() -> dict[str, tf.Tensor]:
        kernel = weight(normal(24, 24))
        y = tf.matmul(v1.placeholder(tf.float32, [None, 24], "x"), kernel)
        with tf.control_dependencies([kernel.op]):
            return {"y": tf.identity(y)}

    _, made, off = converted(frozen(build), {"x:0": normal(5, 24)})
    assert off < WORST
    assert not any(
        node.op == "Const" and node.attr["value"].tensor.ByteSize() > 24 * 24 * 2 for node in made.node
    )
