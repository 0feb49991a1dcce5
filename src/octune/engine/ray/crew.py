"""The workers of a run, and what they are given to do.

    crew = Crew(Wanted("auto"), note=study.note)
    crew.start(describe())                      # one worker on every node of this kind
    for found in crew.run(shards): ...          # in the order of the shards, whoever did them
    crew.close()

A worker that dies costs the shard it was at: another one does it again. Whoever closes the iterator of
:meth:`Crew.run` has seen enough, and what is still under way is called off.
"""

from __future__ import annotations

import contextlib
import logging
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from octune.engine.ray.kind import difference
from octune.engine.ray.nodes import Node, connect, disconnect, hire, nodes
from octune.engine.ray.rounds import Member, Rounds, Shard, taken
from octune.engine.ray.signals import undisguised
from octune.engine.ray.worker import Box
from octune.errors import ClusterError, summary

__all__ = ["TIMING", "Crew", "Wanted"]

log = logging.getLogger("octune")
TIMING = "octune_timing"  # the resource of a node where nothing but timing is done
LOOK_SECONDS = 5.0  # how often it is seen whether there are new nodes
STARTING = 60.0  # seconds that new workers get, and that a run waits for one after it has lost all


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which cluster, and how much of it: ``cpus`` for each worker (None: a node's); where speed is measured,
    and with how many ``threads`` (None: those of the node). At most this many ``workers`` score.
    """

    address: str = "auto"
    cpus: int | None = None
    timing: str = "driver"
    threads: int | None = None
    workers: int | None = None


class Crew:
    """All workers of one run. ``note`` is told what the user should know, ``told`` how many parts of an
    evaluation, calibration batches or ops each node has done.
    """

    def __init__(
        self,
        wanted: Wanted,
        note: Callable[[str], None] = lambda text: None,
        told: Callable[[Mapping[str, int]], None] = lambda done: None,
    ) -> None:
        self.wanted, self.note, self.told = wanted, note, told
        self.members: list[Member] = []
        self._recruits: dict[Any, Member] = {}  # by what they were asked: which kind of node they are on
        self._hired: Counter[str] = Counter()  # workers that each node has, or is to have
        self._unfit: set[str] = set()
        self._looked = -math.inf
        self._here: Mapping[str, Any] = {}
        self._connected: bool | None = None  # whether this has connected, and so must disconnect
        self.left_out: dict[str, str] = {}  # nodes that are not used, and why
        self.timer: Any = None
        self.timing_node: str | None = None  # its name
        self.rounds = Rounds(self)
        self.kinds: dict[str, Mapping[str, Any]] = {}

    # -- beginning and end -----------------------------------------------------------------------------------

    def start(self, here: Mapping[str, Any]) -> None:
        """Connect, and hire a worker on every node of this kind; ClusterError if there is none."""
        self._here = here
        self._connected = connect(self.wanted.address)
        self.muster(STARTING)
        if not self.members:
            reasons = "; ".join(f"{node}: {why}" for node, why in self.left_out.items())
            raise ClusterError(
                "No node of the cluster can score for this run. It needs nodes with the CPU class and the "
                f"library versions of the machine that tunes. {reasons or 'There are no nodes with CPUs.'}"
            )
        if self.wanted.timing == "node":
            self._hire_timer()

    def close(self) -> None:
        """Let everybody go, whatever they are at."""
        import ray

        if self._connected is None:
            return
        hired = [member.actor for member in (*self.members, *self._recruits.values())]
        for actor in [*hired, *([self.timer] if self.timer is not None else [])]:
            with contextlib.suppress(Exception):  # the cluster may be gone: there is nobody left to let go
                ray.kill(actor)
        self.members, self._recruits, self.timer = [], {}, None
        if self._connected:
            disconnect()
        self._connected = None

    def put(self, value: Any) -> Box:
        """Something for all workers, sent to each node once."""
        import ray

        return Box(ray.put(value))

    # -- who is there ----------------------------------------------------------------------------------------

    def muster(self, seconds: float = 0) -> None:
        """Hire on nodes that are new, and take in who has come: all of them, or as many as come in time."""
        import ray

        until = time.monotonic() + seconds
        while True:
            if time.monotonic() - self._looked > LOOK_SECONDS:
                self._look()
            if not self._recruits:
                return
            left = max(0.0, until - time.monotonic())
            with undisguised():
                ready, _ = ray.wait(list(self._recruits), num_returns=1, timeout=min(left, LOOK_SECONDS))
            if ready:
                self._meet(ready[0])
            elif left <= LOOK_SECONDS:
                return

    def _look(self) -> None:
        """Hire where there is room."""
        self._looked = time.monotonic()
        for node in nodes():
            if TIMING in node.resources or node.id in self._unfit:
                continue
            room = node.slots(self.wanted.cpus) - self._hired[node.id]
            for _ in range(max(0, min(room, self._wanting))):
                self._recruit(node)

    @property
    def _wanting(self) -> int:
        """How many more workers there may be."""
        most = self.wanted.workers
        return sys.maxsize if most is None else max(0, most - len(self.members) - len(self._recruits))

    def _recruit(self, node: Node) -> None:
        self._hired[node.id] += 1
        actor = hire(node, self.wanted.cpus)
        self._recruits[actor.describe.remote()] = Member(actor, node)

    def _meet(self, ref: Any) -> None:
        """Take a worker in, if what it scores can be compared with what is scored elsewhere."""
        import ray

        member = self._recruits.pop(ref)
        if member.node.id in self._unfit:
            ray.kill(member.actor)
            return
        try:
            kind = ray.get(ref)
            why = difference(self._here, kind)
        except ray.exceptions.RayError as error:
            why = f"a worker could not start there ({summary(error)})"
        if why:
            ray.kill(member.actor)
            self._unfit.add(member.node.id)
            self._looked = -math.inf  # others may take its place
            self.left_out[member.node.name] = why
            self.note(f"node {member.node.name} is not used: {why}")
            return
        self.kinds[member.node.name] = kind
        self.members.append(member)

    def _hire_timer(self) -> None:
        import ray

        chosen = next((node for node in nodes() if TIMING in node.resources), None)
        if chosen is None:
            raise ClusterError(
                f"engine.timing is node, and no node of the cluster has the resource {TIMING}. Start one "
                f"with: ray start --address=... --resources='{{\"{TIMING}\": 1}}'. Or leave engine.timing "
                "out: then this machine times."
            )
        self.timer = hire(chosen, None, {TIMING: 1}, self.wanted.threads)
        try:
            kind = ray.get(self.timer.describe.remote(), timeout=STARTING)
        except ray.exceptions.RayError as error:
            raise ClusterError(
                f"The timing node {chosen.name} gave no worker in {STARTING:g} s: {summary(error)}. Nothing "
                "else may run on it."
            ) from error
        if why := difference(self._here, kind):
            raise ClusterError(f"The timing node {chosen.name} cannot be used: {why}.")
        self.kinds[chosen.name] = kind
        self.timing_node = chosen.name

    def ask_timer(self, method: str, *arguments: Any) -> Any:
        """Have the node that times answer; the machine that tunes waits."""
        return taken(getattr(self.timer, method).remote(*arguments))

    def all(self, method: str, *arguments: Any) -> None:
        """Have all workers do something; what one of them raises is raised here."""
        import ray

        asked = {getattr(member.actor, method).remote(*arguments): member for member in self.members}
        for ref, member in asked.items():
            try:
                taken(ref)
            except ray.exceptions.RayActorError:
                self.lose(member)

    # -- what they do ----------------------------------------------------------------------------------------

    def run(self, shards: Iterable[Shard]) -> Generator[Any, None, None]:
        """What the workers answer, in the order of the shards."""
        return self.rounds.begin(shards).results()

    def tell(self, done: Mapping[str, int]) -> None:
        """How many parts each node has done."""
        self.told(done)

    def lose(self, member: Member) -> None:
        """A worker is gone: another one is hired in its place."""
        if member in self.members:
            self.members.remove(member)
        log.warning("a worker on %s is gone; what it was at is done again", member.node.name)
        self._hired[member.node.id] -= 1
        self._looked = -math.inf

    def dismiss(self, members: Iterable[Member]) -> None:
        """Stop workers that do not come to an end, and hire others."""
        import ray

        for member in list(members):
            with contextlib.suppress(Exception):  # it may be gone already
                ray.kill(member.actor)
            if member in self.members:
                self.members.remove(member)
            self._hired[member.node.id] -= 1
            self._looked = -math.inf

    def wait_for_somebody(self) -> None:
        """All workers are gone: wait for new ones; ClusterError if none come."""
        until = time.monotonic() + STARTING
        while not self.members:
            if time.monotonic() > until:
                raise ClusterError(
                    f"All workers of the cluster are gone, and none came back in {STARTING:g} s. What was "
                    "learned is in the journal: resume the run when the cluster is back, or with "
                    "engine: local."
                )
            self.muster(1.0)
