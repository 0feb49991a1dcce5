"""SQuAD: windows, answers from logits, and scores."""

from __future__ import annotations

import json
import pickle
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octune.criterion import Relative
from octune.data import as_batches
from octune.errors import ConfigError, DataError, EvaluationError
from octune.evaluation import ExactMatch, SquadF1
from octune.evaluation.evaluator import MetricEvaluator
from octune.referee import Standard
from octune.tasks import TaskData, TaskOptions, load_squad, load_task
from octune.tasks.squad import SquadWindows, read_squad
from octune.tasks.squad_answers import best_span
from tests.tasks.conftest import make_tokenizer

WORDS = [f"word{number}" for number in range(400)]
LONG = " ".join(WORDS)


def entry(
    identity: str, question: str, context: str, *answers: str, impossible: bool = False
) -> dict[str, Any]:
    found = [{"text": answer, "answer_start": context.index(answer)} for answer in answers]
    return {
        "id": identity,
        "question": question,
        "answers": found,
        **({"is_impossible": True} if impossible else {}),
    }


def document(*paragraphs: tuple[str, list[dict[str, Any]]], version: str = "1.1") -> str:
    return json.dumps(
        {
            "version": version,
            "data": [{"title": "t", "paragraphs": [{"context": c, "qas": q} for c, q in paragraphs]}],
        }
    )


SHORT = "The Broncos, of Denver, won  24–10 in Santa Clara."
DEV = document(
    (
        SHORT,
        [
            entry("who", " Who won?", SHORT, "The Broncos", "Broncos"),
            entry("score", "What was the score?", SHORT, "24–10"),
        ],
    ),
    (
        LONG,
        [
            entry("early", "Which comes early?", LONG, "word3 word4"),
            entry("late", "Which comes late?", LONG, "word390 word391"),
        ],
    ),
)
TRAIN = document(
    (LONG, [entry(f"t{number}", "Which word?", LONG, "word7") for number in range(20)]),
    (SHORT, [entry("t", "Who?", SHORT, "Broncos")]),
)


def write_squad(folder: Path, dev: str = DEV, train: str = TRAIN, version: str = "v1.1") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / f"dev-{version}.json").write_text(dev)
    (folder / f"train-{version}.json").write_text(train)
    return folder


@pytest.fixture
def squad(tmp_path: Path) -> Path:
    return write_squad(tmp_path / "squad")


def source(task: TaskData) -> SquadWindows:
    assert isinstance(task.metric, SquadF1)
    assert isinstance(task.metric.decoder, SquadWindows)
    return task.metric.decoder


