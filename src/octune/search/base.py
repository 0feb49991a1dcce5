"""The base of all strategies.

    strategy = Auto(space)
    while (proposal := strategy.ask()) is not None:
        strategy.tell(run(proposal.plan))

A strategy is written as a generator, so that it reads from top to bottom: it yields a proposal and receives
the trial that came of it. It must be a pure function of the space and of what it was told: a resumed run asks
the same questions, and the journal answers those that were answered before.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator
from dataclasses import dataclass

from octune.plan import Plan
from octune.result import Trial
from octune.search.space import Space

__all__ = ["Proposal", "Search", "Strategy"]


@dataclass(frozen=True, slots=True)
class Proposal:
    """A plan to try, and why."""

    plan: Plan
    reason: str


Search = Generator[Proposal, Trial, None]


class Strategy(ABC):
    """Proposes plans. Subclasses write :meth:`search`.

    ``keep_going`` is True when there is a time budget to use: after a plan that passes, look for a faster
    one.
    """

    def __init__(self, space: Space, *, keep_going: bool = False, seed: int = 1978) -> None:
        self.space, self.keep_going, self.seed = space, keep_going, seed
        self._told: dict[Plan, Trial] = {}
        self._search: Search | None = None  # begun by the first question: making a strategy runs nothing
        self._pending: Proposal | None = None

    @abstractmethod
    def search(self) -> Search:
        """Yield proposals, receive trials; return when there is nothing left worth trying."""

    def ask(self) -> Proposal | None:
        """The next plan to try, or None at the end. Plans that were told before are not asked for again."""
        if self._search is None:
            self._search = self.search()
            self._pending = next(self._search, None)
        while self._pending is not None and self._pending.plan in self._told:
            self._advance(self._told[self._pending.plan])
        return self._pending

    def tell(self, trial: Trial) -> None:
        """What came of the plan that was asked for."""
        self._told[trial.plan] = trial
        self._advance(trial)

    def _advance(self, trial: Trial) -> None:
        if self._search is None:
            raise RuntimeError("tell() answers a plan that ask() returned")
        try:
            self._pending = self._search.send(trial)
        except StopIteration:
            self._pending = None
