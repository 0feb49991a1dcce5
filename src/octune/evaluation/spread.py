"""A model that is scored elsewhere, in parts: what an evaluator asks for, wherever it is done.

    class Cluster(Spread): ...
    evaluator(Cluster(...), pairing, standard)          # the same score as that of the model itself

An evaluator gets the parts back in the order in which it asked for them, and decides itself when it has seen
enough; it then closes the iterator, and the rest need not be done.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from octune.evaluation.evaluator import MetricEvaluator
    from octune.evaluation.function import FunctionEvaluator
    from octune.evaluation.pairing import Pairing
    from octune.score import Score

__all__ = ["Answers", "Spread"]

# The number of a batch, what the model answers to it, and what would have been right.
Answers: TypeAlias = Generator[tuple[int, list[Any], list[Any]], None, None]


class Spread(ABC):
    """Stands for ``here``, which is the model itself: for what cannot be done in parts."""

    def __init__(self, here: Any) -> None:
        self.here = here

    @abstractmethod
    def answers(
        self, evaluator: MetricEvaluator, parts: Iterable[tuple[int, Any]], pairing: Pairing
    ) -> Answers:
        """Answers to batches by their numbers. Beside a number is its batch, or None where it can be picked
        by number.
        """

    @abstractmethod
    def scores(self, evaluator: FunctionEvaluator, places: Sequence[int]) -> list[Score]:
        """The scores of these items, in one or several pieces, in this order."""
