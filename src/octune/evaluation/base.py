"""What scores a model: with a metric over data (``evaluator``), or with a function of the user's own
(``function``).

A subclass says what a model scores in ``_evaluate``, and overrides what else it can do.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Protocol, Self

from octune.backends.terms import Outputs
from octune.evaluation.examples import Example, Models
from octune.evaluation.guard import as_score, call_limited
from octune.evaluation.pairing import Pairing
from octune.referee import Standard
from octune.score import Score

__all__ = ["SEED", "Evaluator", "Runner"]

SEED = 1978


class Runner(Protocol):
    """What an evaluator needs of a backend: to read batches, and to run models on them."""

    def fp32_model(self) -> Any: ...

    def split(self, batch: Any) -> tuple[Any, Any]: ...

    def run(self, model: Any, inputs: Any) -> Outputs: ...


class Evaluator(ABC):
    """Scores a model; ``trial_timeout`` bounds one call in seconds (0: no limit). It remembers no call: what
    one score must know of another is passed in as a :class:`Pairing`.
    """

    higher_is_better: bool = True
    name: str = "score"

    def __init__(self, trial_timeout: float = 0) -> None:
        self.limit = trial_timeout
        # told again and again how much of the data a model has been scored on, where that is known
        self.progress: Callable[[float], None] = lambda share: None

    def baseline(self, model: Any, known: Pairing | None = None) -> tuple[Score, Pairing]:
        """Score the model that others are compared with, over all data; and what they are to match.

        ``known`` is the pairing of other batches of the same data, if there is one.
        """
        before = Pairing() if known is None else known.without_batches()
        raw, pairing = call_limited(lambda: self._evaluate(model, before), self.limit)
        return as_score(raw), pairing

    def __call__(self, model: Any, pairing: Pairing | None = None, standard: Standard | None = None) -> Score:
        """Score over all data, paired with the baseline; against a standard, only until it is certain to
        fail.
        """
        if pairing is None:
            return self.baseline(model)[0]

        def work() -> Any:
            if standard is None:
                return self._evaluate(model, pairing)[0]
            return self._sequential(model, pairing, standard)

        return as_score(call_limited(work, self.limit))

    def rehearse(self, model: Any, batch: Any) -> None:
        """Score as little as possible, before all data is scored: what is wrong with the data or the scoring
        code shows at once. ``batch`` is the first one, where there are batches.
        """
        call_limited(lambda: self._rehearse(model, batch), self.limit)

    def _rehearse(self, model: Any, batch: Any) -> None:  # noqa: B027  not everything can be tried
        """Nothing by default."""

    def notes(self, pairing: Pairing) -> Sequence[str]:
        """What the user should know about how it scores."""
        return ()

    @property
    def spreads(self) -> bool:
        """Whether parts of the data can be scored by themselves, as a :class:`Spread` does."""
        return False

    @property
    def spreads_by_number(self) -> bool:
        """Whether only numbers of parts are sent: then several models can be scored at the same time."""
        return self.spreads

    def bound(self, backend: Runner | None) -> Self:
        """The same evaluator for the models of another backend: one in another process, say."""
        other = copy.copy(self)
        other.progress = lambda share: None
        return other

    def examples(
        self, models: Models, pairing: Pairing, items: Sequence[int], rows: Callable[[Any, list[int]], Any]
    ) -> list[Example]:
        """What two models answer to some items, run by themselves; empty where that is not possible.
        ``rows`` takes some samples out of a batch of inputs.
        """
        return []

    @abstractmethod
    def _evaluate(self, model: Any, pairing: Pairing) -> tuple[Any, Pairing]:
        """What the model scores, and what was learned of the data. A pairing without batches pairs with
        anything.
        """

    def _sequential(self, model: Any, pairing: Pairing, standard: Standard) -> Any:
        return self._evaluate(model, pairing)[0]
