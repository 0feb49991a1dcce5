"""Multiply-adds of ONNX graphs, node by node."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from octune.backends import Settings, backend_for
from octune.coverage import Work
from tests.backends.onnx.models import arrays, bert, cnn
from tests.backends.torch.models import image_batches, small_cnn, tiny_bert, token_batches


def work_of(model: Any, batch: Any) -> Work:
    backend = backend_for(model, Settings())
    inputs = backend.split(batch)[0]
    backend.prepare(inputs)
    work = backend.work(inputs)
    assert work is not None
    return work


def test_it_is_what_pytorch_counts() -> None:
    for theirs, ours, batches in (
        (bert(), tiny_bert(), token_batches(1)),
        (cnn(), small_cnn(), image_batches(1)),
    ):
        assert work_of(theirs, arrays(batches)[0]).total == work_of(ours.eval(), batches[0]).total


def graph(
    op: str, x: tuple[int, ...], weights: list[tuple[int, ...]], y: int, **attributes: Any
) -> ModelProto:
    names = [f"w{number}" for number in range(len(weights))]
    made = helper.make_graph(
        [helper.make_node(op, ["x", *names], ["y"], name="n", **attributes)],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", *x[1:]])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * y)],
        [
            numpy_helper.from_array(np.ones(shape, np.float32), name)
            for name, shape in zip(names, weights, strict=True)
        ],
    )
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.mark.parametrize(
    ("model", "x", "products"),
    [
        (graph("Gemm", (3, 8), [(8, 4)], 2), (3, 8), 3 * 8 * 4),
        (graph("Gemm", (3, 8), [(4, 8)], 2, transB=1), (3, 8), 3 * 8 * 4),
        (graph("Conv", (2, 4, 9), [(6, 2, 3)], 3, group=2), (2, 4, 9), 2 * 6 * 7 * 2 * 3),
        (graph("ConvTranspose", (2, 4, 9), [(4, 5, 3)], 3, strides=[2]), (2, 4, 9), 2 * 4 * 9 * 5 * 3),
        (
            graph("LSTM", (7, 2, 8), [(1, 24, 8), (1, 24, 6)], 4, hidden_size=6),
            (7, 2, 8),
            7 * 2 * 24 * (8 + 6),
        ),
        (graph("Einsum", (2, 3, 8), [(8, 4)], 3, equation="btd,do->bto"), (2, 3, 8), 2 * 3 * 8 * 4),
    ],
)
def test_every_node_that_multiplies_has_a_formula(
    model: ModelProto, x: tuple[int, ...], products: int
) -> None:
    assert work_of(model, np.ones(x, np.float32)).total == products


def looped() -> ModelProto:
    """As many products as there are rows, each with one row more: 1 + 2 + ... rows."""
    body = helper.make_graph(
        [
            helper.make_node("MatMul", ["x_in", "w"], ["product"], "inner"),
            helper.make_node("Concat", ["x_in", "row"], ["x_out"], axis=0),
            helper.make_node("Identity", ["go_in"], ["go"]),
            helper.make_node("ReduceSum", ["product"], ["sum"], keepdims=0),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go_in", TensorProto.BOOL, []),
            helper.make_tensor_value_info("x_in", TensorProto.FLOAT, [None, 8]),
        ],
        [
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("x_out", TensorProto.FLOAT, [None, 8]),
            helper.make_tensor_value_info("sum", TensorProto.FLOAT, []),
        ],
    )
    nodes = [
        helper.make_node("MatMul", ["x", "square"], ["first"], "first"),
        helper.make_node("Shape", ["x"], ["steps"], end=1),
        helper.make_node("Loop", ["steps", "", "row"], ["last", "sums"], "loop", body=body),
        helper.make_node("Add", ["first", "sums"], ["y"]),
    ]
    stored = {"w": (8, 4), "row": (1, 8), "square": (8, 1)}
    return helper.make_model(
        helper.make_graph(
            nodes,
            "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 8])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
            [numpy_helper.from_array(np.ones(size, np.float32), name) for name, size in stored.items()],
        ),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=9,
    )


def test_what_a_loop_multiplies_is_counted_step_by_step() -> None:
    work = work_of(looped(), np.ones((3, 8), np.float32))
    assert work.ops == {"first": 3 * 8, "loop/inner": (1 + 2 + 3) * 8 * 4}
    assert not work.unseen
    assert not work.uncounted


def test_what_is_inside_an_if_is_listed_without_a_number() -> None:
    def branch(name: str) -> Any:
        weight = numpy_helper.from_array(np.ones((8, 4), np.float32), f"{name}_w")
        node = helper.make_node("MatMul", ["x", f"{name}_w"], [f"{name}_y"])
        y = helper.make_tensor_value_info(f"{name}_y", TensorProto.FLOAT, None)
        return helper.make_graph([node], name, [], [y], [weight])

    nodes = [
        # An If on what an op computes is not opened.
        helper.make_node("MatMul", ["x", "w"], ["hidden"]),
        helper.make_node("ReduceSum", ["hidden"], ["sum"], keepdims=0),
        helper.make_node("Cast", ["sum"], ["positive"], to=TensorProto.BOOL),
        helper.make_node("If", ["positive"], ["y"], then_branch=branch("a"), else_branch=branch("b")),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 8])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    model = helper.make_model(
        helper.make_graph(nodes, "g", [x], [y], [numpy_helper.from_array(np.ones((8, 3), np.float32), "w")]),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=9,
    )
    work = work_of(model, np.ones((2, 8), np.float32))
    assert (work.total, work.uncounted) == (2 * 8 * 3, {"MatMul": 2})
