"""A result from its workspace alone: without the model, the data, or the framework that tuned it.

    result = octune.replay("octune_runs/bert")
    print(result)
    octune.replay("octune_runs/bert", rebuild=True).save("model-int8")

It also works in the middle of a run and after a crash: ``stopped_because`` then says that the run has not
ended. The model is rebuilt where that is asked for: that takes the framework and the fp32 model (rebuild.py).
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from octune.cost.latency import Timed
from octune.coverage import Work
from octune.criterion import Criterion, Verdict
from octune.engine.journal import Journal
from octune.errors import WorkspaceError
from octune.evidence import Evidence
from octune.plan import Op
from octune.result import Result, Trial, fp32_beside
from octune.score import Score

__all__ = ["replay"]

UNFINISHED = "the run has not ended: go on with 'octune resume', or with workspace.resume: true"


def replay(workspace: str | Path, *, rebuild: bool = False, model: Any = None) -> Result:
    """What the run in this workspace has found so far. Nothing is searched, no data is read, and nothing is
    written.

    With ``rebuild``, or with the fp32 ``model`` where that was an object in Python, the result has its model
    again, to the bit, and can be saved.
    """
    result = retold(Evidence.read(workspace))
    if not rebuild and model is None:
        return result
    from octune.rebuild import rebuilt

    return rebuilt(result, model)


def retold(evidence: Evidence) -> Result:
    """What the run that left this evidence has found so far."""
    with evidence.journal.understood():
        return _retold(evidence)


def _retold(evidence: Evidence) -> Result:
    journal, folder = evidence.journal, evidence.journal.folder
    start, recorded = journal.last("start"), journal.last("baseline")
    if start is None or recorded is None:
        raise WorkspaceError(
            f"The run in {folder} has not scored the fp32 model yet, so there is nothing to show."
        )
    criterion = Criterion.from_json(start["criterion"])
    baseline = Trial.from_json(recorded["answer"]["trial"])
    if baseline.score is None:
        raise WorkspaceError(f"The journal in {folder} holds a baseline without a score.")
    score = baseline.score
    baseline = baseline.judged_as_baseline(criterion)
    trials = tuple(
        Trial.from_json(record["answer"]).judged(criterion, score) for record in journal.records("trial")
    )
    ended = journal.last("result")
    if ended is None:
        passing = [trial for trial in trials if trial.passed]
        best = max(passing, key=lambda trial: trial.speedup or 0.0, default=baseline)
        spent = sum(trial.seconds for trial in (baseline, *trials))
        failed = journal.ended_by_error
        return Result(
            bool(passing),
            None,
            best.plan,
            baseline,
            best,
            trials,
            UNFINISHED if failed is None else f"the run failed: {failed}",
            criterion,
            seconds=spent,
            workspace=folder,
            work=_work(journal),
            evidence=evidence,
        )
    winner = next((trial for trial in trials if trial.key == ended["best"]), None)
    ops = tuple(Op.from_json(op) for op in ended["ops"])
    baseline = fp32_beside(baseline, [*trials, *([winner] if winner is not None else [])], ops)
    best = winner or baseline
    return Result(
        met=ended["met"],
        model=None,
        plan=best.plan,
        baseline=baseline,
        best=best,
        trials=trials,
        stopped_because=ended["stopped_because"],
        criterion=criterion,
        ops=ops,
        notes=tuple(ended["notes"]),
        seconds=ended["seconds"],
        stages=ended["stages"],
        environment=ended["environment"],
        kept=ended["kept"],
        workspace=folder,
        certified=_certified(journal, criterion, best),
        batch=ended.get("batch"),
        sizes=tuple(ended.get("sizes", ())),
        floats={name: Timed.from_json(timed) for name, timed in ended.get("floats", {}).items()},
        work=_work(journal),
        evidence=evidence,
    )


def record(result: Result) -> dict[str, Any]:
    """What a journal keeps of the end of a run, besides the trials that it has already."""
    return {
        "at": time.time(),
        "met": result.met,
        "best": result.best.key,
        "batch": result.batch,
        "sizes": list(result.sizes),
        "floats": {name: timed.to_json() for name, timed in result.floats.items()},
        "stopped_because": result.stopped_because,
        "ops": [op.to_json() for op in result.ops],
        "notes": list(result.notes),
        "seconds": result.seconds,
        "stages": dict(result.stages),
        "environment": dict(result.environment),
        "kept": dict(result.kept),
    }


def _work(journal: Journal) -> Work | None:
    recorded = journal.last("work")
    return None if recorded is None or recorded["answer"] is None else Work.from_json(recorded["answer"])


def _certified(journal: Journal, criterion: Criterion, best: Trial) -> Verdict | None:
    scores = {
        record["trial"]: Score.from_json(record["answer"]["score"]) for record in journal.records("held out")
    }
    return criterion.judge(scores["fp32"], scores[best.key]) if {"fp32", best.key} <= set(scores) else None
