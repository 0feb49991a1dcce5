"""F1 of entities: what is an entity under every tagging scheme, and seqeval's values."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octune.errors import ConfigError, EvaluationError
from octune.evaluation.entity_metric import EntityF1, entities
from octune.evaluation.metrics import get_metric

TAGS = ["O", "B-PER", "I-PER", "E-PER", "S-PER", "B-LOC", "I-LOC", "E-LOC", "S-LOC"]


@pytest.mark.parametrize(
    ("tags", "found"),
    [
        ("B-PER I-PER O B-LOC", {("PER", 0, 2), ("LOC", 3, 4)}),  # IOB2
        ("I-PER I-PER O I-LOC", {("PER", 0, 2), ("LOC", 3, 4)}),  # IOB1
        ("I-PER B-PER I-LOC", {("PER", 0, 1), ("PER", 1, 2), ("LOC", 2, 3)}),
        ("B-PER I-PER E-PER S-PER O", {("PER", 0, 3), ("PER", 3, 4)}),  # BIOES
        ("B-PER I-PER L-PER U-LOC", {("PER", 0, 3), ("LOC", 3, 4)}),  # BILOU
        ("S-PER I-PER", {("PER", 0, 1), ("PER", 1, 2)}),
        ("E-PER E-PER", {("PER", 0, 1), ("PER", 1, 2)}),
        ("PER PER O", {("PER", 0, 2)}),
        ("O O", set()),
    ],
)
def test_entities_of_every_scheme(tags: str, found: set[Any]) -> None:
    assert entities(tags.split()) == found


@given(st.lists(st.sampled_from(TAGS), min_size=1, max_size=12))
def test_entities_are_those_of_seqeval(tags: list[str]) -> None:
    labeling = pytest.importorskip("seqeval.metrics.sequence_labeling")
    assert entities(tags) == {(kind, start, end + 1) for kind, start, end in labeling.get_entities(tags)}


def made(seed: int, sentences: int = 30) -> tuple[list[list[int]], list[list[str]]]:
    chance = random.Random(seed)
    truth = [chance.choices(TAGS, k=chance.randint(1, 9)) for _ in range(sentences)]
    said = [
        [TAGS.index(tag) if chance.random() < 0.7 else chance.randrange(len(TAGS)) for tag in row]
        for row in truth
    ]
    return said, truth


# f1_score of seqeval 1.2.2 on what made(seed) gives
@pytest.mark.parametrize(
    ("seed", "value"), [(0, 0.7449392712550608), (1, 0.7820069204152249), (2, 0.7393364928909952)]
)
def test_the_value_is_that_of_seqeval(seed: int, value: float) -> None:
    said, truth = made(seed)
    assert EntityF1(TAGS).score(said, truth).value == pytest.approx(value, abs=1e-12)


def test_items_are_what_is_left_without_each_sentence() -> None:
    said, truth = made(3)
    metric = EntityF1(TAGS)
    score = metric.score(said, truth)
    assert score.items is not None
    for left in (0, 7, 29):
        rest = [row for row in range(30) if row != left]
        without = metric.score([said[row] for row in rest], [truth[row] for row in rest]).value
        assert score.items[left] == pytest.approx(30 * score.value - 29 * without)
    assert score.hits is not None
    assert score.hits.tolist() == [
        entities([TAGS[tag] for tag in row]) == entities(true) for row, true in zip(said, truth, strict=True)
    ]


def test_tokens_without_a_tag_do_not_count() -> None:
    metric = get_metric("seqeval", labels=["O", "B-PER", "I-PER"])
    logits = np.eye(3)[[[2, 1, 0, 2, 2], [0, 0, 0, 1, 0]]]
    rows = metric.predictions({"logits": logits})
    by_name = metric.score(rows, [["", "B-PER", "", "I-PER", ""], ["O", "O", "", "", ""]])
    by_number = metric.score(rows, [[-100, 1, -100, 2, -100], [0, 0, -100, -100, -100]])
    assert by_name.value == by_number.value == 1.0


def test_what_cannot_be_scored_is_refused() -> None:
    with pytest.raises(ConfigError, match="tags of the model's classes"):
        get_metric("entity_f1", labels="O")
    with pytest.raises(EvaluationError, match="needs the option 'labels'"):
        get_metric("entity_f1").predictions({"logits": np.zeros((2, 4, 3))})
    metric = EntityF1(["O", "B-PER"])
    with pytest.raises(EvaluationError, match="2 tags, and the model 3 classes"):
        metric.predictions({"logits": np.zeros((2, 4, 3))})
    with pytest.raises(EvaluationError, match="logits for every token"):
        metric.predictions({"logits": np.zeros((2, 2))})
    with pytest.raises(EvaluationError, match="hold no entity"):
        metric.score([[0, 1]], [["O", "O"]])
    with pytest.raises(EvaluationError, match="got the label 5"):
        metric.score([[0, 1]], [[0, 5]])
    with pytest.raises(EvaluationError, match="one tag for every token"):
        metric.score([[0, 1]], [1])
