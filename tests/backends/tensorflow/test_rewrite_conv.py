"""Convolutions: BatchNorm and padding folded, int8 flowing between them, and the sums of residual
networks.
"""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from octune.backends.tensorflow.int8.rewrite import Rewriter
from octune.backends.tensorflow.probe.kernel_check import check, needed
from octune.plan import Plan, Scheme
from tests.machines import runnable

from .graphs import Array, calibrated, error, everything, frozen, normal, op_types, run, v1, weight

STATIC = Scheme.int8("static")
SCHEMES = [STATIC, Scheme.int8("static", granularity="per_tensor"), Scheme.bf16()]


def conv(
    x: tf.Tensor,
    filters: int,
    size: int = 3,
    stride: int = 1,
    padding: str = "SAME",
    seed: int = 0,
    name: str = "conv",
) -> tf.Tensor:
    channels = x.shape[-1]
    kernel = weight(normal(size, size, channels, filters, scale=(size * size * channels) ** -0.5, seed=seed))
    return tf.nn.conv2d(x, kernel, stride, padding, name=name)


def fused_norm(x: tf.Tensor, seed: int = 0) -> tf.Tensor:
    channels = x.shape[-1]
    values = [
        1 + normal(channels, scale=0.2, seed=seed),
        normal(channels, seed=seed),
        normal(channels, seed=seed + 1, scale=0.3),
        np.abs(normal(channels)) + 0.5,
    ]
    gamma, beta, mean, variance = map(weight, values)
    return v1.nn.fused_batch_norm(x, gamma, beta, mean, variance, is_training=False)[0]


def spelled_norm(x: tf.Tensor, seed: int = 0) -> tf.Tensor:
    channels = x.shape[-1]
    gamma, beta, mean = (weight(normal(channels, seed=seed + i)) for i in range(3))
    return tf.nn.batch_normalization(x, mean, weight(np.abs(normal(channels)) + 0.5), beta, gamma, 1e-3)


def images(channels: int = 8, size: int = 12) -> tf.Tensor:
    return v1.placeholder(tf.float32, [None, size, size, channels], "x")


def compare(build, scheme: Scheme = STATIC, shape: tuple[int, ...] = (3, 12, 12, 8), bound: float = 0.04):  # type: ignore[no-untyped-def]
    """Rewrite everything, compare with fp32, check op by op."""
    graph, feed = frozen(build), {"x:0": normal(*shape)}
    rewriter = Rewriter(graph)
    ranges, plan = calibrated(rewriter, [feed]), everything(rewriter, scheme)
    assert plan
    made = rewriter.rewrite(plan, ranges)
    for name in graph.outputs.values():
        wanted = run(graph.graph_def, name, feed)
        assert error(run(rewriter.reference, name, feed), wanted) < 1e-5
        assert error(run(made, name, feed), wanted) < bound
    tensors = needed(rewriter, plan, ranges)
    values = dict(zip(tensors, run(rewriter.reference, list(tensors), feed), strict=True))
    assert all(found.agrees for found in check(rewriter, plan, ranges, values).values())
    return rewriter, made


@pytest.mark.parametrize("norm", [None, fused_norm, spelled_norm])
@pytest.mark.parametrize("scheme", runnable(SCHEMES))
def test_conv_norm_relu(norm, scheme: Scheme) -> None:  # type: ignore[no-untyped-def]
    def build() -> dict[str, tf.Tensor]:
        y = conv(images(), 16, stride=2)
        y = norm(y) if norm else y + weight(normal(16))
        return {"y": tf.identity(tf.nn.relu(y), "y")}

    rewriter, made = compare(build, scheme)
    assert not {"FusedBatchNormV3", "Rsqrt", "Mul"} & set(op_types(rewriter.reference))
    assert ("_FusedQuantizedConv2D" in op_types(made)) == (not scheme.is_float)


