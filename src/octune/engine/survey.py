"""The stages that look at a model before a plan is scored: ranges, harm and cost of its ops, without labels.

    ranges = study.survey.calibrate(batches, samples=128)
    study.survey.harm(ops, ranges, batches)

Every answer goes to the journal, and one that is there already is not asked for again.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from octune.backends import example
from octune.backends.base import Backend
from octune.calibration import Ranges, merged
from octune.coverage import Work
from octune.data import Batches
from octune.engine.apart import Apart
from octune.engine.clock import Clock
from octune.engine.events import Listener
from octune.engine.hands import Hands
from octune.engine.journal import EXAMPLE, RANGES, Journal
from octune.engine.stopwatch import Stopwatch
from octune.errors import UnsupportedError, WorkspaceError, summary
from octune.harm import WORST, PlanProbe
from octune.plan import Op, Scheme

__all__ = ["Survey", "kept_example", "kept_ranges"]

log = logging.getLogger("octune")
# What is run to see how far outputs move: for whole plans, and for every op and scheme by itself.
LOOK_SAMPLES, PROBE_SAMPLES = 16, 8


@dataclass
class Survey:
    """What can be learned of a model without scoring it. ``ranges`` are those seen so far, by the number of
    samples that they come from.
    """

    backend: Backend
    journal: Journal
    listener: Listener
    clock: Clock
    stopwatch: Stopwatch
    apart: Apart
    ranges: dict[int, Ranges] = field(default_factory=dict)
    work: Work | None = None
    prepared: Any = None  # the batch that the backend was prepared with, if there was one
    batches: Batches | None = None  # those of calibration

    def __post_init__(self) -> None:
        self.hands = Hands(self.backend)

    def prepare(self, batches: Batches | None) -> None:
        """Let the backend get ready for plans on a first batch, if there is one."""
        self.batches = batches
        inputs = self.stopwatch.example if batches is None else next(self._samples(batches, 1), None)
        if inputs is not None:
            self.clock.enter("prepare", "getting the model ready on a first batch")
            self.backend.prepare(inputs)
            if self.journal.kept(EXAMPLE) is None and (content := example.to_bytes(inputs)) is not None:
                self.journal.keep(EXAMPLE, content)
            self.prepared = inputs

    def count(self, batches: Batches | None) -> None:
        """Learn how many multiply-adds each op is, and what else computes, on a first batch."""

        def counted() -> dict[str, Any] | None:
            inputs = self.stopwatch.example if batches is None else next(self._samples(batches, 1), None)
            if inputs is None:
                return None
            try:
                work = self.backend.work(inputs)
            except Exception as error:  # a run does not fail for want of a number
                log.debug("work", exc_info=True)
                self.listener.note(
                    f"multiply-adds could not be counted: {type(error).__name__}: {summary(error)}"
                )
                return None
            return None if work is None else work.to_json()

        answer = self.journal.once("work", {}, counted)
        with self.journal.understood():
            self.work = None if answer is None else Work.from_json(answer)

    def calibrate(self, batches: Batches | None, samples: int) -> Ranges:
        """One streaming pass over about ``samples`` samples; constant memory, whatever their number. Without
        data: no ranges.
        """
        ranges = self._observe(batches, samples) if batches is not None else Ranges()
        self.ranges[ranges.samples] = ranges
        return ranges

    def _observe(self, batches: Batches, samples: int) -> Ranges:
        known = kept_ranges(self.journal, samples)
        if known is not None:
            return known
        self.clock.enter("calibration", f"observing activations on about {samples} samples")
        there = self._there(batches, samples)
        ranges = merged(self.hands.observed(self._samples(batches, samples), there), samples)
        self.journal.keep(_ranges_name(self.journal, samples), ranges.to_bytes(), samples=samples)
        return ranges

    def _there(self, batches: Batches, samples: int) -> int:
        """How many of this many samples there are, as far as that is known."""
        if batches.count is None or self.prepared is None:
            return samples
        return min(samples, batches.count * self.backend.batch_size(self.prepared))

    def _samples(self, batches: Batches, samples: int) -> Iterator[Any]:
        seen = 0
        for batch in batches:
            for inputs in self.backend.parts(self.backend.split(batch)[0]):
                yield inputs
                seen += self.backend.batch_size(inputs)
                if seen >= samples:
                    return

    def _few(self, batches: Batches | None, samples: int) -> list[Any]:
        """A few inputs to run without labels."""
        if batches is not None:
            return list(islice(self._samples(batches, samples), samples))
        return [] if self.stopwatch.example is None else [self.stopwatch.example]

    def some(self) -> list[Any]:
        """Inputs to see with whether two models answer the same: what is timed, and a few of calibration."""
        example = [] if self.stopwatch.example is None else [self.stopwatch.example]
        return example + ([] if self.batches is None else self._few(self.batches, LOOK_SAMPLES))

    def ops(self, ops: Sequence[Op], ranges: Ranges) -> None:
        """Note which ops there are to choose schemes for."""
        self.journal.once(
            "ops",
            {"samples": ranges.samples},
            lambda: [
                {"name": op.name, "kind": op.kind, "parameters": op.parameters, "note": op.note} for op in ops
            ],
        )

    def plan_probe(self, ranges: Ranges, batches: Batches | None) -> PlanProbe | None:
        """Measures the label-free harm of whole plans; None without anything to run."""
        inputs = self._few(batches, LOOK_SAMPLES)
        return PlanProbe(self.backend, ranges, inputs, self.journal, self.apart.plan_harm) if inputs else None

    def harm(
        self, ops: Sequence[Op], ranges: Ranges, batches: Batches | None
    ) -> dict[tuple[str, Scheme], float]:
        """Label-free harm of every op in every scheme, on a few calibration batches."""

        def probed() -> list[list[Any]]:
            choices = sum(scheme.dtype != "fp32" for op in ops for scheme in op.schemes)
            self.clock.enter("harm", f"probing {choices} choices without labels")
            return self.apart.of_ops("harm", ops, ranges, lambda: self.harms(ops, ranges, batches))

        ops = self.sound(ops)
        answer = self.journal.once("harm", {"samples": ranges.samples}, probed)
        with self.journal.understood():
            harms = _restore(answer)
        self.listener.harm(harms)
        return harms

    def harms(self, ops: Sequence[Op], ranges: Ranges, batches: Batches | None) -> list[list[Any]]:
        """Probe them, whoever it is that does it: rows of op, scheme and harm."""
        candidates = {op.name: [s for s in op.schemes if s.dtype != "fp32"] for op in ops}
        inputs = self._few(batches, PROBE_SAMPLES)
        values = self.hands.harm(candidates, ranges, inputs) if inputs else {}
        found = {(op, s): values[op, s] for op in candidates for s in candidates[op] if (op, s) in values}
        # An output that is infinite or NaN is the worst there is; neither can be ranked, or journalled.
        return _flatten(
            {key: min(value, WORST) if math.isfinite(value) else WORST for key, value in found.items()}
        )

    def cost(self, ops: Sequence[Op], ranges: Ranges) -> dict[tuple[str, Scheme], float]:
        """Measured milliseconds of every op in every scheme."""

        def timed() -> list[list[Any]]:
            self.clock.enter("cost", f"timing ops on {self.hands.timer}")
            return self.apart.of_ops("cost", ops, ranges, lambda: self.costs(ops, ranges))

        ops = self.sound(ops)
        answer = self.journal.once("cost", {"samples": ranges.samples}, timed)
        with self.journal.understood():
            costs = _restore(answer)
        self.stopwatch.costs = costs
        return costs

    def costs(self, ops: Sequence[Op], ranges: Ranges) -> list[list[Any]]:
        """Time them: rows of op, scheme and milliseconds."""
        return _flatten(self.hands.costs(ops, ranges))

    def sound(self, ops: Sequence[Op]) -> tuple[Op, ...]:
        """The ops, of which those that have ended a process by themselves can only be fp32."""
        with self.journal.understood():
            crashed = {str(record["op"]): str(record["why"]) for record in self.journal.records("crashed")}
        for op in ops:
            if op.name in crashed and not op.can("fp32"):
                raise UnsupportedError(
                    f"quantization.ops wants {op.name!r} in {op.schemes[0]}, and that cannot run here: "
                    f"{crashed[op.name]}. Leave the op out of quantization.ops."
                )
        return tuple(op.in_fp32(crashed[op.name]) if op.name in crashed else op for op in ops)


def kept_example(journal: Journal, backend: Backend) -> Any:
    """The batch that the run has got its model ready on, if it was kept and can be read; else None."""
    content = journal.kept(EXAMPLE)
    if content is None or journal.folder is None:
        return None
    try:
        return backend.restored(example.from_bytes(content, journal.folder / EXAMPLE))
    except Exception as error:  # inputs that can be read may still be none of this model's
        log.warning("%s in %s cannot be read: %s", EXAMPLE, journal.folder, summary(error))
        return None


def kept_ranges(journal: Journal, samples: int) -> Ranges | None:
    """The ranges of that many samples that the run has kept, if they can be read."""
    name = _ranges_name(journal, samples)
    content = journal.kept(name)
    if content is None or journal.folder is None:
        return None
    try:
        ranges = Ranges.from_bytes(content, journal.folder / name)
    except WorkspaceError as error:
        log.warning("%s Calibrating again.", error)
        return None
    return ranges if ranges.samples == samples else None


def _ranges_name(journal: Journal, samples: int) -> str:
    """The file of the ranges of that many samples: those of the first calibration have the plain name."""
    with journal.understood():
        names: dict[int, str] = {
            kept["samples"]: Path(kept["name"]).name for kept in journal.records("kept") if "samples" in kept
        }
    return names.get(samples, RANGES.replace(".", f"-{samples}.") if names else RANGES)


def _flatten(values: dict[tuple[str, Scheme], float]) -> list[list[Any]]:
    return [[op, scheme.to_json(), value] for (op, scheme), value in values.items()]


def _restore(rows: list[list[Any]]) -> dict[tuple[str, Scheme], float]:
    return {(op, Scheme.from_json(scheme)): value for op, scheme, value in rows}
