"""The workers of a run, and what they are given to do.

    crew = Crew(Wanted("auto"), note=study.note)
    crew.start(describe())                      # one worker on every node of this kind
    for found in crew.run(shards): ...          # in the order of the shards, whoever did them
    crew.close()

Those that time are a crew of their own, on nodes where nothing else runs: ``Wanted("auto", timing=True)``.
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
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from octune.engine.ray.kind import difference
from octune.engine.ray.nodes import Node, connect, disconnect, hire, nodes
from octune.engine.ray.rounds import Member, Rounds, Shard, taken
from octune.engine.ray.said import cause
from octune.engine.ray.signals import undisguised
from octune.engine.ray.worker import Box
from octune.engine.timed_on import TimedOn
from octune.errors import ClusterError

__all__ = ["TIMING", "Crew", "Wanted"]

log = logging.getLogger("octune")
TIMING = "octune_timing"  # the resource of nodes where nothing but timing is done
LOOK_SECONDS = 5.0  # how often it is seen whether there are new nodes
STARTING = 60.0  # seconds that new workers get, and that a run waits for one after it has lost all


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which cluster, and how much of it: ``cpus`` for each worker (None: a node's), and at most this many
    ``workers``. Those for ``timing`` have a node to themselves each, and this many ``threads`` (None: a
    node's).
    """

    address: str = "auto"
    cpus: int | None = None
    workers: int | None = None
    timing: bool = False
    threads: int | None = None


class Crew:
    """All workers of one run that score, or that time. ``note`` is told what the user should know, ``told``
    how many parts of an evaluation, calibration batches or ops each node has done.
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
        self.rounds = Rounds(self)
        self.kinds: dict[str, Mapping[str, Any]] = {}
        # Of those that time: the CPU and the threads of all speeds of the run. The first of them says which,
        # if no earlier process of the run has.
        self.timed_on: TimedOn | None = None

    # -- beginning and end -----------------------------------------------------------------------------------

    def start(self, here: Mapping[str, Any]) -> None:
        """Connect, and hire a worker on every node of this kind; ClusterError if there is none."""
        self._here = here
        self._connected = connect(self.wanted.address)
        self.muster(STARTING)
        if not self.members:
            raise ClusterError(self._nobody())

    def _nobody(self) -> str:
        """Why there are no workers at all."""
        reasons = "; ".join(f"{node}: {why}" for node, why in self.left_out.items())
        if not self.wanted.timing:
            return (
                "No node of the cluster can score for this run. It needs nodes with the CPU class and the "
                f"library versions of the machine that tunes. {reasons or 'There are no nodes with CPUs.'}"
            )
        if reasons:
            return f"engine.timing is node, and no node with the resource {TIMING} can be used. {reasons}"
        if any(TIMING in node.resources for node in nodes()):
            return (
                f"The nodes with the resource {TIMING} gave no worker in {STARTING:g} s. Nothing else may "
                "run on them."
            )
        return (
            f"engine.timing is node, and no node of the cluster has the resource {TIMING}. Start one with: "
            f"ray start --address=... --resources='{{\"{TIMING}\": 1}}'. Or leave engine.timing out: then "
            "this machine times."
        )

    def close(self) -> None:
        """Let everybody go, whatever they are at."""
        import ray

        if self._connected is None:
            return
        hired = [member.actor for member in (*self.members, *self._recruits.values())]
        for actor in hired:
            with contextlib.suppress(Exception):  # the cluster may be gone: there is nobody left to let go
                ray.kill(actor)
        self.members, self._recruits = [], {}
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
            if (TIMING in node.resources) != self.wanted.timing or node.id in self._unfit:
                continue
            slots = 1 if self.wanted.timing else node.slots(self.wanted.cpus)
            room = slots - self._hired[node.id]
            for _ in range(max(0, min(room, self._wanting))):
                self._recruit(node)

    @property
    def _wanting(self) -> int:
        """How many more workers there may be."""
        most = self.wanted.workers
        return sys.maxsize if most is None else max(0, most - len(self.members) - len(self._recruits))

    def _recruit(self, node: Node) -> None:
        self._hired[node.id] += 1
        alone = {TIMING: 1} if self.wanted.timing else None
        actor = hire(node, self.wanted.cpus, alone, self.wanted.threads)
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
            why = difference(self._here, kind) or self._times_otherwise(kind)
        except ray.exceptions.RayError as error:
            why = f"a worker could not start there ({cause(error)})"
        if why:
            ray.kill(member.actor)
            self._unfit.add(member.node.id)
            self._looked = -math.inf  # others may take its place
            self.left_out[member.node.name] = why
            self.note(f"node {member.node.name} is not used: {why}")
            return
        self.kinds[member.node.name] = kind
        self.members.append(member)

    def _times_otherwise(self, kind: Mapping[str, Any]) -> str:
        """Why what is timed there cannot be compared with what is timed elsewhere; empty if it can, and for
        those that do not time.
        """
        if not self.wanted.timing:
            return ""
        there = TimedOn(kind["cpu"], len(kind["cores"]))
        self.timed_on = self.timed_on or there
        same = there == self.timed_on
        return "" if same else f"it times on {there}, and the speeds of this run are of {self.timed_on}"

    def ask(self, method: str, *arguments: Any) -> Any:
        """Have any one of them answer; if it dies at that, another one does."""
        with closing(self.run([Shard(method, arguments, 1)])) as found:
            return next(found)

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
        these = "All nodes that time" if self.wanted.timing else "All workers of the cluster"
        while not self.members:
            if time.monotonic() > until:
                raise ClusterError(
                    f"{these} are gone, and none came back in {STARTING:g} s. What was learned is in the "
                    "journal: resume the run when the cluster is back, or with engine: local."
                )
            self.muster(1.0)