@pytest.mark.parametrize("activation", [tf.nn.relu, tf.nn.relu6, tf.identity, tf.tanh])
@pytest.mark.parametrize("multiplier", [1, 2])
def test_depthwise(activation, multiplier: int) -> None:  # type: ignore[no-untyped-def]
    def build() -> dict[str, tf.Tensor]:
        x = tf.nn.relu6(conv(images(), 8, 1, name="expand"))
        y = tf.nn.depthwise_conv2d(x, weight(normal(3, 3, 8, multiplier)), [1, 1, 1, 1], "SAME")
        return {"y": tf.identity(activation(fused_norm(y)), "y")}

    _, made = compare(build)
    assert op_types(made).count("QuantizeV2") == 1
    assert op_types(made).count("_FusedQuantizedDepthwiseConv2D") == 1


@pytest.mark.parametrize("padding", [[[0, 0], [1, 1], [1, 1], [0, 0]], [[0, 0], [0, 1], [2, 0], [0, 0]]])
@pytest.mark.parametrize("dilation", [1, 2])
def test_padding_goes_into_the_convolution(padding: list[list[int]], dilation: int) -> None:
    def build() -> dict[str, tf.Tensor]:
        x = tf.pad(tf.nn.relu(images()), padding)
        return {
            "y": tf.identity(tf.nn.conv2d(x, weight(normal(3, 3, 8, 6)), 1, "VALID", dilations=dilation), "y")
        }

    _, made = compare(build)
    assert "Pad" not in op_types(made)


def test_int8_flows_through_a_residual_network() -> None:
    def build() -> dict[str, tf.Tensor]:
        x = tf.nn.relu(fused_norm(conv(images(), 16, name="stem")))
        for index in range(3):
            y = tf.nn.relu(fused_norm(conv(x, 16, 1, seed=index, name=f"{index}a"), index))
            y = tf.nn.relu(fused_norm(conv(y, 16, 3, seed=index, name=f"{index}b"), index))
            x = tf.nn.relu(fused_norm(conv(y, 16, 1, seed=index, name=f"{index}c"), index) + x)
        x = tf.reduce_mean(x, [1, 2])
        return {"y": tf.identity(tf.matmul(x, weight(normal(16, 5)), name="head"), "y")}

    _, made = compare(build, bound=0.08)
    assert op_types(made).count("QuantizeV2") == 2  # the image, and the input of the head
    sums = [node for node in made.node if b"Sum" in node.attr["fused_ops"].list.s]
    assert len(sums) == 2  # the last sum is read in float


def test_a_shortcut_with_negative_values_is_summed_in_float() -> None:
    """The kernel takes a signed summand and gives wrong sums."""

    def build() -> dict[str, tf.Tensor]:
        x = tf.nn.relu(conv(images(), 16, name="stem"))
        y = tf.nn.relu(conv(x, 16, 1, name="main") + conv(x, 16, 1, seed=1, name="shortcut"))
        return {"y": tf.identity(conv(y, 8, 1, name="next"), "y")}

    _, made = compare(build)
    assert not any(b"Sum" in node.attr["fused_ops"].list.s for node in made.node)


def test_a_tensor_that_somebody_reads_after_the_sum_is_not_summed_into() -> None:
    """The kernel writes the sum over its addend, and crashes where it may not."""

    def build() -> dict[str, tf.Tensor]:
        x = tf.nn.relu(conv(images(), 16, name="stem"))
        y = tf.nn.relu(conv(x, 16, 1, name="main") + x)
        later = conv(x, 16, 1, seed=5, name="later")
        return {
            "y": tf.identity(conv(y, 8, 1, name="next"), "y"),
            "z": tf.identity(later),
            "x": tf.identity(x),
        }

    _, made = compare(build)
    assert not any(b"Sum" in node.attr["fused_ops"].list.s for node in made.node)


@pytest.mark.parametrize("other", runnable([Scheme.int8(granularity="per_tensor"), Scheme.bf16()]))
def test_mixed_plans(other: Scheme) -> None:
    def build() -> dict[str, tf.Tensor]:
        x = images()
        for index in range(4):
            x = tf.nn.relu(conv(x, 8, seed=index, name=f"conv_{index}"))
        return {"y": tf.identity(x, "y")}

    graph, feed = frozen(build), {"x:0": normal(3, 12, 12, 8)}
    rewriter = Rewriter(graph)
    ranges = calibrated(rewriter, [feed])
    wanted = run(graph.graph_def, "y:0", feed)
    choices = [STATIC, Scheme.fp32(), other, Scheme.int8("static", range_method="percentile")]
    for shift in range(4):
        plan = Plan({f"conv_{index}": choices[(index + shift) % 4] for index in range(4)})
        assert error(run(rewriter.rewrite(plan, ranges), "y:0", feed), wanted) < 0.05


