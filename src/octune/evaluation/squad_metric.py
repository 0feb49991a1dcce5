"""SQuAD's F1 and exact match, 0 to 100, by the definitions of the official evaluation of v1.1 and v2.0.

    SquadF1().score(["the Broncos"], [["Denver Broncos", "Broncos"]]).value        # 100.0
    SquadF1(decoder=windows).score(span_logits, window_numbers)                    # what a task hands out

Without a decoder, predictions are answer texts and labels are the accepted answers of each question. With one
(see octune.tasks.squad) predictions are (start_logits, end_logits) rows and labels the numbers of their
windows. There is one item per question, in the order in which questions first appear.
"""

from __future__ import annotations

import re
import string
from abc import abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import numpy as np

from octune.errors import EvaluationError
from octune.evaluation.arrays import check_lengths
from octune.evaluation.metrics import Answer, Array, Metric, Outputs
from octune.score import Score

__all__ = [
    "AnswerDecoder",
    "DecodedAnswer",
    "ExactMatch",
    "SquadF1",
    "exact_match",
    "normalize_answer",
    "token_f1",
]

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


@dataclass(frozen=True, slots=True)
class DecodedAnswer:
    """What a model answered to one question, and the answers that count as right; no text means "no
    answer".
    """

    text: str
    accepted: tuple[str, ...]


class AnswerDecoder(Protocol):
    """Turns rows of span logits into answers, one per question among the given windows."""

    @property
    def version_2(self) -> bool: ...

    def question(self, window: int) -> int: ...

    def decode(
        self, rows: Sequence[tuple[Array, Array]], windows: Sequence[int]
    ) -> Sequence[DecodedAnswer]: ...


