"""The whole of Octune on one screen.

result = octune.tune(model, calibration=loader, evaluate=lambda model: accuracy(model))
print(result)
result.save("model-int8")
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from octune.calibration import Ranges
from octune.choice import fastest_passing
from octune.config import Config, as_config
from octune.cost import weight_bytes
from octune.cost.latency import FP32
from octune.cost.load import BUSY
from octune.coverage import ACCURACY, SLOWER
from octune.criterion import Criterion
from octune.engine import Study
from octune.engine.events import Listener
from octune.evaluation.metrics import Metric
from octune.evidence import Evidence
from octune.final import final_round
from octune.job import Job
from octune.plan import Op, Plan, Scheme
from octune.quantized import remember
from octune.replay import record
from octune.report.listening import listening
from octune.request import Request
from octune.result import Result, Saving, fp32_beside
from octune.search import Space, Strategy
from octune.search.options import legal_ops
from octune.tracking import recording

__all__ = ["conclude", "look", "quantize", "tune"]

log = logging.getLogger("octune")


def tune(
    model: Any = None,
    *,
    calibration: Any = None,
    evaluate: Callable[..., Any] | None = None,
    metric: str | Metric | Callable[..., Any] | None = None,
    evaluation: Any = None,
    criterion: Criterion | float | str | Mapping[str, Any] | None = None,
    certify: str | None = None,
    config: Config | str | Path | dict[str, Any] | None = None,
    progress: bool = True,
    listener: Listener | None = None,
) -> Result:
    """Find the fastest int8 form of ``model`` that keeps its score.

    Score it with your own ``evaluate(model) -> number``, or with a ``metric`` over ``evaluation`` batches of
    ``(inputs, label)``; with neither, by how far it agrees with fp32. ``calibration`` batches show what the
    activations look like; without them only dynamic schemes are used. A function that returns one number per
    item is compared with fp32 item by item; one that also takes ``subset`` (``evaluate(model, subset=None)``,
    numbers of items) is asked for no more items than it takes to see that a plan fails. ``criterion`` is what
    may be lost: ``0.01`` or ``"1%"`` of fp32's score, ``{"absolute": 2}`` in the metric's own unit, or a
    :class:`Relative` or :class:`Absolute`. ``certify="holdout"`` keeps 30 % of the evaluation data out of the
    search, for the final word. ``config`` is a :class:`Config`, a YAML file or a dict, and may name model,
    data and metric itself. The model you bring is not changed.

    In a terminal or a notebook a live table shows how far it is; elsewhere stages and trials go to the
    ``octune`` logger at level INFO. ``progress=False`` says nothing at all. A ``listener`` of your own (a
    :class:`Listener`) hears of every stage, trial and note instead.

    There is always a :class:`Result`; a set-up that cannot work raises.
    """
    config = as_config(config)
    with (
        listening(listener, progress=progress, timeout=config.tuning.timeout) as ear,
        recording(config, ear) as ear,
    ):
        return _tune(
            Request(model, calibration, evaluate, metric, evaluation, criterion, certify, config, ear)
        )


def _tune(request: Request) -> Result:
    job = Job.of(request)
    with job, job.study.stop.remembering_interrupts():
        study = job.study
        study.baseline()
        study.survey.prepare(job.calibration)
        stopped, best, space, ranges, ops = "", None, Space({}), Ranges(), study.backend.ops()
        try:
            for samples in job.sample_options:
                ops, ranges, space = look(job, samples)
                strategy = job.strategy(space)
                stopped = _search(study, strategy, ranges)
                # A plan that is slow eager may still be fast compiled: convolutions hand int8 on only there.
                best = fastest_passing(study, job, allow_slower=True)
                if best is not None or study.stop.reason:
                    break
            if job.config.performance.compile == "auto" and not study.stop.interrupted:
                final_round(job, best, ops, ranges)
        except KeyboardInterrupt:
            study.stop.interrupted = True
        result = conclude(job, ops, space, study.stop.reason if study.stop.interrupted else stopped)
        study.listener.result(result)
        return result


def look(job: Job, samples: int) -> tuple[tuple[Op, ...], Ranges, Space]:
    """Everything that is known before an evaluation: ops and their schemes, ranges, harm and cost."""
    study = job.study
    study.survey.count(job.calibration)
    ranges = study.survey.calibrate(job.calibration, samples)
    ops = legal_ops(study.backend.ops(), job.config.quantization, ranges if job.calibration else None)
    study.survey.ops(ops, ranges)
    harms, costs = study.survey.harm(ops, ranges, job.calibration), _cost_table(job, ops, ranges)
    ops = study.survey.sound(ops)
    return ops, ranges, Space.of(ops, harms, costs, study.survey.plan_probe(ranges, job.calibration))


def _search(study: Study, strategy: Strategy, ranges: Ranges) -> str:
    """Ask, run, tell, until the strategy is done or it is time to stop. Returns why it ended.

    What earlier processes have tried is told to the strategy again, whatever time they took.
    """
    known = sum(record["form"] == "eager" for record in study.journal.records("trial"))
    try:
        while True:
            study.stop.replaying = len(study.trials) < known
            study.clock.enter("look", "choosing a plan, without labels")
            proposal = None if study.stop.reason else strategy.ask()
            if reason := study.stop.reason:
                return reason
            if proposal is None:
                break
            known = known if study.tried(proposal.plan, ranges) else 0
            ahead = (coming.plan for coming in strategy.ahead())
            trial = study.trial(proposal.plan, proposal.reason, ranges, ahead)
            if trial is None:
                return study.stop.reason
            strategy.tell(trial)
    finally:
        study.search_ended()
    return (
        "a plan met the criterion"
        if any(trial.passed for trial in study.trials)
        else "the search is complete"
    )


def _cost_table(job: Job, ops: Sequence[Op], ranges: Ranges) -> dict[tuple[str, Scheme], float]:
    """What every op costs in every scheme, in the unit of the objective: milliseconds or bytes."""
    return (
        job.study.survey.cost(ops, ranges)
        if job.config.tuning.objective == "performance"
        else weight_bytes(ops)
    )


def conclude(job: Job, ops: tuple[Op, ...], space: Space, stopped: str) -> Result:
    """Choose what is handed over: the fastest that passes, else the closest that failed, else fp32 itself."""
    study = job.study
    assert study.baseline_trial is not None  # tune() has scored it, or raised
    best, met = fastest_passing(study, job), True
    if best is None and any(trial.passed for trial in study.trials):
        met = study.baseline_trial.passed
        gain = "clearly faster" if job.config.tuning.objective == "performance" else "smaller"
        stopped = f"{stopped}; what met the criterion was not {gain} than fp32 here, so fp32 is handed back"
    elif best is None:
        met = False
        scored = [trial for trial in study.trials if trial.verdict is not None]
        best = min(scored, key=lambda t: t.verdict.drop if t.verdict else 0.0, default=None)
        stopped += "; no quantized plan met the criterion"
        if not scored:
            why = next((trial.error for trial in study.trials if trial.error is not None), None)
            stopped += ", and none could be scored" + ("" if why is None else f" ({why.rstrip('.')})")
    if best is not None and best.dtype != "int8":
        passes = any(trial.passed and trial.dtype == "int8" for trial in study.trials)
        stopped += "" if passes else "; no int8 plan met the criterion"
        stopped += f"; the fastest model that passes is {best.title}"
    tried = [*study.trials, *([best] if best is not None else [])]
    baseline = fp32_beside(study.baseline_trial, tried, ops)
    best = baseline if best is None else best
    certified = study.held_out.judge(best) if met and best is not baseline else None
    if study.certifier is not None and met and best is not baseline:
        met = certified is not None and certified.passed
        stopped += "" if met else "; but the data held out of the search does not confirm it"
    if met and best.speed is not None and best.speed.disturbed and not best.speed.beats(FP32):
        stopped += "; others kept the machine too busy to tell whether it is faster than fp32"
    late = [study.journal.broken] if study.journal.broken else []
    if study.stopwatch.busiest > BUSY:
        late.append(
            "the machine was too busy to compare speeds: other processes took up to "
            f"{study.stopwatch.busiest:.0%} of the CPU. "
            "What is not clearly faster than a plainer form is not used; tune again when it is quiet"
        )
    model = study.model(best)
    if best is not baseline and not study.stop.interrupted:
        study.examples(best, model)
    if study.stopwatch.example is None:
        late.append(
            "speed was not measured: there was no batch to run, so int8 may not be faster. Give calibration= "
            "or evaluation= batches"
        )
    study.clock.stop()
    result = Result(
        met=met,
        model=model,
        plan=best.plan,
        baseline=baseline,
        best=best,
        trials=tuple(study.trials),
        stopped_because=stopped.lstrip("; "),
        criterion=study.criterion,
        ops=ops,
        notes=(
            *study.backend.notes,
            *study.notes,
            *study.evaluator.notes(study.pairing),
            *late,
        ),
        seconds=study.stop.seconds,
        stages=dict(study.clock.seconds),
        environment=job.environment,
        kept={} if best.dtype != "int8" else _why_float(best.plan, space, ops),
        workspace=study.journal.folder,
        certified=certified,
        batch=study.stopwatch.batch,
        sizes=tuple(size.label for size in study.stopwatch.sizes),
        work=study.survey.work,
        floats=dict(study.forms.floats),
        saving=Saving(
            study.backend.name,
            study.backend.limit.safe_on,
            study.backend.writer(),
            job.huggingface,
            job.request,
        ),
        evidence=Evidence(study.journal, next(reversed(study.survey.ranges.values()), Ranges())),
    )
    study.journal.append("result", record(result))
    return result


def _why_float(plan: Plan, space: Space, ops: tuple[Op, ...]) -> dict[str, str]:
    """For every op that was not quantized, the reason in a few words."""
    notes = {op.name: op.note for op in ops}
    harm = space.total_harm(fastest := space.fastest())
    reasons = {}
    for name, scheme in plan.items():
        if not scheme.is_float:
            continue
        choices = space.choices.get(name, ())
        if all(choice.is_float for choice in choices):
            reasons[name] = notes.get(name) or "it cannot be quantized, or was kept by the configuration"
        elif fastest[name].is_float:
            quantized = min(space.cost(name, s) for s in choices if not s.is_float)
            reasons[name] = (
                f"{SLOWER} here ({quantized:.3f} ms, fp32 {space.cost(name, Scheme.fp32()):.3f} ms)"
            )
        else:
            share = space.harm(name, fastest[name]) / harm if harm else 0.0
            reasons[name] = f"{ACCURACY}: {share:.0%} of the predicted harm of int8"
    return reasons


def quantize(
    model: Any,
    *,
    calibration: Any = None,
    plan: Plan | None = None,
    config: Config | str | Path | dict[str, Any] | None = None,
) -> Any:
    """Apply ``plan``, or the fastest one, in one go. Nothing is checked: use :func:`tune` to keep the score.

    Without ``calibration`` data only dynamic schemes are used. :func:`octune.save` writes what it returns to
    a folder.
    """
    job = Job.of(Request(model, calibration, config=config, unchecked=True))
    with job:
        study = job.study
        if job.calibration is None:
            log.warning("quantize: no calibration data was given, so only dynamic schemes are used")
        study.survey.prepare(job.calibration)
        ranges = study.survey.calibrate(job.calibration, job.sample_options[0])
        if plan is None:
            ops = legal_ops(study.backend.ops(), job.config.quantization, ranges if job.calibration else None)
            plan = Space.of(ops, costs=_cost_table(job, ops, ranges)).fastest()
        plan = Plan(plan)
        plan.check(study.backend.ops())
        log.warning(
            "quantize: %r was applied as it is; accuracy was not checked. octune.tune() checks it.", plan
        )
        made, backend = study.backend.apply(plan, ranges), study.backend
        saving = Saving(backend.name, backend.limit.safe_on, backend.writer(), job.huggingface)
        remember(made, plan, saving, job.environment)
        return made