def test_what_has_no_kernel_is_left_alone_with_a_reason() -> None:
    def build() -> dict[str, tf.Tensor]:
        x = images()
        grouped = tf.nn.conv2d(x, weight(normal(3, 3, 1, 8)), 1, "SAME", name="grouped")
        return {
            "grouped": grouped,
            "varying": tf.nn.conv2d(
                x, v1.placeholder(tf.float32, [1, 1, 8, 4], "kernel"), 1, "SAME", name="varying"
            ),
        }

    notes = {op.name: op.note for op in Rewriter(frozen(build)).ops()}
    assert "8 groups" in notes["grouped"]
    assert "not a constant" in notes["varying"]


@pytest.mark.parametrize("scheme", runnable(SCHEMES))
def test_alone(scheme: Scheme) -> None:
    """Also ops that are built from others in int8."""

    def build() -> dict[str, tf.Tensor]:
        y = tf.nn.relu(fused_norm(conv(images(), 16, stride=2)))
        y = tf.nn.relu(tf.nn.conv2d(y, weight(normal(3, 3, 8, 8, scale=0.1)), 1, "SAME", name="grouped"))
        y, kernel = tf.reshape(y, [-1, 6, 6, 2, 4]), weight(normal(3, 3, 3, 4, 8, scale=0.1))
        y = tf.reshape(tf.nn.relu(tf.nn.conv3d(y, kernel, [1] * 5, "SAME", name="volume")), [-1, 6, 6, 16])
        kernel, sizes = weight(normal(2, 2, 16, 16, scale=0.2)), tf.stack([tf.shape(y)[0], 12, 12, 16])
        y = tf.nn.relu(tf.nn.conv2d_transpose(y, kernel, sizes, 2, name="transposed"))
        return {"y": tf.nn.tanh(tf.matmul(tf.reshape(y, [-1, 16]), weight(normal(16, 5)), name="head"))}

    graph, feed = frozen(build), {"x:0": normal(3, 12, 12, 8)}
    rewriter = Rewriter(graph)
    ranges, taps = calibrated(rewriter, [feed]), rewriter.taps()
    assert len(rewriter.ops()) == 5
    for op in rewriter.ops():
        part, fed, fetched = rewriter.alone(op, scheme, ranges)
        x: Array = run(rewriter.reference, taps[op.name].tensor, feed)
        full, _, name = rewriter.alone(op, Scheme.fp32(), ranges)
        assert error(run(part, fetched, {fed: x}), run(full, name, {fed: x})) < 0.04


def branches(pool) -> dict[str, tf.Tensor]:  # type: ignore[no-untyped-def]
    """Two convolutions and a pooling, joined, as in Inception; what reads them is one convolution and one
    behind a pooling.
    """
    stem = tf.nn.relu(conv(images(), 16, name="stem"))
    a = tf.nn.relu(conv(stem, 8, 1, name="a"))
    b = tf.nn.relu(conv(stem, 8, 3, seed=1, name="b"))
    c = tf.nn.relu(conv(pool(stem, 3, 1, "SAME"), 8, 1, seed=2, name="c"))
    x = tf.concat([a, b, c], -1)
    y = tf.nn.relu(conv(x, 8, 1, seed=3, name="d"))
    z = tf.nn.relu(conv(pool(x, 2, 2, "VALID"), 8, 1, seed=4, name="e"))
    return {"y": tf.reduce_mean(y, [1, 2]), "z": tf.identity(z, "z")}


