"""From span logits to answers: the best span of a question over all windows of its context.

    answers = decode_spans(rows, numbers, windows, questions, SpanRules())

As is usual for SQuAD, only spans between one of the ``n_best`` highest start logits and one of the ``n_best``
highest end logits count, inside the context and of at most ``max_answer_length`` tokens. In v2.0 a question
has no answer when the empty span's score exceeds the best one's by more than ``null_threshold``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from octune.errors import EvaluationError
from octune.evaluation.squad_metric import DecodedAnswer

__all__ = ["Question", "SpanRules", "Window", "best_span", "decode_spans"]


@dataclass(frozen=True, slots=True)
class Question:
    """One question with its context and the answers that count as right."""

    id: str
    text: str
    context: str
    answers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Window:
    """The part of a context that fits into the model together with the question.

    ``offsets`` holds the characters (from, to) of each token in the context, -1 for all other tokens.
    ``null`` is the token whose logits stand for "no answer". ``starts`` says where an answer may start, if
    not anywhere in the context.
    """

    question: int
    tokens: dict[str, npt.NDArray[np.int32]]
    offsets: npt.NDArray[np.int32]
    null: int = 0
    starts: npt.NDArray[np.bool_] | None = None

    def __len__(self) -> int:
        return len(self.offsets)


@dataclass(frozen=True, slots=True)
class SpanRules:
    """Which spans count."""

    n_best: int = 20
    max_answer_length: int = 30
    version_2: bool = False
    null_threshold: float = 0.0
    padding_left: bool = False


@dataclass(slots=True)
class _Best:
    """The best answer to a question so far."""

    score: float = -np.inf
    text: str = ""
    null: float = np.inf


def decode_spans(
    rows: Sequence[tuple[npt.NDArray[Any], npt.NDArray[Any]]],
    numbers: Sequence[int],
    windows: Sequence[Window],
    questions: Sequence[Question],
    rules: SpanRules,
) -> list[DecodedAnswer]:
    """One answer per question among these windows, in the order in which questions first appear."""
    found: dict[int, _Best] = {}
    for (start, end), number in zip(rows, numbers, strict=True):
        if not 0 <= number < len(windows):
            raise EvaluationError(
                f"The label {number} is not a window of this data set, which has {len(windows)}. Use the "
                "labels of its batches."
            )
        window = windows[number]
        start, end = (_own_tokens(logits, window, rules, questions) for logits in (start, end))
        best = found.setdefault(window.question, _Best())
        best.null = min(best.null, float(start[window.null] + end[window.null]))
        context = window.offsets[:, 0] >= 0
        span = best_span(start, end, context, rules.n_best, rules.max_answer_length, starts=window.starts)
        if span is not None and span[0] > best.score:
            best.score = span[0]
            best.text = questions[window.question].context[
                window.offsets[span[1], 0] : window.offsets[span[2], 1]
            ]
    return [DecodedAnswer(_choose(best, rules), questions[index].answers) for index, best in found.items()]


def best_span(
    start: npt.NDArray[np.float64],
    end: npt.NDArray[np.float64],
    allowed: npt.NDArray[np.bool_],
    n_best: int,
    max_length: int,
    *,
    starts: npt.NDArray[np.bool_] | None = None,
) -> tuple[float, int, int] | None:
    """Score, first and last token of the best span, or None when no two of the highest logits make one."""
    firsts, lasts = _highest(start, n_best), _highest(end, n_best)
    firsts, lasts = firsts[(allowed if starts is None else starts)[firsts]], lasts[allowed[lasts]]
    if not (firsts.size and lasts.size):
        return None
    length = lasts[None, :] - firsts[:, None]
    scores = np.where(
        (length >= 0) & (length < max_length), start[firsts][:, None] + end[lasts][None, :], -np.inf
    )
    row, column = divmod(int(scores.argmax()), lasts.size)
    score = float(scores[row, column])
    return (score, int(firsts[row]), int(lasts[column])) if score > -np.inf else None


def _highest(logits: npt.NDArray[np.float64], count: int) -> npt.NDArray[np.intp]:
    """The places of the highest logits, highest first; equal ones in the order of the text, so that runs
    agree.
    """
    if logits.size > count:
        # Everything above the count-th highest, and as many of those equal to it as there is room for.
        limit = np.partition(logits, logits.size - count)[logits.size - count]
        places = np.flatnonzero(logits >= limit)
    else:
        places = np.arange(logits.size)
    return places[np.argsort(-logits[places], kind="stable")][:count]


def _own_tokens(
    logits: Any, window: Window, rules: SpanRules, questions: Sequence[Question]
) -> npt.NDArray[np.float64]:
    """The logits without those of padding, which depends on the batch."""
    array = np.asarray(logits, dtype=np.float64).reshape(-1)
    if array.size < len(window):
        raise EvaluationError(
            f"A window of {len(window)} tokens got {array.size} logits. Expected one per token of its row."
        )
    own = array[array.size - len(window) :] if rules.padding_left else array[: len(window)]
    if np.isnan(own).any():
        raise EvaluationError(
            f"squad_f1 is undefined because logits of the question {questions[window.question].id!r} are NaN."
        )
    return own


def _choose(best: _Best, rules: SpanRules) -> str:
    if rules.version_2 and best.null - best.score > rules.null_threshold:
        return ""
    return best.text
