"""Padding and grouping of token rows."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octune.errors import ConfigError
from octune.tasks.batches import LARGEST_BLOCK, SMALLEST_BLOCK, Padding, length_blocks, shuffled
from tests.tasks.conftest import make_tokenizer


def test_rows_are_padded_to_the_longest_on_the_tokenizers_side() -> None:
    rows = [{"input_ids": [7, 8, 9], "attention_mask": [1, 1, 1]}, {"input_ids": [5], "attention_mask": [1]}]
    right = Padding({"input_ids": 4}).pad(rows)
    left = Padding({"input_ids": 4}, left=True).pad(rows)
    assert right["input_ids"].tolist() == [[7, 8, 9], [5, 4, 4]]
    assert right["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]
    assert left["input_ids"].tolist() == [[7, 8, 9], [4, 4, 5]]
    assert left["attention_mask"].tolist() == [[1, 1, 1], [0, 0, 1]]
    assert right["input_ids"].dtype == np.int64


def test_a_tokenizer_without_padding_is_refused() -> None:
    with pytest.raises(ConfigError, match="no padding token"):
        Padding.of(make_tokenizer(pad_token=None))


@given(
    st.lists(st.lists(st.integers(1, 50), min_size=1, max_size=5), min_size=1, max_size=40), st.integers(1, 8)
)
def test_groups_hold_every_row_once_and_keep_units_whole(
    units_of_lengths: list[list[int]], size: int
) -> None:
    lengths = [length for unit in units_of_lengths for length in unit]
    ends = np.cumsum([len(unit) for unit in units_of_lengths])
    units = [list(range(end - len(unit), end)) for unit, end in zip(units_of_lengths, ends, strict=True)]
    blocks = length_blocks(lengths, size, units)
    groups = [group for block in blocks for group in block]
    assert sorted(row for group in groups for row in group) == list(range(len(lengths)))
    assert all(any(set(unit) <= set(group) for group in groups) for unit in units)
    assert all(len(group) <= size or group in units for group in groups)
    assert blocks == length_blocks(lengths, size, units)


@given(st.lists(st.integers(1, 100), min_size=1, max_size=60), st.integers(1, 8))
def test_groups_of_a_block_hold_neighbours_in_length(lengths: list[int], size: int) -> None:
    blocks = length_blocks(lengths, size)
    for block in blocks:
        spans = sorted(
            (min(lengths[row] for row in group), max(lengths[row] for row in group)) for group in block
        )
        assert all(high <= low for (_, high), (low, _) in pairwise(spans))
    assert sum(len(block) for block in blocks) == -(-len(lengths) // size)
    assert all(SMALLEST_BLOCK <= len(block) <= LARGEST_BLOCK for block in blocks[:-1])


def test_every_block_is_a_fair_sample_of_all_rows() -> None:
    blocks = length_blocks(list(range(10_000)), 32)
    means = [np.mean([row for group in block for row in group]) for block in blocks]
    assert len(blocks) == 20
    assert all(4400 < mean < 5600 for mean in means[:-1])
    firsts = [group[0] for group in blocks[0]]
    assert firsts != sorted(firsts)


def test_blocks_are_fair_to_long_units() -> None:
    # Questions with many windows are as common in the blocks as among all.
    units = [[0]] * 900 + [[0] * 8] * 100
    rows = iter(range(10_000))
    numbered = [[next(rows) for _ in unit] for unit in units]
    blocks = length_blocks([1] * 1700, 8, numbered)
    long = [sum(len(group) == 8 and group[0] >= 900 for group in block) for block in blocks]
    assert sum(long) == 100
    assert len(blocks) > 10
    assert max(long[:-1]) < 20


def test_shuffled_is_a_fixed_choice() -> None:
    assert shuffled(10, 4).tolist() == shuffled(10, 4).tolist()
    assert sorted(shuffled(10).tolist()) == list(range(10))
    assert shuffled(3, 10).size == 3
