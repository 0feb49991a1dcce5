"""One streaming pass over calibration inputs, for all ops at once; or several, over parts of them.

ranges = collect(backend, inputs, samples=128)
ranges = merged([observed(backend, first), observed(backend, rest)], samples=128)       # the same
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from octune.calibration.observer import Observer
from octune.calibration.ranges import Ranges

if TYPE_CHECKING:
    from octune.backends.base import Backend

__all__ = ["Observed", "collect", "merged", "observed"]

# What was seen of each op, by its name.
Observed: TypeAlias = Mapping[str, Observer]


def observed(backend: Backend, inputs: Iterable[Any]) -> Observed:
    """What every op's input looks like. Memory does not grow with the inputs."""
    observers: dict[str, Observer] = {}

    def visit(op: str, array: Any, *, shape: tuple[int, ...], channel_axis: int = -1) -> None:
        observer = observers.setdefault(op, Observer())
        if array is None:
            observer.touch(shape)
        else:
            observer.update(array, channel_axis=channel_axis, shape=shape)

    backend.observe(inputs, visit)
    return observers


def merged(parts: Iterable[Observed], samples: int) -> Ranges:
    """The ranges of inputs of which parts were observed, given in their order; ``samples`` is noted with
    them.
    """
    observers: dict[str, Observer] = {}
    for part in parts:
        for op, observer in part.items():
            observers.setdefault(op, Observer()).merge(observer)
    # By name, since a framework may run ops in another order each time.
    found = {op: observers[op].stats() for op in sorted(observers)}
    return Ranges({op: stats for op, stats in found.items() if stats is not None}, samples)


def collect(backend: Backend, inputs: Iterable[Any], samples: int) -> Ranges:
    """The ranges of these inputs."""
    return merged([observed(backend, inputs)], samples)
