"""An op that could be quantized, with the nodes around it that its int8 kernel computes in the same step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from octune.backends.tensorflow.clean.fold import value_of
from octune.backends.tensorflow.clean.formula import Activation
from octune.backends.tensorflow.graph.graph import Array, Graph
from octune.errors import ModelError
from octune.plan import Op

if TYPE_CHECKING:
    from octune.backends.tensorflow.int8.kinds.base import Kind

__all__ = ["FusedOp", "Fusion"]


@dataclass(frozen=True, slots=True)
class Fusion:
    """One way to fuse an op with what follows it: ``members`` are the nodes that are replaced, from the op
    itself to ``tail``, whose name the result keeps.
    """

    members: tuple[str, ...]
    activation: Activation | None = None
    addend: str | None = None
    # the addend is not proven to have the shape of the output, so that must be checked at run time
    guarded: bool = False

    @property
    def tail(self) -> str:
        return self.members[-1]

    @property
    def output(self) -> str:
        return f"{self.members[-1]}:0"


@dataclass(frozen=True, slots=True)
class FusedOp:
    """``x`` is what gets quantized; ``path`` the Reshapes between it and the op; ``lift`` the Reshape behind
    the op, inside the fusions. ``inner`` is the number of input channels, ``columns`` that of outputs.

    ``averaged`` is what comes into an average pooling that makes ``x``, if int8 may pass through that.

    An op whose kernel outputs int8 may receive its input from another such op, and pass its output on to
    others: in int8, where these are int8 as well.
    """

    op: Op
    kind: Kind
    core: str
    x: str
    weight: str
    inner: int
    columns: int
    bias: Array | None
    plain: Fusion
    summed: Fusion | None = None
    path: tuple[str, ...] = ()
    lift: str | None = None
    receives: bool = False
    passes_on: bool = False
    averaged: str | None = None

    def weights(self, graph: Graph) -> Array:
        """The float weight in the layout that the int8 kernel takes."""
        value = value_of(graph, self.weight)
        if value is None:
            raise ModelError(f"The weight {self.weight!r} of {self.op.name!r} is no longer a constant.")
        oriented = self.kind.oriented(graph.nodes[self.core], value.astype(np.float32))
        return np.ascontiguousarray(oriented)