@lru_cache(maxsize=200_000)
def normalize_answer(text: str) -> str:
    """Lower case, no punctuation, no articles, single spaces: ``normalize_answer("The  U.S.")`` is
    ``"us"``.
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def token_f1(prediction: str, accepted: str, *, version_2: bool = False) -> float:
    """The overlap of words between an answer and one accepted answer, 0 to 1.

    Where either has no words left, v2.0 asks whether both have none; v1.1 says 0.
    """
    guess, truth = normalize_answer(prediction).split(), normalize_answer(accepted).split()
    if version_2 and not (guess and truth):
        return float(guess == truth)
    common = sum((Counter(guess) & Counter(truth)).values())
    return 2 * common / (len(guess) + len(truth)) if common else 0.0


def exact_match(prediction: str, accepted: str) -> float:
    """1 if the normalised texts are the same, else 0."""
    return float(normalize_answer(prediction) == normalize_answer(accepted))


class _SquadMetric(Metric):
    """What both scores share: finding the span logits, and pairing answers with the accepted ones."""

    items = "own"

    def __init__(self, decoder: AnswerDecoder | None = None, *, version_2: bool = False) -> None:
        self.decoder = decoder
        self.version_2 = decoder.version_2 if decoder is not None else version_2

    def predictions(self, outputs: Outputs) -> Sequence[Any]:
        """(start_logits, end_logits) per row, by name, else the first two arrays of (rows, tokens), else one
        of (rows, tokens, 2).
        """
        start, end = _span_logits(
            self.name, {name: np.asarray(array) for name, array in outputs.items() if name != "loss"}
        )
        return list(zip(start, end, strict=True))

    def groups(self, labels: Sequence[Any]) -> Sequence[Any]:
        """The question of each window."""
        return (
            super().groups(labels)
            if self.decoder is None
            else [self.decoder.question(int(label)) for label in labels]
        )

    def answers(self, predictions: Sequence[Any], labels: Sequence[Any]) -> list[Answer]:
        decoded = self._decoded(predictions, labels)
        return [Answer(answer.text, None, list(answer.accepted)) for answer in decoded]

    def score(self, predictions: Sequence[Any], labels: Sequence[Any]) -> Score:
        check_lengths(self.name, predictions, labels)
        answers = self._decoded(predictions, labels)
        hits = np.array([self._best(answer, exact=True) for answer in answers])
        return self._from(answers, hits)

    def _decoded(self, predictions: Sequence[Any], labels: Sequence[Any]) -> Sequence[DecodedAnswer]:
        if self.decoder is not None:
            return self.decoder.decode(predictions, [int(label) for label in labels])
        pairs = zip(predictions, labels, strict=True)
        return [DecodedAnswer(_text(self.name, guess), _accepted(self.name, truth)) for guess, truth in pairs]

    @abstractmethod
    def _from(self, answers: Sequence[DecodedAnswer], hits: Array) -> Score: ...

    def _best(self, answer: DecodedAnswer, *, exact: bool) -> float:
        accepted: Sequence[str] = answer.accepted
        # v2.0 drops accepted answers that are empty after normalisation; none left means "no answer"
        if self.version_2:
            accepted = [text for text in accepted if normalize_answer(text)] or [""]
        if exact:
            return max((exact_match(answer.text, text) for text in accepted), default=0.0)
        return max((token_f1(answer.text, text, version_2=self.version_2) for text in accepted), default=0.0)


class SquadF1(_SquadMetric):
    """The mean over questions of the best word overlap with an accepted answer, times 100; hits are exact
    matches.
    """

    name = "squad_f1"

    def _from(self, answers: Sequence[DecodedAnswer], hits: Array) -> Score:
        return Score.from_items(
            100.0 * np.array([self._best(answer, exact=False) for answer in answers]),
            hits=hits,
            limits=(0.0, 100.0),
        )


class ExactMatch(_SquadMetric):
    """The share of questions answered exactly as accepted, after normalisation, times 100."""

    name = "exact_match"

    def _from(self, answers: Sequence[DecodedAnswer], hits: Array) -> Score:
        return Score.from_items(100.0 * hits, hits=hits, limits=(0.0, 100.0))


def _span_logits(metric: str, arrays: Mapping[str, Array]) -> tuple[Array, Array]:
    starts = [array for name, array in arrays.items() if "start" in name.lower() and array.ndim == 2]
    ends = [array for name, array in arrays.items() if "end" in name.lower() and array.ndim == 2]
    flat = [array for array in arrays.values() if array.ndim == 2]
    stacked = [array for array in arrays.values() if array.ndim == 3 and array.shape[-1] == 2]
    if len(starts) == 1 and len(ends) == 1:
        pair = starts[0], ends[0]
    elif len(flat) >= 2:
        pair = flat[0], flat[1]
    elif stacked:
        pair = stacked[0][..., 0], stacked[0][..., 1]
    else:
        pair = None
    if pair is None or pair[0].shape != pair[1].shape:
        shapes = {name: array.shape for name, array in arrays.items()}
        raise EvaluationError(
            f"{metric} needs start and end logits of shape (rows, tokens) each. Got {shapes} instead."
        )
    return pair


def _text(metric: str, prediction: Any) -> str:
    if isinstance(prediction, Mapping):
        prediction = prediction.get("prediction_text")
    if not isinstance(prediction, str):
        raise EvaluationError(
            f"{metric} without a decoder needs answer texts. Got {type(prediction).__name__} instead; "
            "for a model's logits take the metric that octune.tasks.load_task returns."
        )
    return prediction


def _accepted(metric: str, label: Any) -> tuple[str, ...]:
    """One text, a list of texts, or an answers mapping as SQuAD files and data sets write it."""
    while isinstance(label, Mapping):
        label = label.get("answers", label.get("text"))
    if isinstance(label, str):
        return (label,)
    if isinstance(label, (list, tuple)):
        texts = [entry.get("text") if isinstance(entry, Mapping) else entry for entry in label]
        strings = tuple(text for text in texts if isinstance(text, str))
        if len(strings) == len(texts):
            return strings
    raise EvaluationError(
        f"{metric} needs the accepted answers of each question as texts. Got {label!r} instead."
    )
