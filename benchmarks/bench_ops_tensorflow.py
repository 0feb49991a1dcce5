"""The cases of benchmarks/ops.py on stock TensorFlow, in the int8 ops that it carries."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf
from bench_ops_case import Case
from bench_ops_nodes import (
    DEPTHWISE,
    PLAIN,
    Form,
    Nodes,
    around_zero,
    float_conv,
    int8_conv,
    int8_weight,
)

from octune.backends.tensorflow.graph.emit import quantize, quantized_matmul
from octune.int8 import Grid

Array = Any
RANDOM = np.random.default_rng(0)
FLOAT, BF16, QUINT8, QINT8 = tf.float32, tf.bfloat16, tf.quint8, tf.qint8


def cases(threads: int) -> Iterator[Case]:
    """All of them."""
    yield from _products(threads)
    yield from _dense(threads)
    yield from _loops(threads)
    yield from _tables(threads)
    yield from _convolutions(threads)
    yield from _between(threads)


def normal(*shape: int) -> Array:
    """Random numbers."""
    return RANDOM.standard_normal(shape).astype(np.float32)


Forms = dict[str, Form]


# -- products ------------------------------------------------------------------------------------------------


def _products(threads: int) -> Iterator[Case]:
    for length in (128, 384):
        yield Case("attention", f"12 heads of 64, {length} tokens", partial(_attention, length, threads))


def _attention(length: int, threads: int) -> Forms:
    """Both products and the softmax between them. ``by head`` is TensorFlow's one int8 kernel for matrices,
    called for every head; it takes its second operand as a weight that changes.
    """
    q, k, v = (normal(1, 12, *shape) / 64**0.25 for shape in ((length, 64), (64, length), (length, 64)))
    return {
        "fp32": _float_attention(q, k, v, (FLOAT, FLOAT), threads),
        "bf16": _float_attention(q, k, v, (BF16, FLOAT), threads),
        "bf16, softmax too": _float_attention(q, k, v, (BF16, BF16), threads),
        "int8 to int32, BatchMatMulV3": _integer_attention(q, k, v, threads),
        "int8 by head": _attention_by_head(q, k, v, threads),
    }


def _float_attention(q: Array, k: Array, v: Array, kinds: tuple[Any, Any], threads: int) -> Form:
    nodes, (products, softmax) = Nodes(), kinds

    def product(a: str, b: str) -> str:
        return nodes.add("BatchMatMulV2", a, b, T=products, adj_x=False, adj_y=False)

    def cast(x: str, source: Any, wanted: Any) -> str:
        return x if source == wanted else nodes.cast(x, source, wanted)

    a, b, c = (cast(nodes.given(x), FLOAT, products) for x in (q, k, v))
    scores = cast(product(a, b), products, softmax)
    shares = cast(nodes.add("Softmax", scores, T=softmax), softmax, products)
    return nodes.form(cast(product(shares, c), products, FLOAT), threads)


def _integer_attention(q: Array, k: Array, v: Array, threads: int) -> Form:
    """Around zero: this product knows no zero points."""
    nodes = Nodes()

    def signed(x: str, reach: float) -> tuple[str, float]:
        values, *_ = nodes.quantized(x, -reach, reach, signed=True)
        return nodes.add("Bitcast", values, T=QINT8, type=tf.int8), reach / 127.5

    def product(a: tuple[str, float], b: tuple[str, float]) -> str:
        types = {"Ta": tf.int8, "Tb": tf.int8, "Tout": tf.int32}
        sums = nodes.add("BatchMatMulV3", a[0], b[0], adj_x=False, adj_y=False, **types)
        wide = nodes.cast(sums, tf.int32, FLOAT)
        return nodes.add("Mul", wide, nodes.stored(np.float32(a[1] * b[1])), T=FLOAT)

    a, b, c = (signed(nodes.given(x), float(np.abs(x).max())) for x in (q, k, v))
    shares = nodes.add("Softmax", product(a, b), T=FLOAT)
    return nodes.form(product(signed(shares, 1.0), c), threads)


def _attention_by_head(q: Array, k: Array, v: Array, threads: int) -> Form:
    nodes, heads = Nodes(), q.shape[1]

    def matrices(x: Array, *, signed: bool) -> tuple[list[str], str, str]:
        reach = float(np.abs(x).max())
        values, low, high = nodes.quantized(nodes.given(x[0]), -reach, reach, signed=signed)
        kind = QINT8 if signed else QUINT8
        return nodes.apart(values, kind, heads), low, high

    def products(a: tuple[list[str], str, str], b: tuple[list[str], str, str], columns: int) -> list[str]:
        bias = nodes.stored(np.zeros(columns, np.float32))
        made = []
        for first, second in zip(a[0], b[0], strict=True):
            ends = (*a[1:], *b[1:])
            made.append(nodes.put(partial(_changing, first=first, second=second, bias=bias, ends=ends)))
        return made

    a, b, c = matrices(q, signed=False), matrices(k, signed=True), matrices(v, signed=True)
    scores = nodes.add("Pack", *products(a, b, k.shape[-1]), N=heads, T=FLOAT, axis=0)
    shares, low, high = nodes.quantized(nodes.add("Softmax", scores, T=FLOAT), 0.0, 1.0)
    mixed = products((nodes.apart(shares, QUINT8, heads), low, high), c, v.shape[-1])
    whole = nodes.add("Pack", *mixed, N=heads, T=FLOAT, axis=0)
    return nodes.form(nodes.add("ExpandDims", whole, nodes.stored(0), T=FLOAT, Tdim=tf.int32), threads)


def _changing(name: str, first: str, second: str, bias: str, ends: tuple[str, ...]) -> Any:
    """An int8 product whose second operand is no constant."""
    made = quantized_matmul(name, (first, second, bias), ends)
    made.attr["is_weight_const"].b = False
    return made


# -- linear layers and tables --------------------------------------------------------------------------------


def _dense(threads: int) -> Iterator[Case]:
    for rows, inputs, outputs in ((128, 384, 384), (128, 384, 1536), (128, 768, 3072), (1024, 384, 1536)):
        yield Case(
            "matmul", f"{rows} rows, {inputs} to {outputs}", partial(_matmul, rows, inputs, outputs, threads)
        )


def _matmul(rows: int, inputs: int, outputs: int, threads: int) -> Forms:
    x, w, b = normal(rows, inputs), normal(inputs, outputs) / inputs**0.5, normal(outputs)
    plain = Nodes()
    product = plain.add(
        "MatMul", plain.given(x), plain.stored(w), T=FLOAT, transpose_a=False, transpose_b=False
    )
    fp32 = plain.form(plain.add("BiasAdd", product, plain.stored(b), T=FLOAT, data_format="NHWC"), threads)
    return {
        "fp32": fp32,
        "int8 static": _int8_matmul(x, w, b, "static", threads),
        "int8 dynamic": _int8_matmul(x, w, b, "dynamic", threads),
        "int8 token": _token_matmul(x, w, b, threads),
    }


def _int8_matmul(x: Array, w: Array, b: Array, mode: str, threads: int) -> Form:
    nodes = Nodes()
    given, (kernel, low, high) = nodes.given(x), int8_weight(nodes, w)
    if mode == "static":
        values, *ends = nodes.quantized(given, float(x.min()), float(x.max()))
    else:
        axes = nodes.stored([0, 1])
        ends = [nodes.add(op, given, axes, T=FLOAT, Tidx=tf.int32, keep_dims=False) for op in ("Min", "Max")]
        values = nodes.put(lambda name: quantize(name, given, *ends))
        ends = [f"{values}:1", f"{values}:2"]
    bias, scales = nodes.stored(b), (ends[0], ends[1], low, high)
    return nodes.form(nodes.put(lambda name: quantized_matmul(name, (values, kernel, bias), scales)), threads)


def _token_matmul(x: Array, w: Array, b: Array, threads: int) -> Form:
    """The kernel takes one range, so rows are brought to one length before it and back behind it, where the
    bias is added then.
    """
    nodes = Nodes()
    given, (kernel, low, high) = nodes.given(x), int8_weight(nodes, w)
    axis = nodes.stored([1])
    size = nodes.add("Abs", given, T=FLOAT)
    peak = nodes.add("Max", size, axis, T=FLOAT, Tidx=tf.int32, keep_dims=True)
    values, *ends = nodes.quantized(nodes.add("RealDiv", given, peak, T=FLOAT), -1.0, 1.0)
    zeros, scales = nodes.stored(np.zeros_like(b)), (ends[0], ends[1], low, high)
    product = nodes.put(lambda name: quantized_matmul(name, (values, kernel, zeros), scales))
    wide = nodes.add("Mul", product, peak, T=FLOAT)
    return nodes.form(nodes.add("AddV2", wide, nodes.stored(b), T=FLOAT), threads)


# -- recurrent layers ----------------------------------------------------------------------------------------


def _loops(threads: int) -> Iterator[Case]:
    for width in (256, 512):
        yield Case("LSTM", f"{width} wide, 64 steps, batch 1", partial(_lstm, width, 64, threads))


def _lstm(width: int, steps: int, threads: int) -> Forms:
    """A loop, as Keras writes it. In int8 with the inputs multiplied in the loop, as they are, or all at once
    before it.
    """
    x = normal(steps, 1, width)
    weights = normal(width, 4 * width) / width**0.5, normal(width, 4 * width) / width**0.5
    return {
        "fp32": _loop(x, weights, _float_product, threads),
        "int8 dynamic": _loop(x, weights, _dynamic_product, threads),
        "int8 dynamic, inputs at once": _loop(x, weights, _dynamic_product, threads, at_once=True),
    }


Product = Callable[[Any], Any]


def _loop(
    x: Array,
    weights: tuple[Array, Array],
    product: Callable[[Array], Product],
    threads: int,
    *,
    at_once: bool = False,
) -> Form:
    steps, batch, width = x.shape
    of_input, of_state = map(product, weights)
    with tf.Graph().as_default() as graph:
        given = tf.compat.v1.placeholder_with_default(tf.constant(x), x.shape)
        rows = of_input(tf.reshape(given, [steps * batch, width])) if at_once else None
        whole = None if rows is None else tf.reshape(rows, [steps, batch, 4 * width])

        def step(time: Any, h: Any, c: Any, made: Any) -> tuple[Any, ...]:
            sums = (of_input(given[time]) if whole is None else whole[time]) + of_state(h)
            first, forget, new, output = tf.split(sums, 4, 1)
            c = tf.sigmoid(forget) * c + tf.sigmoid(first) * tf.tanh(new)
            h = tf.sigmoid(output) * tf.tanh(c)
            return time + 1, h, c, made.write(time, h)

        zeros = tf.zeros([batch, width])
        made = tf.TensorArray(FLOAT, steps, element_shape=[batch, width])
        made = tf.while_loop(lambda time, *_: time < steps, step, (0, zeros, zeros, made))[3]
        tf.identity(made.stack(), name="output")
    return Form(graph, "output", "output", threads)


def _float_product(w: Array) -> Product:
    return lambda x: tf.matmul(x, tf.constant(w))


def _dynamic_product(w: Array) -> Product:
    nodes = Nodes()
    x, (kernel, low, high) = nodes.add("Placeholder", dtype=FLOAT), int8_weight(nodes, w)
    axes, bias = nodes.stored([0, 1]), nodes.stored(np.zeros(w.shape[1], np.float32))
    ends = [nodes.add(op, x, axes, T=FLOAT, Tidx=tf.int32, keep_dims=False) for op in ("Min", "Max")]
    values = nodes.put(lambda name: quantize(name, x, *ends))
    scales = (f"{values}:1", f"{values}:2", low, high)
    made = nodes.put(lambda name: quantized_matmul(name, (values, kernel, bias), scales))
    return lambda y: nodes.part({x: y}, made)


# -- tables --------------------------------------------------------------------------------------------------


def _tables(threads: int) -> Iterator[Case]:
    for ids in (128, 1024):
        yield Case("embedding", f"{ids} rows of 30,522 x 384", partial(_table, ids, threads))


def _table(ids: int, threads: int) -> Forms:
    table, wanted = normal(30522, 384), RANDOM.integers(0, 30522, ids).astype(np.int32)
    scales = np.abs(table).max(1, keepdims=True) / 127

    def read(nodes: Nodes, values: Array, kind: Any, which: str) -> str:
        types = {"Tparams": kind, "Tindices": tf.int32, "Taxis": tf.int32, "batch_dims": 0}
        return nodes.add("GatherV2", nodes.given(values, kind), which, nodes.stored(0), **types)

    plain, int8, half = Nodes(), Nodes(), Nodes()
    fp32 = plain.form(read(plain, table, FLOAT, plain.given(wanted)), threads)
    which = int8.given(wanted)
    rows = int8.cast(read(int8, np.rint(table / scales).astype(np.int8), tf.int8, which), tf.int8, FLOAT)
    scaled = int8.form(int8.add("Mul", rows, read(int8, scales, FLOAT, which), T=FLOAT), threads)
    short = tf.cast(table, BF16).numpy()
    bf16 = half.form(half.cast(read(half, short, BF16, half.given(wanted)), BF16, FLOAT), threads)
    return {"fp32": fp32, "int8": scaled, "bf16": bf16}


# -- convolutions --------------------------------------------------------------------------------------------


def _convolutions(threads: int) -> Iterator[Case]:
    yield Case("convolution", "3x3, 64 channels, 56 x 56", partial(_grouped, 64, 1, 56, threads))
    for groups in (2, 4, 32):
        title = f"3x3, {groups} groups, 128 channels, 28 x 28"
        yield Case("grouped convolution", title, partial(_grouped, 128, groups, 28, threads))
    for channels, size, side in ((96, 3, 56), (240, 5, 28)):
        title = f"{size}x{size}, {channels} channels, {side} x {side}"
        yield Case("depthwise convolution", title, partial(_depthwise, channels, size, side, threads))
    yield Case("3-D convolution", "3x3x3, 32 channels, 16 x 28 x 28", partial(_volume, threads))
    yield Case("transposed convolution", "4x4, stride 2, 64 channels, 28 x 28", partial(_transposed, threads))


def _both(x: Array, float_: Callable[[Nodes, str], str], threads: int) -> tuple[Form, float]:
    """fp32, and the largest number that it computes."""
    nodes = Nodes()
    made = nodes.form(float_(nodes, nodes.given(x)), threads)
    return made, float(np.abs(made.value()).max())


def _grouped(channels: int, groups: int, side: int, threads: int) -> Forms:
    """In int8 either one convolution for each group, or one of all channels with weights of zero."""
    x, w = (
        normal(1, side, side, channels),
        normal(3, 3, channels // groups, channels) / (9 * channels / groups) ** 0.5,
    )
    fp32, reach = _both(x, lambda nodes, given: float_conv(nodes, given, w), threads)
    if groups == 1:
        whole = Nodes()
        made = int8_conv(whole, around_zero(whole, x), w, reach)
        return {"fp32": fp32, "int8": whole.form(whole.floats(*made, QINT8), threads)}
    size = channels // groups
    wide = np.zeros((3, 3, channels, channels), np.float32)
    for group in range(groups):
        part = slice(group * size, (group + 1) * size)
        wide[:, :, part, part] = w[:, :, :, part]
    dense, split = Nodes(), Nodes()
    made = int8_conv(dense, around_zero(dense, x), wide, reach)
    values, low, high = around_zero(split, x)
    pieces = split.split(values, QINT8, groups)
    parts = [
        int8_conv(split, (piece, low, high), w[..., place * size : (place + 1) * size], reach)
        for place, piece in enumerate(pieces)
    ]
    joined = split.add(
        "ConcatV2", *(part[0] for part in parts), split.stored(3), N=groups, T=QINT8, Tidx=tf.int32
    )
    return {
        "fp32": fp32,
        "int8 by group": split.form(split.floats(joined, *parts[0][1:], QINT8), threads),
        "int8 with zeros": dense.form(dense.floats(*made, QINT8), threads),
    }


def _depthwise(channels: int, size: int, side: int, threads: int) -> Forms:
    x, w = normal(1, side, side, channels), normal(size, size, channels, 1) / size
    fp32, reach = _both(x, lambda nodes, given: float_conv(nodes, given, w, "DepthwiseConv2dNative"), threads)
    nodes = Nodes()
    made = int8_conv(nodes, around_zero(nodes, x), w, reach, DEPTHWISE)
    return {"fp32": fp32, "int8": nodes.form(nodes.floats(*made, QINT8), threads)}


def _volume(threads: int) -> Forms:
    """In int8 as a 2-D convolution over three neighbouring slices, put together as channels."""
    x, w = normal(1, 16, 28, 28, 32), normal(3, 3, 3, 32, 32) / (27 * 32) ** 0.5
    how = {"strides": [1] * 5, "dilations": [1] * 5, "padding": "SAME", "data_format": "NDHWC"}

    def float_(nodes: Nodes, given: str, kind: Any = FLOAT) -> str:
        held = nodes.stored(w) if kind == FLOAT else nodes.cast(nodes.stored(w), FLOAT, kind)
        return nodes.add("Conv3D", given, held, T=kind, **how)

    fp32, reach = _both(x, float_, threads)
    half = Nodes()
    bf16 = half.form(
        half.cast(float_(half, half.cast(half.given(x), FLOAT, BF16), BF16), BF16, FLOAT), threads
    )
    nodes = Nodes()
    values, low, high = around_zero(nodes, x[0])
    axis, empty = nodes.stored(0), nodes.stored(np.zeros((1, 28, 28, 32), np.int8), QINT8)
    padded = nodes.add("ConcatV2", empty, values, empty, axis, N=3, T=QINT8, Tidx=tf.int32)
    sizes = nodes.stored([16, 28, 28, 32])
    slices = [
        nodes.add("Slice", padded, nodes.stored([first, 0, 0, 0]), sizes, T=QINT8, Index=tf.int32)
        for first in range(3)
    ]
    stacked = nodes.add("ConcatV2", *slices, nodes.stored(3), N=3, T=QINT8, Tidx=tf.int32)
    flat = np.ascontiguousarray(w.transpose(1, 2, 0, 3, 4)).reshape(3, 3, 96, 32)
    made = int8_conv(nodes, (stacked, low, high), flat, reach)
    whole = nodes.add("ExpandDims", nodes.floats(*made, QINT8), nodes.stored(0), T=FLOAT, Tdim=tf.int32)
    return {"fp32": fp32, "bf16": bf16, "int8 as 2-D": nodes.form(whole, threads)}


def _transposed(threads: int) -> Forms:
    """In int8 as a 3x3 convolution that computes four pixels for each, which are then put in place."""
    x, w = normal(1, 28, 28, 64), normal(4, 4, 64, 64) / (4 * 64) ** 0.5  # height, width, outputs, inputs

    def float_(nodes: Nodes, given: str) -> str:
        sizes = nodes.stored([1, 56, 56, 64])
        how = PLAIN | {"strides": [1, 2, 2, 1]}
        return nodes.add(
            "Conv2DBackpropInput", sizes, nodes.stored(w), given, T=FLOAT, data_format="NHWC", **how
        )

    fp32, reach = _both(x, float_, threads)
    # Output row 2i + p sums w[k] x[j] over 2j + k - 1 = 2i + p, so k = 2 (i - j) + p + 1.
    apart = np.zeros((3, 3, 64, 2, 2, 64), np.float32)
    for place in np.ndindex(3, 3, 2, 2):
        row, column, up, left = place
        k, m = 2 * (1 - row) + up + 1, 2 * (1 - column) + left + 1
        if 0 <= k < 4 and 0 <= m < 4:
            apart[row, column, :, up, left] = w[k, m].T
    nodes = Nodes()
    made = int8_conv(nodes, around_zero(nodes, x), apart.reshape(3, 3, 64, 256), reach)
    placed = nodes.add("DepthToSpace", nodes.floats(*made, QINT8), T=FLOAT, block_size=2, data_format="NHWC")
    return {"fp32": fp32, "int8 as 3x3": nodes.form(placed, threads)}


# -- what is between two convolutions ------------------------------------------------------------------------


def _between(threads: int) -> Iterator[Case]:
    """From int8 to int8, as the convolutions before and behind have it; fp32 is the op on floats."""
    for side in (56, 14):
        x = np.maximum(normal(8, side, side, 96), 0)
        for kind, (float_, int8) in BETWEEN.items():
            yield Case(kind, f"8 x {side} x {side} x 96", partial(_middle, x, float_, int8, threads))


Middle = Callable[[Nodes, list[str]], str]


def _middle(x: Array, float_: Middle, int8: Callable[[Nodes, list[str], float], str], threads: int) -> Forms:
    reach = float(x.max())
    inputs = [x, np.ascontiguousarray(x[..., ::-1])]
    plain, around, inside = Nodes(), Nodes(), Nodes()
    fp32 = plain.form(float_(plain, [plain.given(each) for each in inputs]), threads)

    def levels(nodes: Nodes) -> tuple[list[str], str, str]:
        stored = (np.rint(each * (255 / reach)).astype(np.uint8) for each in inputs)
        values = [nodes.given(each, QUINT8) for each in stored]
        return values, nodes.stored(np.float32(0)), nodes.stored(np.float32(reach))

    values, *ends = levels(around)
    result = float_(around, [around.floats(each, *ends) for each in values])
    again, *_ = around.quantized(result, 0.0, reach)
    values, low, high = levels(inside)
    made = int8(inside, values, reach)
    return {
        "fp32": fp32,
        "int8, the op in float": around.form(again, threads, around.floats(again, *ends)),
        "int8": inside.form(made, threads, inside.floats(made, low, high)),
    }


POOL = {"ksize": [1, 2, 2, 1], "strides": [1, 2, 2, 1], "padding": "VALID"}


def _average(nodes: Nodes, x: list[str]) -> str:
    return nodes.add("AvgPool", x[0], T=FLOAT, data_format="NHWC", **POOL)


def _average_int8(nodes: Nodes, x: list[str], reach: float) -> str:
    low, high = nodes.stored(np.float32(0)), nodes.stored(np.float32(reach))
    return nodes.add("QuantizedAvgPool", x[0], low, high, T=QUINT8, **POOL)


def _joined(nodes: Nodes, x: list[str], kind: Any = FLOAT) -> str:
    return nodes.add("ConcatV2", *x, nodes.stored(3), N=2, T=kind, Tidx=tf.int32)


def _joined_int8(nodes: Nodes, x: list[str], reach: float) -> str:
    return _joined(nodes, x, QUINT8)


def _larger(nodes: Nodes, x: list[str], kind: Any = FLOAT) -> str:
    return nodes.add("ResizeNearestNeighbor", x[0], nodes.stored([112, 112]), T=kind, align_corners=False,
                     half_pixel_centers=False)  # fmt: skip


def _larger_int8(nodes: Nodes, x: list[str], reach: float) -> str:
    bits = nodes.add("Bitcast", x[0], T=QUINT8, type=tf.uint8)
    return nodes.add("Bitcast", _larger(nodes, [bits], tf.uint8), T=tf.uint8, type=QUINT8)


def _silu(nodes: Nodes, x: list[str]) -> str:
    return nodes.add("Mul", x[0], nodes.add("Sigmoid", x[0], T=FLOAT), T=FLOAT)


def _silu_int8(nodes: Nodes, x: list[str], reach: float) -> str:
    """There is no kernel, but a function of 256 values is a table."""
    values = Grid.affine(0.0, reach).dequantize(np.arange(256, dtype=np.uint8))
    table = np.rint(values / (1 + np.exp(-values)) * (255 / reach)).astype(np.uint8)
    places = nodes.cast(nodes.add("Bitcast", x[0], T=QUINT8, type=tf.uint8), tf.uint8, tf.int32)
    types = {"Tparams": tf.uint8, "Tindices": tf.int32, "Taxis": tf.int32, "batch_dims": 0}
    read = nodes.add("GatherV2", nodes.stored(table), places, nodes.stored(0), **types)
    return nodes.add("Bitcast", read, T=tf.uint8, type=QUINT8)


BETWEEN: dict[str, tuple[Middle, Callable[[Nodes, list[str], float], str]]] = {
    "average pooling": (_average, _average_int8),
    "concatenation": (_joined, _joined_int8),
    "resizing": (_larger, _larger_int8),
    "SiLU": (_silu, _silu_int8),
}
