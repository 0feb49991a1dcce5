"""What the rest of the backend asks of a kind of op: how it is recognised, fused, emitted and simulated.

A kind has no state beyond what the shapes of an op say. What all kinds share while a plan is applied (int8
tensors with several readers, constants, weights) is in the :class:`Emission` that it is handed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, TypeVar

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray
from tensorflow.core.framework.node_def_pb2 import NodeDef

from octune.backends.tensorflow.clean.formula import Activation
from octune.backends.tensorflow.graph.graph import Array
from octune.backends.tensorflow.graph.shapes import Shape
from octune.backends.tensorflow.int8.emission import Emission
from octune.backends.tensorflow.int8.fused_op import FusedOp
from octune.int8 import Grid
from octune.plan import Scheme

__all__ = ["Kind", "Number"]

Number = TypeVar("Number", bound=np.generic)


class Kind(ABC):
    """One kind of op."""

    # -- how it is recognised --------------------------------------------------------------------------------

    name: ClassVar[str]  # as plans and reports call it
    noun: ClassVar[str]  # as messages call it
    tf_op: ClassVar[str]  # the TensorFlow op that is quantized
    operand: ClassVar[int] = 0  # which of its inputs is the activation; the weight is the second one
    # Ops that cleaning turns into ``tf_op`` where it can; those that are left are listed with a reason.
    spellings: ClassVar[tuple[str, ...]] = ()
    # Why an op whose weight is not a constant is left alone; empty if it is not even listed.
    without_weight: ClassVar[str] = ""

    @abstractmethod
    def schemes(self) -> tuple[Scheme, ...]:
        """The int8 schemes that it is offered."""

    @abstractmethod
    def cannot(self, core: NodeDef, weight: Array, x: Shape | None) -> str:
        """Why this op cannot be quantized, or an empty string. ``x`` is the shape of its input."""

    def refined(self, weight: Array, x: Shape | None, y: Shape | None) -> Kind:
        """The kind that an op is, now that its weight and the shapes of its input and output are known."""
        return self

    def signature(self, core: NodeDef) -> str:
        """What its speed depends on, besides the weight and what is fused."""
        return ""

    # -- what is fused ---------------------------------------------------------------------------------------

    rank: ClassVar[int]  # of its output
    # It works on [rows, columns]: it can read and be read through Reshapes that only count rows differently.
    in_rows: ClassVar[bool]
    # Its kernel outputs int8 only, in a range that must be calibrated. It is simulated when harm is measured:
    # that rounding belongs to its readers where they are int8 as well.
    outputs_int8: ClassVar[bool]
    sums: bool = True  # a residual sum can be fused
    sum_needs_relu: ClassVar[bool]  # but only with a Relu behind it

    @abstractmethod
    def fuses(self, activation: Activation) -> bool:
        """Whether its kernel can compute this function of its output."""

    # -- its input and its weight ----------------------------------------------------------------------------

    @staticmethod
    @abstractmethod
    def grid(low: float, high: float) -> Grid:
        """The grid on which it takes an input of this range. Kinds with the same function can share an int8
        tensor.
        """

    def oriented(self, core: NodeDef, weight: Array) -> Array:
        """The weight in the layout that the int8 kernel takes, with input channels last but one; also the
        other way round.
        """
        return weight

    def columns(self, weight: Array) -> int:
        """The number of outputs of an oriented weight."""
        return int(weight.shape[-1])

    @abstractmethod
    def by_output(self, weight: Array) -> tuple[Array, int]:
        """An oriented weight as repairs take it, (outputs, inputs of a group, ...), and the number of
        groups.
        """

    @abstractmethod
    def from_output(self, weight: NDArray[Number], shape: tuple[int, ...]) -> NDArray[Number]:
        """The inverse of :meth:`by_output`, for a weight that had this shape."""

    # -- how it is computed ----------------------------------------------------------------------------------

    kernel: ClassVar[str]  # the op that computes it in int8

    @abstractmethod
    def emit(self, emission: Emission, fused: FusedOp, scheme: Scheme) -> None:
        """Add its int8 nodes to a graph."""

    @abstractmethod
    def float_nodes(self, name: str, core: NodeDef, inputs: Sequence[str], dtype: tf.DType) -> list[NodeDef]:
        """The op itself on an input and an oriented weight, in fp32 or bf16; the last node has that name."""

    def simulate(self, core: NodeDef, x: Any, weight: Any) -> Any:
        """The op in float on rounded numbers, inside a graph that is being built. Asked only of kinds whose
        kernel outputs int8.
        """
        raise NotImplementedError(f"{self.name} runs on its own kernel")
