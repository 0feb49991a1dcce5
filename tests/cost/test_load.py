"""What other processes take of the machine: counted without this one, and waited for."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import namedtuple
from collections.abc import Iterator

import pytest

from octune.cost import load as module
from octune.cost.load import BLUR, BUSY, GLANCE, Load, Patience

Times = namedtuple("Times", "user system idle iowait steal guest guest_nice")


class Machine:
    """Two CPUs of four, and clocks that go as they are told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = self.own = 0.0
        self.times = [Times(*[0.0] * 7) for _ in range(4)]
        monkeypatch.setattr(module, "_cpus", lambda: {0, 1})
        monkeypatch.setattr(module.psutil, "cpu_times", lambda percpu: list(self.times))
        monkeypatch.setattr(module.time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(module.time, "process_time", lambda: self.own)
        monkeypatch.setattr(module.time, "sleep", self.sleep)
        self.others: Iterator[float] = iter(())
        self.slept = 0.0

    def run(self, seconds: float, own: float, cpu: int = 0, **spent: float) -> None:
        self.now += seconds
        self.own += own
        before = self.times[cpu]._asdict()
        self.times[cpu] = Times(**{name: value + spent.get(name, 0.0) for name, value in before.items()})

    def sleep(self, seconds: float) -> None:
        """While others take the next share of both CPUs."""
        self.slept += seconds
        self.run(seconds, own=0.0, user=2 * seconds * next(self.others) + BLUR)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def test_what_this_process_takes_is_no_load(machine: Machine) -> None:
    with Load() as load:
        machine.run(10.0, own=19.0, user=15.0, system=4.0)
    assert (load.share, load.cores, load.busy) == (0.0, 0.0, False)


def test_what_others_take_is_a_share_of_the_cpus_that_can_be_used(machine: Machine) -> None:
    with Load() as load:
        machine.run(10.0, own=9.0, user=10.0, system=1.0, steal=3.0 + BLUR)
        machine.run(0.0, own=0.0, cpu=3, user=10.0)  # a CPU that this process may not use
    assert load.cores == pytest.approx(0.5)
    assert load.share == pytest.approx(0.25)
    assert load.busy


def test_waiting_for_disks_and_guests_counted_twice_are_no_load(machine: Machine) -> None:
    with Load() as load:
        machine.run(10.0, own=5.0, user=5.0, guest=0.0, idle=9.0, iowait=6.0)
        machine.run(0.0, own=0.0, guest=4.0, guest_nice=2.0)
    assert load.share == 0.0


def test_a_moment_is_too_short_to_tell(machine: Machine) -> None:
    with Load() as load:
        machine.run(0.001, own=0.001, user=0.02)
    assert load.share == 0.0


def test_something_is_always_left(machine: Machine) -> None:
    with Load() as load:
        machine.run(1.0, own=0.0, user=9.0)
    assert BUSY < load.share < 1.0


def test_patience_ends_when_the_machine_is_quiet(machine: Machine) -> None:
    machine.others = iter([0.9, 0.5, 0.0])
    patience = Patience(20.0)
    patience.wait()
    assert machine.slept == pytest.approx(3 * GLANCE)
    assert patience.seconds == pytest.approx(20.0 - 3 * GLANCE)


def test_patience_is_for_all_waits_together(machine: Machine) -> None:
    machine.others = iter([0.9] * 100)
    patience = Patience(2.0)
    for _ in range(3):
        patience.wait()
    assert machine.slept == pytest.approx(2.0)


def test_a_real_process_beside_this_one_is_seen() -> None:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as spinner:
        try:
            time.sleep(0.2)
            with Load() as as_another, Load(with_children=True) as as_own:
                time.sleep(1.0)
        finally:
            spinner.kill()
    assert as_another.cores > 0.2
    assert as_own.cores < as_another.cores
