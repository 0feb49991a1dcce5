"""`auto` in the simulated worlds of benchmarks/search: something passes, and the bound holds."""

from __future__ import annotations

import importlib.util
import math
import sys
from pathlib import Path
from typing import Any

import pytest

from octune.search import Auto

WORLDS = Path(__file__).resolve().parents[2] / "benchmarks/search/worlds.py"


@pytest.fixture(scope="module")
def worlds() -> Any:
    spec = importlib.util.spec_from_file_location("search_worlds", WORLDS)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["search_worlds"] = module  # its dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module


def test_in_every_kind_of_world_something_passes_within_the_bound(worlds: Any) -> None:
    spent, beyond = [], 0
    for world in worlds.worlds(seeds=3, first=1000):
        world.search(Auto(world.seen))
        limit = max(3, 1 + int(math.log2(len(world.harm))))
        assert any(trial.passed for trial in world.trials), (world.kind, world.seed)
        assert len(world.trials) <= 2 * limit + 1
        spent.append(len(world.trials))
        beyond += len(world.trials) > limit
    assert sum(spent) / len(spent) < 2.8
    assert beyond <= 0.05 * len(spent)  # only where nothing passed before
