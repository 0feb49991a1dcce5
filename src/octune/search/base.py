"""The base of all strategies.

    strategy = Auto(space)
    while (proposal := strategy.ask()) is not None:
        strategy.tell(run(proposal.plan))

A strategy is written as a generator, so that it reads from top to bottom: it yields a proposal and receives
the trial that came of it. It must be a pure function of the space and of what it was told: a resumed run asks
the same questions, and the journal answers those that were answered before.

A strategy that knows several proposals before it is told of the first one announces them:

    for proposal in self.announced(proposals):
        trial = yield proposal

They are asked for one by one all the same. An engine that can try several plans at a time looks at
:meth:`Strategy.ahead`; whether it does changes nothing in what is asked, and in what order.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Generic, TypeVar

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
P = TypeVar("P", bound=Proposal)
P_co = TypeVar("P_co", bound=Proposal, covariant=True)


class _Announced(Iterator[P_co], Generic[P_co]):
    """Proposals that can be looked at before it is their turn; they are made no earlier."""

    def __init__(self, proposals: Iterable[P_co]) -> None:
        self._unseen, self._seen = iter(proposals), deque[P_co]()

    def __next__(self) -> P_co:
        return self._seen.popleft() if self._seen else next(self._unseen)

    def ahead(self) -> Iterator[P_co]:
        """Those whose turn has not come."""
        for place in count():
            if place == len(self._seen):
                following = next(self._unseen, None)
                if following is None:
                    return
                self._seen.append(following)
            yield self._seen[place]


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
        self._announced: _Announced[Proposal] = _Announced(())

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

    def announced(self, proposals: Iterable[P]) -> Iterator[P]:
        """For :meth:`search`: the same proposals, none of which depends on what comes of those before it."""
        announced = _Announced(proposals)
        self._announced = announced
        return announced

    def ahead(self) -> Iterator[Proposal]:
        """What will be asked for after the plan of :meth:`ask`, whatever comes of that, as far as it is known
        now. A trial may end the search before.
        """
        return (proposal for proposal in self._announced.ahead() if proposal.plan not in self._told)

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
