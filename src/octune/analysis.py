"""What can be known about a model before it is evaluated: harm and cost of every op in every scheme, and what
``auto`` would try first.

    analysis = analyze(model, calibration=loader)
    analysis.rows[0].harm, analysis.start, analysis.groups
    analysis.to_json()

No labels are needed, and nothing is scored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octune.config import Config
from octune.coverage import Coverage, Work
from octune.engine.events import Listener
from octune.errors import ConfigError
from octune.harm import Group
from octune.job import Job
from octune.plan import Op, Plan, Scheme
from octune.report.listening import listening
from octune.request import Request
from octune.search.space import Space
from octune.search.start import Outlook, begin, outlook
from octune.tune import look

__all__ = ["Analysis", "Row", "analyze"]


@dataclass(frozen=True, slots=True)
class Row:
    """One op: what each of its schemes does to the output and costs, and where ``auto`` would begin. ``cost``
    is milliseconds, or bytes.
    """

    op: Op
    harm: Mapping[Scheme, float]
    cost: Mapping[Scheme, float]
    start: Scheme

    @property
    def plain_harm(self) -> float:
        """The least harm that the op does in int8 without a repair."""
        plain = (harm for scheme, harm in self.harm.items() if not scheme.is_float and not scheme.repairs)
        return min(plain, default=0.0)

    @property
    def harmful(self) -> bool:
        """Whether plain int8 does more harm here than a whole model bears with comfort."""
        return outlook(self.plain_harm) != "comfortable"

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "name": self.op.name,
            "kind": self.op.kind,
            "parameters": self.op.parameters,
            "note": self.op.note,
            "start": self.start.to_json(),
            "schemes": [
                {"scheme": scheme.to_json(), "harm": self.harm.get(scheme), "cost": self.cost.get(scheme)}
                for scheme in self.op.schemes
            ],
        }


@dataclass(frozen=True, slots=True)
class Analysis:
    """Rows in the order of the model, the plan that ``auto`` would try first, and ops that are harmful only
    together.

    ``fastest_harm`` and ``start_harm`` are the harm of two whole plans, measured: every op in its fastest
    scheme, and the first plan.
    """

    rows: tuple[Row, ...]
    start: Plan
    fastest_harm: float
    start_harm: float
    groups: tuple[Group, ...]
    samples: int
    objective: str
    work: Work | None
    environment: Mapping[str, Any]

    @property
    def ranked(self) -> list[Row]:
        """The rows, the most harmful in its plain int8 first."""
        return sorted(self.rows, key=lambda row: -row.plain_harm)

    @property
    def coverage(self) -> Coverage | None:
        """Which share of the multiply-adds the first plan has in int8, and what is not seen; None where
        nothing was counted.
        """
        return None if self.work is None else Coverage.of(self.start, [r.op for r in self.rows], self.work)

    @property
    def outlook(self) -> Outlook:
        """What the first plan can hope for."""
        return outlook(self.start_harm)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "ops": [row.to_json() for row in self.rows],
            "start": self.start.to_json(),
            "fastest_harm": self.fastest_harm,
            "start_harm": self.start_harm,
            "groups": [
                {"ops": list(group.ops), "harm": group.harm, "alone": group.alone} for group in self.groups
            ],
            "coverage": None if self.coverage is None else self.coverage.to_json(),
            "samples": self.samples,
            "cost_unit": "ms" if self.objective == "performance" else "bytes",
            "environment": dict(self.environment),
        }


def analyze(
    model: Any = None,
    *,
    calibration: Any = None,
    config: Config | str | Path | dict[str, Any] | None = None,
    progress: bool = True,
    listener: Listener | None = None,
) -> Analysis:
    """Probe every op of ``model`` on ``calibration`` data; ``config`` may name both. Nothing is evaluated and
    nothing is written. ``progress`` and ``listener`` are as in :func:`octune.tune`.
    """
    with listening(listener, progress=progress) as ear:
        return _analyze(
            Request(model, calibration, config=config, listener=ear, unchecked=True, workspace=False)
        )


def _analyze(request: Request) -> Analysis:
    job = Job.of(request)
    with job:
        if job.calibration is None:
            raise ConfigError(
                "There is nothing to look at: analyze needs calibration data. Give calibration=, or "
                "calibration.data in the file."
            )
        job.study.survey.prepare(job.calibration)
        ops, ranges, space = look(job, job.sample_options[0])
        start = begin(space)
        return Analysis(
            tuple(_row(op, space, start.plan) for op in ops),
            start.plan,
            space.plan_harm(space.fastest()),
            space.plan_harm(start.plan),
            start.groups,
            ranges.samples,
            job.config.tuning.objective,
            job.study.survey.work,
            job.environment,
        )


def _row(op: Op, space: Space, start: Plan) -> Row:
    harm = {scheme: space.harms[op.name, scheme] for scheme in op.schemes if (op.name, scheme) in space.harms}
    cost = {scheme: space.costs[op.name, scheme] for scheme in op.schemes if (op.name, scheme) in space.costs}
    return Row(op, harm, cost, start[op.name])
