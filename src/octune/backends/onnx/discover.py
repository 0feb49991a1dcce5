"""Which nodes of a graph could be quantized, and how.

for found in discover(view):
    found.op, found.node, found.weight
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from onnx import NodeProto, TensorProto

from octune.backends.onnx.graph import Array, View, attribute
from octune.plan import Op, Scheme
from octune.repair import static_schemes

__all__ = ["Found", "discover"]

FLOAT_ONLY = (Scheme.fp32(),)
SMALL_TABLE = 1 << 14


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """An op and the node that computes it. ``weight`` is (outputs, inputs of a group, ...), a view of the
    stored tensor.

    ``x`` is the activation that is quantized, ``b`` the second one of a product of two. ``bias`` is its
    constant, if there is one.
    """

    op: Op
    index: int
    node: NodeProto
    weight: Array | None = None
    groups: int = 1
    bias: Array | None = None

    @property
    def x(self) -> str:
        return str(self.node.input[1 if self.op.kind == "embedding" else 0])

    @property
    def b(self) -> str:
        return str(self.node.input[1])

    @property
    def output(self) -> str:
        return str(self.node.output[0])

    @property
    def is_conv(self) -> bool:
        return self.op.kind in ("conv", "conv_transpose")

    @property
    def channel_axis(self) -> int:
        return 1 if self.is_conv else -1


def _schemes(kind: str) -> tuple[Scheme, ...]:
    """What a kind of op can run as."""
    if kind == "attention":  # both operands are activations, each with one range
        return (Scheme.int8("static", granularity="per_tensor"), Scheme.fp32())
    if kind == "embedding":
        return (Scheme.int8("weight"), Scheme.int8("weight", granularity="per_tensor"), Scheme.fp32())
    if kind in ("conv", "conv_transpose"):  # dynamic ones are slower than fp32 on every CPU runtime
        return (*static_schemes(), Scheme.fp32())
    return (
        *static_schemes(),
        Scheme.int8("dynamic"),
        Scheme.int8("dynamic", granularity="per_tensor"),
        Scheme.fp32(),
    )


def discover(view: View) -> list[Found]:
    """All ops of the main graph that could be quantized, in its order."""
    found = [item for index, node in enumerate(view.nodes) if (item := _found(view, index, node)) is not None]
    shared: dict[int, list[str]] = {}
    for item in found:
        if item.weight is not None:
            shared.setdefault(_address(item.weight), []).append(item.op.name)
    return [_with_ties(item, shared) for item in found]


def _found(view: View, index: int, node: NodeProto) -> Found | None:
    if node.domain not in ("", "ai.onnx"):
        return None
    if node.op_type == "MatMul":
        return _matmul(view, index, node)
    if node.op_type == "Gemm":
        return _gemm(view, index, node)
    if node.op_type in ("Conv", "ConvTranspose"):
        return _conv(view, index, node)
    if node.op_type == "Gather":
        return _embedding(view, index, node)
    return None


def _matmul(view: View, index: int, node: NodeProto) -> Found:
    left, weight = view.constant(node.input[0]), view.constant(node.input[1])
    if left is not None:
        return _left(
            index,
            node,
            "matmul",
            "its first operand is the constant one, and kernels want the weights second",
        )
    if weight is None:
        types = {view.elem_type(name) for name in (*node.input, *node.output)} - {0}
        if types - {TensorProto.FLOAT}:
            return _left(index, node, "attention", "it does not multiply fp32 numbers")
        if any(view.rank(name) == 1 for name in node.input):
            return _left(index, node, "attention", "one of its operands is a vector")
        if node.input[0] == node.input[1]:
            return _left(index, node, "attention", "it multiplies a tensor with itself")
        return Found(Op(node.name, "attention", _schemes("attention"), 0, signature="MatMul"), index, node)
    if weight.ndim != 2:
        return _left(index, node, "matmul", f"its weight has {weight.ndim} dimensions; 2 are expected")
    return _weighted(index, node, "matmul", weight.T, signature=f"MatMul{list(weight.shape)}")


def _gemm(view: View, index: int, node: NodeProto) -> Found:
    weight = view.constant(node.input[1])
    bias = view.constant(node.input[2]) if len(node.input) > 2 and node.input[2] else None
    if weight is None or view.constant(node.input[0]) is not None:
        return _left(index, node, "gemm", "its weight is computed, not stored")
    if attribute(node, "transA", 0):
        return _left(index, node, "gemm", "its input is transposed (transA)")
    if len(node.input) > 2 and node.input[2] and bias is None:
        return _left(index, node, "gemm", "its bias is computed, not stored")
    weight = weight if attribute(node, "transB", 0) else weight.T
    alpha, beta = attribute(node, "alpha", 1.0), attribute(node, "beta", 1.0)
    if weight.dtype == np.float32:
        weight = weight if alpha == 1.0 else weight * np.float32(alpha)
        bias = bias if bias is None or beta == 1.0 else bias * np.float32(beta)
    if bias is not None and bias.size != weight.shape[0]:
        if bias.size != 1:
            return _left(index, node, "gemm", "its bias differs between the rows of its input")
        bias = np.full(weight.shape[0], bias.reshape(-1)[0], bias.dtype)
    return _weighted(
        index,
        node,
        "gemm",
        weight,
        bias=None if bias is None else bias.reshape(-1),
        signature=f"Gemm{list(weight.shape)}",
    )


def _conv(view: View, index: int, node: NodeProto) -> Found:
    kind = "conv" if node.op_type == "Conv" else "conv_transpose"
    weight = view.constant(node.input[1])
    bias = view.constant(node.input[2]) if len(node.input) > 2 and node.input[2] else None
    if weight is None:
        return _left(index, node, kind, "its weight is computed, not stored")
    if len(node.input) > 2 and node.input[2] and bias is None:
        return _left(index, node, kind, "its bias is computed, not stored")
    groups = int(attribute(node, "group", 1))
    if kind == "conv_transpose":
        if groups > 1:
            return _left(index, node, kind, f"it has {groups} groups, for which there is no int8 kernel")
        weight = weight.swapaxes(0, 1)
    settings = [f"{item.name}={attribute(node, item.name)}" for item in node.attribute]
    return _weighted(
        index,
        node,
        kind,
        weight,
        groups,
        bias,
        signature=f"{node.op_type}{list(weight.shape)} {' '.join(settings)}",
    )


def _embedding(view: View, index: int, node: NodeProto) -> Found | None:
    table = view.constant(node.input[0])
    if (
        table is None
        or table.ndim != 2
        or table.dtype.kind != "f"
        or table.size < SMALL_TABLE
        or attribute(node, "axis", 0) != 0
    ):
        return None
    if view.constant(node.input[1]) is not None:
        return None
    return _weighted(index, node, "embedding", table, signature=f"Gather{list(table.shape)}")


def _weighted(
    index: int,
    node: NodeProto,
    kind: str,
    weight: Array,
    groups: int = 1,
    bias: Array | None = None,
    *,
    signature: str,
) -> Found:
    if weight.dtype != np.float32:
        return _left(index, node, kind, f"its weight is {weight.dtype}; float32 is expected")
    if not np.isfinite(weight).all():
        return _left(index, node, kind, "its weight holds infinities or NaN")
    return Found(
        Op(node.name, kind, _schemes(kind), int(weight.size), signature), index, node, weight, groups, bias
    )


def _left(index: int, node: NodeProto, kind: str, why: str) -> Found:
    return Found(Op(node.name, kind, FLOAT_ONLY, note=why), index, node)


def _address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])


def _with_ties(item: Found, shared: dict[int, list[str]]) -> Found:
    if item.weight is None:
        return item
    others = [name for name in shared[_address(item.weight)] if name != item.op.name]
    if not others:
        return item
    note = f"its weight is shared with {', '.join(others[:4])}; each has its own in int8"
    op = Op(item.op.name, item.op.kind, item.op.schemes, item.op.parameters, item.op.signature, note)
    return Found(op, item.index, item.node, item.weight, item.groups, item.bias)
