"""Fixtures that every test may use."""

from __future__ import annotations

import logging
import os
import signal
from collections import Counter
from functools import partial
from pathlib import Path

import pytest
from hypothesis import settings

from octune.cost.load import Patience
from tests.once import RUN

# Threads that wait for each other by spinning make a busy machine crawl; must be set before torch is
# imported.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

# Tests must not depend on what an earlier run has timed.
os.environ.setdefault("OCTUNE_COST_CACHE", "off")

# What one test has compiled, another that compiles the same need not. And what tests make is not what the
# user has made.
os.environ["OCTUNE_COMPILE_CACHE"] = str(RUN / "compiled")
os.environ["XDG_STATE_HOME"] = str(RUN / "state")

# A Ray cluster of a test is for this machine alone, and sends no statistics. Read when Ray is imported.
os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

# A shell that runs the tests in the background has them ignore Ctrl-C, and what they start inherits that.
# Some tests press it.
signal.signal(signal.SIGINT, signal.default_int_handler)
if hasattr(signal, "SIGHUP"):  # nohup has it ignored
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

# No test may fail because the machine was busy.
settings.register_profile("octune", deadline=None)
settings.load_profile("octune")

# Tests run side by side in several processes, each with CPUs of its own, so that the timings of one do not
# suffer from the others. Frameworks count the CPUs of a process when they are imported, later than this.
if "PYTEST_XDIST_WORKER" in os.environ and hasattr(os, "sched_setaffinity"):
    worker = int(os.environ["PYTEST_XDIST_WORKER"].removeprefix("gw"))
    workers = int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    cpus = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cpus[worker::workers] or cpus)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that take long begin first: one that begins last keeps a worker busy when the others are done."""
    slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    items.sort(key=lambda item: (item.path.parent.name != "end_to_end", -slow[item.path]))


SHARED = Path(__file__).resolve().parents[1].parent / "shared"


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of fine-tuned models and data sets beside the checkout; tests that need it skip without
    it.
    """
    if not (SHARED / "models").is_dir():
        pytest.skip(f"needs the fine-tuned models and data sets in {SHARED.name}/ beside the checkout")
    return SHARED


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run waits up to ten seconds for other processes to end before it times anything. Hundreds of short
    runs on a machine that stays busy would do nothing else.
    """
    for place in ("octune.engine.stopwatch.Patience", "octune.benchmark.run.Patience"):
        monkeypatch.setattr(place, partial(Patience, 1.0))


LOGGER = logging.getLogger("octune")
HANDLERS, LEVEL, PROPAGATE = tuple(LOGGER.handlers), LOGGER.level, LOGGER.propagate


@pytest.fixture(autouse=True)
def _logger() -> None:
    """A command sets up the logger of a process that it has for itself. No test may find it so, whether
    another test or a fixture that several share ran the command.
    """
    LOGGER.handlers, LOGGER.propagate = list(HANDLERS), PROPAGATE
    LOGGER.setLevel(LEVEL)
