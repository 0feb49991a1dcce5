"""What a kind of op is: how it is found in a graph, calibrated, judged, timed, and written in int8.

A kind is a subclass of :class:`Kind` in a file of this folder, and an entry in ``KINDS``. It must say four
things: its schemes, how it is found, its error in a scheme, and its nodes in int8. The rest has defaults.
Other modules never ask for a kind by its name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from onnx import NodeProto

from octune.backends.onnx.graph import Array, View
from octune.backends.terms import OUTPUT
from octune.plan import Op, Scheme

if TYPE_CHECKING:
    from octune.backends.onnx.errors import OpErrors
    from octune.backends.onnx.insert import Insertion

__all__ = ["Found", "Kind", "Tap"]


class Tap(NamedTuple):
    """What calibration looks at: a tensor, the name that its range has, and the tensor whose shape is kept
    with it.
    """

    name: str
    tensor: str
    shaped: str


class Kind(ABC):
    """A kind of op. Attributes say what other modules need to know about all ops of the kind."""

    name: str  # in plans and reports
    node_type: str  # the ONNX node that computes it
    slots: tuple[int, ...] = (0,)  # the inputs of the node that are activations
    channel_axis = -1  # of its activations and its output
    inputs_first = False  # whether its node wants the weight as (inputs, outputs, ...)
    multiplies = True  # whether it adds up products, and could overflow; an embedding only reads rows
    zero_points = False  # whether every runtime has its kernel for activations with a zero point
    passes_int8_on = False  # whether all readers of a tensor that it quantizes should read int8, too
    moves = frozenset[str]()  # nodes before it that only move numbers: what they read is quantized
    in_weights = frozenset[str]()  # attributes of the node that the weight and the bias of a Found contain

    @property
    def title(self) -> str:
        """What users know it as."""
        return self.node_type

    @abstractmethod
    def schemes(self) -> tuple[Scheme, ...]:
        """What such an op can run as."""

    # -- find and observe ------------------------------------------------------------------------------------

    @abstractmethod
    def find(self, view: View, index: int, node: NodeProto) -> Found | None:
        """The op that a node of type ``node_type`` computes, if it is of this kind; :meth:`left_in_float` if
        int8 cannot compute it.
        """

    def left_in_float(self, index: int, node: NodeProto, why: str) -> Found:
        """An op that stays in float, with the reason."""
        return Found(self, Op(node.name, self.name, (Scheme.fp32(),), note=why), index, node)

    def taps(self, view: View, found: Found) -> list[Tap]:
        """What calibration looks at for an op: its input, and its output if that is quantized, too."""
        name, output = found.op.name, self.quantized_output(view, found)
        taps = [Tap(name, found.x, found.x)]
        return taps if output is None else [*taps, Tap(name + OUTPUT, output, found.output)]

    def quantized_output(self, view: View, found: Found) -> str | None:
        """The tensor that must be quantized for its output to be int8; None if its output is float."""
        return None

    # -- judge and time --------------------------------------------------------------------------------------

    @abstractmethod
    def error(self, at: OpErrors, scheme: Scheme, *, few: bool) -> Array:
        """What the op computes from its fp32 input in this scheme, minus its fp32 output. With ``few``, some
        rows of it may be enough.
        """

    def example(self, shape: Sequence[int], random: np.random.Generator) -> Array:
        """An activation to time it on."""
        return random.standard_normal(shape, np.float32)

    def constants(self, found: Found) -> list[Array]:
        """The other inputs of its node, in their order."""
        if found.weight is None:
            return []
        weight = np.asarray(found.weight.swapaxes(0, 1), order="C") if self.inputs_first else found.weight
        return [weight] if found.bias is None else [weight, found.bias]

    # -- apply -----------------------------------------------------------------------------------------------

    @abstractmethod
    def insert(self, insertion: Insertion, found: Found, scheme: Scheme) -> None:
        """Write the op in an int8 scheme into the graph."""

    def scale_output(self, insertion: Insertion, found: Found) -> None:
        """Multiply the output channels of an op that stays in float, for an op that reads them. Asked only of
        ops that multiply a weight.
        """
        node = insertion.edit.node(found.index)
        insertion.constants.scale_float(found, node, inputs_first=self.inputs_first)


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """An op and the node that computes it. ``weight`` is (outputs, inputs of a group, ...), a view of the
    stored tensor; ``bias`` is its constant, if there is one.
    """

    kind: Kind
    op: Op
    index: int
    node: NodeProto
    weight: Array | None = None
    groups: int = 1
    bias: Array | None = None
    extra: tuple[Array, ...] = ()  # the weights of an op that has several

    @property
    def inputs(self) -> tuple[str, ...]:
        """The activations that it reads."""
        return tuple(str(self.node.input[slot]) for slot in self.kind.slots)

    @property
    def x(self) -> str:
        """The activation that it reads, or the first of two."""
        return self.inputs[0]

    @property
    def output(self) -> str:
        """What it computes; of a recurrent layer, the first result that has a name."""
        return next(str(name) for name in self.node.output if name)

    @property
    def multiplies_weight(self) -> bool:
        """Whether its weight is multiplied with its input, so that factors can move from one to the other."""
        return self.weight is not None and self.kind.multiplies

    def along_channels(self, vector: Array, ndim: int) -> Array:
        """A vector over channels, in a shape that multiplies an activation."""
        return vector if self.kind.channel_axis == -1 else vector.reshape(1, -1, *[1] * (ndim - 2))

    def source(self, view: View, operand: int = 0) -> str:
        """The tensor to quantize for an input: the input itself, or what it was before it was only moved."""
        tensor = self.inputs[operand]
        index = view.producer(tensor)
        while (
            index is not None
            and view.nodes[index].op_type in self.kind.moves
            and view.only_reader(tensor) is not None
        ):
            tensor = str(view.nodes[index].input[0])
            index = view.producer(tensor)
        return tensor
