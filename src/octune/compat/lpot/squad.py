"""SQuAD v1.1 as LPOT's code scores it: ``SquadV1PostTransform`` turns logits into answers, ``SquadF1`` scores
them.

    transform = SquadV1PostTransform(eval_examples, eval_features, n_best_size, max_answer_length, lower_case)
    transform = SquadV1PostTransform(label_file, vocab_file)        # makes the features itself
    preds, label = transform((all_results, parse_label_file(label_file)))
    f1 = SquadF1()
    f1.update(preds, label)
    f1.result()                                                     # 0 to 100
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from octune.compat.lpot.features import SteppedWindows, decode_features
from octune.errors import DataError, EvaluationError
from octune.evaluation import SquadF1 as OctuneSquadF1
from octune.tasks.squad import read_squad
from octune.tasks.squad_answers import Question, SpanRules, Window, decode_spans

__all__ = ["SquadF1", "SquadV1PostTransform", "parse_label_file"]

FIRST_ID = 1_000_000_000  # google-research numbers its features from here


def parse_label_file(label_file: str | Path) -> list[dict[str, Any]]:
    """The articles of an official SQuAD file, which is what SquadF1 takes as labels."""
    try:
        articles: list[dict[str, Any]] = json.loads(Path(label_file).read_text(encoding="utf-8-sig"))["data"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{label_file} is not an official SQuAD file: {error!r}.") from error
    return articles


class SquadF1:
    """The mean F1 over all questions of the labels, 0 to 100; a question without a prediction scores 0, as in
    the official script.
    """

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._accepted: list[tuple[str, ...]] = []

    def reset(self) -> None:
        self.__init__()  # type: ignore[misc]

    def update(self, preds: Any, labels: Any) -> None:
        """``preds`` maps question ids to texts, ``labels`` are SQuAD articles or map ids to answers; or both
        are lists in one order.
        """
        if isinstance(preds, Mapping):
            accepted = _answers_by_id(labels)
            self._texts += [str(preds.get(question, "")) for question in accepted]
            self._accepted += accepted.values()
            return
        if len(preds) != len(labels):
            raise EvaluationError(
                f"SquadF1 needs one prediction per label. Got {len(preds)} predictions and {len(labels)} "
                "labels."
            )
        self._texts += [str(text) for text in preds]
        self._accepted += [(label,) if isinstance(label, str) else tuple(map(str, label)) for label in labels]

    def result(self) -> float:
        """The score of everything so far."""
        return OctuneSquadF1().score(self._texts, self._accepted).value


def _answers_by_id(labels: Any) -> dict[str, tuple[str, ...]]:
    if isinstance(labels, Mapping) and "data" not in labels:
        return {
            str(key): (value,) if isinstance(value, str) else tuple(map(str, value))
            for key, value in labels.items()
        }
    articles = labels["data"] if isinstance(labels, Mapping) else labels
    if len(articles) == 1 and isinstance(articles[0], list):  # a loader put them into a batch of one
        articles = articles[0]
    try:
        paragraphs = [paragraph for article in articles for paragraph in article["paragraphs"]]
        return {
            entry["id"]: tuple(answer["text"] for answer in entry["answers"])
            for paragraph in paragraphs
            for entry in paragraph["qas"]
        }
    except (KeyError, TypeError) as error:
        raise EvaluationError(
            f"SquadF1 needs SQuAD articles as labels, as parse_label_file returns them ({error!r})."
        ) from error


class SquadV1PostTransform:
    """From the logits of all features to one answer per question; called with ``(results, label)``, it
    returns ``(answers, label)``.

    Made from ``(eval_examples, eval_features, n_best_size, max_answer_length, do_lower_case)``, the features
    being google-research's or Octune's questions and windows; or from ``(label_file, vocab_file, n_best_size,
    max_seq_length, max_query_length, max_answer_length, do_lower_case, doc_stride)``, where the features are
    made again, with windows that start every ``doc_stride`` tokens. Results are a list of objects with
    ``unique_id``, ``start_logits`` and ``end_logits``, or three arrays of these.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        first = args[0] if args else kwargs.get("label_file")
        if isinstance(first, str | Path):
            self._from_files(*args, **kwargs)
        else:
            self._from_features(*args, **kwargs)

    def _from_files(
        self,
        label_file: str | Path,
        vocab_file: str | Path,
        n_best_size: int = 20,
        max_seq_length: int = 384,
        max_query_length: int = 64,
        max_answer_length: int = 30,
        do_lower_case: bool = True,
        doc_stride: int = 128,
    ) -> None:
        rules = SpanRules(n_best_size, max_answer_length)
        source = SteppedWindows.of(
            read_squad(Path(label_file)),
            Path(vocab_file),
            max_seq_length,
            max_query_length,
            doc_stride,
            rules,
            lower=do_lower_case,
        )
        self._examples: Sequence[Any] = source.questions
        self._features: Sequence[Any] = source.windows
        self._rules, self._lower = rules, do_lower_case
        self._made = f"{label_file} makes with max_seq_length {max_seq_length} and doc_stride {doc_stride}"

    def _from_features(
        self,
        eval_examples: Sequence[Any],
        eval_features: Sequence[Any],
        n_best_size: int = 20,
        max_answer_length: int = 30,
        do_lower_case: bool = True,
    ) -> None:
        self._examples, self._features = eval_examples, eval_features
        self._rules, self._lower = SpanRules(n_best_size, max_answer_length), do_lower_case
        self._made = "eval_features has"

    def __call__(self, sample: tuple[Any, Any]) -> tuple[dict[str, str], Any]:
        results, label = sample
        logits = _by_id(results)
        ids = [
            getattr(feature, "unique_id", FIRST_ID + number) for number, feature in enumerate(self._features)
        ]
        if set(ids) != set(logits):
            raise EvaluationError(
                f"There are results for {len(logits)} features, but {len(ids)} features that {self._made}. "
                "Run the graph to the end of its data, and make the features as its file was made."
            )
        rows = [logits[number] for number in ids]
        if self._features and not isinstance(self._features[0], Window):
            return decode_features(
                self._examples, self._features, rows, self._rules, lower=self._lower
            ), label
        questions: Sequence[Question] = self._examples
        answers = decode_spans(rows, range(len(rows)), self._features, questions, self._rules)
        order = list(dict.fromkeys(window.question for window in self._features))
        return {
            questions[number].id: answer.text for number, answer in zip(order, answers, strict=True)
        }, label


def _by_id(results: Any) -> dict[int, tuple[Any, Any]]:
    """Logits by unique id, from a list of results, or from the three arrays that a graph returns."""
    if isinstance(results, Mapping):
        results = [results["unique_ids"], results["start_logits"], results["end_logits"]]
    rows: Iterable[tuple[Any, Any, Any]]
    if len(results) == 3 and not hasattr(results[0], "unique_id"):
        rows = zip(*results, strict=True)
    else:
        rows = ((result.unique_id, result.start_logits, result.end_logits) for result in results)
    return {int(number): (np.asarray(start), np.asarray(end)) for number, start, end in rows}
