"""Evaluators that remember what a model said to every item, so that two models can be compared answer by
answer.

evaluator = recording(pair, batches, metric)
evaluator.baseline(fp32)
said = evaluator.take()         # -> [Said(batch, answer), ...], one for each item, in their order
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from octune.data import Batches
from octune.evaluation.agreement import Agreement, AgreementEvaluator
from octune.evaluation.base import Runner
from octune.evaluation.evaluator import MetricEvaluator
from octune.evaluation.metrics import Answer, Metric
from octune.evaluation.pairing import Pairing

__all__ = ["Recording", "Said", "recording"]


@dataclass(frozen=True, slots=True)
class Said:
    """What a model said to one item, and the number of the batch that the item is in."""

    batch: int
    answer: Answer


class Recording(MetricEvaluator):
    """Scores by a metric. ``seen`` is called with the number of items so far."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.seen: Callable[[int], None] = lambda items: None
        self._said: list[Said] = []

    def take(self) -> list[Said]:
        """What was said since the last time."""
        said, self._said = self._said, []
        return said

    def _answers(self, model: Any, number: int, batch: Any, pairing: Pairing) -> tuple[list[Any], list[Any]]:
        found, labels = super()._answers(model, number, batch, pairing)
        self._said += [Said(number, answer) for answer in self._metric.answers(found, labels)]
        self.seen(len(self._said))
        return found, labels


class _RecordingAgreement(Recording, AgreementEvaluator):
    """The same for agreement with fp32: its order of bases has the recording around the comparing."""


def recording(
    runner: Runner, batches: Batches, metric: Metric, samples: int | None = None, outputs: Sequence[str] = ()
) -> Recording:
    """The evaluator for this metric."""
    by = _RecordingAgreement if isinstance(metric, Agreement) else Recording
    return by(runner, batches, metric, samples=samples, outputs=outputs)
