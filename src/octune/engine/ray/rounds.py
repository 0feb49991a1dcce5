"""Passes of a crew over shards of work: who has which, what comes back, and what is done again.

rounds = Rounds(crew)
for found in rounds.begin(shards).results(): ...        # in the order of the shards

One pass goes on for each model that is scored at the same time. A worker keeps to the model that it has made,
as long as there is work for that one; then it goes to the one that was asked for first.
"""

from __future__ import annotations

import contextlib
import heapq
import math
import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

from octune.engine.ray.nodes import Node
from octune.engine.ray.said import cause
from octune.engine.ray.signals import undisguised, uninterrupted
from octune.errors import EvaluationError, EvaluationTimeout, plural, summary

if TYPE_CHECKING:
    from octune.engine.ray.crew import Crew

__all__ = ["AHEAD", "LARGEST", "SHARD_SECONDS", "Member", "Round", "Rounds", "Shard", "taken"]

GRACE = 5.0  # seconds that a worker gets to finish a shard that was called off
AHEAD = 2  # shards that a worker has: one under way, and the next, so that it need not wait for it
WINDOW = 8  # shards for each worker that may be done before their turn
MOST_DEATHS = 3  # workers that one shard may take along, before it is taken for the cause
SHARD_SECONDS = 0.25  # long against the millisecond that sending one takes, short against an evaluation
LARGEST = 1024


@dataclass(frozen=True, slots=True)
class Shard:
    """One call of a worker's method, which returns seconds and an answer; ``size`` is how much it does."""

    method: str
    arguments: tuple[Any, ...]
    size: int


@dataclass(eq=False)
class Member:
    """One worker, and what it has to do: the first of it is under way. ``model`` is what it was at last."""

    actor: Any
    node: Node
    has: list[Any] = field(default_factory=list)
    model: Any = None


@dataclass(frozen=True, slots=True)
class _Errand:
    """A shard that a worker has. Without a round it was called off and is being finished."""

    member: Member
    round: Round | None = None
    number: int = 0
    shard: Shard | None = None


class Round:
    """One pass over shards, all of the same ``model``."""

    def __init__(self, rounds: Rounds, shards: Iterable[Shard], model: Any) -> None:
        self.model = model
        self.out = 0  # shards that workers have
        self.closed = False
        self._rounds = rounds
        self._shards = zip(count(), shards)  # numbered
        self._again: list[tuple[int, Shard]] = []  # those whose worker is gone: they come first
        self._done: dict[int, Any] = {}
        self._failed: dict[int, Exception] = {}
        self._broken: Exception | None = None
        self._tries: Counter[int] = Counter()
        self._due = 0
        self._over = False
        self._pace: float | None = None  # seconds for one part of a shard

    def results(self, wait: Callable[[Round], None] | None = None) -> Generator[Any, None, None]:
        """What the workers answer, in the order of the shards. ``wait`` returns when there may be something
        new; left out, the workers are given work here.
        """
        willing = True  # whether the workers may come to an end with what they are at
        try:
            while not self._ended:
                while self._due in self._done:
                    self._due += 1
                    yield self._done.pop(self._due - 1)
                if self._due in self._failed:
                    raise self._failed[self._due]
                if self._broken is not None:
                    raise self._broken
                if self.closed:  # it ran out of time, and lives on in a thread of its own
                    raise EvaluationTimeout("Another model is being scored by now.")
                if not self._ended:
                    (wait or self._step)(self)
        except (KeyboardInterrupt, EvaluationTimeout):
            willing = False
            raise
        finally:
            with uninterrupted():
                self._rounds.close(self, willing=willing)

    def _step(self, _: Round) -> None:
        self._rounds.step()

    @property
    def _ended(self) -> bool:
        return self._over and not (self._again or self.out or self._done or self._failed)

    @property
    def ready(self) -> bool:
        """Whether who waits for the next answer need not wait any more."""
        due = self._due in self._done or self._due in self._failed
        return due or self._ended or self.closed or self._broken is not None

    def parts_each(self, left: int = 0) -> int:
        """How many parts of the work make a shard of the right length; fewer at the end, where ``left`` is
        known: all workers are to come to it at the same time.
        """
        if self._pace is None:
            return 1
        each = min(LARGEST, round(SHARD_SECONDS / max(self._pace, 1e-6)))
        fair = math.ceil(left / (AHEAD * max(1, self._rounds.workers))) if left > 0 else each
        return max(1, min(each, fair))

    # -- for the workers -------------------------------------------------------------------------------------

    def following(self, most: int) -> tuple[int, Shard] | None:
        """What is to be done next, if no more than ``most`` wait for their turn."""
        if self._again:
            return heapq.heappop(self._again)
        if self._over or len(self._done) >= most:
            return None
        following = next(self._shards, None)
        self._over = following is None
        return following

    def answered(self, number: int, size: int, seconds: float, answer: Any) -> None:
        """How a shard was answered, and how long that took."""
        each = seconds / max(1, size)
        self._pace = each if self._pace is None else 0.7 * self._pace + 0.3 * each
        self._done[number] = answer

    def failed(self, number: int, error: Exception) -> None:
        """What a shard was answered is an error: it counts when it is its turn, as on one machine."""
        self._failed[number] = error

    def lost(self, number: int, shard: Shard, error: Exception | None) -> None:
        """A worker is gone that had this shard; ``error`` says how, if it was at it."""
        self._tries[number] += error is not None
        if error is not None and self._tries[number] >= MOST_DEATHS:
            self._broken = EvaluationError(
                f"The same part of the work ended {plural(MOST_DEATHS, 'worker')} of the cluster, one after "
                f"the other: {summary(error)}"
            )
        heapq.heappush(self._again, (number, shard))


