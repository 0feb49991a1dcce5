"""A part of the evaluation data that the search never sees, and that has the final word on its winner.

search, held = split_batches(batches, seed=1978)
held_items(n, seed), search_items(n, seed)         # the same for a function that scores n items

The best of many plans on the same data is partly the luckiest. On data that had no say in the choice, luck
plays no part.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from octune.data import Batches
from octune.errors import ConfigError

__all__ = ["HELD", "held_items", "search_items", "split_batches"]

Ints = npt.NDArray[np.int64]
HELD = 0.3
MANY_BLOCKS = 4


def held_items(count: int, seed: int) -> Ints:
    """The numbers of the items that are held out, of ``count``: a random part, always the same one for a
    seed.
    """
    if count < 2:
        raise ConfigError(
            "certify: holdout needs at least 2 items of evaluation data, one to search by and one to hold "
            "out."
        )
    # Not the same draw as the order in which candidates are scored, which has the same seed.
    return np.sort(np.random.default_rng([seed, 1]).permutation(count)[: max(1, round(HELD * count))])


def search_items(count: int, seed: int) -> Ints:
    """The numbers of all other items."""
    return np.setdiff1d(np.arange(count), held_items(count, seed))


def split_batches(batches: Batches, seed: int) -> tuple[Batches, Batches]:
    """The batches to search by, and those held out. Whole blocks, if there are enough of them: then both are
    random samples of rows.
    """
    total = batches.count
    if total is None:
        raise ConfigError(
            "certify: holdout needs evaluation data whose batches can be picked by number: a list of "
            "batches, or a DataLoader without "
            "shuffling and without workers. Or give evaluate= a function that returns one score per item."
        )
    blocks = batches.blocks
    if blocks is None or len(blocks) < MANY_BLOCKS or sum(blocks) != total:
        return batches.select(search_items(total, seed).tolist()), batches.select(
            held_items(total, seed).tolist()
        )
    firsts = np.cumsum(blocks) - blocks

    def of(chosen: Ints) -> Batches:
        numbers = [
            number for block in chosen for number in range(firsts[block], firsts[block] + blocks[block])
        ]
        return batches.select(numbers, [blocks[block] for block in chosen])

    return of(search_items(len(blocks), seed)), of(held_items(len(blocks), seed))