@pytest.mark.parametrize("pool", [tf.nn.max_pool2d, tf.nn.avg_pool2d])
def test_int8_flows_through_poolings_and_concatenations(pool) -> None:  # type: ignore[no-untyped-def]
    rewriter, made = compare(lambda: branches(pool), bound=0.06)
    types = op_types(made)
    assert types.count("QuantizeV2") == 1  # the image
    assert types.count("Dequantize") == 2  # what the outputs are made of
    assert types.count("ConcatV2") == 1
    inner = {op.name for op in rewriter.ops()} - {"d", "e"}
    assert rewriter.passed_on({op.name for op in rewriter.ops()}) == inner


def test_a_concatenation_with_a_float_quantizes_only_that() -> None:
    def build() -> dict[str, tf.Tensor]:
        x = images()
        y = tf.concat([tf.nn.relu(conv(x, 8, name="a")), tf.nn.sigmoid(x)], -1)
        return {"y": tf.identity(tf.nn.relu(conv(y, 8, 1, name="b")), "y")}

    _, made = compare(build)
    assert op_types(made).count("Dequantize") == 1
    assert op_types(made).count("QuantizeV2") == 2


SIZES = [(1, 2, "SAME"), (2, 2, "SAME"), (3, 2, "SAME"), (4, 2, "SAME"), (4, 2, "VALID"), (3, 2, "VALID"),
         (3, 1, "SAME"), (5, 3, "SAME")]  # fmt: skip


@pytest.mark.parametrize(("size", "stride", "padding"), SIZES)
def test_a_transposed_convolution(size: int, stride: int, padding: str) -> None:
    def build() -> dict[str, tf.Tensor]:
        x = tf.nn.relu(conv(images(size=7), 8, name="before"))
        output = 7 * stride if padding == "SAME" else 6 * stride + size
        sizes = tf.stack([tf.shape(x)[0], output, output, 6])
        kernel = weight(normal(size, size, 6, 8, scale=1 / (size * 8**0.5)))
        y = tf.nn.conv2d_transpose(x, kernel, sizes, stride, padding, name="transposed")
        return {"y": tf.identity(conv(tf.nn.relu(fused_norm(y)), 4, name="behind"), "y")}

    rewriter, made = compare(build, shape=(3, 7, 7, 8))
    assert "Conv2DBackpropInput" not in op_types(made)
    assert op_types(made).count("QuantizeV2") == op_types(made).count("Dequantize") == 1
    assert "FusedBatchNormV3" not in op_types(rewriter.reference)


@pytest.mark.parametrize("scheme", runnable(SCHEMES))
@pytest.mark.parametrize(("depth", "stride", "padding"), [(3, 1, "SAME"), (2, 2, "VALID"), (1, 1, "SAME")])
def test_a_convolution_in_three_dimensions(depth: int, stride: int, padding: str, scheme: Scheme) -> None:
    def build() -> dict[str, tf.Tensor]:
        x = v1.placeholder(tf.float32, [None, 5, 6, 6, 4], "x")
        for index, step in enumerate((stride, 1)):
            kernel = weight(normal(depth, 3, 3, 4, 4, scale=1 / (36 * depth) ** 0.5, seed=index))
            x = tf.nn.conv3d(x, kernel, [1, step, 1, 1, 1], padding, name=f"conv_{index}")
            x = tf.nn.relu(spelled_norm(x))
        return {"y": tf.identity(x, "y")}

    rewriter, made = compare(build, scheme, shape=(2, 5, 6, 6, 4))
    assert "Mul" not in op_types(rewriter.reference)
    assert ("Conv3D" in op_types(made)) == scheme.is_float


@pytest.mark.parametrize("groups", [2, 4])
def test_a_convolution_in_groups(groups: int) -> None:
    def build() -> dict[str, tf.Tensor]:
        x = tf.nn.relu(conv(images(), 8, 1, name="before"))
        y = tf.nn.conv2d(
            x, weight(normal(3, 3, 8 // groups, 12, scale=groups / 8)), 1, "SAME", name="grouped"
        )
        return {"y": tf.identity(conv(fused_norm(y), 4, 1, name="behind"), "y")}

    _, made = compare(build)
    assert "Conv2D" not in op_types(made)
    assert op_types(made).count("_FusedQuantizedConv2D") == 2 + groups
