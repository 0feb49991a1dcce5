"""What an int8 convolution outputs. Its kernel rounds its own output, so that must suit all of its readers.

    outputs = ConvOutputs(emission, kind)
    outputs.of(fused, scheme)       # ConvOutput: the fusion, the grid, and what channels are multiplied by

An output channel can be multiplied at no cost: it has a weight scale and a bias of its own. Where the next
convolutions are smoothed, their multiplier is put there, which is what is called cross-layer equalisation.
Where the output is read in float and a few channels are much larger than the others, all are brought to one
range, and back in float.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from octune.backends.tensorflow.graph.graph import Array, node_of
from octune.backends.tensorflow.int8.activations import Quantized
from octune.backends.tensorflow.int8.emission import Emission
from octune.backends.tensorflow.int8.fused_op import FusedOp, Fusion
from octune.backends.tensorflow.int8.kinds.base import Kind
from octune.backends.tensorflow.int8.passages import max_pools, reached
from octune.backends.tensorflow.int8.readers import SmoothingGroup
from octune.backends.terms import OUTPUT
from octune.calibration import Ranges, choose_range
from octune.errors import PlanError
from octune.int8 import Grid
from octune.plan import Scheme

__all__ = ["ConvOutput", "ConvOutputs"]

# If the largest channel is this many times the median one, the median channel loses three of its eight bits.
OUTLIER = 8


@dataclass(frozen=True, slots=True)
class ConvOutput:
    """``taker`` reads the multiplied channels as they are (behind ``pool``, if there is one). Without a
    taker, they must be divided again.
    """

    fusion: Fusion
    grid: Grid
    summand: Quantized | None = None
    factors: Array | None = None
    taker: SmoothingGroup | None = None
    pool: str | None = None


class ConvOutputs:
    """Must be asked in the order of computation."""

    def __init__(self, emission: Emission, kind: Kind) -> None:
        self._emission, self._kind = emission, kind
        self._reference, self._readers = emission.reference, emission.readers

    def of(self, fused: FusedOp, scheme: Scheme) -> ConvOutput:
        """The fusion of a convolution that suits its readers best."""
        return self._summed(fused) or self._folded(fused) or self._plain(fused, scheme)

    def _summed(self, fused: FusedOp) -> ConvOutput | None:
        """With the addend where it is at hand as uint8 and the sum is wanted in int8."""
        if fused.summed is None:
            return None
        summand = self._emission.activations.from_zero(str(fused.summed.addend))
        wanted = self._wanted(fused.summed.output, signed=False)
        if summand is None or wanted is None or not self._is_last_reader(fused, fused.summed):
            return None
        return ConvOutput(fused.summed, wanted, summand)

    def _folded(self, fused: FusedOp) -> ConvOutput | None:
        """Multiplied for the smoothed convolutions that are its only readers."""
        fusion, graph = fused.plain, self._reference
        if fusion.activation is not None and fusion.activation.name != "Relu":
            return None
        found = max_pools(graph, fusion.output)
        pool = found[0] if found else None
        way = [fusion.tail, *found]
        tensor = f"{pool}:0" if pool else fusion.output
        group = next(filter(None, map(self._readers.smoothing, self._readers.of(tensor, self._kind))), None)
        if (
            group is None
            or group.grid.signed != (fusion.activation is None)
            or not all(map(graph.is_private, way))
        ):
            return None
        readers = {pool} if pool else {reader.core for reader in group.fused_ops}
        if not set(graph.followers(fusion.tail)) <= readers or not set(graph.followers(way[-1])) <= {
            s.core for s in group.fused_ops
        }:
            return None
        return ConvOutput(fusion, group.grid, factors=group.multiplier, taker=group, pool=pool)

    def _plain(self, fused: FusedOp, scheme: Scheme) -> ConvOutput:
        fusion = fused.plain
        tensors = list(reached(self._reference, fusion.output))
        smoothed = any(
            self._readers.smoothing(reader)
            for tensor in tensors
            for reader in self._readers.of(tensor, self._kind)
        )
        for tensor in () if smoothed else tensors:
            wanted = self._wanted(tensor, signed=fusion.activation is None)
            if wanted is not None:
                return ConvOutput(fusion, wanted)
        own = _own_grid(fused, scheme, self._emission.ranges)
        if own is None:
            raise PlanError(
                f"The plan asks for {scheme} at {fused.op.name!r}, but calibration has not seen its output. "
                "Calibrate again."
            )
        factors = _equalising(fused, self._emission.ranges)
        return (
            ConvOutput(fusion, own)
            if factors is None
            else ConvOutput(
                fusion, Grid.symmetric(1.0) if own.signed else Grid.affine(0.0, 1.0), factors=factors
            )
        )

    def _wanted(self, tensor: str, *, signed: bool) -> Grid | None:
        """The grid on which convolutions want a tensor as it is; None if there are none, or some want it
        smoothed.
        """
        readers = self._readers.of(tensor, self._kind)
        if any(map(self._readers.smoothing, readers)):
            return None
        return next(
            (
                span
                for reader in readers
                if (span := self._readers.static(reader)) is not None and span.signed == signed
            ),
            None,
        )

    def _is_last_reader(self, fused: FusedOp, fusion: Fusion) -> bool:
        """Whether all others that read the addend have done so before the sum can begin.

        The kernel writes the sum over the addend. Where another op has still to read that, the process
        dies.
        """
        addend = str(fusion.addend)
        before: set[str] = set()
        waiting = [fused.core]
        while waiting:
            name = waiting.pop()
            if name not in before and name != node_of(addend):
                before.add(name)
                waiting.extend(node_of(reference) for reference in self._reference.nodes[name].input)
        int8 = {
            other.core
            for other in self._readers.of(addend, self._kind)
            if self._readers.static(other) is not None
        }
        others = set(self._reference.followers(node_of(addend))) - set(fusion.members)
        return self._reference.is_private(node_of(addend)) and others <= int8 & before


def _own_grid(fused: FusedOp, scheme: Scheme, ranges: Ranges) -> Grid | None:
    """The grid of a convolution's output without an addend, if calibration saw it."""
    stats = ranges.get(fused.op.name + OUTPUT)
    if stats is None or not stats.finite:
        return None
    low, high = choose_range(stats, scheme.range_method or "minmax")
    if fused.plain.activation is not None:
        return Grid.affine(0.0, high)
    return Grid.symmetric(max(-low, high) or 1.0)


def _equalising(fused: FusedOp, ranges: Ranges) -> Array | None:
    """What to multiply a convolution's output channels by, so that all have one range; None where they are
    alike enough as they are.

    The kernel rounds its output, and one range for channels of very different size leaves nothing of the
    small ones.
    """
    stats = ranges.get(fused.op.name + OUTPUT)
    activation = fused.plain.activation
    if (
        stats is None
        or stats.channel_max.size != fused.columns
        or (activation is not None and activation.name != "Relu")
    ):
        return None
    peaks = stats.channel_max.astype(np.float64)
    largest, middle = float(peaks.max()), float(np.median(peaks))
    if not 0 < largest < np.inf or middle * OUTLIER > largest:
        return None
    # A channel that was inactive during calibration may become active.
    return np.asarray(1 / np.maximum(peaks, max(middle / 4, largest * 1e-4)), np.float32)