def gold_logits(
    task: TaskData, starts: dict[str, tuple[int, int]], inputs: Any, labels: Any
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Logits that point at the accepted answer where the window holds all of it, and nowhere else."""
    rows = []
    for label in labels:
        window = source(task).windows[label]
        begin, end = starts[source(task).questions[window.question].id]
        start_logits, end_logits = np.zeros((2, inputs["input_ids"].shape[1]))
        first = np.flatnonzero((window.offsets[:, 0] <= begin) & (window.offsets[:, 1] > begin))
        last = np.flatnonzero((window.offsets[:, 0] < end) & (window.offsets[:, 1] >= end))
        if first.size and last.size:
            start_logits[first[0]] = end_logits[last[0]] = 10
        rows.append((start_logits, end_logits))
    return rows


def gold_spans(text: str) -> dict[str, tuple[int, int]]:
    paragraphs = [paragraph for article in json.loads(text)["data"] for paragraph in article["paragraphs"]]
    answers = {
        qa["id"]: qa["answers"][0] for paragraph in paragraphs for qa in paragraph["qas"] if qa["answers"]
    }
    return {
        identity: (answer["answer_start"], answer["answer_start"] + len(answer["text"]))
        for identity, answer in answers.items()
    }


def collect_gold(task: TaskData, text: str) -> tuple[list[Any], list[int]]:
    rows: list[Any] = []
    numbers: list[int] = []
    for inputs, labels in task.evaluation:
        logits = gold_logits(task, gold_spans(text), inputs, labels)
        rows += task.metric.predictions(
            {"start_logits": np.array([s for s, _ in logits]), "end_logits": np.array([e for _, e in logits])}
        )
        numbers += labels.tolist()
    return rows, numbers


def slow_best_span(
    start: np.ndarray, end: np.ndarray, allowed: np.ndarray, n_best: int, longest: int
) -> tuple[float, int, int] | None:
    """The rule word by word: every pair of the n best, skipping what is not a span."""
    best = None
    for first in sorted(range(len(start)), key=lambda place: (-start[place], place))[:n_best]:
        for last in sorted(range(len(end)), key=lambda place: (-end[place], place))[:n_best]:
            if allowed[first] and allowed[last] and first <= last < first + longest:
                score = start[first] + end[last]
                if best is None or score > best[0]:
                    best = (float(score), first, last)
    return best


@pytest.mark.parametrize("seed", range(40))
def test_best_span_is_the_rule_word_by_word(seed: int) -> None:
    rng = np.random.default_rng(seed)
    size = int(rng.integers(1, 80))
    start, end = rng.normal(size=(2, size))
    if seed % 2:
        start, end = np.round(start * 2), np.round(end * 2)  # many equal logits
    allowed = rng.random(size) < 0.8
    for n_best, longest in ((20, 30), (3, 5), (1, 1)):
        assert best_span(start, end, allowed, n_best, longest) == slow_best_span(
            start, end, allowed, n_best, longest
        )


@pytest.mark.parametrize("max_length", [384, 96, 40])
@pytest.mark.parametrize("side", ["right", "left"])
def test_gold_logits_score_100(squad: Path, max_length: int, side: str) -> None:
    task = load_squad(
        "squad",
        squad,
        tokenizer=make_tokenizer(padding_side=side),
        options=TaskOptions(max_length=max_length, evaluation_batch_size=3),
    )
    if side == "left":  # logits follow the row, whose padding is now in front
        rows, numbers = [], []
        for inputs, labels in task.evaluation:
            width = inputs["input_ids"].shape[1]
            for (start, end), label in zip(
                gold_logits(task, gold_spans(DEV), inputs, labels), labels, strict=True
            ):
                shift = width - len(source(task).windows[label])
                rows.append((np.roll(start, shift), np.roll(end, shift)))
                numbers.append(label)
    else:
        rows, numbers = collect_gold(task, DEV)
    score = task.metric.score(rows, numbers)
    assert (score.value, score.n) == (100, 4)
    assert score.hits is not None
    assert score.hits.tolist() == [1, 1, 1, 1]
    assert ExactMatch(source(task)).score(rows, numbers).value == 100


def test_windows_overlap_and_cover_the_context(squad: Path, tokenizer: Any) -> None:
    task = load_squad("squad", squad, tokenizer=tokenizer, doc_stride=20, options=TaskOptions(max_length=96))
    windows = [
        window for window in source(task).windows if source(task).questions[window.question].id == "late"
    ]
    places = [window.offsets[window.offsets[:, 0] >= 0] for window in windows]
    assert all(len(window) <= 96 for window in windows)
    assert {LONG[begin:end] for place in places for begin, end in place} == set(WORDS)
    for earlier, later in pairwise(places):
        np.testing.assert_array_equal(earlier[-20:], later[:20])


def test_answers_are_cut_from_the_original_context(squad: Path, tokenizer: Any) -> None:
    task = load_squad("squad", squad, tokenizer=tokenizer)
    windows = source(task).windows
    context = np.flatnonzero(windows[0].offsets[:, 0] >= 0)
    start, end = np.zeros((2, len(windows[0])))
    start[context[0]], end[context[7]] = 5, 5
    (answer,) = source(task).decode([(start, end)], [0])
    assert answer.text == "The Broncos, of Denver, won  24"  # two spaces, as written
    assert answer.accepted == ("The Broncos", "Broncos")


def test_the_best_window_of_a_question_answers(squad: Path, tokenizer: Any) -> None:
    task = load_squad("squad", squad, tokenizer=tokenizer, options=TaskOptions(max_length=96))
    numbers = [
        number
        for number, window in enumerate(source(task).windows)
        if source(task).questions[window.question].id == "late"
    ]
    rows = []
    for strength, number in enumerate(numbers):
        logits = np.zeros(len(source(task).windows[number]))
        logits[np.flatnonzero(source(task).windows[number].offsets[:, 0] >= 0)[-1]] = 1 + strength % 3
        rows.append((logits, logits))
    strongest = numbers[2]
    begin, end = source(task).windows[strongest].offsets[-2]
    assert source(task).decode(rows, numbers)[0].text == LONG[begin:end]
    assert len(source(task).decode(rows, numbers)) == 1


def test_spans_longer_than_allowed_or_outside_the_context_do_not_count(squad: Path, tokenizer: Any) -> None:
    task = load_squad("squad", squad, tokenizer=tokenizer)
    number = next(index for index, window in enumerate(source(task).windows) if window.question == 2)
    window = source(task).windows[number]
    first = int(np.flatnonzero(window.offsets[:, 0] >= 0)[0])
    start, end = np.zeros((2, len(window)))
    start[0] = end[0] = start[1] = end[1] = 50  # [CLS] and the question
    start[first], end[first + 30], end[first + 29] = 9, 8, 5
    assert source(task).decode([(start, end)], [number])[0].text == " ".join(WORDS[:30])


def test_no_pair_of_high_logits_makes_an_empty_answer(squad: Path, tokenizer: Any) -> None:
    task = load_squad("squad", squad, tokenizer=tokenizer)
    number = next(index for index, window in enumerate(source(task).windows) if window.question == 2)
    ramp = np.arange(len(source(task).windows[number]), dtype=np.float64)
    score = task.metric.score([(ramp, -ramp)], [number])  # starts at the end, ends at the beginning
    assert source(task).decode([(ramp, -ramp)], [number])[0].text == ""
    assert score.value == 0


def test_version_2_answers_nothing_when_nothing_scores_higher(tmp_path: Path, tokenizer: Any) -> None:
    unanswerable = [entry(word, f"{word}?", SHORT, impossible=True) for word in ("Why", "How")]
    dev = document((SHORT, [entry("who", "Who won?", SHORT, "Broncos"), *unanswerable]), version="v2.0")
    folder = write_squad(tmp_path / "squad_v2", dev, version="v2.0")
    task = load_squad("squad_v2.0", tmp_path, tokenizer=tokenizer)
    assert "SQuAD v2.0" in task.description
    rows = []
    for null in (4.0, 6.0, 5.0):
        window = source(task).windows[len(rows)]
        logits = np.zeros(len(window))
        logits[np.flatnonzero(window.offsets[:, 0] >= 0)[1]] = 5.0  # "Broncos"
        logits[0] = null
        rows.append((logits, logits))
    score = task.metric.score(rows, [0, 1, 2])
    assert score.items is not None
    assert score.items.tolist() == [100, 100, 0]  # a tie is an answer
    with pytest.raises(DataError, match=r"no train-v1\.1\.json"):
        load_squad("squad", folder, tokenizer=tokenizer)


def test_whole_batches_answer_whole_questions(squad: Path, tokenizer: Any) -> None:
    task = load_squad(
        "squad", squad, tokenizer=tokenizer, options=TaskOptions(max_length=128, evaluation_batch_size=6)
    )
    windows = source(task).windows
    of_batch = [{windows[label].question for label in labels} for _, labels in task.evaluation]
    assert len(of_batch) == len(task.evaluation) > 1
    assert sum(len(questions) for questions in of_batch) == 4
    assert sorted(label for _, labels in task.evaluation for label in labels) == list(range(len(windows)))


def test_items_are_in_the_order_of_the_walk(squad: Path, tokenizer: Any) -> None:
    task = load_squad(
        "squad", squad, tokenizer=tokenizer, options=TaskOptions(max_length=128, evaluation_batch_size=6)
    )
    rows, numbers = collect_gold(task, DEV)
    questions = list(dict.fromkeys(source(task).windows[number].question for number in numbers))
    for place, number in enumerate(numbers):
        if source(task).windows[number].question == 1:
            rows[place] = (-rows[place][0], -rows[place][1])
    score = task.metric.score(rows, numbers)
    assert score.items is not None
    assert [place for place, item in enumerate(score.items) if item < 100] == [questions.index(1)]


class SpanModel:
    """Answers in logits from gold spans, wrong for every question of which ``wrong`` is a divisor; counts the
    windows it was asked for.
    """

    def __init__(self, task: TaskData, starts: dict[str, tuple[int, int]], wrong: int) -> None:
        self.task, self.starts, self.wrong, self.windows = task, starts, wrong, 0

    def split(self, batch: Any) -> tuple[Any, Any]:
        return batch, batch[1]

    def run(self, model: SpanModel, batch: Any) -> dict[str, Any]:
        inputs, labels = batch
        model.windows += len(labels)
        rows = gold_logits(model.task, model.starts, inputs, labels)
        for row, label in zip(rows, labels, strict=True):
            if source(model.task).question(label) % model.wrong == 0:
                row[0][:], row[1][:] = 0, 0
        return {
            "start_logits": np.stack([start for start, _ in rows]),
            "end_logits": np.stack([end for _, end in rows]),
        }


def test_a_hopeless_model_is_stopped_after_whole_questions(tmp_path: Path, tokenizer: Any) -> None:
    middle = " ".join(WORDS[:60])
    paragraphs = [(middle, [entry(f"q{n}", f"Which word{n}?", middle, f"word{n % 60}") for n in range(300)])]
    paragraphs.append((LONG, [entry(f"l{n}", f"Which word{n}?", LONG, f"word{n}") for n in range(100)]))
    text = document(*paragraphs)
    task = load_squad(
        "squad",
        write_squad(tmp_path / "many", text),
        tokenizer=tokenizer,
        doc_stride=20,
        options=TaskOptions(max_length=80, evaluation_batch_size=4),
    )
    starts = gold_spans(text)
    batches = as_batches(task.evaluation, role="evaluation")
    assert batches.blocks is not None
    assert sum(batches.blocks) == len(task.evaluation) == batches.count
    good, bad = (SpanModel(task, starts, wrong) for wrong in (9, 2))
    evaluator = MetricEvaluator(good, batches, task.metric)  # type: ignore[arg-type]
    baseline, pairing = evaluator.baseline(good)
    full = evaluator(SpanModel(task, starts, 2), pairing)
    assert (baseline.n, full.n) == (400, 400)
    score = evaluator(bad, pairing, Standard(baseline, Relative(0.01)))
    assert score.partial
    assert score.n is not None
    assert score.n < 200
    assert bad.windows < good.windows / 2
    assert bad.windows > score.n  # a question has several windows
    assert score.items is not None
    assert score.index is not None
    assert full.items is not None
    assert score.items.tolist() == full.items[score.index].tolist()
    again = evaluator(SpanModel(task, starts, 9), pairing, Standard(baseline, Relative(0.01)))
    assert again == baseline


def test_questions_that_lie_across_batches_are_scored_in_full(squad: Path, tokenizer: Any) -> None:
    task = load_squad(
        "squad",
        squad,
        tokenizer=tokenizer,
        doc_stride=16,
        options=TaskOptions(max_length=60, evaluation_batch_size=100),
    )
    inputs, labels = next(iter(task.evaluation))
    halves = [
        ({name: array[rows] for name, array in inputs.items()}, labels[rows])
        for rows in (slice(0, None, 2), slice(1, None, 2))
    ]
    model = SpanModel(task, gold_spans(DEV), 10)
    evaluator = MetricEvaluator(model, as_batches(halves, role="evaluation"), task.metric)  # type: ignore[arg-type]
    baseline, pairing = evaluator.baseline(model)
    assert baseline.n == 4
    assert set(pairing.counts) == {None}
    standard = Standard(baseline, Relative(0.01))
    assert not evaluator(SpanModel(task, gold_spans(DEV), 1), pairing, standard).partial


def test_padding_does_not_change_an_answer(squad: Path, tokenizer: Any) -> None:
    task = load_squad("squad", squad, tokenizer=tokenizer)
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(2, len(source(task).windows[0])))
    padded = np.concatenate([logits, np.full((2, 50), 99.0)], axis=1)
    assert source(task).decode([tuple(padded)], [0]) == source(task).decode([tuple(logits)], [0])  # type: ignore[list-item]


def test_calibration_is_one_window_per_training_question(squad: Path, tokenizer: Any) -> None:
    task = load_squad(
        "squad",
        squad,
        tokenizer=tokenizer,
        options=TaskOptions(max_length=128, calibration_samples=16, calibration_batch_size=5),
    )
    assert [len(labels) for _, labels in task.calibration] == [5, 5, 5, 1]
    assert len(task.calibration) == 4
    lengths = np.concatenate([inputs["attention_mask"].sum(axis=1) for inputs, _ in task.calibration])
    assert 0.5 < (lengths == 128).mean() < 1  # early and late windows: the last one of a context is shorter
    with pytest.raises(EvaluationError, match="label -1 is not a window"):
        task.metric.score([(np.zeros(128), np.zeros(128))], [-1])


def test_a_task_can_travel_to_a_worker(squad: Path, tokenizer: Any) -> None:
    task = pickle.loads(pickle.dumps(load_squad("squad", squad, tokenizer=tokenizer)))
    assert task.metric.score(*collect_gold(task, DEV)).value == 100


def test_what_cannot_be_decoded(squad: Path, tokenizer: Any) -> None:
    task = load_squad("squad", squad, tokenizer=tokenizer)
    size = len(source(task).windows[0])
    for start, number, message in (
        (np.full(size, np.nan), 0, "logits of the question 'who' are NaN"),
        (np.zeros(size - 1), 0, f"window of {size} tokens got {size - 1} logits"),
        (np.zeros(size), 10_000, "label 10000 is not a window"),
    ):
        with pytest.raises(EvaluationError, match=message):
            task.metric.score([(start, start)], [number])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "line 1 is not JSON"),
        ('{"version": "1.1"}', r"not in SQuAD's format \(KeyError\('data'\)\)"),
        ('{"data": [{"paragraphs": [{"context": "x", "qas": [{"id": "1", "question": "y"}]}]}]}', "answers"),
        (
            '{"data": [{"paragraphs": [{"context": null, "qas": [{"id": "1", "question": "y", "answers": '
            "[]}]}]}]}",
            "of '1' is not text",
        ),
        ("[]", "not in SQuAD's format"),
        ('{"data": []}', "holds no questions"),
        (document((SHORT, [entry("q", "Why?", SHORT)])), "'q' has no answer.*squad_v2"),
    ],
)
def test_broken_files_are_named(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "dev-v1.1.json").write_text(text)
    with pytest.raises(DataError, match=message) as caught:
        read_squad(tmp_path / "dev-v1.1.json")
    assert "dev-v1.1.json" in str(caught.value)


def test_what_is_wrong_with_the_folder(tmp_path: Path, squad: Path, tokenizer: Any) -> None:
    with pytest.raises(DataError, match="does not exist"):
        load_squad("squad", tmp_path / "nowhere", tokenizer=tokenizer)
    with pytest.raises(DataError, match=r"no test-v1\.1\.json"):
        load_squad("squad", squad, tokenizer=tokenizer, options=TaskOptions(split="test"))
    with pytest.raises(DataError, match="calibration uses it"):
        load_squad("squad", squad, tokenizer=tokenizer, options=TaskOptions(split="train"))
    (squad / "train-v1.1.json").rename(squad / "train-one-v1.1.json")
    assert "train-one-v1.1.json" in load_squad("squad", tmp_path, tokenizer=tokenizer).description
    (squad / "train-two-v1.1.json").write_text(TRAIN)
    with pytest.raises(DataError, match="several files for train"):
        load_squad("squad", squad, tokenizer=tokenizer)
    (squad / "train-v1.1.json").write_text(DEV)
    with pytest.raises(DataError, match="share 4 questions, such as 'early'"):
        load_squad("squad", squad, tokenizer=tokenizer)


def test_a_question_that_leaves_no_room(squad: Path, tokenizer: Any) -> None:
    task = load_squad("squad", squad, tokenizer=tokenizer, doc_stride=34, options=TaskOptions(max_length=40))
    with pytest.raises(DataError, match=r"question 'who' has 3 tokens, which leaves 34 .* overlap of 34"):
        len(task.evaluation)


def test_other_versions_and_slow_tokenizers_are_refused(squad: Path, tokenizer: Any) -> None:
    with pytest.raises(ConfigError, match="Unknown version 'squad3'"):
        load_squad("squad3", squad, tokenizer=tokenizer)
    with pytest.raises(ConfigError, match="fast tokenizer"):
        load_squad("squad", squad, tokenizer=object())


def first_questions(file: Path, count: int) -> str:
    """An official file cut down to some questions of many articles."""
    articles = json.loads(file.read_text())["data"]
    paragraphs = [paragraph for article in articles for paragraph in article["paragraphs"][:3]]
    return document(*((paragraph["context"], paragraph["qas"][:2]) for paragraph in paragraphs[: count // 2]))


@pytest.fixture
def slice_of_dev(shared: Path, tmp_path: Path) -> tuple[Path, str]:
    text = first_questions(shared / "data/squad/dev-v1.1.json", 200)
    return write_squad(
        tmp_path / "squad", text, (shared / "data/squad/train-slice-v1.1.json").read_text()
    ), text


@pytest.mark.shared
def test_gold_logits_on_real_questions_score_100(shared: Path, slice_of_dev: tuple[Path, str]) -> None:
    """Save for the few answers that no rule-abiding span can give: longer than 30 tokens, or ending inside a
    token.
    """
    pytest.importorskip("transformers")
    folder, text = slice_of_dev
    task = load_task("squad", folder, tokenizer=shared / "models/minilm-l6-squad")
    rows, numbers = collect_gold(task, text)
    spans, possible = gold_spans(text), dict[int, bool]()
    for number in numbers:
        window = source(task).windows[number]
        begin, end = spans[source(task).questions[window.question].id]
        first, last = (
            np.flatnonzero(window.offsets[:, 0] == begin),
            np.flatnonzero(window.offsets[:, 1] == end),
        )
        fits = bool(first.size and last.size and last[0] - first[0] < 30)
        possible[window.question] = possible.get(window.question, False) or fits
    score = task.metric.score(rows, numbers)
    assert score.items is not None
    assert len(possible) == len(score.items) > 150
    assert (score.items[list(possible.values())] == 100).all()
    assert np.mean(list(possible.values())) > 0.98


@pytest.mark.shared
@pytest.mark.slow
def test_a_real_model_is_decoded_by_the_rule(shared: Path, slice_of_dev: tuple[Path, str]) -> None:
    """The rule word by word on a real model's logits finds the same answers, and its score is near that of
    the full set, 78.23.
    """
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    model = shared / "models/minilm-l6-squad"
    network = transformers.AutoModelForQuestionAnswering.from_pretrained(model, dtype=torch.float32).eval()
    task = load_task("squad", slice_of_dev[0], tokenizer=model)
    rows: list[Any] = []
    numbers: list[int] = []
    with torch.inference_mode():
        for inputs, labels in task.evaluation:
            outputs = network(**{key: torch.from_numpy(array) for key, array in inputs.items()})
            rows.extend(task.metric.predictions({key: value.numpy() for key, value in outputs.items()}))
            numbers.extend(labels.tolist())
    assert [answer.text for answer in source(task).decode(rows, numbers)] == slow_answers(task, rows, numbers)
    score = task.metric.score(rows, numbers)
    assert score.low is not None
    assert score.high is not None
    assert score.low - 5 < 78.23 < score.high + 5


def slow_answers(task: TaskData, rows: Sequence[Any], numbers: Sequence[int]) -> list[str]:
    best: dict[int, tuple[float, str]] = {}
    for (start, end), number in zip(rows, numbers, strict=True):
        window = source(task).windows[number]
        size = len(window)
        span = slow_best_span(
            start[:size].astype(np.float64), end[:size].astype(np.float64), window.offsets[:, 0] >= 0, 20, 30
        )
        known = best.setdefault(window.question, (-np.inf, ""))
        if span is not None and span[0] > known[0]:
            context = source(task).questions[window.question].context
            best[window.question] = (
                span[0],
                context[window.offsets[span[1], 0] : window.offsets[span[2], 1]],
            )
    return [text for _, text in best.values()]
