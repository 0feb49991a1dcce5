"""What is held out: a random part, always the same, that shares nothing with the rest."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octune.data import as_batches
from octune.errors import ConfigError
from octune.evaluation.holdout import held_items, search_items, split_batches


@given(st.integers(2, 500), st.integers(0, 2**32 - 1))
def test_every_item_is_on_one_side(count: int, seed: int) -> None:
    held, search = held_items(count, seed), search_items(count, seed)
    assert sorted([*held, *search]) == list(range(count))
    assert held.size == max(1, round(0.3 * count))
    assert held.tolist() == held_items(count, seed).tolist()


def test_another_seed_holds_out_another_part() -> None:
    assert held_items(100, 1).tolist() != held_items(100, 2).tolist()


def test_one_item_cannot_be_split() -> None:
    with pytest.raises(ConfigError, match="at least 2"):
        held_items(1, 0)


def test_batches_are_split_whole() -> None:
    search, held = split_batches(as_batches(list(range(20)), role="evaluation"), seed=5)
    assert sorted([*search, *held]) == list(range(20))
    assert search.count == 14
    assert held.count == 6
    assert [search.pick(place) for place in range(14)] == list(search)  # type: ignore[misc]
    assert search.blocks is None


def test_blocks_are_split_whole_where_there_are_many() -> None:
    class Blocks(list[Any]):
        blocks = (3, 3, 3, 3, 3, 3, 2)

    search, held = split_batches(as_batches(Blocks(range(20)), role="evaluation"), seed=5)
    assert sorted([*search, *held]) == list(range(20))
    assert len(search.blocks or ()) == 5
    assert len(held.blocks or ()) == 2
    assert sum(search.blocks or ()) == search.count
    edges = set(np.cumsum([0, 3, 3, 3, 3, 3, 3]).tolist())
    starts = np.cumsum([0, *(search.blocks or ())[:-1]])
    assert {list(search)[start] for start in starts} <= edges


def test_data_that_can_only_be_walked_cannot_be_split() -> None:
    with pytest.raises(ConfigError, match="needs evaluation data whose batches can be picked by number"):
        split_batches(as_batches(lambda: iter(range(20)), role="evaluation"), seed=5)
