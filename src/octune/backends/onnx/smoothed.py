"""The smoothing that a plan asks for, done to a graph: factors folded into what comes before, or a node that
multiplies.
"""

from __future__ import annotations

from collections.abc import Iterable

from octune.backends.onnx.discover import Found
from octune.backends.onnx.edit import Edit
from octune.backends.onnx.graph import Array
from octune.backends.onnx.smooth import Group, Smoother
from octune.calibration import Ranges
from octune.plan import Scheme
from octune.repair import repairs_of

__all__ = ["Smoothed"]


class Smoothed:
    """Which ops read a smoothed tensor, and what that changes elsewhere.

    ``factors`` is what the output channels of an op are multiplied by; ``moved`` are constants that were
    multiplied, by node and slot.
    """

    def __init__(
        self, edit: Edit, planned: Iterable[tuple[Found, Scheme]], ranges: Ranges, smoother: Smoother
    ) -> None:
        self._edit = edit
        self.factors: dict[str, Array] = {}
        self.moved: dict[tuple[int, int], Array] = {}
        self._folded: set[str] = set()
        self._multiplied: dict[str, str] = {}
        groups = {
            item.op.name: smoother.group(item, ranges)
            for item, scheme in planned
            if repairs_of(scheme).smooths
        }
        self._groups = {name: group for name, group in groups.items() if group is not None}
        for group in {id(group): group for group in self._groups.values()}.values():
            if group.fold is not None and all(member.op.name in self._groups for member in group.members):
                self._fold(group)

    def _fold(self, group: Group) -> None:
        fold = group.fold
        if fold is None:
            return
        self._folded.add(group.tensor)
        if fold.target is not None:
            self.factors[fold.target.op.name] = group.factors
        for index, slot, axis in fold.constants:
            value = self.constant(index, slot)
            self.moved[index, slot] = value * (
                group.factors.reshape(-1, 1, 1) if axis == 1 else group.factors
            )

    def constant(self, index: int, slot: int) -> Array:
        """The constant that a node reads, as it is by now."""
        value = self.moved.get(
            (index, slot), self._edit.view.constant(self._edit.view.nodes[index].input[slot])
        )
        if value is None:
            raise ValueError(f"input {slot} of {self._edit.view.nodes[index].name!r} is not a constant")
        return value

    def range(self, item: Found) -> tuple[float, float] | None:
        """The range of an op's smoothed input; None if it is not smoothed."""
        group = self._groups.get(item.op.name)
        return None if group is None else (group.smoothing.low, group.smoothing.high)

    def input(self, item: Found) -> tuple[str, Array | None]:
        """The tensor that an op reads, and what its channels were multiplied by."""
        group = self._groups.get(item.op.name)
        if group is None or item.weight is None:
            return item.x, None
        multiplier, edit = group.smoothing.multiplier, self._edit
        if group.tensor in self._folded:
            return item.x, multiplier
        if group.tensor not in self._multiplied:
            shaped = multiplier.reshape(1, -1, *[1] * (item.weight.ndim - 2)) if item.is_conv else multiplier
            factor = edit.tensor(f"{item.x}/smoothing", shaped)
            self._multiplied[group.tensor] = edit.after(
                item.x, "Mul", [item.x, factor], edit.name(f"{item.x}/smoothed")
            )
        return self._multiplied[group.tensor], multiplier

    def finish(self) -> None:
        """Let nodes read the constants that were multiplied."""
        for (index, slot), value in self.moved.items():
            node = self._edit.node(index)
            node.input[slot] = self._edit.tensor(f"{node.input[slot]}/scaled", value)
