"""`auto` in the simulated worlds of benchmarks/search: something passes, and the bound holds."""

from __future__ import annotations

import math
from typing import Any

import pytest

from octune.search import Auto
from tests.scripts import load_script


@pytest.fixture(scope="module")
def worlds() -> Any:
    return load_script("benchmarks/search/worlds.py")


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
