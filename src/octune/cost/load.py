"""What other processes take of the machine while something is timed here.

    with Load() as load:
        ...
    load.share, load.busy

The load average cannot tell: it lags by a minute and counts this process, too.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Collection
from dataclasses import dataclass

import psutil

__all__ = ["BUSY", "Load", "Patience"]

BUSY = 0.1
BLUR = 0.05  # seconds: the system counts in ticks of 10 ms, and a few too many do not mean anything
GLANCE = 0.5  # seconds


class Load:
    """How much of the CPUs that this process may use went to others while this was open.

    ``share`` is of all their time, ``cores`` is how many of them that would keep busy. Children are others,
    unless ``with_children``.
    """

    def __init__(self, *, with_children: bool = False) -> None:
        self.share = self.cores = 0.0
        self._with_children = with_children

    def __enter__(self) -> Load:
        self._began, self._taken = time.perf_counter(), self._others()
        return self

    def __exit__(self, *exception: object) -> None:
        seconds = time.perf_counter() - self._began
        taken = max(0.0, self._others() - self._taken - BLUR)
        # However busy the others are, what ran here got a little.
        self.cores = min(taken / seconds, 0.99 * len(_cpus())) if taken else 0.0
        self.share = self.cores / len(_cpus())

    @property
    def busy(self) -> bool:
        """Whether timings suffered."""
        return self.share > BUSY

    def _others(self) -> float:
        """Seconds of CPU time that others have had since the machine started; what a hypervisor took away is
        theirs.
        """
        per_cpu = psutil.cpu_times(percpu=True)
        busy = 0.0
        for times in (times for number, times in enumerate(per_cpu) if number in _cpus()):
            # What guests had is in the user's time already.
            none = (times.idle, *(getattr(times, name, 0.0) for name in ("iowait", "guest", "guest_nice")))
            busy += sum(times) - sum(none)
        return busy - time.process_time() - (_children() if self._with_children else 0.0)


def _cpus() -> Collection[int]:
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)


def _children() -> float:
    """Seconds of CPU time of all processes that this one started, those that have ended included."""
    here = psutil.Process()
    times = here.cpu_times()
    total = times.children_user + times.children_system
    for child in here.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = child.cpu_times()
            total += times.user + times.system
    return float(total)


@dataclass
class Patience:
    """How many seconds, in all, may be spent on waiting for others to leave the machine alone."""

    seconds: float = 10.0

    def wait(self) -> None:
        """Return when the machine is quiet, or when patience has come to its end."""
        while self.seconds > 0:
            self.seconds -= GLANCE
            with Load() as load:
                time.sleep(GLANCE)
            if not load.busy:
                return
