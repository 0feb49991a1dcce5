"""Features as google-research's BERT makes them: windows that start every ``doc_stride`` tokens, and answers
from whole words.

Octune's own windows (octune.tasks.squad) overlap by ``doc_stride`` tokens instead, as Hugging Face's do.
Files that were written by google-research's code need these.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from octune.errors import DataError
from octune.tasks.squad import SquadWindows
from octune.tasks.squad_answers import Question, SpanRules, Window, best_span

__all__ = ["SteppedWindows", "decode_features", "words_of"]


class SteppedWindows(SquadWindows):
    """Windows that start every ``doc_stride`` tokens; an answer may start only in the window that shows most
    of its surroundings.
    """

    def __init__(
        self,
        questions: Sequence[Question],
        tokenizer: Any,
        max_length: int,
        max_query: int,
        doc_stride: int,
        rules: SpanRules,
    ) -> None:
        super().__init__(questions, tokenizer, max_length, doc_stride, rules)
        self._max_query = max_query

    @classmethod
    def of(
        cls,
        questions: Sequence[Question],
        vocab_file: Path,
        max_length: int,
        max_query: int,
        doc_stride: int,
        rules: SpanRules,
        *,
        lower: bool,
    ) -> SteppedWindows:
        """Windows by the vocabulary of a BERT."""
        from transformers import BertTokenizer  # a fast one, since transformers 5

        if not vocab_file.is_file():
            raise DataError(
                f"The vocabulary {vocab_file} does not exist. Expected the vocab.txt of the model."
            )
        tokenizer = BertTokenizer(vocab=str(vocab_file), do_lower_case=lower)
        return cls(questions, tokenizer, max_length, max_query, doc_stride, rules)

    def encode(self, rows: Sequence[int]) -> Iterator[Window]:
        cls, sep = self._tokenizer.cls_token_id, self._tokenizer.sep_token_id
        plain = {"add_special_tokens": False, "truncation": False, "padding": False, "verbose": False}
        texts = self._tokenizer([self.questions[row].text for row in rows], **plain)["input_ids"]
        contexts = self._tokenizer(
            [self.questions[row].context for row in rows], return_offsets_mapping=True, **plain
        )
        for row, text, context, offsets in zip(
            rows, texts, contexts["input_ids"], contexts["offset_mapping"], strict=True
        ):
            query = text[: self._max_query]
            room = self._max_length - len(query) - 3
            if room < 1:
                raise DataError(
                    f"The question {self.questions[row].id!r} leaves no room for its context. Raise "
                    "max_seq_length."
                )
            spans = _spans(len(context), room, self._stride)
            best = _best_window(len(context), spans)
            for number, (begin, end) in enumerate(spans):
                ids = [cls, *query, sep, *context[begin:end], sep]
                front = len(query) + 2
                characters = np.full((len(ids), 2), -1, dtype=np.int32)
                characters[front : front + end - begin] = offsets[begin:end]
                starts = np.zeros(len(ids), dtype=np.bool_)
                starts[front : front + end - begin] = best[begin:end] == number
                segments = [0] * front + [1] * (len(ids) - front)
                columns = {"input_ids": ids, "attention_mask": [1] * len(ids), "token_type_ids": segments}
                yield Window(
                    row,
                    {name: np.array(column, dtype=np.int32) for name, column in columns.items()},
                    characters,
                    0,
                    starts,
                )


def _spans(tokens: int, room: int, step: int) -> list[tuple[int, int]]:
    spans, begin = [], 0
    while True:
        end = min(begin + room, tokens)
        spans.append((begin, end))
        if end == tokens:
            return spans
        begin += min(end - begin, step)


def _best_window(tokens: int, spans: Sequence[tuple[int, int]]) -> npt.NDArray[np.intp]:
    """For each token, the window that shows most context on the side with less of it; ties go to the longer
    window, then to the first.
    """
    places = np.arange(tokens)
    scores = np.full((len(spans), tokens), -np.inf)
    for number, (begin, end) in enumerate(spans):
        inside = places[begin:end]
        scores[number, begin:end] = np.minimum(inside - begin, end - 1 - inside) + 0.01 * (end - begin)
    return np.asarray(scores.argmax(axis=0))


def decode_features(
    examples: Sequence[Any],
    features: Sequence[Any],
    rows: Sequence[tuple[npt.NDArray[Any], npt.NDArray[Any]]],
    rules: SpanRules,
    *,
    lower: bool,
) -> dict[str, str]:
    """Answers by question id from google-research's own objects: examples with ``qas_id`` and ``doc_tokens``,
    features with ``tokens``, ``token_to_orig_map`` and ``token_is_max_context``.
    """
    best: dict[int, tuple[float, str]] = {}
    for feature, (start, end) in zip(features, rows, strict=True):
        size = len(feature.tokens)
        context = np.array([place in feature.token_to_orig_map for place in range(size)])
        starts = np.array([bool(feature.token_is_max_context.get(place, False)) for place in range(size)])
        # Padding counts in the choice of the highest logits, as it does in google-research's code.
        longer = len(start) - size
        context, starts = (np.pad(flags, (0, longer)) for flags in (context, starts & context))
        start, end = (np.asarray(values, dtype=np.float64).reshape(-1) for values in (start, end))
        span = best_span(start, end, context, rules.n_best, rules.max_answer_length, starts=starts)
        number = feature.example_index
        if span is None or (number in best and span[0] <= best[number][0]):
            continue
        first, last = (feature.token_to_orig_map[place] for place in span[1:])
        pieces = "".join(token.removeprefix("##") for token in feature.tokens[span[1] : span[2] + 1])
        best[number] = (
            span[0],
            words_of(" ".join(examples[number].doc_tokens[first : last + 1]), pieces, lower=lower),
        )
    return {example.qas_id: best.get(number, (0.0, "empty"))[1] for number, example in enumerate(examples)}


def words_of(text: str, pieces: str, *, lower: bool = True) -> str:
    """The part of ``text`` that these pieces of words spell, or all of it: ``words_of("(Denver,", "denver")``
    is ``"Denver"``.

    Pieces are lower case and without accents where ``lower`` says so, and never hold spaces.
    """
    spelled: list[str] = []
    places: list[int] = []
    for place, character in enumerate(text):
        plain = unicodedata.normalize("NFD", character.lower()) if lower else character
        kept = [
            one for one in plain if not one.isspace() and not (lower and unicodedata.category(one) == "Mn")
        ]
        spelled += kept
        places += [place] * len(kept)
    found = "".join(spelled).find(pieces) if pieces else -1
    return text if found < 0 else text[places[found] : places[found + len(pieces) - 1] + 1]
