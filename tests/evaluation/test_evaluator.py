"""Evaluators: the user's function, and a metric over batches, on a backend that is three lines of
arithmetic.
"""

from __future__ import annotations

import gc
import json
import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from octune.criterion import Relative
from octune.data import as_batches
from octune.errors import DataError, EvaluationError, EvaluationTimeout
from octune.evaluation.evaluator import MetricEvaluator
from octune.evaluation.function import FunctionEvaluator
from octune.evaluation.metrics import get_metric
from octune.evaluation.pairing import Pairing
from octune.referee import Standard
from octune.score import Score
from octune.statistics.sequential import ALPHA

X = np.arange(12.0).reshape(6, 2)
Y = np.array([0, 1, 0, 1, 0, 1])


class Backend:
    """A model is a function from inputs to logits."""

    def split(self, batch: Any) -> tuple[Any, Any]:
        return batch if isinstance(batch, tuple) else (batch, None)

    def run(self, model: Callable[[Any], Any], inputs: Any) -> dict[str, Any]:
        return {"logits": model(inputs)}


def perfect(inputs: np.ndarray) -> np.ndarray:
    return np.eye(2)[(inputs[:, 0].astype(int) // 2) % 2]


def always_zero(inputs: np.ndarray) -> np.ndarray:
    return np.tile([1.0, 0.0], (len(inputs), 1))


def evaluator(data: Any, metric: str = "accuracy", **options: Any) -> MetricEvaluator:
    return MetricEvaluator(Backend(), as_batches(data, role="evaluation"), get_metric(metric), **options)  # type: ignore[arg-type]


def batches(order: Any = range(6), size: int = 2, labels: Any = lambda y: y) -> list[Any]:
    rows = list(order)
    return [(X[rows[i : i + size]], labels(Y[rows[i : i + size]])) for i in range(0, 6, size)]


def test_a_function_gets_the_model_and_gives_the_score() -> None:
    def accuracy_of(model: Any) -> float:
        assert model is perfect
        return 0.25

    scored = FunctionEvaluator(accuracy_of)
    assert scored(perfect).value == 0.25
    assert scored.name == "accuracy_of"
    assert scored.higher_is_better
    assert FunctionEvaluator(lambda model: 1).name == "<lambda>"


def test_a_function_that_fails() -> None:
    with pytest.raises(EvaluationError, match="raised KeyError"):
        FunctionEvaluator(lambda model: {}["x"])(perfect)
    with pytest.raises(EvaluationTimeout):
        FunctionEvaluator(lambda model: time.sleep(60), 0.05)(perfect)


def test_a_metric_over_batches() -> None:
    score = evaluator(batches())(perfect)
    assert (score.value, score.n) == (1.0, 6)
    assert evaluator(batches())(always_zero).value == 0.5
    assert evaluator(batches()).name == "accuracy"
    assert not evaluator(batches(), "mse").higher_is_better


@pytest.mark.parametrize(
    "form",
    [
        list,
        tuple,
        lambda y: y.astype(np.int32),
        lambda y: [np.int64(n) for n in y],
        lambda y: [np.array(n) for n in y],
    ],
)
def test_labels_in_any_form(form: Any) -> None:
    assert evaluator(batches(labels=form))(perfect).value == 1.0


def test_labels_as_tensors() -> None:
    torch = pytest.importorskip("torch")
    assert evaluator(batches(labels=torch.tensor))(perfect).value == 1.0
    assert evaluator(batches(labels=lambda y: [torch.tensor(n) for n in y]))(perfect).value == 1.0


def test_a_scalar_label_of_a_batch_of_one() -> None:
    assert evaluator([(X[:1], 0), (X[1:2], np.array(1))])(perfect).n == 2


def test_ragged_labels() -> None:
    metric = get_metric("SquadF1")
    metric.predictions = lambda outputs: ["Broncos", "1999"]  # type: ignore[method-assign]
    data = as_batches([(X[:2], [["Denver Broncos", "Broncos"], ["1999"]])], role="evaluation")
    assert MetricEvaluator(Backend(), data, metric)(perfect).value == 100.0  # type: ignore[arg-type]


def test_only_the_first_samples_in_whole_batches() -> None:
    seen = []

    def model(inputs: np.ndarray) -> np.ndarray:
        seen.append(len(inputs))
        return perfect(inputs)

    assert evaluator(batches(), samples=3)(model).n == 4
    assert seen == [2, 2]


def test_items_are_paired_only_in_the_same_order() -> None:
    orders = iter([range(6), range(6), [1, 0, 2, 3, 5, 4]])
    shuffling = evaluator(lambda: batches(next(orders)))
    score, pairing = shuffling.baseline(perfect)
    assert score.items is not None
    assert shuffling(perfect, pairing).items is not None
    third = shuffling(perfect, pairing)
    assert third.value == 1.0
    assert third.items is None
    assert third.hits is None


def test_the_pairing_can_be_carried_over_from_an_earlier_run() -> None:
    _, pairing = evaluator(batches()).baseline(perfect)
    kept = Pairing.from_json(json.loads(json.dumps(pairing.to_json())))
    assert kept == pairing
    assert evaluator(batches())(perfect, kept).items is not None
    assert evaluator(batches([1, 0, 2, 3, 5, 4]))(perfect, kept).items is None


def test_no_evaluator_remembers_its_first_call() -> None:
    orders = iter([[1, 0, 2, 3, 5, 4], range(6), range(6)])
    shuffling = evaluator(lambda: batches(next(orders)))
    shuffling.baseline(perfect)
    _, pairing = shuffling.baseline(perfect)
    assert shuffling(perfect, pairing).items is not None


def test_a_pairing_of_other_batches_is_not_taken_for_these() -> None:
    _, pairing = evaluator(batches()).baseline(perfect)
    score, own = evaluator(batches([1, 0, 2, 3, 5, 4])).baseline(perfect, pairing)
    assert score.items is not None
    assert own.digests != pairing.digests


def test_data_without_labels_is_refused() -> None:
    with pytest.raises(DataError, match=r"Batch 0 of the evaluation data has no label.*Expected"):
        evaluator([X])(perfect)


def test_labels_and_predictions_must_match_in_number() -> None:
    with pytest.raises(
        DataError, match="Batch 1 of the evaluation data has 3 labels, but the model made 2 predictions"
    ):
        evaluator([(X[:2], Y[:2]), (X[2:4], Y[:3])])(perfect)


def test_empty_data_is_refused() -> None:
    with pytest.raises(DataError, match="empty"):
        evaluator([])(perfect)


def test_a_model_that_fails_on_the_data() -> None:
    def fails(inputs: Any) -> Any:
        raise ValueError("wrong shape")

    with pytest.raises(EvaluationError, match="raised ValueError on batch 0 of its data: wrong shape"):
        evaluator(batches())(fails)


# -- stopped early -------------------------------------------------------------------------------------------

N = 600
CLASSES = np.arange(N) % 3
INPUTS = np.arange(N, dtype=float)[:, None]


class Answers:
    """A model that answers right except for some items, and counts the rows that it was asked for."""

    def __init__(self, wrong: Any = ()) -> None:
        self.wrong, self.rows = set(wrong), 0

    def __call__(self, inputs: np.ndarray) -> np.ndarray:
        self.rows += len(inputs)
        numbers = inputs[:, 0].astype(int)
        return np.eye(3)[[(number + (number in self.wrong)) % 3 for number in numbers]]


def many(size: int = 5) -> list[Any]:
    return [(INPUTS[i : i + size], CLASSES[i : i + size]) for i in range(0, N, size)]


def compared(
    data: Any, bad: Any, metric: Any = "accuracy", criterion: Any = None
) -> tuple[Score, Score, Answers, MetricEvaluator]:
    scored = MetricEvaluator(Backend(), as_batches(data, role="evaluation"), get_metric(metric))  # type: ignore[arg-type]
    baseline, pairing = scored.baseline(Answers(range(0, N, 20)))
    model = Answers(bad)
    return baseline, scored(model, pairing, Standard(baseline, criterion or Relative(0.01))), model, scored


def test_a_hopeless_model_is_stopped_early() -> None:
    baseline, score, model, _ = compared(many(), range(0, N, 2))
    assert score.partial
    assert score.total == N
    assert score.n == model.rows < N / 4
    assert score.index is not None
    assert baseline.items is not None
    assert score.items is not None
    # the items are those that it says they are
    assert score.items.tolist() == [float(number % 2) for number in score.index]
    assert score.p is not None
    assert score.p <= ALPHA
    assert not Relative(0.01).judge(baseline, score).passed


@pytest.mark.parametrize("bad", [range(0, N, 20), range(1, N, 20), (), range(0, N, 19)])
def test_what_is_not_hopeless_is_scored_in_full_and_in_order(bad: Any) -> None:
    _, score, model, scored = compared(many(), bad)
    assert model.rows == N
    assert not score.partial
    plain = scored(Answers(bad))
    assert score == plain
    assert score.items is not None
    assert score.items.tolist() == plain.items.tolist()  # type: ignore[union-attr]
    assert score.hits.tolist() == plain.hits.tolist()  # type: ignore[union-attr]


def test_the_order_is_random_but_always_the_same() -> None:
    seen: list[list[float]] = []

    class Watched(Answers):
        def __call__(self, inputs: np.ndarray) -> np.ndarray:
            seen[-1].append(float(inputs[0, 0]))
            return super().__call__(inputs)

    scored = evaluator(many())
    baseline, pairing = scored.baseline(Answers())
    for _ in range(2):
        seen.append([])
        scored(Watched(), pairing, Standard(baseline, Relative(0.01)))
    assert seen[0] == seen[1]
    assert seen[0] != sorted(seen[0])
    assert sorted(seen[0]) == [float(number) for number in range(0, N, 5)]


def test_data_that_can_only_be_walked_is_stopped_when_nothing_can_save_it() -> None:
    data = many()
    _, score, model, _ = compared(lambda: iter(data), range(N))
    assert score.p == 0.0
    assert model.rows < 50
    _, score, model, _ = compared(lambda: iter(data), range(0, N // 2, 20))
    assert model.rows == N


def test_a_shuffling_loader_is_scored_in_full() -> None:
    def data() -> Any:
        orders = np.random.default_rng(len(calls)).permutation(N).reshape(-1, 5)
        calls.append(1)
        return iter([(INPUTS[rows], CLASSES[rows]) for rows in orders])

    calls: list[int] = []
    _, score, _, _ = compared(data, range(N))
    assert not score.partial
    assert score.items is None
    assert score.n == N


def test_blocks_are_walked_in_their_order() -> None:
    class Blocks:
        """Data whose rows come in random order already, in blocks of four batches."""

        def __len__(self) -> int:
            return N // 5

        @property
        def blocks(self) -> list[int]:
            return [4] * (N // 20)

        def __getitem__(self, number: int) -> Any:
            rows = np.random.default_rng(0).permutation(N)[number * 5 : number * 5 + 5]
            return INPUTS[rows], CLASSES[rows]

        def __iter__(self) -> Any:
            return (self[number] for number in range(len(self)))

    _, score, model, _ = compared(Blocks(), range(0, N, 4))
    assert score.partial
    assert score.index is not None
    assert score.index.tolist() == list(range(model.rows))
    assert model.rows % 20 == 0
    assert model.rows < N / 3


@pytest.mark.parametrize("metric", ["f1", "mcc"])
def test_metrics_that_are_no_mean_are_stopped_too(metric: str) -> None:
    class Binary(Answers):
        def __call__(self, inputs: np.ndarray) -> np.ndarray:
            self.rows += len(inputs)
            numbers = inputs[:, 0].astype(int)
            return np.eye(2)[[int((number % 3 == 0) ^ (number in self.wrong)) for number in numbers]]

    scored = evaluator([(x, (y == 0).astype(int)) for x, y in many()], metric)
    baseline, pairing = scored.baseline(Binary(range(0, N, 20)))
    model = Binary(range(0, N, 2))
    score = scored(model, pairing, Standard(baseline, Relative(0.01)))
    assert score.partial
    assert score.n == model.rows < N / 2
    same = scored(Binary(range(1, N, 20)), pairing, Standard(baseline, Relative(0.05)))
    assert not same.partial


def test_a_function_of_ones_own_is_watched_if_it_scores_single_items() -> None:
    def own(predictions: np.ndarray, labels: np.ndarray) -> np.ndarray:
        return (predictions.argmax(1) == labels).astype(float)

    def against_the_mean(predictions: np.ndarray, labels: np.ndarray) -> np.ndarray:
        right = (predictions.argmax(1) == labels).astype(float)
        return right / (1 + right.mean())

    _, score, _, _ = compared(many(), range(0, N, 2), own)
    assert score.partial
    _, score, _, _ = compared(many(), range(0, N, 2), against_the_mean)
    assert not score.partial
    _, score, _, _ = compared(
        many(), range(0, N, 2), lambda predictions, labels: own(predictions, labels).mean()
    )
    assert not score.partial


def test_the_outputs_of_a_model_are_not_hoarded() -> None:
    """Each batch is scored at once where items have scores of their own: what a model puts out may be far
    larger than its score.
    """
    alive: list[weakref.ref[np.ndarray]] = []

    def model(inputs: np.ndarray) -> np.ndarray:
        outputs = Answers()(inputs)
        alive.append(weakref.ref(outputs))
        return outputs

    score = evaluator(many())(model)
    assert score.n == N
    gc.collect()
    assert sum(reference() is not None for reference in alive) == 0
    # ... nor during the walk, except for the last few.
    counts: list[int] = []

    def counting(inputs: np.ndarray) -> np.ndarray:
        counts.append(sum(reference() is not None for reference in alive))
        return model(inputs)

    alive.clear()
    evaluator(many())(counting)
    assert max(counts) <= 2


def test_a_limit_of_time_holds_for_a_part_as_well() -> None:
    scored = evaluator(many(), trial_timeout=0.2)
    baseline, pairing = scored.baseline(Answers())

    def slow(inputs: np.ndarray) -> np.ndarray:
        time.sleep(0.05)
        return Answers()(inputs)

    with pytest.raises(EvaluationTimeout):
        scored(slow, pairing, Standard(baseline, Relative(0.01)))


def test_a_model_that_fails_on_a_later_batch() -> None:
    scored = evaluator(many())
    baseline, pairing = scored.baseline(Answers())

    def fails(inputs: np.ndarray) -> np.ndarray:
        if inputs[0, 0] == 0:
            raise ValueError("not this one")
        return Answers()(inputs)

    with pytest.raises(EvaluationError, match="not this one"):
        scored(fails, pairing, Standard(baseline, Relative(0.01)))
