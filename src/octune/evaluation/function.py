"""The user's own ``evaluate(model)``: a number, or one number per item; and maybe only for the items that it
is asked for.

    def evaluate(model, subset=None):           # subset: numbers of items, or None for all
        items = range(len(images)) if subset is None else subset
        return [float(right(model, images[i])) for i in items]

A function that returns one number is run in full each time. One that returns a number per item is compared
item by item with fp32. One that also takes ``subset`` is asked for blocks of items in random order,
until a candidate is certain to fail.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from octune.errors import EvaluationError
from octune.evaluation.base import SEED, Evaluator
from octune.evaluation.guard import as_score
from octune.evaluation.pairing import Pairing
from octune.evaluation.spread import Spread
from octune.referee import Referee, Standard
from octune.score import Score
from octune.statistics.sequential import ALPHA

__all__ = ["FunctionEvaluator", "takes_subset"]

Ints = npt.NDArray[np.int64]
LEAST_BLOCK = 64
FIRST_SHARE = 0.05
BLOCK_GROWTH = 1.6


def takes_subset(function: Callable[..., Any]) -> bool:
    """Whether the function has a parameter named ``subset``."""
    try:
        return "subset" in inspect.signature(function).parameters
    except (TypeError, ValueError):  # a builtin without a signature
        return False


class FunctionEvaluator(Evaluator):
    """The user's own function. ``share`` says which of n items to look at, all if left out; it needs one
    score per item.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        trial_timeout: float = 0,
        seed: int = SEED,
        share: Callable[[int], Ints] | None = None,
    ) -> None:
        super().__init__(trial_timeout)
        self._function, self._seed, self._share = function, seed, share
        self._subset = takes_subset(function)
        self.name = getattr(function, "__name__", "evaluate")

    @property
    def spreads(self) -> bool:
        return self._subset

    def _rehearse(self, model: Any, batch: Any) -> None:
        if self._subset:
            self._some(model, np.arange(2))

    def _evaluate(self, model: Any, pairing: Pairing) -> tuple[Any, Pairing]:
        if self._share is None:
            return self._all(model), pairing
        if self._subset and pairing.items is not None:
            return self._some(model, self._share(pairing.items)), pairing
        score = as_score(self._all(model))
        if score.items is None:
            raise EvaluationError(
                "Holding out a part of the data needs one score per item, and the evaluation returned a "
                "single number."
            )
        count = int(score.items.size)
        return _part(score, self._share(count)), replace(pairing, items=count)

    def _sequential(self, model: Any, pairing: Pairing, standard: Standard) -> Any:
        count = 0 if standard.baseline.items is None else standard.baseline.items.size
        limits = standard.baseline.limits
        if (
            not self._subset
            or limits is None
            or count < 2 * LEAST_BLOCK
            or (self._share is not None and pairing.items is None)
        ):
            return self._in_full(model, pairing, count)
        order = np.random.default_rng(self._seed).permutation(count)
        referee = Referee(standard, order, np.ones(count, dtype=np.int64), shuffled=True)
        if not referee.exact:
            return self._in_full(model, pairing, count)
        places = np.arange(count)
        if self._share is not None and pairing.items is not None:
            places = self._share(pairing.items)
        items, hits = np.full(count, np.nan), np.full(count, np.nan)
        seen, block = 0, max(LEAST_BLOCK, round(FIRST_SHARE * count))
        while seen < count:
            size = count - seen if count - seen < 1.5 * block else block
            asked = np.sort(order[seen : seen + size])
            part = self._some(model, places[asked])
            items[asked], hits[asked] = part.items, np.nan if part.hits is None else part.hits
            seen += size
            if seen < count and (p := referee.p(seen, items[order[:seen]])) <= ALPHA:
                done = np.sort(order[:seen])
                return replace(_score(items[done], hits[done], limits), total=count, p=p, index=done)
            block = round(seen * (BLOCK_GROWTH - 1))
        return _score(items, hits, limits)

    def _in_full(self, model: Any, pairing: Pairing, count: int) -> Any:
        """What it scores over all items, of which fp32 had ``count``."""
        if isinstance(model, Spread) and self._subset and self._share is None and count > 1:
            return self._some(model, np.arange(count))
        return self._evaluate(model, pairing)[0]

    def _all(self, model: Any) -> Any:
        model = model.here if isinstance(model, Spread) else model  # only the whole says how many there are
        needed = (
            self._subset
            and inspect.signature(self._function).parameters["subset"].default is inspect.Parameter.empty
        )
        return self._function(model, subset=None) if needed else self._function(model)

    def _some(self, model: Any, places: Ints) -> Score:
        """The scores of these items; never of a single one, which could not be told from a score of all."""
        if isinstance(model, Spread):
            return _joined(model.scores(self, places.tolist()))
        return self.score_of(model, places.tolist())

    def score_of(self, model: Any, places: Sequence[int]) -> Score:
        """What the function says of these items, and that it is as many."""
        score = as_score(self._function(model, subset=list(places)))
        if score.items is None or score.items.size != len(places):
            got = "one number" if score.items is None else f"{score.items.size} numbers"
            raise EvaluationError(
                f"evaluate(model, subset=...) was asked for {len(places)} items, and returned {got}. "
                "It must return one number for each item of the subset, in that order."
            )
        return score


def _score(
    items: npt.NDArray[np.float64], hits: npt.NDArray[np.float64], limits: tuple[float, float]
) -> Score:
    return Score.from_items(items, hits=None if np.isnan(hits).any() else hits, limits=limits)


def _joined(parts: Sequence[Score]) -> Score:
    """One score of several pieces: what holds for all of them holds for the whole."""
    items = [part.items for part in parts if part.items is not None]
    hits = [part.hits for part in parts if part.hits is not None]
    limits = {part.limits for part in parts}
    return Score.from_items(
        np.concatenate(items),
        hits=np.concatenate(hits) if len(hits) == len(parts) else None,
        limits=limits.pop() if len(limits) == 1 else None,
    )


def _part(score: Score, places: Ints) -> Score:
    if score.items is None:
        raise ValueError("a part of a score needs items")
    return Score.from_items(
        score.items[places], hits=None if score.hits is None else score.hits[places], limits=score.limits
    )
