"""Evaluators: the user's function, and a metric over batches, on a backend that is three lines of arithmetic."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from octune.data import as_batches
from octune.errors import DataError, EvaluationError, EvaluationTimeout
from octune.evaluation.evaluator import MetricEvaluator
from octune.evaluation.function import FunctionEvaluator
from octune.evaluation.metrics import get_metric

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
    assert shuffling(perfect).items is not None
    assert shuffling(perfect).items is not None
    third = shuffling(perfect)
    assert third.value == 1.0
    assert third.items is None
    assert third.hits is None


def test_the_order_can_be_carried_over_from_an_earlier_run() -> None:
    first = evaluator(batches())
    first(perfect)
    same, other = evaluator(batches()), evaluator(batches([1, 0, 2, 3, 5, 4]))
    same.order = other.order = first.order
    assert same(perfect).items is not None
    assert other(perfect).items is None


def test_data_without_labels_is_refused() -> None:
    with pytest.raises(DataError, match=r"Batch 0 of the evaluation data has no label.*Expected"):
        evaluator([X])(perfect)


def test_labels_and_predictions_must_match_in_number() -> None:
    with pytest.raises(DataError, match="Batch 1 of the evaluation data has 3 labels, but the model gave 2 predictions"):
        evaluator([(X[:2], Y[:2]), (X[2:4], Y[:3])])(perfect)


def test_empty_data_is_refused() -> None:
    with pytest.raises(DataError, match="empty"):
        evaluator([])(perfect)


def test_a_model_that_fails_on_the_data() -> None:
    def fails(inputs: Any) -> Any:
        raise ValueError("wrong shape")

    with pytest.raises(EvaluationError, match="The evaluation raised ValueError: wrong shape"):
        evaluator(batches())(fails)
