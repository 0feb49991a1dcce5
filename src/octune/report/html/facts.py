"""What the evidence of a run says, in the form that the sections of a report ask for it.

facts = Facts.of(evidence)
facts.state                         # "met", "not met", "running", "stopped" or "failed"
facts.harms["layer.query", Scheme.int8()]
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import psutil

from octune.coverage import Coverage
from octune.engine.journal import Journal
from octune.errors import WorkspaceError
from octune.evidence import Evidence
from octune.plan import Plan, Scheme
from octune.replay import retold
from octune.result import Result, Trial

__all__ = ["Facts", "OpFacts", "State"]

State = Literal["met", "not met", "running", "stopped", "failed"]
Values = Mapping[tuple[str, Scheme], float]


@dataclass(frozen=True, slots=True)
class OpFacts:
    """One op as the journal knows it."""

    name: str
    kind: str
    parameters: int = 0
    note: str = ""


@dataclass(frozen=True)
class Facts:
    """The facts of one run; ``result`` is None as long as fp32 has not been scored."""

    evidence: Evidence
    result: Result | None

    @classmethod
    def of(cls, evidence: Evidence, result: Result | None = None) -> Facts:
        """The facts of a run, with its result if that is known already."""
        if result is None:
            try:
                result = retold(evidence)
            except WorkspaceError:  # fp32 has no score yet: there are other things to tell
                result = None
        return cls(evidence, result)

    @property
    def journal(self) -> Journal:
        return self.evidence.journal

    @cached_property
    def start(self) -> Mapping[str, Any]:
        """What must be equal for the run to be continued: model, criterion, strategy, seed, ..."""
        return self.journal.last("start") or {}

    @cached_property
    def run(self) -> Mapping[str, Any]:
        """The last process that worked on it: its command, machine and versions."""
        return self.journal.last("run") or {}

    @cached_property
    def environment(self) -> Mapping[str, Any]:
        known: Mapping[str, Any] = self.run.get("environment", {})
        return known or (self.result.environment if self.result else {})

    @property
    def metric(self) -> str:
        """What scores are scores of."""
        return str(self.start.get("evaluation", {}).get("by", "score"))

    @cached_property
    def ended(self) -> bool:
        return self.journal.last("result") is not None

    @cached_property
    def state(self) -> State:
        """How the run stands."""
        if self.ended and self.result is not None:
            return "met" if self.result.met else "not met"
        if self.journal.ended_by_error is not None:
            return "failed"
        return "running" if self._alive else "stopped"

    @property
    def _alive(self) -> bool:
        if self.run.get("host") != socket.gethostname():
            return False
        try:
            # A process that began after the run did only has its number.
            return bool(psutil.Process(self.run["pid"]).create_time() <= self.run["at"] + 1)
        except psutil.Error:
            return False

    @cached_property
    def harms(self) -> Values:
        """The label-free harm of every op in every scheme."""
        return _values(self.journal.last("harm"))

    @cached_property
    def costs(self) -> Values:
        """Milliseconds of every op in every scheme, timed alone; empty where size is the objective."""
        return _values(self.journal.last("cost"))

    @cached_property
    def plan_harms(self) -> Mapping[str, float]:
        """The label-free harm of whole plans, by the digest of what is not fp32."""
        return {record["plan"]: record["answer"] for record in self.journal.records("plan harm")}

    def plan_harm(self, plan: Plan) -> float | None:
        """What a plan was predicted to do: measured as a whole, or the sum of its ops."""
        changed = Plan({op: scheme for op, scheme in plan.items() if scheme.dtype != "fp32"})
        if changed.digest in self.plan_harms:
            return self.plan_harms[changed.digest]
        known = [self.harms.get(item) for item in changed.items()]
        return sum(harm for harm in known if harm is not None) if known and None not in known else None

    @cached_property
    def ops(self) -> tuple[OpFacts, ...]:
        """All ops, in the order of the model."""
        recorded = self.journal.last("ops")
        if recorded is not None:
            return tuple(OpFacts(**op) for op in recorded["answer"])
        # Journals of earlier versions have the ops in the result alone.
        ops = self.result.ops if self.result else ()
        return tuple(OpFacts(op.name, op.kind, op.parameters, op.note) for op in ops)

    @cached_property
    def shown(self) -> Trial | None:
        """The quantized trial whose plan is told op by op: the one handed over, else the fastest that passed,
        else the closest.
        """
        if self.result is None:
            return None
        if self.result.best.form != "fp32":
            return self.result.best
        passing = [trial for trial in self.result.trials if trial.passed]
        if passing:
            return max(passing, key=lambda trial: trial.speedup or 0.0)
        scored = [trial for trial in self.result.trials if trial.verdict is not None]
        return min(scored, key=lambda trial: trial.verdict.drop if trial.verdict else 0.0, default=None)

    @cached_property
    def coverage(self) -> Coverage | None:
        """Which share of the multiply-adds is int8 in the plan that is shown."""
        result, trial = self.result, self.shown
        if result is None or result.work is None or trial is None:
            return None
        kept = result.kept if trial is result.best else {}
        return Coverage.of(trial.plan, result.ops, result.work, kept)

    def number(self, trial: Trial) -> str:
        """What a trial is called: fp32, or its place among the trials."""
        if self.result is None or trial.form == "fp32":
            return "fp32"
        keys = [other.key for other in self.result.trials]
        return str(keys.index(trial.key) + 1) if trial.key in keys else "?"


def _values(record: Mapping[str, Any] | None) -> Values:
    rows = [] if record is None else record["answer"]
    return {(op, Scheme.from_json(scheme)): value for op, scheme, value in rows}
