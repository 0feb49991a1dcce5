"""Convolutions for which TensorFlow has no int8 kernel, built around the one for two dimensions.

- A transposed convolution with a stride of 2 returns even pixels from one half of its kernel, and odd ones
  from the other: it is a convolution with a stride of 1 and four times as many outputs, put between each
  other.
- A convolution in three dimensions is one in two, over neighbouring slices that lie behind one another as
  channels.

In fp32 and bf16 they are what they were: only int8 is built.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray
from tensorflow.core.framework.node_def_pb2 import NodeDef

from octune.backends.tensorflow.graph.emit import constant, node
from octune.backends.tensorflow.graph.graph import Array
from octune.backends.tensorflow.graph.shapes import Shape
from octune.backends.tensorflow.int8.activations import plain_type, stored_type
from octune.backends.tensorflow.int8.emission import Numbers
from octune.backends.tensorflow.int8.kinds.base import Kind, Number
from octune.backends.tensorflow.int8.kinds.conv import Convolution, Convolving

__all__ = ["Conv2DTranspose", "Conv3D"]

FLAT = {"strides": [1, 1, 1, 1], "dilations": [1, 1, 1, 1], "explicit_paddings": []}
UNKNOWN = "the sizes of its input and output are not known before it runs"


class Conv2DTranspose(Convolution):
    """``Conv2DBackpropInput``; its filters are [height, width, outputs, inputs]."""

    name, tf_op, kernel = "conv2d_transpose", "Conv2DBackpropInput", "_FusedQuantizedConv2D"
    operand = 2  # the first one is the size of the output

    def __init__(self, output: tuple[int, ...] = ()) -> None:
        self.sums, self._output = False, output

    def refined(self, weight: Array, x: Shape | None, y: Shape | None) -> Kind:
        sizes = (*y[1:3], weight.shape[2]) if y else (None,)
        return self if None in sizes else Conv2DTranspose(tuple(int(size or 0) for size in sizes))

    def cannot(self, core: NodeDef, weight: Array, x: Shape | None) -> str:
        how = self.geometry(core)
        if not self._output or x is None or None in x[1:]:
            return UNKNOWN
        if how["strides"][1] != how["strides"][2] or how["dilations"] != [1, 1, 1, 1]:
            return "transposed convolutions can be int8 with one stride for both axes and without dilation"
        if how["padding"] == "EXPLICIT":
            return "transposed convolutions with paddings of their own cannot be int8"
        return super().cannot(core, weight, x)

    def signature(self, core: NodeDef) -> str:
        return f"{super().signature(core)} to {self._output}"

    def oriented(self, core: NodeDef, weight: Array) -> Array:
        return weight.transpose(0, 1, 3, 2)

    def by_output(self, weight: Array) -> tuple[Array, int]:
        return weight.transpose(3, 2, 0, 1), 1

    def from_output(self, weight: NDArray[Number], shape: tuple[int, ...]) -> NDArray[Number]:
        return np.ascontiguousarray(weight.transpose(2, 3, 1, 0))

    def float_nodes(self, name: str, core: NodeDef, inputs: Sequence[str], dtype: tf.DType) -> list[NodeDef]:
        (x, weight), made = inputs, list[NodeDef]()

        def put(made_node: NodeDef) -> str:
            made.append(made_node)
            return str(made_node.name)

        def number(part: str, value: list[int] | int) -> str:
            return put(constant(f"{name}/{part}", value))

        order = number("order", [0, 1, 3, 2])
        filters = put(node(f"{name}/filter", "Transpose", [weight, order], T=dtype, Tperm=tf.int32))
        shape = put(node(f"{name}/shape", "Shape", [x], T=dtype, out_type=tf.int32))
        ends = [number(part, [at]) for part, at in (("begin", 0), ("end", 1), ("step", 1))]
        masks = dict.fromkeys(("begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask"), 0)
        batch = put(
            node(
                f"{name}/batch", "StridedSlice", [shape, *ends], T=tf.int32, Index=tf.int32,
                shrink_axis_mask=1, **masks,
            )
        )  # fmt: skip
        sizes = [number(f"size_{axis}", size) for axis, size in enumerate(self._output)]
        packed = put(node(f"{name}/sizes", "Pack", [batch, *sizes], T=tf.int32, N=4, axis=0))
        how = self.geometry(core)
        put(node(name, self.tf_op, [packed, filters, x], T=dtype, data_format="NHWC", **how))
        return made

    def simulate(self, core: NodeDef, x: Any, weight: Any) -> Any:
        return tf.raw_ops.Conv2DBackpropInput(
            input_sizes=tf.stack([tf.shape(x)[0], *self._output]),
            filter=tf.transpose(weight, [0, 1, 3, 2]),
            out_backprop=x,
            data_format="NHWC",
            **self.geometry(core),
        )

    def convolve(self, at: Convolving, numbers: Numbers) -> None:
        how = self.geometry(at.core)
        stride, given = how["strides"][1], [int(size or 0) for size in at.x_shape[1:3]]
        wanted, kernel = self._output[:2], numbers.values.shape[:2]
        phases = [
            _Phases.of(*sizes, stride, how["padding"]) for sizes in zip(kernel, given, wanted, strict=True)
        ]
        pixels = [-(-size // stride) for size in wanted]  # that the convolution returns
        paddings = [
            [-axis.first, made - size + axis.taps - 1 + axis.first]
            for axis, made, size in zip(phases, pixels, given, strict=True)
        ]
        explicit = {"padding": "EXPLICIT", "explicit_paddings": [0, 0, *paddings[0], *paddings[1], 0, 0]}
        apart = numbers.spread(_apart(numbers.values, phases, stride))
        if stride == 1:
            at.kernel_on(at.name, at.x.values, apart, FLAT | explicit)
            return
        stored, plain = stored_type(at.grid), plain_type(at.grid)
        made = at.kernel_on(f"{at.name}/apart", at.x.values, apart, FLAT | explicit)
        made = at.add(f"{at.name}/values", "Bitcast", made, T=stored, type=plain)
        how = {"block_size": stride, "data_format": "NHWC"}
        made = at.add(f"{at.name}/placed", "DepthToSpace", made, T=plain, **how)
        if tuple(size * stride for size in pixels) != wanted:
            ends = at.constant("begin", [0, 0, 0, 0]), at.constant("size", [-1, *wanted, -1])
            made = at.add(f"{at.name}/cut", "Slice", made, *ends, T=plain, Index=tf.int32)
        at.add(at.name, "Bitcast", made, T=plain, type=stored)


@dataclass(frozen=True, slots=True)
class _Phases:
    """Along one axis, output pixel ``stride * i + phase`` is a sum over inputs ``i + first + tap``, times the
    kernel's row ``phase + shift - stride * (first + tap)`` where it has that.
    """

    first: int
    taps: int
    shift: int

    @classmethod
    def of(cls, kernel: int, given: int, wanted: int, stride: int, padding: str) -> _Phases:
        """For a kernel, an input and an output of these sizes."""
        shift = max((given - 1) * stride + kernel - wanted, 0) // 2 if padding == "SAME" else 0
        first, last = -((kernel - 1 - shift) // stride), (stride - 1 + shift) // stride
        return cls(first, last - first + 1, shift)


def _apart(weight: Array, phases: Sequence[_Phases], stride: int) -> Array:
    """[height, width, inputs, outputs] as [taps, taps, inputs, phases of both axes and outputs]."""
    height, width, inputs, outputs = weight.shape
    rows, columns = phases
    made = np.zeros((rows.taps, columns.taps, inputs, stride, stride, outputs), weight.dtype)
    for row, column, up, left in np.ndindex(rows.taps, columns.taps, stride, stride):
        y = up + rows.shift - stride * (rows.first + row)
        x = left + columns.shift - stride * (columns.first + column)
        if 0 <= y < height and 0 <= x < width:
            made[row, column, :, up, left] = weight[y, x]
    return made.reshape(rows.taps, columns.taps, inputs, -1)


class Conv3D(Convolution):
    """Filters are [depth, height, width, inputs, outputs]."""

    name, tf_op, kernel = "conv3d", "Conv3D", "_FusedQuantizedConv2D"
    layout, rank, sums = "NDHWC", 5, False

    def cannot(self, core: NodeDef, weight: Array, x: Shape | None) -> str:
        if x is None or None in x[1:]:
            return UNKNOWN
        if x[-1] != weight.shape[3]:
            return f"it is a grouped convolution ({x[-1]} channels in, {weight.shape[3]} for each group)"
        return super().cannot(core, weight, x)

    def geometry(self, core: NodeDef) -> dict[str, Any]:
        how = super().geometry(core)
        dilations = how["dilations"] if len(how["dilations"]) == 5 else [1] * 5
        return {"strides": how["strides"], "dilations": dilations, "padding": how["padding"]}

    def by_output(self, weight: Array) -> tuple[Array, int]:
        return weight.transpose(4, 3, 0, 1, 2), 1

    def from_output(self, weight: NDArray[Number], shape: tuple[int, ...]) -> NDArray[Number]:
        return np.ascontiguousarray(weight.transpose(2, 3, 4, 1, 0))

    def convolve(self, at: Convolving, numbers: Numbers) -> None:
        how, (depth, height, width, inputs, outputs) = self.geometry(at.core), numbers.values.shape
        sizes = [int(size or 0) for size in at.y_shape[1:]]
        stacked = at.constant("images", [-1, *(int(size or 0) for size in at.x_shape[2:4]), depth * inputs])
        images = at.add(
            f"{at.name}/rows", "Reshape", self._stacked(at, depth, sizes[0]), stacked,
            T=stored_type(at.x.grid), Tshape=tf.int32,
        )  # fmt: skip
        values = numbers.values.transpose(1, 2, 0, 3, 4).reshape(height, width, depth * inputs, outputs)
        flat = {"padding": how["padding"]} | {key: [1, *how[key][2:4], 1] for key in ("strides", "dilations")}
        made = at.kernel_on(f"{at.name}/flat", images, numbers.spread(values), FLAT | flat)
        whole = at.constant("sizes", [-1, *sizes])
        at.add(at.name, "Reshape", made, whole, T=stored_type(at.grid), Tshape=tf.int32)

    def _stacked(self, at: Convolving, depth: int, slices: int) -> str:
        """The slices that each row of the kernel reads, behind one another as channels."""
        how, given = self.geometry(at.core), int(at.x_shape[1] or 0)
        stride, gap = how["strides"][1], how["dilations"][1]
        span = (slices - 1) * stride + 1  # from the first slice that a row reads to the last
        missing = max(span + (depth - 1) * gap - given, 0)
        if depth == stride == 1 and not missing:
            return at.x.values
        stored, plain = stored_type(at.x.grid), plain_type(at.x.grid)
        # Pad and StridedSlice know these types only by their plain names
        values = at.add(f"{at.name}/values", "Bitcast", at.x.values, T=stored, type=plain)
        if missing:
            widths = np.zeros((5, 2), np.int32)
            widths[1] = missing // 2, missing - missing // 2
            values = at.add(
                f"{at.name}/padded", "Pad", values, at.constant("widths", widths),
                T=plain, Tpaddings=tf.int32,
            )  # fmt: skip
        step, every = at.constant("step", [1, stride, 1, 1, 1]), 0b11101  # all axes but the second, in full
        masks = dict.fromkeys(("ellipsis_mask", "new_axis_mask", "shrink_axis_mask"), 0)
        masks |= {"begin_mask": every, "end_mask": every}
        parts = [
            at.add(
                f"{at.name}/row_{row}", "StridedSlice", values,
                at.constant("begin", [0, row * gap, 0, 0, 0]),
                at.constant("end", [0, row * gap + span, 0, 0, 0]),
                step, T=plain, Index=tf.int32, **masks,
            )
            for row in range(depth)
        ]  # fmt: skip
        axis = at.constant("axis", 4)
        made = at.add(f"{at.name}/stacked", "ConcatV2", *parts, axis, N=depth, T=plain, Tidx=tf.int32)
        return at.add(f"{at.name}/stack", "Bitcast", made, T=plain, type=stored)
