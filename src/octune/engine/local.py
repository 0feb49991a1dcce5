"""Runs the stages of a tuning run in this process, and remembers every answer in the journal.

Each method is one stage of :func:`octune.tune`. A stage whose answer is already in the journal is not run again: that
is all there is to resuming.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from octune.backends.base import Backend
from octune.calibration import Ranges, collect
from octune.cost.latency import FP32, Latency, Speedup, Timing, compare, interleaved
from octune.cost.load import Patience
from octune.cost.table import ceiling, measure_ops
from octune.criterion import Criterion, Verdict
from octune.data import Batches
from octune.engine.events import Listener
from octune.engine.journal import Journal
from octune.engine.stop import Stop
from octune.errors import ConfigError, DataError, EvaluationError, OctuneError, WorkspaceError, summary
from octune.evaluation.evaluator import Evaluator
from octune.evaluation.referee import Standard
from octune.plan import Op, Plan, Scheme
from octune.result import Trial
from octune.score import Score
from octune.search.base import Proposal
from octune.sensitivity import WORST, Joint

__all__ = ["Study", "Timing"]

log = logging.getLogger("octune")
# What is run to see how far outputs move: for whole plans, and for every op and scheme by itself.
LOOK_SAMPLES, PROBE_SAMPLES = 16, 8

Speed = tuple[Speedup, float] | tuple[None, None]  # how many times faster than fp32, and milliseconds


@dataclass
class Study:
    """One model being tuned. ``example`` is the input that latency is measured on. ``certifier`` scores on data held out of the search."""

    backend: Backend
    evaluator: Evaluator
    criterion: Criterion
    journal: Journal
    stop: Stop
    listener: Listener
    timing: Timing = field(default_factory=Timing)
    example: Any = None
    certifier: Evaluator | None = None
    trials: list[Trial] = field(default_factory=list)
    models: dict[str, Any] = field(default_factory=dict)
    ranges: dict[int, Ranges] = field(default_factory=dict)
    costs: dict[tuple[str, Scheme], float] = field(default_factory=dict)
    patience: Patience = field(default_factory=Patience)
    busiest: float = 0.0  # the largest share of the CPU that other processes had while a speed was measured
    reference: Trial | None = None
    untouched: Any = None
    stages: dict[str, float] = field(default_factory=dict)
    _entered: tuple[str, float] | None = None

    # -- stages ---------------------------------------------------------------------------------------------------

    def enter(self, name: str, detail: str) -> None:
        """A stage begins, and the one before it ends."""
        self._switch(name)
        self.listener.stage(name, detail)

    def _switch(self, name: str) -> None:
        self.leave()
        self._entered = (name, time.perf_counter())

    @contextmanager
    def _within(self, name: str) -> Iterator[None]:
        """Book what happens here under another name, without announcing a stage."""
        before = self._entered
        self._switch(name)
        try:
            yield
        finally:
            self.leave() if before is None else self._switch(before[0])

    def leave(self) -> None:
        """Book the time of the stage that ends here."""
        if self._entered is not None:
            name, begun = self._entered
            self.stages[name] = self.stages.get(name, 0.0) + time.perf_counter() - begun
            self._entered = None

    def baseline(self) -> Trial:
        """Score and time fp32. What fails here fails the run: there is nothing to compare with."""
        recorded = self.journal.last("baseline")
        if recorded is not None:
            self.evaluator.order = recorded["order"]
            trial = Trial.from_json({key: value for key, value in recorded.items() if key != "order"})
            if self.example is None:
                self._captured_example()
        else:
            self.enter("baseline", "scoring the fp32 model")
            begun = time.perf_counter()
            model = self.backend.fp32_model()
            with self.backend.capture(model) as seen:
                score = self._baseline_score(model)
            if self.example is None:
                self.example = next(iter(seen), None)
            latency = self._baseline_latency()
            trial = Trial(
                Plan({op.name: Scheme.fp32() for op in self.backend.ops()}),
                form="fp32",
                reason="the model as it came",
                score=score,
                latency_ms=latency.median_ms if latency else None,
                speed=FP32,
                size=self.backend.size(model),
                seconds=time.perf_counter() - begun,
            )
            self.journal.append("baseline", {"order": self.evaluator.order, **trial.to_json()})
        if trial.score is None:
            raise EvaluationError("The journal holds a baseline without a score. Start again with workspace.resume: false.")
        if self.criterion.confidence is not None and trial.score.items is None:
            raise ConfigError(
                f"criterion.confidence is {self.criterion.confidence:g}, which needs one score per item, and {self.evaluator.name!r} gives "
                "a single number. Return one number per item, or leave the confidence out."
            )
        # Of fp32 against itself the drop is known: it is 0, however few items there are.
        self.reference = trial.judged(replace(self.criterion, confidence=None), trial.score)
        self.listener.trial(self.reference)
        if self.certifier is not None:
            self._held_out("fp32", self.backend.fp32_model())
        return self.reference

    def certify(self, trial: Trial) -> Verdict | None:
        """The final word on a trial, from data that the search never saw. None when it could not be scored there."""
        if self.certifier is None:
            return None
        self.enter("certify", "scoring the winner on data that the search never saw")
        try:
            return self.criterion.judge(self._held_out("fp32", self.backend.fp32_model()), self._held_out(trial.key, self.model(trial)))
        except KeyboardInterrupt:
            self.stop.interrupted = True
            self.listener.note("the winner was not scored on the data held out: interrupted by the user")
        except OctuneError as error:
            self.listener.note(f"the winner could not be scored on the data held out: {summary(error)}")
        return None

    def _held_out(self, key: str, model: Any) -> Score:
        if self.certifier is None:
            raise ValueError("there is no data held out")
        known = next((record for record in self.journal.records("held out") if record["key"] == key), None)
        if known is not None:
            self.certifier.order = known["order"]
            return Score.from_json(known["score"])
        if self.certifier.order is None and isinstance(self.evaluator.order, int):
            self.certifier.order = self.evaluator.order  # how many items a function scores: it need not be run in full to learn that again
        score = self.certifier(model)
        self.journal.append("held out", {"key": key, "order": self.certifier.order, "score": score.to_json()})
        return score

    def _baseline_score(self, model: Any) -> Any:
        try:
            return self.evaluator(model)
        except EvaluationError as error:
            raise type(error)(f"The fp32 model could not be scored, so there is nothing to compare with. {error}") from error

    def _baseline_latency(self) -> Latency | None:
        """One look: what counts is how fp32 does in turns with the others, later."""
        if self.example is None:
            return None
        try:
            with self._within("timing"):
                return interleaved({"fp32": self._call(self._untouched())}, iterations=1, warm=("fp32",))["fp32"]
        except OctuneError:
            raise
        except Exception as error:
            raise DataError(f"The model cannot be run on the first batch of the data: {type(error).__name__}: {summary(error)}") from error

    def _captured_example(self) -> None:
        """A resumed run with a black-box evaluation and no data: look at one call to learn the inputs."""
        model = self.backend.fp32_model()
        with self.backend.capture(model) as seen:
            try:
                self.evaluator(model)
            except OctuneError as error:
                log.warning("latency cannot be measured: %s", error)
        self.example = next(iter(seen), None)

    def calibrate(self, batches: Batches | None, samples: int, path: Path | None) -> Ranges:
        """One streaming pass over about ``samples`` samples; constant memory, whatever their number. Without data: no ranges."""
        ranges = self._observe(batches, samples, path) if batches is not None else Ranges()
        if batches is None and self.example is not None:
            self._show([self.example])
        self.ranges[ranges.samples] = ranges
        return ranges

    def _show(self, inputs: Iterable[Any]) -> None:
        """Let the backend see inputs without keeping ranges: it may have to prepare the model before it can apply a plan."""
        self.backend.observe(inputs, lambda op, array, *, shape, channel_axis=-1: None)

    def _observe(self, batches: Batches, samples: int, path: Path | None) -> Ranges:
        known = _kept(path)
        if known is not None and known.samples == samples:
            self._show(islice(self._samples(batches, 1), 1))
            return known
        self.enter("calibration", f"observing activations on about {samples} samples")
        ranges = collect(self.backend, self._samples(batches, samples), samples)
        if path is not None:
            try:
                ranges.save(path)
            except OSError as error:
                log.error("the ranges could not be kept for a resumed run: %s", error)
        return ranges

    def _samples(self, batches: Batches, samples: int) -> Iterator[Any]:
        seen = 0
        for batch in batches:
            for inputs in self.backend.parts(self.backend.split(batch)[0]):
                yield inputs
                seen += self.backend.batch_size(inputs)
                if seen >= samples:
                    return

    def _few(self, batches: Batches | None, samples: int) -> list[Any]:
        """Some inputs to run without labels."""
        if batches is not None:
            return list(islice(self._samples(batches, samples), samples))
        return [] if self.example is None else [self.example]

    def joint(self, ranges: Ranges, batches: Batches | None) -> Joint | None:
        """Measures the label-free harm of whole plans; None without anything to run."""
        inputs = self._few(batches, LOOK_SAMPLES)
        self.enter("look", "running whole plans without labels")
        return Joint(self.backend, ranges, inputs, self.journal) if inputs else None

    def damage(self, ops: Sequence[Op], ranges: Ranges, batches: Batches | None) -> dict[tuple[str, Scheme], float]:
        """Label-free harm of every op in every scheme, on a few calibration batches."""
        candidates = {op.name: [s for s in op.schemes if s.dtype != "fp32"] for op in ops}
        recorded = self._known("damage", ranges)
        if recorded is not None:
            return _restore(recorded["values"])
        self.enter("sensitivity", f"probing {sum(map(len, candidates.values()))} choices without labels")
        inputs = self._few(batches, PROBE_SAMPLES)
        values = self.backend.damage(candidates, ranges, inputs) if inputs else {}
        # An output that is infinite or NaN is as bad as it gets; neither can be ranked, nor kept in a journal.
        values = {key: min(value, WORST) if math.isfinite(value) else WORST for key, value in values.items()}
        self.journal.append("damage", {"samples": ranges.samples, "values": _flatten(values)})
        return values

    def cost(self, ops: Sequence[Op], ranges: Ranges) -> dict[tuple[str, Scheme], float]:
        """Measured milliseconds of every op in every scheme."""
        recorded = self._known("cost", ranges)
        if recorded is not None:
            self.costs = _restore(recorded["values"])
            return self.costs
        self.enter("cost", "timing ops on this machine")
        self.costs = measure_ops(self.backend, ops, ranges)
        self.journal.append("cost", {"samples": ranges.samples, "values": _flatten(self.costs)})
        return self.costs

    def _known(self, event: str, ranges: Ranges) -> dict[str, Any] | None:
        return next((record for record in self.journal.records(event) if record["samples"] == ranges.samples), None)

    # -- trials ---------------------------------------------------------------------------------------------------

    def trial(self, proposal: Proposal, ranges: Ranges) -> Trial | None:
        """Apply a plan, score it, time it in turns with fp32. None when the user broke it off."""
        self.stop.trials += 1
        known = self._recorded("eager", proposal.plan, ranges)
        if known is not None:
            return self._add(known)
        self.enter("trial", proposal.reason)
        return self._attempt(proposal.plan, "eager", proposal.reason, ranges, lambda: self.backend.apply(proposal.plan, ranges))

    def finalists(self, winner: Trial, ranges: Ranges) -> None:
        """Make the slower-to-make forms of a winning plan; one that is clearly faster is scored before it may win."""
        if self.example is None:
            return
        self.enter("finalists", "compiling the winner")
        try:
            for finalist in self.backend.finalists(winner.plan, ranges, self.example):
                rival = winner.speed or FP32
                speed = self._speed(finalist.model, rival)
                if speed[0] is None or not speed[0].beats(rival):
                    found = f"{speed[0]}, eager {rival}"
                    self.listener.note(f"the {finalist.form} form is not clearly faster than eager int8 ({found}), so it is not used")
                    continue
                self.enter("trial", f"scoring the {finalist.form} form of the winner")
                make, reason = partial(_given, finalist.model), f"the winner, {finalist.form}"
                self._attempt(winner.plan, finalist.form, reason, ranges, make, speed)
        except KeyboardInterrupt:
            self.stop.interrupted = True
        except Exception as error:
            log.debug("finalist", exc_info=True)
            self.listener.note(f"the winner stays eager int8: {type(error).__name__}: {summary(error)}")

    def _attempt(
        self, plan: Plan, form: str, reason: str, ranges: Ranges, make: Callable[[], Any], speed: Speed | None = None
    ) -> Trial | None:
        begun = time.perf_counter()
        trial = Trial(plan, form=form, reason=reason, samples=ranges.samples)
        try:
            model = make()
            # Timed before it is scored: evaluation code may leave its mark on the model (train mode, hooks).
            speedup, latency = self._eager_speed(model, plan) if speed is None else speed
            trial = replace(trial, size=self.backend.size(model), latency_ms=latency, speed=speedup)
            score = self.evaluator(model, self._standard())
            trial = replace(trial, score=score, seconds=time.perf_counter() - begun)
            if form != "eager":  # slow to make again, so it is kept
                self.models[trial.key] = self.backend.refreshed(model)
        except KeyboardInterrupt:
            self.stop.interrupted = True
            return None
        except Exception as error:
            log.debug("trial", exc_info=True)
            trial = replace(trial, error=f"{type(error).__name__}: {summary(error)}", seconds=time.perf_counter() - begun)
        self.journal.append("trial", trial.to_json())
        return self._add(trial)

    def model(self, trial: Trial) -> Any:
        """The model of a trial. An eager one is made anew from its plan, so it is as it was before any evaluation code saw it."""
        if trial.form == "fp32":
            return self.backend.fp32_model()
        kept = self.models.get(trial.key)
        return self.backend.apply(trial.plan, self.ranges[trial.samples]) if kept is None else kept

    def _add(self, trial: Trial) -> Trial:
        if self.reference is not None and self.reference.score is not None:
            trial = trial.judged(self.criterion, self.reference.score)
        self.busiest = max(self.busiest, trial.speed.load if trial.speed else 0.0)
        self.trials.append(trial)
        self.listener.trial(trial)
        return trial

    def _standard(self) -> Standard | None:
        """What lets a hopeless candidate be stopped early: fp32's items, to compare with."""
        baseline = None if self.reference is None else self.reference.score
        return None if baseline is None or baseline.items is None else Standard(baseline, self.criterion)

    def _recorded(self, form: str, plan: Plan, ranges: Ranges) -> Trial | None:
        wanted = plan.to_json()
        for record in self.journal.records("trial"):
            if record["samples"] == ranges.samples and record["form"] == form and record["plan"] == wanted:
                return Trial.from_json(record)
        return None

    def _eager_speed(self, model: Any, plan: Plan) -> Speed:
        """The speed of a model that runs op by op: it cannot gain more than its ops do alone."""
        limit = ceiling(plan, self.costs)
        measured = self._speed(model, most=limit)
        if measured[0] is not None and measured[0].ratio > limit:
            self.listener.note(f"a speed-up of {measured[0]} is doubtful: by what its ops take alone, it is no more than {limit:.2f}x")
        return measured

    def _speed(self, model: Any, rival: Speedup = FP32, most: float = math.inf) -> Speed:
        """How many times faster than fp32 (a copy of its own, which no evaluation code has seen), and milliseconds."""
        if self.example is None:
            return None, None
        if self.stop.left is not None:
            self.patience.seconds = min(self.patience.seconds, self.stop.left)
        warm = self.untouched is not None
        with self._within("timing"):
            speed, latency = compare(
                self._call(self._untouched()),
                self._call(model),
                self.timing,
                rival=rival,
                ceiling=most,
                patience=self.patience,
                warm=warm,
            )
        self.busiest = max(self.busiest, speed.load)
        return speed, latency.median_ms

    def _untouched(self) -> Any:
        if self.untouched is None:
            self.untouched = self.backend.fp32_model()
        return self.untouched

    def _call(self, model: Any) -> Callable[[], object]:
        return lambda: self.backend.run(model, self.example)


def _kept(path: Path | None) -> Ranges | None:
    """The ranges that an interrupted run left, if they can be read."""
    if path is None or not path.exists():
        return None
    try:
        return Ranges.load(path)
    except WorkspaceError as error:
        log.warning("%s Calibrating again.", error)
        return None


def _given(model: Any) -> Any:
    return model


def _flatten(values: dict[tuple[str, Scheme], float]) -> list[list[Any]]:
    return [[op, scheme.to_json(), value] for (op, scheme), value in values.items()]


def _restore(rows: list[list[Any]]) -> dict[tuple[str, Scheme], float]:
    return {(op, Scheme.from_json(scheme)): value for op, scheme, value in rows}
