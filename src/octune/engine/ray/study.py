"""A tuning run whose models are scored on a Ray cluster.

The same stages as :class:`Study`, in the same order, with the same answers. What is elsewhere is calibration,
harm of ops and scoring, and timing where that is asked for; the search, the journal and the sequential test
are here.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice
from operator import length_hint
from typing import Any

from octune.backends.terms import Settings
from octune.calibration import Ranges
from octune.cost.latency import FP32, Latency, Speedup, Timed
from octune.engine.local import Study, plain
from octune.engine.ray.crew import Crew
from octune.engine.ray.foresight import Foresight
from octune.engine.ray.hands import RayHands
from octune.engine.ray.kind import describe
from octune.engine.ray.rounds import Shard
from octune.engine.ray.together import Wait
from octune.engine.ray.worker import Box, HowTimed, Parcel, Recipe
from octune.engine.timed_on import TimedOn
from octune.errors import EvaluationTimeout, UnsupportedError, WorkspaceError, plural, summary
from octune.evaluation.base import Evaluator
from octune.evaluation.evaluator import MetricEvaluator
from octune.evaluation.function import FunctionEvaluator
from octune.evaluation.pairing import Pairing
from octune.evaluation.spread import Answers, Spread
from octune.plan import Plan
from octune.result import Trial
from octune.score import Score

__all__ = ["Luggage", "RayStudy"]

log = logging.getLogger("octune")


@dataclass(frozen=True, slots=True)
class Luggage:
    """What the backend was made from, for making it again on the nodes: the model, or what opens it there;
    and its settings.
    """

    model: Any
    opens: Callable[[], Any] | None
    settings: Settings


@dataclass
class RayStudy(Study):
    """One model being tuned, with the help of a crew of workers."""

    crew: Crew = field(kw_only=True)
    timers: Crew | None = field(default=None, kw_only=True)  # None: this machine times
    luggage: Luggage = field(kw_only=True)
    parcel: Parcel | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._boxes: dict[tuple[str, int], Box] = {}
        self._foresight = Foresight(self)
        self._ahead: Iterable[Plan] = ()
        self.survey.hands = RayHands(self)
        self.apart.elsewhere = frozenset({"harm"} if self.timers is None else {"harm", "cost"})

    # -- beginning and end -----------------------------------------------------------------------------------

    def baseline(self) -> Trial:
        self._begin()
        return super().baseline()

    def same_timing(self) -> None:
        if self.timers is None:  # else those that time are chosen by it
            TimedOn.of(self.backend).go_on(self.journal)

    def _begin(self) -> None:
        """Hire the crew and send it what it works on."""
        self.clock.enter("cluster", f"starting workers on the cluster at {self.crew.wanted.address}")
        here = describe()
        self._same_class(here)
        self.same_timing()
        self.crew.start(here)
        timed_on = self._hire_timers(here)
        self.parcel = self._packed()
        self.crew.all("open", self.parcel)
        crews = self._crews
        self.journal.append(
            "cluster",
            {
                "driver": here,
                "nodes": {name: kind for crew in crews for name, kind in crew.kinds.items()},
                "left out": {name: why for crew in crews for name, why in crew.left_out.items()},
                "timed on": timed_on.to_json(),
            },
        )
        self.note(
            f"scored by {plural(len(self.crew.members), 'worker')} on "
            f"{plural(len({member.node.id for member in self.crew.members}), 'node')} of a Ray cluster"
            if any(map(_spreads, self._evaluators))
            else "evaluate= takes no subset, so it cannot be spread: models are scored on this machine alone"
        )

    def _same_class(self, here: Mapping[str, Any]) -> None:
        """A run that is resumed goes on where its scores can be compared."""
        before = self.journal.last("cluster")
        if before is None:
            return
        with self.journal.understood():
            kind = before["driver"]["cpu"], before["driver"]["class"]
        if kind[1] != here["class"]:
            raise WorkspaceError(
                f"The run in {self.journal.folder} was begun on another class of CPU ({kind[0]}, here "
                f"{here['cpu']}): its scores cannot be compared with those of this machine. Resume it on a "
                "machine of that class, or choose another workspace.path."
            )

    def _hire_timers(self, here: Mapping[str, Any]) -> TimedOn:
        """Hire those that time, if there are to be any; what the speeds of this run are of."""
        if self.timers is None:
            return TimedOn.of(self.backend)
        self.timers.timed_on = TimedOn.before(self.journal)
        self.timers.start(here)
        return self.timers.timed_on or TimedOn.of(self.backend)

    @property
    def _crews(self) -> list[Crew]:
        return [self.crew, *([] if self.timers is None else [self.timers])]

    def _packed(self) -> Parcel:
        model, opens, evaluators = self.luggage.model, self.luggage.opens, dict[str, Box]()
        for name, evaluator in zip(("search", "held out"), self._evaluators, strict=False):
            evaluators[name] = self._sent(
                evaluator.bound(None),
                "The evaluation data, the metric or the evaluate function",
                "Name them as package.module:name, or leave out what cannot be pickled (open files, locks).",
            )
        travels = opens if opens is not None and isinstance(model, str | bytes) else model
        try:
            box = self._sent(travels, "The model", "Give it by its path.")
        except UnsupportedError:
            if opens is None or travels is opens:
                raise
            travels = opens
            box = self._sent(opens, "The model", "Give it by its path.")
        return Parcel(
            box,
            travels is opens,
            self.backend.name,
            self.backend.fingerprint(),
            self.luggage.settings,
            self.backend.environment().get("threads"),
            evaluators,
        )

    def _sent(self, value: Any, what: str, advice: str) -> Box:
        try:
            return self.crew.put(value)
        except Exception as error:  # whatever pickling an object of the user's raises
            raise UnsupportedError(
                f"{what} cannot be sent to the nodes of the cluster: {type(error).__name__}: "
                f"{summary(error)}. {advice}"
            ) from error

    @property
    def _evaluators(self) -> list[Evaluator]:
        return [self.evaluator, *([] if self.certifier is None else [self.certifier])]

    def close(self) -> None:
        for crew in reversed(self._crews):
            crew.close()  # the first to start has connected
        super().close()

    # -- trials ----------------------------------------------------------------------------------------------

    def trial(self, plan: Plan, reason: str, ranges: Ranges, ahead: Iterable[Plan] = ()) -> Trial | None:
        self._ahead = ahead
        return super().trial(plan, reason, ranges)

    def measured(
        self, trial: Trial, make: Callable[[], Any], speed: Callable[[Any], Timed | None]
    ) -> tuple[Any, Trial]:
        if trial.form == "eager" and trial not in self._foresight:
            self._foresight.drop()  # another plan than was foreseen is asked for
            self._foresight.begin(trial, self._ahead)
        if trial in self._foresight:
            return self.elsewhere(trial), self._foresight.measured(trial)
        return super().measured(trial, make, speed)

    def measured_alone(self, trial: Trial) -> Trial:
        """An eager trial with its speed and size."""
        return super().measured(
            trial, lambda: self.model(trial), lambda model: self.eager_speed(model, trial.plan)
        )[1]

    def scored(self, placed: Any, trial: Trial) -> Score:
        if self._foresight.scores(trial):
            try:
                return self._foresight.score(trial)
            except EvaluationTimeout:  # beside others it may have had too few workers
                self._foresight.drop()
        self.crew.wait_for_somebody()  # who starts now is not late
        return super().scored(placed, trial)

    def search_ended(self) -> None:
        self._foresight.drop(willing=not self.stop.interrupted)

    # -- models that are elsewhere ---------------------------------------------------------------------------

    def placed(self, model: Any, trial: Trial) -> Any:
        return _Elsewhere(model, self, self._recipe(trial))

    def elsewhere(self, trial: Trial, wait: Wait | None = None) -> Spread:
        """The model of a trial that need not be here."""
        return _Elsewhere(None, self, self._recipe(trial), wait)

    def _recipe(self, trial: Trial) -> Recipe:
        if trial.form == "fp32":
            return Recipe("fp32", Plan())
        ranges = self.boxed(self.survey.ranges.get(trial.samples, Ranges(samples=trial.samples)))
        example = None if trial.form == "eager" else self._box("example", 0, self.stopwatch.example)
        return Recipe(trial.form, trial.plan, self.prepared, ranges, example)

    @property
    def prepared(self) -> Box | None:
        """The batch that the backend was prepared with."""
        return None if self.survey.prepared is None else self._box("prepared", 0, self.survey.prepared)

    def boxed(self, ranges: Ranges) -> Box:
        """Ranges for all workers."""
        return self._box("ranges", ranges.samples, ranges)

    def _box(self, name: str, number: int, value: Any) -> Box:
        """Sent once."""
        key = name, number
        if key not in self._boxes:
            self._boxes[key] = self.crew.put(value)
        return self._boxes[key]

    def spread(
        self,
        recipe: Recipe,
        method: str,
        evaluator: Evaluator,
        parts: Iterable[Any],
        *more: Any,
        least: int = 1,
        wait: Wait | None = None,
    ) -> Generator[Any, None, None]:
        """What the workers find for the parts, in their order; ``least`` of them or more go together. With
        ``wait`` other models are scored beside this one.
        """
        name = "held out" if evaluator is self.certifier else "search"

        def shards() -> Iterator[Shard]:
            unsent, left = length_hint(parts), iter(parts)
            while True:
                size = max(least, begun.parts_each(unsent))
                part = list(islice(left, unsent if 0 < unsent - size < least else size))
                if not part:
                    return
                unsent -= len(part)
                yield Shard(method, (self.parcel, recipe, name, part, *more), len(part))

        begun = self.crew.rounds.begin(shards(), recipe.key, alone=wait is None)
        return begun.results(wait)

    # -- timing on nodes -------------------------------------------------------------------------------------

    def _fp32_latency(self) -> Latency | None:
        if self.timers is None or self.stopwatch.example is None:
            return super()._fp32_latency()
        with self.clock.within("timing"):
            found: Latency | None = self.timers.ask("fp32_latency", self.parcel, self._timed())
        return found

    def speed(self, model: Any, rival: Speedup = FP32, most: float = math.inf) -> Timed | None:
        if self.timers is None or self.stopwatch.example is None or not isinstance(model, _Elsewhere):
            return super().speed(model.here if isinstance(model, Spread) else model, rival, most)
        with self.clock.within("timing"):
            timed: Timed | None = self.timers.ask(
                "speed", self.parcel, model.recipe, self._timed(), rival, most
            )
        return timed

    def against_plain(self, winner: Trial, model: Any, inputs: Any) -> Timed:
        if self.timers is None:
            return super().against_plain(winner, model, inputs)
        recipes = self._recipe(plain(winner)), self._recipe(winner)
        found: Timed = self.timers.ask(
            "between", self.parcel, *recipes, self._timed(), self._box("other size", 0, inputs)
        )
        return found

    def _timed(self) -> HowTimed:
        watch = self.stopwatch
        inputs = self._box("timed", 0, (watch.example, watch.sizes))
        return HowTimed(inputs, watch.timing, self.stop.left)


def _spreads(evaluator: Evaluator) -> bool:
    return evaluator.spreads


class _Elsewhere(Spread):
    """A model that workers make by its recipe."""

    def __init__(self, here: Any, study: RayStudy, recipe: Recipe, wait: Wait | None = None) -> None:
        super().__init__(here)
        self._study, self.recipe, self._wait = study, recipe, wait

    def answers(
        self, evaluator: MetricEvaluator, parts: Iterable[tuple[int, Any]], pairing: Pairing
    ) -> Answers:
        known = pairing.without_batches()
        spread = self._study.spread(self.recipe, "answers", evaluator, parts, known, wait=self._wait)
        with closing(spread) as found:
            for answers in found:
                yield from answers

    def scores(self, evaluator: FunctionEvaluator, places: Sequence[int]) -> list[Score]:
        # one item's score could not be told from a score of all
        spread = self._study.spread(self.recipe, "scores", evaluator, places, least=2, wait=self._wait)
        with closing(spread) as found:
            return list(found)
