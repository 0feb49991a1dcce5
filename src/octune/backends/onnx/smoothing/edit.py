"""The smoothing that a plan asks for, written into a graph: factors go into what comes before, or into a node
that multiplies.
"""

from __future__ import annotations

from collections.abc import Iterable

from octune.backends.onnx.edit import Edit
from octune.backends.onnx.graph import Array
from octune.backends.onnx.kinds import Found
from octune.backends.onnx.smoothing.groups import SmoothingGroup, SmoothingGroups
from octune.backends.onnx.smoothing.target import SmoothingTarget
from octune.plan import Scheme
from octune.repair import repairs_of

__all__ = ["SmoothingEdit"]


class SmoothingEdit:
    """Which ops read a smoothed tensor, and what that changes elsewhere.

    ``factors`` is what the output channels of an op are multiplied by.
    """

    def __init__(self, edit: Edit, planned: Iterable[tuple[Found, Scheme]], groups: SmoothingGroups) -> None:
        self._edit = edit
        self.factors: dict[str, Array] = {}
        self._constants: dict[tuple[int, int], Array] = {}  # that are changed, by node and slot
        self._absorbed: set[str] = set()  # tensors whose multiplier is in what comes before
        self._multiplied: dict[str, str] = {}
        smoothed = {item.op.name: groups.of(item) for item, scheme in planned if repairs_of(scheme).smooths}
        self._groups = {name: group for name, group in smoothed.items() if group is not None}
        for group in dict.fromkeys(self._groups.values()):
            if group.target is not None and all(m.op.name in self._groups for m in group.members):
                self._absorb(group, group.target)

    def _absorb(self, group: SmoothingGroup, target: SmoothingTarget) -> None:
        self._absorbed.add(group.tensor)
        if target.op is not None:
            self.factors[target.op.op.name] = group.factors
        for index, slot, axis in target.constants:
            factors = group.factors.reshape(-1, 1, 1) if axis == 1 else group.factors
            self._constants[index, slot] = self._constant(index, slot) * factors

    # -- inputs ----------------------------------------------------------------------------------------------

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
        if group.tensor in self._absorbed:
            return item.x, multiplier
        if group.tensor not in self._multiplied:
            shaped = item.along_channels(multiplier, item.weight.ndim)
            factor = edit.tensor(f"{item.x}/smoothing", shaped)
            self._multiplied[group.tensor] = edit.after(
                item.x, "Mul", [item.x, factor], edit.name(f"{item.x}/smoothed")
            )
        return self._multiplied[group.tensor], multiplier

    # -- constants of nodes that are not ops -----------------------------------------------------------------

    def add_to_constant(self, index: int, slot: int, value: Array) -> None:
        """Change the constant that a node reads."""
        self._constants[index, slot] = self._constant(index, slot) + value

    def take_constant(self, index: int, slot: int) -> Array:
        """The constant that a node reads, which another node takes over."""
        value = self._constant(index, slot)
        self._constants.pop((index, slot), None)
        return value

    def _constant(self, index: int, slot: int) -> Array:
        """The constant that a node reads, with all changes so far."""
        view = self._edit.view
        value = self._constants.get((index, slot), view.constant(view.nodes[index].input[slot]))
        if value is None:
            raise ValueError(f"input {slot} of {view.nodes[index].name!r} is not a constant")
        return value

    def finish(self) -> None:
        """Let nodes read the constants that were changed."""
        for (index, slot), value in self._constants.items():
            node = self._edit.node(index)
            node.input[slot] = self._edit.tensor(f"{node.input[slot]}/scaled", value)
