"""One pass of a crew over shards of work: who has which, what comes back, and what is done again.

for found in Round(crew, shards).results(): ...         # in the order of the shards
"""

from __future__ import annotations

import contextlib
import heapq
from collections import Counter
from collections.abc import Generator, Iterable
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

from octune.engine.ray.nodes import Node
from octune.engine.ray.signals import undisguised, uninterrupted
from octune.errors import EvaluationError, EvaluationTimeout, plural, summary

if TYPE_CHECKING:
    from octune.engine.ray.crew import Crew

__all__ = ["AHEAD", "Member", "Round", "Shard", "taken"]

GRACE = 5.0  # seconds that a worker gets to come to an end with what nobody wants any more
AHEAD = 2  # shards that a worker has: one under way, and the next, so that it need not wait for it
WINDOW = 8  # shards for each worker that may be done before their turn
MOST_DEATHS = 3  # workers that one shard may take along, before it is taken for the cause


@dataclass(frozen=True, slots=True)
class Shard:
    """One call of a worker's method, which returns seconds and an answer; ``size`` is how much it does."""

    method: str
    arguments: tuple[Any, ...]
    size: int


@dataclass(eq=False)
class Member:
    """One worker, and the shards it has: the first one is under way."""

    actor: Any
    node: Node
    has: list[Any] = field(default_factory=list)


class Round:
    """One pass over shards."""

    def __init__(self, crew: Crew, shards: Iterable[Shard]) -> None:
        self._crew = crew
        self._shards = zip(count(), shards)  # numbered
        self._again: list[tuple[int, Shard]] = []  # those whose worker is gone: they come first
        self._flying: dict[Any, tuple[int, Shard, Member]] = {}
        self._done: dict[int, Any] = {}
        self._tries: Counter[int] = Counter()
        self._due = 0
        self._over = False
        self._parts: Counter[str] = Counter()

    def results(self) -> Generator[Any, None, None]:
        import ray

        willing = True  # whether the workers may come to an end with what they are at
        try:
            while self._fill() or self._flying or self._done:
                while self._due in self._done:
                    self._due += 1
                    yield self._done.pop(self._due - 1)
                if not self._flying:
                    continue
                with undisguised():
                    ready, _ = ray.wait(list(self._flying), num_returns=1, timeout=1.0)
                for ref in ready:
                    self._land(ref)
        except (KeyboardInterrupt, EvaluationTimeout):
            willing = False
            raise
        finally:
            with uninterrupted():
                self._call_off(willing=willing)

    def _fill(self) -> bool:
        """Give the workers as much as they can take; whether there is anything left to give."""
        crew = self._crew
        if crew.latest is not self:  # a pass that ran out of time may live on in a thread of its own
            raise EvaluationTimeout("Another model is being scored by now.")
        if not crew.members:
            crew.wait_for_somebody()
        crew.muster()
        while True:
            member = min(crew.members, key=lambda one: len(one.has))
            if len(member.has) >= AHEAD:
                return True
            following = self._following()
            if following is None:
                return bool(self._again) or not self._over
            number, shard = following
            ref = getattr(member.actor, shard.method).remote(*shard.arguments)
            member.has.append(ref)
            self._flying[ref] = number, shard, member

    def _following(self) -> tuple[int, Shard] | None:
        if self._again:
            return heapq.heappop(self._again)
        if self._over or len(self._done) >= WINDOW * len(self._crew.members):
            return None
        following = next(self._shards, None)
        self._over = following is None
        return following

    def _land(self, ref: Any) -> None:
        import ray

        if ref not in self._flying:  # its worker was lost a moment ago
            return
        number, shard, member = self._flying[ref]
        try:
            seconds, answer = taken(ref)
        except (ray.exceptions.RayActorError, ray.exceptions.ObjectLostError) as error:
            self._lost(member, error)
            return
        del self._flying[ref]
        member.has.remove(ref)
        self._crew.note_pace(seconds, shard.size)
        self._parts[member.node.name] += shard.size
        self._crew.tell(self._parts)
        self._done[number] = answer

    def _lost(self, member: Member, error: Exception) -> None:
        """A worker is gone. What it was at counts as tried, what it had before it does not."""
        for place, ref in enumerate(member.has):
            number, shard, _ = self._flying.pop(ref)
            self._tries[number] += place == 0
            if self._tries[number] >= MOST_DEATHS:
                raise EvaluationError(
                    f"Scoring ended {plural(MOST_DEATHS, 'worker')} of the cluster at the same part of the "
                    f"data, one after the other: {summary(error)}"
                ) from error
            heapq.heappush(self._again, (number, shard))
        member.has.clear()
        self._crew.lose(member)

    def _call_off(self, *, willing: bool) -> None:
        """What is still under way is wanted no more. Those that do not come to an end soon are replaced."""
        import ray

        busy = {member for _, _, member in self._flying.values()}
        if not busy:
            return
        for ref in self._flying:
            with contextlib.suppress(Exception):  # it may be done by now
                ray.cancel(ref)
        self._flying.clear()
        for member in busy:
            member.has.clear()
        if willing:
            idle = {member.actor.idle.remote(): member for member in busy}
            _, late = ray.wait(list(idle), num_returns=len(idle), timeout=GRACE)
            busy = {idle[ref] for ref in late}
        self._crew.dismiss(busy)


def taken(ref: Any) -> Any:
    """What a worker has answered; what its code raised is raised here."""
    import ray

    try:
        with undisguised():
            return ray.get(ref)
    except ray.exceptions.RayTaskError as error:
        cause = error.cause
        if isinstance(cause, Exception) and not isinstance(cause, ray.exceptions.RayError):
            raise cause from None
        raise EvaluationError(f"A worker of the cluster failed: {summary(error)}") from error
