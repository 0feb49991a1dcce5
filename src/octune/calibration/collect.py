"""One streaming pass over calibration inputs, for all ops at once.

ranges = collect(backend, inputs, samples=128)
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from octune.calibration.observer import Observer
from octune.calibration.ranges import Ranges

if TYPE_CHECKING:
    from octune.backends.base import Backend

__all__ = ["collect"]


def collect(backend: Backend, inputs: Iterable[Any], samples: int) -> Ranges:
    """What every op's input looks like; ``samples`` is noted with the ranges. Memory does not grow with the
    inputs.
    """
    observers: dict[str, Observer] = {}

    def visit(op: str, array: Any, *, shape: tuple[int, ...], channel_axis: int = -1) -> None:
        observer = observers.setdefault(op, Observer())
        if array is None:
            observer.touch(shape)
        else:
            observer.update(array, channel_axis=channel_axis, shape=shape)

    backend.observe(inputs, visit)
    return Ranges(
        {op: stats for op, observer in observers.items() if (stats := observer.stats()) is not None}, samples
    )
