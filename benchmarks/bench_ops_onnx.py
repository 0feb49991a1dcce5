"""The cases of benchmarks/ops.py on ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from bench_octune import observe
from bench_ops_case import Case
from bench_ops_chain import OPSETS, Chain, forms
from onnx import ModelProto, TensorProto, helper, numpy_helper

from octune.backends import Settings
from octune.backends.onnx import OnnxBackend
from octune.plan import Plan, Scheme

Array = Any
RANDOM = np.random.default_rng(0)
DYNAMIC, TOKEN, STATIC = Scheme.int8("dynamic"), Scheme.int8("token"), Scheme.int8()
PER_TENSOR = Scheme.int8("static", granularity="per_tensor")


def cases(threads: int) -> Iterator[Case]:
    """All of them."""
    yield from _recurrent(threads)
    yield from _dense(threads)
    yield from _products(threads)
    yield from _convolutions(threads)
    yield from _between(threads)


def normal(*shape: int) -> Array:
    """Random numbers."""
    return RANDOM.standard_normal(shape).astype(np.float32)


# -- single nodes, in Octune's own int8 ----------------------------------------------------------------------


def _single(nodes: list[Any], inputs: dict[str, Array], stored: dict[str, Array]) -> ModelProto:
    graph = helper.make_graph(
        nodes,
        "case",
        [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, array.shape)
            for name, array in inputs.items()
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.ascontiguousarray(array), name) for name, array in stored.items()],
    )
    return helper.make_model(graph, opset_imports=OPSETS, ir_version=8)


def _octune(
    model: ModelProto, feed: dict[str, Array], schemes: dict[str, dict[str, Scheme]], threads: int
) -> dict[str, Callable[[], Array]]:
    """fp32, and each plan as Octune applies it; the forms as they are called, each with a plan."""
    backend = OnnxBackend(model, Settings(threads=threads))
    ranges = observe(backend, [feed])
    made = {"fp32": backend.fp32_model()} | {
        name: backend.apply(Plan(plan), ranges) for name, plan in schemes.items()
    }
    return {name: partial(_first, running, feed) for name, running in made.items()}


def _first(model: Any, feed: dict[str, Array]) -> Array:
    return model.run(None, feed)[0]


def _recurrent(threads: int) -> Iterator[Case]:
    """Layers over 64 time steps."""
    for kind, gates in (("LSTM", 4), ("GRU", 3), ("RNN", 1)):
        for width, batch in ((512, 1), (512, 8), (1024, 1), (256, 1), (128, 1), (64, 1)):
            yield Case(
                kind,
                f"{width} wide, 64 steps, batch {batch}",
                partial(_layer, kind, gates, width, batch, threads),
            )


def _layer(kind: str, gates: int, width: int, batch: int, threads: int) -> dict[str, Callable[[], Array]]:
    stored = {
        "w": normal(1, gates * width, width) / width**0.5,
        "r": normal(1, gates * width, width) / width**0.5,
        "b": normal(1, 2 * gates * width) / 9,
    }
    before = {"linear_before_reset": 1} if kind == "GRU" else {}  # as PyTorch and Keras export it
    node = helper.make_node(kind, ["x", *stored], ["y"], "layer", hidden_size=width, **before)
    feed = {"x": normal(64, batch, width)}
    return _octune(_single([node], feed, stored), feed, {"int8 dynamic": {"layer": DYNAMIC}}, threads)


def _dense(threads: int) -> Iterator[Case]:
    for rows, inputs, outputs in ((128, 384, 384), (128, 384, 1536), (128, 768, 3072), (1024, 384, 1536)):
        yield Case(
            "matmul", f"{rows} rows, {inputs} to {outputs}", partial(_matmul, rows, inputs, outputs, threads)
        )
    yield Case("Einsum", "128 rows, 768 to 768", partial(_einsum, threads))


def _matmul(rows: int, inputs: int, outputs: int, threads: int) -> dict[str, Callable[[], Array]]:
    stored = {"w": normal(inputs, outputs) / inputs**0.5, "b": normal(outputs)}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"], "op"),
        helper.make_node("Add", ["p", "b"], ["y"], "bias"),
    ]
    feed = {"x": normal(1, rows, inputs)}
    plans = {"int8 static": STATIC, "int8 dynamic": DYNAMIC, "int8 token": TOKEN}
    return _octune(
        _single(nodes, feed, stored), feed, {name: {"op": scheme} for name, scheme in plans.items()}, threads
    )


def _einsum(threads: int) -> dict[str, Callable[[], Array]]:
    """Beside the MatMul that it could have been exported as."""
    feed, stored = {"x": normal(1, 128, 768)}, {"w": normal(768, 768) / 768**0.5}
    einsum = helper.make_node("Einsum", ["x", "w"], ["y"], "op", equation="bsi,io->bso")
    matmul = helper.make_node("MatMul", ["x", "w"], ["y"], "op")
    exact = _octune(_single([einsum], feed, stored), feed, {}, threads)
    made = _octune(_single([matmul], feed, stored), feed, {"int8 MatMul": {"op": DYNAMIC}}, threads)
    return exact | {"MatMul": made.pop("fp32")} | made


def _products(threads: int) -> Iterator[Case]:
    for length in (128, 384):
        yield Case("attention", f"12 heads of 64, {length} tokens", partial(_attention, length, threads))


def _attention(length: int, threads: int) -> dict[str, Callable[[], Array]]:
    """Both products and the softmax between them."""
    nodes = [
        helper.make_node("MatMul", ["q", "k"], ["s"], "scores"),
        helper.make_node("Softmax", ["s"], ["p"], "softmax", axis=-1),
        helper.make_node("MatMul", ["p", "v"], ["y"], "mix"),
    ]
    shapes = {"q": (length, 64), "k": (64, length), "v": (length, 64)}
    feed = {name: normal(1, 12, *shape) / 64**0.25 for name, shape in shapes.items()}
    plan = {"int8 static": {"scores": PER_TENSOR, "mix": PER_TENSOR}}
    return _octune(_single(nodes, feed, {}), feed, plan, threads)


def _convolutions(threads: int) -> Iterator[Case]:
    shapes = {
        "1x1, 96 channels, 28 x 28": (96, 1, 1, 28),
        "3x3, 64 channels, 56 x 56": (64, 3, 1, 56),
        "3x3 depthwise, 96 channels, 56 x 56": (96, 3, 96, 56),
        "5x5 depthwise, 240 channels, 28 x 28": (240, 5, 240, 28),
        "3x3, 32 groups, 128 channels, 28 x 28": (128, 3, 32, 28),
    }
    for title, (channels, size, groups, side) in shapes.items():
        yield Case("convolution", title, partial(_conv, channels, size, groups, side, threads))


def _conv(channels: int, size: int, groups: int, side: int, threads: int) -> dict[str, Callable[[], Array]]:
    """Two in a row: int8 flows from the first to the second."""

    def spec(c: Chain) -> str:
        first = c.conv(c.seen("x"), channels, channels, size, groups)
        return c.conv(first, channels, channels, size, groups)

    made = forms(spec, normal(1, channels, side, side), threads)
    del made["int8, the op in float"]
    return made


# -- what is between two convolutions ------------------------------------------------------------------------


def _between(threads: int) -> Iterator[Case]:
    for side in (56, 14):
        x, title = normal(1, 96, side, side), f"between two 1x1 convolutions, 96 x {side} x {side}"
        for kind, (spec, float_, kept) in BETWEEN.items():
            yield Case(kind, title, partial(forms, spec, x, threads, float_=float_, kept=kept))


def _silu(c: Chain, x: str) -> str:
    return c.op("Mul", x, c.op("Sigmoid", x, name="inner"))


def _hard_swish(c: Chain, x: str) -> str:
    gate = c.op("HardSigmoid", x, name="inner", alpha=1 / 6, beta=0.5)
    return c.op("Mul", x, gate)


def _residual(c: Chain, x: str) -> str:
    return c.op("Add", x, c.conv(x, 96, 96, 1), name="inner")


def _average(c: Chain, x: str) -> str:
    return c.op("AveragePool", x, name="inner", kernel_shape=[2, 2], strides=[2, 2])


def _concatenation(c: Chain, x: str) -> str:
    both = c.op("Concat", x, c.conv(x, 96, 96, 1), name="inner", axis=1)
    return c.conv(both, 192, 96, 1)


def _resize(c: Chain, x: str) -> str:
    factors = c.stored(np.array([1, 1, 2, 2], np.float32))
    return c.op("Resize", x, "", factors, name="inner", mode="nearest")


def _wrapped(middle: Callable[[Chain, str], str]) -> Callable[[Chain], str]:
    return lambda c: c.conv(middle(c, c.conv(c.seen("x"), 96, 96, 1)), 96, 96, 1)


BETWEEN: dict[str, tuple[Callable[[Chain], str], set[str], set[str]]] = {
    "SiLU": (_wrapped(_silu), {"inner"}, set()),
    "HardSwish": (_wrapped(_hard_swish), {"inner"}, set()),
    "residual sum": (_wrapped(_residual), set(), {"inner"}),
    "average pooling": (_wrapped(_average), set(), {"inner"}),
    "concatenation": (_wrapped(_concatenation), set(), {"inner"}),
    "resizing": (_wrapped(_resize), set(), {"inner"}),
}
