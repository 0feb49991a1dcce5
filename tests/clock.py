"""A clock that only the test moves, on a machine that has nothing else to do: it is for the test to say what
is faster.

    passes = clock(monkeypatch)
    passes(0.01)        # what is timed now took ten milliseconds
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from octune.cost import latency, table


class Quiet:
    """The load of a machine on which nothing else runs."""

    share, busy = 0.0, False

    def __init__(self, *, with_children: bool = False) -> None: ...

    def __enter__(self) -> Quiet:
        return self

    def __exit__(self, *exception: object) -> None: ...


def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Moves the clock by some seconds."""
    now = 0.0

    def passes(seconds: float) -> None:
        nonlocal now
        now += seconds

    for module in (latency, table):
        monkeypatch.setattr(module, "Load", Quiet)
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: now, sleep=passes))
    return passes
