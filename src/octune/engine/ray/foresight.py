"""Plans that a strategy will ask for next are scored beside the one that it asks for now.

    foresight = Foresight(study)
    foresight.begin(trial, ahead)           # with a few of those ahead; each is timed first
    foresight.measured(trial)               # when it is its turn
    foresight.score(trial)
    foresight.drop()                        # the others will not be asked for

Answers are taken in the order of asking, so trials, journal and result are those of one plan after the other.
While plans are timed nothing is scored, as ever.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from octune.engine.ray.together import Together, Wait
from octune.errors import ClusterError
from octune.evaluation.base import Evaluator
from octune.plan import Plan
from octune.result import Trial
from octune.score import Score

if TYPE_CHECKING:
    from octune.engine.ray.study import RayStudy

__all__ = ["Foresight"]

# Plans that are scored at the same time, at most. The first one has all workers as long as it has work for
# them, so a few more are enough that nobody waits. All are timed before the first is scored, which is in vain
# if the search ends with that one.
PLANS = 4


class Foresight:
    """For one study."""

    def __init__(self, study: RayStudy) -> None:
        self._study = study
        self._together = Together(study.crew.rounds)
        self._measured: dict[str, Trial | Exception] = {}
        self._evaluators: dict[str, Evaluator] = {}

    def __contains__(self, trial: Trial) -> bool:
        return trial.key in self._measured

    def begin(self, trial: Trial, ahead: Iterable[Plan]) -> None:
        """Time a trial that is asked for and some of those ahead, then have them scored."""
        study = self._study
        most = min(PLANS, study.stop.max_trials - study.stop.trials + 1)
        if (
            most < 2
            or len(study.crew.members) < 2
            or study.standard is None
            or not study.evaluator.spreads_by_number
        ):
            return
        ranges = study.survey.ranges[trial.samples]
        wanted = {trial.key: trial}
        for plan in islice(ahead, most - 1):
            other = Trial(plan, samples=trial.samples)
            if not study.tried(plan, ranges) and not study.broken_off(plan, ranges):
                wanted.setdefault(other.key, other)
        if len(wanted) < 2:
            return
        for key, other in wanted.items():
            try:
                self._measured[key] = study.measured_alone(other)
            except ClusterError:
                raise
            except Exception as error:
                self._measured[key] = error
                continue
            self._score(other)

    def _score(self, trial: Trial) -> None:
        study = self._study
        evaluator = study.evaluator.bound(study.backend)
        evaluator.limit = 0  # its time begins when it is its turn
        self._evaluators[trial.key] = evaluator

        def work(wait: Wait) -> Score:
            return evaluator(study.elsewhere(trial, wait), study.pairing, study.standard)

        self._together.add(trial.key, work)

    def measured(self, trial: Trial) -> Trial:
        """The trial with its speed and size; what was raised when it was made is raised here."""
        found = self._measured.pop(trial.key)
        if isinstance(found, Exception):
            raise found
        return replace(found, reason=trial.reason)

    def scores(self, trial: Trial) -> bool:
        """Whether a trial is being scored."""
        return trial.key in self._together

    def score(self, trial: Trial) -> Score:
        """What it scores."""
        study, evaluator = self._study, self._evaluators.pop(trial.key)
        evaluator.progress = study.listener.progress
        return self._together.result(trial.key, study.evaluator.limit)

    def drop(self, *, willing: bool = True) -> None:
        """What was begun is not wanted."""
        self._together.close(willing=willing)
        self._measured.clear()
        self._evaluators.clear()
