"""Workers observe calibration batches and probe ops, each a part of them; the nodes that time share out ops.

study.survey.hands = RayHands(study)

What they find is what one process finds, to the bit: statistics of parts are merged in their order, and a
worker probes its ops among all the others, on the same samples, with as many threads as the driver has. All
schemes of an op are timed on one node, and so are all ops that take the same time.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, TypeVar

from octune.calibration import Observed, Ranges
from octune.cost.table import alike
from octune.engine.hands import Hands
from octune.engine.ray.rounds import Shard
from octune.plan import Op, Scheme

if TYPE_CHECKING:
    from octune.engine.ray.study import RayStudy

__all__ = ["RayHands", "shared_out"]

T = TypeVar("T")


class RayHands(Hands):
    """Those of a study and its crew. Before the crew has started, this process does the work."""

    def __init__(self, study: RayStudy) -> None:
        super().__init__(study.backend)
        self._study = study

    @property
    def timer(self) -> str:  # type: ignore[override]
        timers = self._study.timers
        if timers is None:
            return super().timer
        names = sorted(member.node.name for member in timers.members)
        return f"the timing node{'s' * (len(names) > 1)} {' and '.join(names)}"

    def observed(self, inputs: Iterable[Any], samples: int) -> Iterator[Observed]:
        study, crew = self._study, self._study.crew
        if study.parcel is None:
            yield from super().observed(inputs, samples)
            return
        each = samples / max(1, len(crew.members))
        shards = (
            Shard("observed", (study.parcel, study.prepared, part), len(part))
            for part in self._cut(inputs, each)
        )
        with closing(crew.run(shards)) as found:
            yield from found

    def _cut(self, inputs: Iterable[Any], each: float) -> Iterator[list[Any]]:
        """Inputs in parts of about this many samples."""
        part: list[Any] = []
        seen, due = 0, each
        for batch in inputs:
            part.append(batch)
            seen += self.backend.batch_size(batch)
            if seen >= due:
                yield part
                part, due = [], max(due + each, seen)
        if part:
            yield part

    def harm(
        self, candidates: Mapping[str, Sequence[Scheme]], ranges: Ranges, inputs: Sequence[Any]
    ) -> dict[tuple[str, Scheme], float]:
        study, crew = self._study, self._study.crew
        if study.parcel is None:
            return super().harm(candidates, ranges, inputs)
        asked = crew.put((candidates, list(inputs)))
        sizes = {op.name: op.parameters + 1 for op in self.backend.ops()}
        groups = self.backend.probed_together([name for name in candidates if candidates[name]])
        shards = [
            Shard("harm", (study.parcel, study.prepared, study.boxed(ranges), asked, only), len(only))
            for only in shared_out(
                groups, len(crew.members), lambda name: sizes[name] * len(candidates[name])
            )
        ]
        values: dict[tuple[str, Scheme], float] = {}
        with closing(crew.run(shards)) as found:
            for part in found:
                values |= part
        return values

    def costs(self, ops: Sequence[Op], ranges: Ranges) -> dict[tuple[str, Scheme], float]:
        study, timers = self._study, self._study.timers
        if timers is None:
            return super().costs(ops, ranges)
        groups = alike(ops, ranges)
        firsts = {group[0].name for group in groups}  # the others of a group are not timed
        shards = [
            Shard("costs", (study.parcel, study.prepared, study.boxed(ranges), part), len(part))
            for part in shared_out(
                groups,
                len(timers.members),
                lambda op: (op.parameters + 1) * len(op.schemes) if op.name in firsts else 0,
            )
        ]
        values: dict[tuple[str, Scheme], float] = {}
        with closing(timers.run(shards)) as found:
            for part in found:
                values |= part
        return {key: values[key] for op in ops for s in op.schemes if (key := (op.name, s)) in values}


def shared_out(groups: Iterable[Sequence[T]], workers: int, work: Callable[[T], int]) -> list[list[T]]:
    """Members of groups, as much work for each worker; a group stays together."""

    def load(group: Sequence[T]) -> int:
        return sum(work(one) for one in group)

    shares: list[tuple[int, int, list[T]]] = [(0, number, []) for number in range(max(1, workers))]
    for group in sorted(groups, key=load, reverse=True):
        least, number, members = heapq.heappop(shares)
        heapq.heappush(shares, (least + load(group), number, [*members, *group]))
    return [members for _, _, members in sorted(shares, key=lambda share: share[1]) if members]
