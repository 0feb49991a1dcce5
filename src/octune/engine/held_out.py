"""Data that the search never sees, for the final word on its winner.

study.held_out.judge(winner)        # -> Verdict, or None
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from octune.criterion import Verdict
from octune.errors import ClusterError, OctuneError, summary
from octune.evaluation.base import Evaluator
from octune.evaluation.pairing import Pairing
from octune.result import Trial
from octune.score import Score

if TYPE_CHECKING:
    from octune.engine.local import Study

__all__ = ["HeldOut"]


class HeldOut:
    """Scores what a study has found with its ``certifier``, if it has one."""

    def __init__(self, study: Study) -> None:
        self._study = study

    def judge(self, trial: Trial) -> Verdict | None:
        """The final word on a trial, from data that the search never saw. None when it could not be scored
        there.
        """
        study = self._study
        certifier = study.certifier
        if certifier is None:
            return None
        study.clock.enter("certify", "scoring the winner on data that the search never saw")
        try:
            baseline, pairing = self.baseline(certifier)
            answer = study.journal.once(
                "held out",
                {"trial": trial.key},
                lambda: {"score": certifier(study.placed(study.model(trial), trial), pairing).to_json()},
            )
            with study.journal.understood():
                return study.criterion.judge(baseline, Score.from_json(answer["score"]))
        except KeyboardInterrupt:
            study.stop.interrupted = True
            study.note("the winner was not scored on the data held out: interrupted by the user")
        except ClusterError:
            raise
        except OctuneError as error:
            study.note(f"the winner could not be scored on the data held out: {summary(error)}")
        return None

    def baseline(self, certifier: Evaluator) -> tuple[Score, Pairing]:
        """What fp32 scores on the data held out."""
        study = self._study

        def scored() -> dict[str, Any]:
            score, pairing = certifier.baseline(self._fp32_placed(), study.pairing)
            return {"pairing": pairing.to_json(), "score": score.to_json()}

        answer = study.journal.once("held out", {"trial": "fp32"}, scored)
        with study.journal.understood():
            return Score.from_json(answer["score"]), Pairing.from_json(answer["pairing"])

    def _fp32_placed(self) -> Any:
        study = self._study
        model, trial = study.backend.fp32_model(), study.baseline_trial
        return model if trial is None else study.placed(model, trial)
