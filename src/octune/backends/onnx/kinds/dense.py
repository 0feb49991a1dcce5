"""Linear ops: MatMul with a stored weight, and Gemm."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from onnx import NodeProto, TensorProto, helper

from octune.backends.onnx.graph import Array, View, attribute
from octune.backends.onnx.kinds.base import Found
from octune.backends.onnx.kinds.weighted import Weighted, stored_bias, with_weight
from octune.int8 import Int8Weight
from octune.plan import Scheme
from octune.repair import static_schemes

if TYPE_CHECKING:
    from octune.backends.onnx.errors import OpErrors
    from octune.backends.onnx.insert import Insertion, QuantizedTensor

__all__ = ["GEMM", "MATMUL"]

ENOUGH_ROWS = 256


class Dense(Weighted):
    """A product of rows with a stored matrix."""

    inputs_first = True

    def schemes(self) -> tuple[Scheme, ...]:
        return (
            *static_schemes(),
            Scheme.int8("dynamic"),
            Scheme.int8("dynamic", granularity="per_tensor"),
            Scheme.int8("token"),
            Scheme.fp32(),
        )

    def product(self, at: OpErrors, x: Array, weight: Array) -> Array:
        return np.asarray(np.matmul(x, weight.T))

    def sample(self, array: Array) -> Array:
        rows = array.reshape(-1, array.shape[-1])
        return rows[:: max(1, len(rows) // ENOUGH_ROWS)]

    def following_bias(self, view: View, found: Found) -> tuple[int, int] | None:
        """The node that adds a constant to every output of a bare product, and the slot of that constant."""
        return None

    def insert(self, insertion: Insertion, found: Found, scheme: Scheme) -> None:
        if scheme.is_dynamic:
            self._insert_dynamic(insertion, found, scheme)
        else:
            self._insert_static(insertion, found, scheme)

    def _insert_static(self, insertion: Insertion, found: Found, scheme: Scheme) -> None:
        x, multiplier = insertion.quantized_input(found, scheme)
        made, bias = insertion.constants.int8(found, scheme, multiplier)
        if (
            insertion.view.rank(found.x) == 2
            and (gemm := self._gemm(insertion, found, x, made, bias)) is not None
        ):
            insertion.edit.replace(found.index, [gemm])
            return
        weight = insertion.constants.weight(found, made)
        product, tail = self._with_bias(insertion, found, self._apart(insertion, found, bias))
        matmul = helper.make_node("MatMul", [x.dequantized, weight], [product], name=found.op.name)
        insertion.edit.replace(found.index, [matmul, *tail])

    def _gemm(
        self, insertion: Insertion, found: Found, x: QuantizedTensor, made: Int8Weight, bias: Array | None
    ) -> NodeProto | None:
        """ONNX Runtime fuses product and sum of a matrix into a Gemm, which is int8 only if its bias is. So
        a Gemm with an int8 bias is written in the first place.
        """
        added, output = self.following_bias(insertion.view, found), found.output
        if added is not None:
            extra = insertion.smoothing.take_constant(*added)
            bias = extra if bias is None else extra + bias
            insertion.edit.replace(added[0], [])
            output = str(insertion.view.nodes[added[0]].output[0])
        if bias is None:
            return None
        made = insertion.constants.fitting(made, bias, x.scale)
        weight = insertion.constants.weight(found, made)
        steps = insertion.constants.bias(found, bias, np.float32(x.scale) * made.scales)
        return helper.make_node("Gemm", [x.dequantized, weight, steps], [output], name=found.op.name)

    def _apart(self, insertion: Insertion, found: Found, bias: Array | None) -> Array | None:
        """A bias in a shape that keeps ONNX Runtime from making a Gemm of product and sum, which it does with
        inputs of three axes if their sizes are fixed: that Gemm would be computed in float.
        """
        view = insertion.view
        rank = view.rank(found.x) or 0
        if rank < 3 or not view.has_fixed_sizes(found.x) or found.weight is None:
            return bias
        if bias is None and self.following_bias(view, found) is None:
            return None
        whole = np.zeros(len(found.weight), np.float32) if bias is None else bias
        return whole.reshape(*[1] * (rank - 1), -1)

    def _with_bias(
        self, insertion: Insertion, found: Found, bias: Array | None
    ) -> tuple[str, list[NodeProto]]:
        """The name of the bare product, and the nodes that add what is still to be added to it."""
        if bias is None:
            return found.output, []
        added = self.following_bias(insertion.view, found)
        if added is not None:  # a correction goes into the bias that is added anyway
            insertion.smoothing.add_to_constant(*added, bias)
            return found.output, []
        name, edit = found.op.name, insertion.edit
        product = edit.name(f"{found.output}/product")
        stored = edit.tensor(f"{name}/bias", np.asarray(bias, np.float32))
        return product, [helper.make_node("Add", [product, stored], [found.output], name=f"{name}/Add")]

    def _insert_dynamic(self, insertion: Insertion, found: Found, scheme: Scheme) -> None:
        """The range of the input, or of each of its rows, is found at run time: quantize, MatMulInteger, and
        back to float.
        """
        edit, name = insertion.edit, found.op.name
        made, bias = insertion.constants.int8(found, scheme, None)
        values, scales, _ = insertion.constants.integers(found, made)
        by_row = scheme.mode == "token"
        ways = insertion.quantized_by_row if by_row else insertion.dynamically_quantized
        quantized, step, zero = ways(found.x)
        sums, wide, part = (edit.name(f"{name}/{each}") for each in ("sums", "wide", "part"))
        product, tail = self._with_bias(insertion, found, bias)
        nodes = [
            helper.make_node("MatMulInteger", [quantized, values, zero], [sums], name=name),
            helper.make_node("Cast", [sums], [wide], name=f"{name}/Cast", to=TensorProto.FLOAT),
        ]
        if by_row:
            nodes.append(helper.make_node("Mul", [wide, scales], [part], name=f"{name}/Scale"))
            nodes.append(helper.make_node("Mul", [part, step], [product], name=f"{name}/Mul"))
        else:  # one factor for each column, which the runtime multiplies by in the kernel
            nodes.append(helper.make_node("Mul", [step, scales], [part], name=f"{name}/Scale"))
            nodes.append(helper.make_node("Mul", [wide, part], [product], name=f"{name}/Mul"))
        edit.replace(found.index, [*nodes, *tail])


class MatMul(Dense):
    """A MatMul whose second operand is stored."""

    name, node_type = "matmul", "MatMul"

    def find(self, view: View, index: int, node: NodeProto) -> Found | None:
        if view.constant(node.input[0]) is not None:
            return self.left_in_float(
                index, node, "its first operand is the constant one, and kernels want the weights second"
            )
        weight = view.constant(node.input[1])
        if weight is None:
            return None
        if weight.ndim != 2:
            return self.left_in_float(index, node, f"its weight has {weight.ndim} dimensions; 2 are expected")
        return with_weight(self, index, node, weight.T, signature=f"MatMul{list(weight.shape)}")

    def following_bias(self, view: View, found: Found) -> tuple[int, int] | None:
        index = view.only_reader(found.output)
        if index is None or found.weight is None or view.nodes[index].op_type != "Add":
            return None
        for slot, name in enumerate(view.nodes[index].input):
            value = view.constant(name)
            if value is not None and value.dtype == np.float32 and value.shape == found.weight.shape[:1]:
                return index, slot
        return None


class Gemm(Dense):
    """A Gemm whose weight and bias are stored; both include its factors ``alpha`` and ``beta``."""

    name, node_type = "gemm", "Gemm"
    in_weights = frozenset({"alpha", "beta", "transA", "transB"})

    def find(self, view: View, index: int, node: NodeProto) -> Found | None:
        weight = view.constant(node.input[1])
        bias, computed = stored_bias(view, node)
        if weight is None or view.constant(node.input[0]) is not None:
            return self.left_in_float(index, node, "its weight is computed, not stored")
        if attribute(node, "transA", 0):
            return self.left_in_float(index, node, "its input is transposed (transA)")
        if computed:
            return self.left_in_float(index, node, "its bias is computed, not stored")
        weight = weight if attribute(node, "transB", 0) else weight.T
        alpha, beta = attribute(node, "alpha", 1.0), attribute(node, "beta", 1.0)
        if weight.dtype == np.float32:
            weight = weight if alpha == 1.0 else weight * np.float32(alpha)
            bias = bias if bias is None or beta == 1.0 else bias * np.float32(beta)
        if bias is not None and bias.size != weight.shape[0]:
            if bias.size != 1:
                return self.left_in_float(index, node, "its bias differs between the rows of its input")
            bias = np.full(weight.shape[0], bias.reshape(-1)[0], bias.dtype)
        bias = None if bias is None else bias.reshape(-1)
        return with_weight(self, index, node, weight, bias=bias, signature=f"Gemm{list(weight.shape)}")

    def scale_output(self, insertion: Insertion, found: Found) -> None:
        node = insertion.edit.node(found.index)
        insertion.constants.scale_float(found, node, inputs_first=not attribute(node, "transB", 0))
        kept = [a for a in node.attribute if a.name not in ("alpha", "beta")]
        del node.attribute[:]
        node.attribute.extend(kept)


MATMUL, GEMM = MatMul(), Gemm()
