"""What an int8 convolution gives. Its kernel rounds its own output, so that must suit whoever reads it.

    outputs = Outputs(reference, wants, activations, ranges)
    outputs.of(site, scheme)                        # Given: the form, the grid, and what every channel is
                                                    multiplied by

An output channel can be multiplied at no cost: it has a weight scale and a bias of its own. Where the next
convolutions are smoothed, their multiplier is put there, which is what is called cross-layer equalisation.
Where the output is read in float and a few channels are much larger than the others, all are brought to one
range, and back in float.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

from octune.backends.tensorflow.graph.graph import Array, Graph, attribute, node_of
from octune.backends.tensorflow.int8.activations import Activations, Quantized
from octune.backends.tensorflow.int8.ranges import equalising, output_grid
from octune.backends.tensorflow.int8.site import Form, Site
from octune.backends.tensorflow.int8.wants import Group, Wants
from octune.calibration import Ranges
from octune.errors import PlanError
from octune.int8 import Grid
from octune.plan import Scheme

__all__ = ["Given", "Outputs", "is_pool", "passes_on", "pools"]


@dataclass(frozen=True, slots=True)
class Given:
    """``taker`` reads the multiplied channels as they are (behind ``pool``, if there is one); without, they
    must be divided again.
    """

    form: Form
    grid: Grid
    summand: Quantized | None = None
    factors: Array | None = None
    taker: Group | None = None
    pool: str | None = None


def is_pool(graph: Graph, name: str) -> bool:
    """Whether a node takes the largest of its neighbours, channel by channel: int8 can do that, too, and
    positive factors pass.
    """
    made = graph.nodes[name]
    return (
        made.op == "MaxPool"
        and attribute(made, "data_format").s in (b"", b"NHWC")
        and attribute(made, "padding").s != b"EXPLICIT"
    )


def pools(graph: Graph, tensor: str) -> list[str]:
    """The max poolings that read a tensor."""
    return [name for name in graph.followers(node_of(tensor)) if is_pool(graph, name)]


def passes_on(graph: Graph, tail: str, convs: Container[str]) -> bool:
    """Whether only these convolutions read an output, as it is or behind a pooling: its rounding is then that
    of their input.
    """

    def reads(name: str) -> bool:
        return name in convs or (is_pool(graph, name) and passes_on(graph, name, convs))

    return graph.is_private(tail) and all(map(reads, graph.followers(tail)))


class Outputs:
    """Asked in the order of computation."""

    def __init__(self, reference: Graph, wants: Wants, activations: Activations, ranges: Ranges) -> None:
        self._reference, self._wants, self._activations, self._ranges = reference, wants, activations, ranges

    def of(self, site: Site, scheme: Scheme) -> Given:
        """The form of a convolution that suits its readers best."""
        return self._summed(site) or self._folded(site) or self._plain(site, scheme)

    def _summed(self, site: Site) -> Given | None:
        """With the addend where it is at hand as uint8 and somebody wants the sum in int8."""
        if site.summed is None:
            return None
        summand = self._activations.from_zero(str(site.summed.addend))
        wanted = self._wanted(site.summed.output, signed=False)
        if summand is None or wanted is None or not self._is_last_reader(site, site.summed):
            return None
        return Given(site.summed, wanted, summand)

    def _folded(self, site: Site) -> Given | None:
        """Multiplied for the smoothed convolutions that are its only readers."""
        form, graph = site.plain, self._reference
        if form.activation is not None and form.activation.name != "Relu":
            return None
        found = pools(graph, form.output)
        pool = found[0] if found else None
        way = [form.tail, *found]
        tensor = f"{pool}:0" if pool else form.output
        group = next(filter(None, map(self._wants.smoothing, self._wants.readers(tensor, conv=True))), None)
        if (
            group is None
            or group.grid.signed != (form.activation is None)
            or not all(map(graph.is_private, way))
        ):
            return None
        readers = {pool} if pool else {reader.core for reader in group.sites}
        if not set(graph.followers(form.tail)) <= readers or not set(graph.followers(way[-1])) <= {
            s.core for s in group.sites
        }:
            return None
        return Given(form, group.grid, factors=group.multiplier, taker=group, pool=pool)

    def _plain(self, site: Site, scheme: Scheme) -> Given:
        form = site.plain
        reached = [form.output, *(f"{name}:0" for name in pools(self._reference, form.output))]
        smoothed = any(
            self._wants.smoothing(reader)
            for tensor in reached
            for reader in self._wants.readers(tensor, conv=True)
        )
        for tensor in () if smoothed else reached:
            wanted = self._wanted(tensor, signed=form.activation is None)
            if wanted is not None:
                return Given(form, wanted)
        own = output_grid(site, scheme, self._ranges)
        if own is None:
            raise PlanError(
                f"The plan asks for {scheme} at {site.op.name!r}, but calibration has not seen its output. "
                "Calibrate again."
            )
        factors = equalising(site, self._ranges)
        return (
            Given(form, own)
            if factors is None
            else Given(form, Grid.symmetric(1.0) if own.signed else Grid.affine(0.0, 1.0), factors=factors)
        )

    def _wanted(self, tensor: str, *, signed: bool) -> Grid | None:
        """The grid on which convolutions want a tensor as it is; None if there are none, or some want it
        smoothed.
        """
        readers = self._wants.readers(tensor, conv=True)
        if any(map(self._wants.smoothing, readers)):
            return None
        return next(
            (
                span
                for reader in readers
                if (span := self._wants.static(reader)) is not None and span.signed == signed
            ),
            None,
        )

    def _is_last_reader(self, site: Site, form: Form) -> bool:
        """Whether all others that read the addend have done so before the sum can begin.

        The kernel writes the sum over the addend. Where it may not, because somebody else is still to read
        it, the process dies.
        """
        addend = str(form.addend)
        before: set[str] = set()
        waiting = [site.core]
        while waiting:
            name = waiting.pop()
            if name not in before and name != node_of(addend):
                before.add(name)
                waiting.extend(node_of(reference) for reference in self._reference.nodes[name].input)
        int8 = {
            other.core
            for other in self._wants.readers(addend, conv=True)
            if self._wants.static(other) is not None
        }
        others = set(self._reference.followers(node_of(addend))) - set(form.members)
        return self._reference.is_private(node_of(addend)) and others <= int8 & before