class Rounds:
    """All passes that a crew is at."""

    def __init__(self, crew: Crew) -> None:
        self._crew = crew
        self._open: list[Round] = []
        self._out: dict[Any, _Errand] = {}
        self._parts: Counter[str] = Counter()
        self._lock = threading.RLock()  # a pass that ran out of time may live on in a thread of its own

    @property
    def workers(self) -> int:
        """How many there are."""
        return len(self._crew.members)

    def begin(self, shards: Iterable[Shard], model: Any = None, *, alone: bool = True) -> Round:
        """A new pass. If it is ``alone``, those before it are called off."""
        with self._lock:
            for other in [*self._open] if alone else ():
                self.close(other, willing=False)
            if not self._open:
                self._parts.clear()
                for member in self._crew.members:  # a time limit may have struck anywhere
                    member.has = [ref for ref in member.has if ref in self._out]
            begun = Round(self, shards, model)
            self._open.append(begun)
            return begun

    def step(self) -> bool:
        """Give the workers what they can take, and wait a moment for what they answer; False if there is
        nothing to wait for.
        """
        import ray

        with self._lock:
            self._fill()
            if not self._out:
                return False
            with undisguised():
                ready, _ = ray.wait(list(self._out), num_returns=1, timeout=1.0)
            for ref in ready:
                self._land(ref)
            return True

    def close(self, done: Round, *, willing: bool) -> None:
        """Nobody waits for this pass any more. What is under way is called off; workers that are not to come
        to an end with it are replaced.
        """
        import ray

        with self._lock:
            if done not in self._open:
                return
            self._open.remove(done)
            done.closed = True
            unwanted = {ref: errand.member for ref, errand in self._out.items() if errand.round is done}
            for ref, member in unwanted.items():
                with contextlib.suppress(Exception):  # it may be done by now
                    ray.cancel(ref)
                del self._out[ref]
                member.has.remove(ref)
            busy = set(unwanted.values())
            if not willing:
                self._dismiss(busy)
                return
            for member in busy:
                idle = member.actor.idle.remote()
                member.has.append(idle)
                self._out[idle] = _Errand(member)
            if not self._open:
                self.settle()

    def settle(self) -> None:
        """Wait until no worker is busy with what was called off. Those that take too long are replaced."""
        import ray

        with self._lock:
            idle = [ref for ref, errand in self._out.items() if errand.round is None]
            if not idle:
                return
            with undisguised():
                ready, late = ray.wait(idle, num_returns=len(idle), timeout=GRACE)
            for ref in ready:
                self._land(ref)
            self._dismiss({self._out[ref].member for ref in late if ref in self._out})

    def _fill(self) -> None:
        crew = self._crew
        if not crew.members:
            crew.wait_for_somebody()
        crew.muster()
        while True:
            member = min(crew.members, key=lambda one: len(one.has))
            found = self._following(member) if len(member.has) < AHEAD else None
            if found is None:
                return
            begun, number, shard = found
            ref = getattr(member.actor, shard.method).remote(*shard.arguments)
            member.has.append(ref)
            member.model = begun.model
            begun.out += 1
            self._out[ref] = _Errand(member, begun, number, shard)
            if member.node.name not in self._parts:  # what is under way is seen before it is done
                self._parts[member.node.name] = 0
                crew.tell(self._parts)

    def _following(self, member: Member) -> tuple[Round, int, Shard] | None:
        """What a worker does next: more of what it is at, or else what was asked for first."""
        most = WINDOW * len(self._crew.members)
        for begun in sorted(self._open, key=lambda one: one.model != member.model):
            if (following := begun.following(most)) is not None:
                return begun, *following
        return None

    def _land(self, ref: Any) -> None:
        import ray

        errand = self._out.get(ref)
        if errand is None:  # its worker was lost a moment ago
            return
        found, failure = None, None
        try:
            found = taken(ref)
        except (ray.exceptions.RayActorError, ray.exceptions.ObjectLostError) as error:
            self._lost(errand.member, error)
            return
        except Exception as error:
            failure = error
        del self._out[ref]
        errand.member.has.remove(ref)
        begun, shard = errand.round, errand.shard
        if begun is None or shard is None:
            return
        begun.out -= 1
        if found is None:
            begun.failed(errand.number, failure or EvaluationError("A worker gave no answer."))
            return
        begun.answered(errand.number, shard.size, *found)
        self._parts[errand.member.node.name] += shard.size
        self._crew.tell(self._parts)

    def _lost(self, member: Member, error: Exception | None) -> None:
        """A worker is gone. What it was at counts as tried, what it had before it does not."""
        for place, ref in enumerate(member.has):
            errand = self._out.pop(ref, None)
            if errand is not None and errand.round is not None and errand.shard is not None:
                errand.round.out -= 1
                errand.round.lost(errand.number, errand.shard, error if place == 0 else None)
        member.has.clear()
        if error is not None:
            self._crew.lose(member)

    def _dismiss(self, members: set[Member]) -> None:
        for member in members:
            self._lost(member, None)
        self._crew.dismiss(members)


def taken(ref: Any) -> Any:
    """What a worker has answered; what its code raised is raised here."""
    import ray

    try:
        with undisguised():
            return ray.get(ref)
    except ray.exceptions.RayTaskError as error:
        raised = error.cause
        if isinstance(raised, Exception) and not isinstance(raised, ray.exceptions.RayError):
            raise raised from None
        raise EvaluationError(f"A worker of the cluster failed: {cause(error)}") from error
