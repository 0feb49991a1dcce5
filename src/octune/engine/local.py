"""Runs the stages of a tuning run in this process, and remembers every answer in the journal.

Each method is one stage of :func:`octune.tune`; those before the first trial are in ``survey.py``, those that
follow the last one in ``forms.py`` and ``held_out.py``. A stage whose answer is already in the journal is not
run again: that is all there is to resuming.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from octune.backends.base import Backend
from octune.calibration import Ranges
from octune.cost.latency import FP32, Latency, Speedup, Timed
from octune.criterion import Criterion
from octune.engine.apart import Apart
from octune.engine.clock import Clock
from octune.engine.events import Listener
from octune.engine.forms import Forms, trial_key
from octune.engine.held_out import HeldOut
from octune.engine.journal import Journal
from octune.engine.stop import Stop
from octune.engine.stopwatch import Stopwatch
from octune.engine.survey import Survey, kept_example
from octune.engine.timed_on import TimedOn
from octune.errors import ClusterError, ConfigError, DataError, EvaluationError, OctuneError, summary
from octune.evaluation.base import Evaluator
from octune.evaluation.examples import flipped
from octune.evaluation.pairing import Pairing
from octune.plan import Plan, Scheme
from octune.referee import Standard
from octune.result import Trial
from octune.score import Score

__all__ = ["Study", "plain"]

log = logging.getLogger("octune")


@dataclass
class Study:
    """One model being tuned. ``certifier`` scores on data held out of the search."""

    backend: Backend
    evaluator: Evaluator
    criterion: Criterion
    journal: Journal
    stop: Stop
    listener: Listener
    stopwatch: Stopwatch
    certifier: Evaluator | None = None
    trials: list[Trial] = field(default_factory=list)
    models: dict[str, Any] = field(default_factory=dict)
    baseline_trial: Trial | None = None
    pairing: Pairing = field(default_factory=Pairing)
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.clock = Clock(self.listener, self.journal)
        self.apart = Apart(self)  # tries in a process of its own what may crash, where that is asked for
        parts = (self.backend, self.journal, self.listener, self.clock, self.stopwatch)
        self.survey = Survey(*parts, apart=self.apart)
        self.forms, self.held_out = Forms(self), HeldOut(self)
        for evaluator in filter(None, (self.evaluator, self.certifier)):
            evaluator.progress = self.listener.progress

    def note(self, text: str) -> None:
        """Something that the user should know: now, and in the result."""
        self.notes.append(text)
        self.listener.note(text)

    def placed(self, model: Any, trial: Trial) -> Any:
        """The model of a trial as it is handed to what scores and times it. Another engine hands over one
        that is elsewhere.
        """
        return model

    def close(self) -> None:
        """The run is over."""
        self.apart.close()
        self.journal.close()
        self.backend.close()

    # -- stages ----------------------------------------------------------------------------------------------

    def baseline(self) -> Trial:
        """Score and time fp32. What fails here fails the run: there is nothing to compare with."""
        self.same_timing()
        known = self.journal.last("baseline") is not None
        answer = self.journal.once("baseline", {}, self._score_fp32)
        with self.journal.understood():
            self.pairing, trial = Pairing.from_json(answer["pairing"]), Trial.from_json(answer["trial"])
        if known and self.stopwatch.example is None:
            self.stopwatch.example = kept_example(self.journal, self.backend)
            if self.stopwatch.example is None:
                self._captured_example()
        if trial.score is None:
            raise EvaluationError(
                "The journal holds a baseline without a score. Start again with workspace.resume: false."
            )
        if self.criterion.confidence is not None and trial.score.items is None:
            raise ConfigError(
                f"criterion.confidence is {self.criterion.confidence:g}, which needs one score per item, and "
                f"{self.evaluator.name!r} returns a single number. Return one number per item, or leave the "
                "confidence out."
            )
        self.baseline_trial = trial.judged_as_baseline(self.criterion)
        self.listener.trial(self.baseline_trial)
        if self.certifier is not None:
            self.held_out.baseline(self.certifier)
        return self.baseline_trial

    def same_timing(self) -> None:
        """WorkspaceError if this run was on a cluster, where speeds are others than here."""
        if self.journal.last("cluster") is not None:
            TimedOn.of(self.backend).go_on(self.journal)

    def _score_fp32(self) -> dict[str, Any]:
        self.clock.enter("baseline", "scoring the fp32 model")
        begun = time.perf_counter()
        model = self.backend.fp32_model()
        trial = Trial(
            Plan({op.name: Scheme.fp32() for op in self.backend.ops()}),
            form="fp32",
            reason="the model as it came",
            speed=FP32,
            size=self.backend.size(model),
        )
        with self.backend.capture(model) as seen:
            try:
                score, pairing = self.evaluator.baseline(self.placed(model, trial))
            except EvaluationError as error:
                raise type(error)(
                    f"The fp32 model could not be scored, so there is nothing to compare with. {error}"
                ) from error
        if self.stopwatch.example is None:
            self.stopwatch.example = next(iter(seen), None)
        latency = self._fp32_latency()
        trial = replace(
            trial,
            score=score,
            latency_ms=latency.median_ms if latency else None,
            seconds=time.perf_counter() - begun,
        )
        return {"pairing": pairing.to_json(), "trial": trial.to_json()}

    def _fp32_latency(self) -> Latency | None:
        try:
            with self.clock.within("timing"):
                return self.stopwatch.fp32()
        except OctuneError:
            raise
        except Exception as error:
            raise DataError(
                f"The model cannot be run on the first batch of the data: {type(error).__name__}: "
                f"{summary(error)}"
            ) from error

    def _captured_example(self) -> None:
        """A resumed run with a black-box evaluation and no data: look at one call to learn the inputs."""
        model = self.backend.fp32_model()
        with self.backend.capture(model) as seen:
            try:
                self.evaluator(model, self.pairing)
            except OctuneError as error:
                log.warning("latency cannot be measured: %s", error)
        self.stopwatch.example = next(iter(seen), None)

    def examples(self, trial: Trial, model: Any) -> None:
        """Note a few answers that flipped, for people to look at; ``model`` is the trial's."""
        baseline = None if self.baseline_trial is None else self.baseline_trial.score
        if baseline is None or trial.score is None or not (items := flipped(baseline, trial.score)):
            return

        def shown() -> list[dict[str, Any]]:
            models = self.stopwatch.fp32_model, model
            found = self.evaluator.examples(models, self.pairing, items, self.backend.rows)
            return [example.to_json() for example in found]

        self.clock.enter("examples", "looking at answers that flipped")
        try:
            self.journal.once("flips", {"trial": trial.key}, shown)
        except KeyboardInterrupt:
            self.stop.interrupted = True
        except Exception as error:  # a run does not fail for want of a picture
            log.debug("examples", exc_info=True)
            self.listener.note(
                f"answers that flipped cannot be shown: {type(error).__name__}: {summary(error)}"
            )

    # -- trials ----------------------------------------------------------------------------------------------

    def trial(self, plan: Plan, reason: str, ranges: Ranges, ahead: Iterable[Plan] = ()) -> Trial | None:
        """Apply a plan, score it, time it in turns with fp32. None when the user interrupted it. ``ahead``
        are plans that will be asked for after this one, for engines that can score several at a time.
        """
        self.stop.trials += 1
        reason = self._distinct(reason, plan)

        key = trial_key("eager", plan, ranges)

        def tried() -> dict[str, Any] | None:
            trial = Trial(plan, reason=reason, samples=ranges.samples)
            with self.apart.looking("trial", key) as apart:
                self.clock.enter("trial", reason)
                answer = (
                    self.apart.trial(trial, ranges)
                    if apart
                    else self.attempt(
                        trial,
                        lambda: self.backend.apply(plan, ranges),
                        lambda model: self.eager_speed(model, plan),
                    )
                )
            if answer is None:
                self.journal.append("interrupted", {"of": "trial", **key})
            return answer

        return self.add(self.journal.once("trial", key, tried))

    def tried(self, plan: Plan, ranges: Ranges) -> bool:
        """Whether the journal has a trial of this plan."""
        return self.journal.known("trial", trial_key("eager", plan, ranges)) is not None

    def broken_off(self, plan: Plan, ranges: Ranges) -> bool:
        """Whether an earlier process of the run has ended at a trial of this plan."""
        return self.journal.broken_off("trial", trial_key("eager", plan, ranges))

    def _distinct(self, reason: str, plan: Plan) -> str:
        """A reason that no other plan has: what tells it from the last one of that name is added."""
        same = [trial.plan for trial in self.trials if trial.plan != plan and trial.reason.startswith(reason)]
        if not same:
            return reason
        changed = [op for op in plan if plan[op] != same[-1].get(op)]
        more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        named = f"{reason}; {changed[0]} in {plan[changed[0]]}{more}" if changed else reason
        return (
            named if named not in {trial.reason for trial in self.trials} else f"{named} ({plan.digest[:6]})"
        )

    def attempt(
        self, trial: Trial, make: Callable[[], Any], speed: Callable[[Any], Timed | None]
    ) -> dict[str, Any] | None:
        """A trial with what came of it, as plain data; None when the user interrupted it."""
        begun = time.perf_counter()
        try:
            placed, trial = self.measured(trial, make, speed)
            self._doubt(trial)
            self.listener.progress(0.0)
            trial = replace(trial, score=self.scored(placed, trial))
        except ClusterError:  # says nothing about the plan
            raise
        except KeyboardInterrupt:
            self.stop.interrupted = True
            return None
        except Exception as error:
            log.debug("trial", exc_info=True)
            trial = replace(trial, error=f"{type(error).__name__}: {summary(error)}")
        return replace(trial, seconds=time.perf_counter() - begun).to_json()

    def measured(
        self, trial: Trial, make: Callable[[], Any], speed: Callable[[Any], Timed | None]
    ) -> tuple[Any, Trial]:
        """The model of a trial, as it is handed to what scores it, and the trial with its speed and size."""
        model = make()
        placed = self.placed(model, trial)
        # Timed before it is scored: evaluation code may leave its mark on the model (train mode, hooks).
        return placed, replace(trial.timed(speed(placed)), size=self.backend.size(model))

    def scored(self, placed: Any, trial: Trial) -> Score:
        """What a model scores, against fp32."""
        return self.evaluator(placed, self.pairing, self.standard)

    def search_ended(self) -> None:
        """Plans that were said to come will not be asked for."""

    def model(self, trial: Trial) -> Any:
        """The model of a trial. An eager one is made anew from its plan, so it is as it was before any
        evaluation code saw it.
        """
        if trial.form == "fp32":
            return self.backend.fp32_model()
        kept = self.models.get(trial.key)
        return self.backend.apply(trial.plan, self.survey.ranges[trial.samples]) if kept is None else kept

    def add(self, answer: dict[str, Any] | None) -> Trial | None:
        """A trial has ended, and this came of it."""
        if answer is None:
            return None
        trial = self.judged(answer)
        self.stopwatch.busiest = max(self.stopwatch.busiest, trial.speed.load if trial.speed else 0.0)
        self.trials.append(trial)
        self.listener.trial(trial)
        return trial

    def judged(self, answer: dict[str, Any]) -> Trial:
        """The trial that an answer tells of, with its verdict."""
        with self.journal.understood():
            trial = Trial.from_json(answer)
        baseline = None if self.baseline_trial is None else self.baseline_trial.score
        return trial if baseline is None else trial.judged(self.criterion, baseline)

    @property
    def standard(self) -> Standard | None:
        """What lets a hopeless candidate be stopped early: fp32's items, to compare with."""
        baseline = None if self.baseline_trial is None else self.baseline_trial.score
        return None if baseline is None or baseline.items is None else Standard(baseline, self.criterion)

    def eager_speed(self, model: Any, plan: Plan) -> Timed | None:
        """The speed of a model that runs op by op."""
        return self.speed(model, most=self.stopwatch.most(plan))

    def _doubt(self, trial: Trial) -> None:
        """Say so where a trial cannot be as fast as it was measured to be."""
        most = self.stopwatch.most(trial.plan)
        if trial.form == "eager" and trial.speed is not None and trial.speed.ratio > most:
            self.note(
                f"a speed-up of {trial.speed} is doubtful: by what its ops take alone, it is no more than "
                f"{most:.2f}x"
            )

    def speed(self, model: Any, rival: Speedup = FP32, most: float = math.inf) -> Timed | None:
        """How fast a model is, in turns with fp32."""
        with self.clock.within("timing"):
            return self.stopwatch.speed(model, rival, most)

    def against_plain(self, winner: Trial, model: Any, inputs: Any) -> Timed:
        """How fast the ``model`` of a winner is on these inputs, in turns with the plain form of its plan."""
        return self.stopwatch.between(self.model(plain(winner)), model, inputs)


def plain(trial: Trial) -> Trial:
    """The plan of a trial in the form that is made in no time."""
    return replace(trial, form="fp32" if trial.dtype == "fp32" else "eager")
