"""An op that could be quantized, with the nodes around it that its int8 form does in the same step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from tensorflow.core.framework.node_def_pb2 import NodeDef

from octune.backends.tensorflow.clean.fold import value_of
from octune.backends.tensorflow.clean.formula import Activation
from octune.backends.tensorflow.graph.graph import Array, Graph, attribute
from octune.errors import ModelError
from octune.plan import Op

__all__ = ["Form", "Site", "geometry"]

_Number = TypeVar("_Number", bound=np.generic)
KERNELS = {"conv2d": "_FusedQuantizedConv2D", "depthwise_conv2d": "_FusedQuantizedDepthwiseConv2D"}


@dataclass(frozen=True, slots=True)
class Form:
    """One way to fuse a site: ``members`` are the nodes that go, from the op itself to ``tail``, whose name
    the result keeps.
    """

    members: tuple[str, ...]
    activation: Activation | None = None
    addend: str | None = None
    # the addend is not proven to have the shape of the output, so that must be asked at run time
    guarded: bool = False

    @property
    def tail(self) -> str:
        return self.members[-1]

    @property
    def output(self) -> str:
        return f"{self.members[-1]}:0"


@dataclass(frozen=True, slots=True)
class Site:
    """``x`` is what gets quantized; ``path`` the Reshapes between it and the op; ``lift`` the Reshape behind
    the op, inside the forms.

    A convolution may receive its input from another one, and pass its output on to others: in int8, where
    these are int8 as well.
    """

    op: Op
    core: str
    x: str
    weight: str
    columns: int
    bias: Array | None
    plain: Form
    summed: Form | None = None
    path: tuple[str, ...] = ()
    lift: str | None = None
    receives: bool = False
    passes_on: bool = False

    @property
    def is_conv(self) -> bool:
        return self.op.kind != "matmul"

    def weights(self, graph: Graph) -> Array:
        """[K, N] for a matmul, as they are for a convolution."""
        value = value_of(graph, self.weight)
        if value is None:
            raise ModelError(f"The weight {self.weight!r} of {self.op.name!r} is no longer a constant.")
        value = value.astype(np.float32)
        return (
            np.ascontiguousarray(value.T)
            if not self.is_conv and attribute(graph.nodes[self.core], "transpose_b").b
            else value
        )

    def by_output(self, weight: Array) -> tuple[Array, int]:
        """A weight as repairs take it, (outputs, inputs of a group, ...), and the number of groups."""
        if not self.is_conv:
            return weight.T, 1
        if self.op.kind != "depthwise_conv2d":
            return weight.transpose(3, 2, 0, 1), 1
        height, width, channels, multiplier = weight.shape
        return weight.transpose(2, 3, 0, 1).reshape(channels * multiplier, 1, height, width), channels

    def from_output(self, weight: NDArray[_Number], shape: tuple[int, ...]) -> NDArray[_Number]:
        """The inverse of :meth:`by_output`, for a weight that had this shape."""
        if not self.is_conv:
            return np.ascontiguousarray(weight.T)
        if self.op.kind != "depthwise_conv2d":
            return np.ascontiguousarray(weight.transpose(2, 3, 1, 0))
        height, width, channels, multiplier = shape
        return np.ascontiguousarray(weight.reshape(channels, multiplier, height, width).transpose(2, 3, 0, 1))


def geometry(conv: NodeDef) -> dict[str, Any]:
    """The attributes that a convolution and its int8 form share."""
    attributes = {
        name: [int(i) for i in attribute(conv, name).list.i]
        for name in ("strides", "dilations", "explicit_paddings")
    }
    return {
        **attributes,
        "dilations": attributes["dilations"] or [1, 1, 1, 1],
        "padding": attribute(conv, "padding").s.decode(),
    }
