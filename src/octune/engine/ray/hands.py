"""Workers observe calibration batches and probe ops, each a part of them; ops are timed where speed is
measured.

study.survey.hands = RayHands(study)

What they find is what one process finds, to the bit: statistics of parts are merged in their order, and a
worker probes its ops among all the others, on the same samples, with as many threads as the driver has.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

from octune.calibration import Observed, Ranges
from octune.engine.hands import Hands
from octune.engine.ray.rounds import Shard
from octune.plan import Op, Scheme

if TYPE_CHECKING:
    from octune.engine.ray.study import RayStudy

__all__ = ["RayHands"]


class RayHands(Hands):
    """Those of a study and its crew. Before the crew has started, this process does the work."""

    def __init__(self, study: RayStudy) -> None:
        super().__init__(study.backend)
        self._study = study

    @property
    def timer(self) -> str:  # type: ignore[override]
        node = self._study.crew.timing_node
        return super().timer if node is None else f"the timing node {node}"

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
        shards = [
            Shard("harm", (study.parcel, study.prepared, study.boxed(ranges), asked, only), len(only))
            for only in self._shares(candidates, len(crew.members))
        ]
        values: dict[tuple[str, Scheme], float] = {}
        with closing(crew.run(shards)) as found:
            for part in found:
                values |= part
        return values

    def _shares(self, candidates: Mapping[str, Sequence[Scheme]], workers: int) -> list[list[str]]:
        """Names of ops, as much work for each worker: what is probed together stays together."""
        weights = {op.name: op.parameters + 1 for op in self.backend.ops()}

        def work(names: Sequence[str]) -> int:
            return sum(weights[name] * len(candidates[name]) for name in names)

        groups = self.backend.probed_together([name for name in candidates if candidates[name]])
        shares: list[tuple[int, int, list[str]]] = [(0, number, []) for number in range(max(1, workers))]
        for group in sorted(groups, key=work, reverse=True):
            load, number, names = heapq.heappop(shares)
            heapq.heappush(shares, (load + work(group), number, [*names, *group]))
        return [names for _, _, names in sorted(shares, key=lambda share: share[1]) if names]

    def costs(self, ops: Sequence[Op], ranges: Ranges) -> dict[tuple[str, Scheme], float]:
        study = self._study
        if study.crew.timing_node is None:
            return super().costs(ops, ranges)
        found: dict[tuple[str, Scheme], float] = study.crew.ask_timer(
            "costs", study.parcel, study.prepared, study.boxed(ranges), ops
        )
        return found
