"""Metrics: values against scikit-learn and SciPy, items against the jackknife done the slow way."""

from __future__ import annotations

import pickle
import sys
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn import metrics as sklearn_metrics

from octune.errors import ConfigError, EvaluationError
from octune.evaluation import ExactMatch, Metric, SquadF1, get_metric, metric_names
from octune.evaluation.squad_metric import normalize_answer, token_f1
from octune.score import Score

pytestmark = pytest.mark.filterwarnings("error")

Reference = Callable[[np.ndarray, np.ndarray], float]

CLASSIFICATION: dict[str, Reference] = {
    "accuracy": lambda p, y: sklearn_metrics.accuracy_score(y, p),
    "f1": lambda p, y: sklearn_metrics.f1_score(y, p),
    "acc_and_f1": lambda p, y: (sklearn_metrics.accuracy_score(y, p) + sklearn_metrics.f1_score(y, p)) / 2,
    "mcc": lambda p, y: sklearn_metrics.matthews_corrcoef(y, p),
}
REGRESSION: dict[str, Reference] = {
    "pearson": lambda p, y: stats.pearsonr(p, y).statistic,
    "spearmanr": lambda p, y: stats.spearmanr(p, y).statistic,
    "corr": lambda p, y: (stats.pearsonr(p, y).statistic + stats.spearmanr(p, y).statistic) / 2,
    "mse": lambda p, y: sklearn_metrics.mean_squared_error(y, p),
    "mae": lambda p, y: sklearn_metrics.mean_absolute_error(y, p),
    "rmse": lambda p, y: sklearn_metrics.root_mean_squared_error(y, p),
}
SMOOTH = ["f1", "acc_and_f1", "mcc", "pearson", "rmse"]


def jackknife(reference: Reference, predicted: np.ndarray, truth: np.ndarray) -> np.ndarray:
    count = len(truth)
    left_out = [reference(np.delete(predicted, i), np.delete(truth, i)) for i in range(count)]
    return count * reference(predicted, truth) - (count - 1) * np.array(left_out)


def classes(count: int = 60, number: int = 2, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, number, count)
    return np.where(rng.random(count) < 0.7, truth, rng.integers(0, number, count)), truth


def numbers(count: int = 60, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    truth = rng.normal(size=count)
    return truth + 0.5 * rng.normal(size=count), truth


def items(score: Score) -> np.ndarray:
    assert score.items is not None
    return score.items


@pytest.mark.parametrize("name", CLASSIFICATION)
def test_classification_matches_scikit_learn(name: str) -> None:
    predicted, truth = classes()
    score = get_metric(name).score(list(np.eye(2)[predicted]), list(truth))
    assert score.value == pytest.approx(CLASSIFICATION[name](predicted, truth), abs=1e-12)
    assert score.hits is not None
    np.testing.assert_array_equal(score.hits, predicted == truth)


@pytest.mark.parametrize("name", REGRESSION)
def test_regression_matches_scipy_and_scikit_learn(name: str) -> None:
    predicted, truth = numbers()
    score = get_metric(name).score(list(predicted[:, None].astype(np.float64)), list(truth))
    assert score.value == pytest.approx(REGRESSION[name](predicted, truth), abs=1e-12)
    assert score.hits is None
    assert score.n == 60


@pytest.mark.parametrize("name", SMOOTH)
def test_items_are_the_jackknife_pseudo_values(name: str) -> None:
    predicted, truth = classes() if name in CLASSIFICATION else numbers()
    reference = {**CLASSIFICATION, **REGRESSION}[name]
    np.testing.assert_allclose(
        items(get_metric(name).score(predicted, truth)), jackknife(reference, predicted, truth), atol=1e-9
    )


@pytest.mark.parametrize("average", ["macro", "micro", "weighted"])
@pytest.mark.parametrize("number", [2, 5])
def test_averaged_f1_and_its_items(average: str, number: int) -> None:
    predicted, truth = classes(40, number)
    truth[0] = predicted[1] = 7  # classes that vanish from one side, or altogether, when an item is left out

    def reference(p: np.ndarray, y: np.ndarray) -> float:
        return float(sklearn_metrics.f1_score(y, p, average=average, zero_division=0.0))

    score = get_metric("f1", average=average).score(predicted, truth)
    assert score.value == pytest.approx(reference(predicted, truth))
    np.testing.assert_allclose(items(score), jackknife(reference, predicted, truth), atol=1e-9)


def test_multiclass_mcc_items() -> None:
    predicted, truth = classes(40, 4)
    exact = jackknife(CLASSIFICATION["mcc"], predicted, truth)
    np.testing.assert_allclose(items(get_metric("mcc").score(predicted, truth)), exact, atol=1e-9)


@given(st.integers(0, 10_000), st.integers(100, 200), st.sampled_from([*SMOOTH, "spearmanr", "corr"]))
@settings(max_examples=60)
def test_mean_of_items_is_close_to_the_value(seed: int, count: int, name: str) -> None:
    """The jackknife's bias correction is of order 1/n for a smooth metric."""
    predicted, truth = classes(count, seed=seed) if name in CLASSIFICATION else numbers(count, seed)
    score = get_metric(name).score(predicted, truth)
    assert items(score).mean() == pytest.approx(score.value, abs=3 / count)
    assert score.low is not None
    assert score.high is not None
    assert score.low < score.value < score.high


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=50))
def test_items_of_accuracy_are_the_hits(pairs: list[tuple[int, int]]) -> None:
    predicted, truth = zip(*pairs, strict=True)
    score = get_metric("acc").score(predicted, truth)
    assert list(items(score)) == [float(p == y) for p, y in pairs]
    assert score.value == pytest.approx(items(score).mean())


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=1, max_size=12))
def test_small_and_one_sided_inputs_stay_finite_or_raise(pairs: list[tuple[int, int]]) -> None:
    predicted, truth = np.array(pairs).T
    assert np.isfinite(items(get_metric("mcc").score(predicted, truth))).all()
    if predicted.any() or truth.any():
        assert np.isfinite(items(get_metric("f1").score(predicted, truth))).all()
    else:
        with pytest.raises(EvaluationError, match=r"f1 is undefined .* class 1"):
            get_metric("f1").score(predicted, truth)


def test_spearman_items_are_nearly_the_jackknife() -> None:
    predicted, truth = numbers(300)
    truth = np.round(truth * 2) / 2  # ties, as in STS-B
    exact = jackknife(REGRESSION["spearmanr"], predicted, truth)
    found = items(get_metric("spearman").score(predicted, truth))
    assert np.corrcoef(found, exact)[0, 1] > 0.98
    assert found.std() == pytest.approx(exact.std(), rel=0.1)


def test_an_item_without_which_there_is_no_correlation_counts_as_the_value() -> None:
    score = get_metric("pearson").score([0.1, 0.1, 0.1, 0.9], [1.0, 2.0, 3.0, 9.0])
    assert items(score)[3] == score.value
    assert np.isfinite(items(score)).all()


def test_topk() -> None:
    logits = np.array([[0.1, 0.5, 0.4], [0.2, 0.1, 0.7], [0.3, 0.3, 0.3]])
    assert list(items(get_metric("topk").score(logits, [1, 0, 0]))) == [1, 0, 1]  # equal logits: as argmax
    assert list(items(get_metric("topk", k=2).score(logits, [2, 0, 2]))) == [1, 1, 0]
    truth = np.random.default_rng(0).integers(0, 10, 200)
    many = np.random.default_rng(1).normal(size=(200, 10))
    assert get_metric("topk", k=5).score(many, truth).value == pytest.approx(
        sklearn_metrics.top_k_accuracy_score(truth, many, k=5)
    )


def test_errors_of_several_outputs_are_averaged_per_item() -> None:
    predicted, truth = np.zeros((3, 2)), np.array([[1.0, 3.0], [0.0, 2.0], [0.0, 0.0]])
    assert list(items(get_metric("mse").score(predicted, truth))) == [5, 2, 0]
    assert get_metric("mse").score(predicted, truth).value == pytest.approx(
        sklearn_metrics.mean_squared_error(truth, predicted)
    )


def test_direction() -> None:
    lower = {name for name in metric_names() if not get_metric(name).higher_is_better}
    assert lower == {"mse", "mae", "rmse"}


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("ACC", "accuracy"),
        ("Spearman", "spearmanr"),
        ("SquadF1", "squad_f1"),
        ("squad-f1", "squad_f1"),
        ("Exact_Match", "exact_match"),
        ("topk", "top1"),
    ],
)
def test_names_are_forgiving(alias: str, name: str) -> None:
    assert get_metric(alias).name == name


@pytest.mark.parametrize("name", metric_names())
def test_every_metric_can_travel_to_a_worker(name: str) -> None:
    metric = get_metric(name)
    assert pickle.loads(pickle.dumps(metric)).name == metric.name


def test_unknown_names_and_options() -> None:
    with pytest.raises(ConfigError, match=r"'acuracy'.*Did you mean 'accuracy'"):
        get_metric("acuracy")
    with pytest.raises(ConfigError, match=r"'zzzzzz'.*Known: acc_and_f1, accuracy"):
        get_metric("zzzzzz")
    with pytest.raises(ConfigError, match=r"topk has no option 'n'\. Its options: k"):
        get_metric("topk", n=3)
    with pytest.raises(ConfigError, match=r"from 1\. Got 0"):
        get_metric("topk", k=0)
    with pytest.raises(ConfigError, match="Got 'samples'"):
        get_metric("f1", average="samples")
    with pytest.raises(ConfigError, match="Got int instead"):
        get_metric(3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "kind", [int, float, np.int64, np.float32, np.array, lambda value: np.array([value])]
)
def test_kinds_of_labels(kind: Callable[[int], Any]) -> None:
    labels = [kind(value) for value in (1, 0, 1)]
    assert get_metric("accuracy").score([np.array([0.1, 0.9])] * 3, labels).value == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("name", "predictions", "labels", "message"),
    [
        ("accuracy", [], [], "no items"),
        ("accuracy", [1, 0], [1], "2 predictions and 1 labels"),
        ("accuracy", [[0.2, np.nan], [0.1, 0.2]], [0, 1], "1 of 2 predictions are NaN"),
        ("accuracy", [[0.2, 0.1]], [2], "label 2, but the model has 2 classes"),
        ("accuracy", [[0.2]], [0], "at least two logits"),
        ("accuracy", [[0.2, 0.1]], [0.5], "labels that are class numbers"),
        ("accuracy", [[0.2, 0.1], [0.3]], [0, 1], "same shape for every item"),
        ("accuracy", ["yes"], [0], "that are numbers"),
        ("f1", [0, 2], [0, 1], "found 2"),
        ("topk", [1, 0], [1, 0], "at least 1 logits"),
        ("pearson", [1.0, 1.0], [1.0, 2.0], "pearson is undefined because all 2 predictions are the same"),
        ("spearmanr", [1.0, 2.0], [3.0, 3.0], "all 2 labels are the same number, 3"),
        ("corr", [1.0], [2.0], "undefined"),
        ("mse", [[1.0, 2.0]], [1.0], r"\(2,\) and \(\)"),
        ("rmse", [np.inf, 1.0], [1.0, 1.0], "1 of 2 predictions are NaN or infinite"),
        ("squad_f1", ["x"], [], "1 predictions and 0 labels"),
        ("squad_f1", [3], [["x"]], "needs answer texts"),
        ("squad_f1", ["x"], [3], "accepted answers"),
    ],
)
def test_what_cannot_be_scored_says_why(
    name: str, predictions: list[Any], labels: list[Any], message: str
) -> None:
    with pytest.raises(EvaluationError, match=message):
        get_metric(name).score(predictions, labels)


def test_masked_classes_are_no_error() -> None:
    assert get_metric("accuracy").score([[-np.inf, 0.3]], [1]).value == 1


def test_predictions_from_outputs() -> None:
    metric = get_metric("accuracy")
    logits = np.array([[1.0, 2.0], [3.0, 4.0]])
    for outputs in (
        {"loss": np.zeros(2), "hidden": np.zeros((2, 9)), "logits": logits},
        {"loss": np.array(0.1), "0": logits},
        {"output": logits},
    ):
        np.testing.assert_array_equal(np.array(metric.predictions(outputs)), logits)
    with pytest.raises(EvaluationError, match="no predictions"):
        metric.predictions({"loss": np.array(0.3)})


def test_a_function_becomes_a_metric() -> None:
    def wrong(predictions: np.ndarray, labels: np.ndarray) -> float:
        return float(np.mean(predictions.argmax(axis=1) != labels))

    def wrong_items(predictions: np.ndarray, labels: np.ndarray) -> np.ndarray:
        return predictions.argmax(axis=1) != labels

    rows, labels = [np.array([0.0, 1.0]), np.array([1.0, 0.0])], [1, 1]
    metric = get_metric(wrong, higher_is_better=False)
    score = metric.score(rows, labels)
    assert (score.value, score.n, score.items, metric.higher_is_better) == (0.5, 2, None, False)
    assert list(items(get_metric(wrong_items).score(rows, labels))) == [0, 1]
    assert get_metric(metric) is metric


def test_a_function_by_its_path(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("scoring_for_test")
    module.best = lambda predictions, labels: float(predictions.max())  # type: ignore[attr-defined]
    module.number = 3  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "scoring_for_test", module)
    assert get_metric("scoring_for_test:best").score([1.0, 4.0], [0, 0]).value == 4
    for path, message in (
        ("scoring_for_test:worst", "no attribute 'worst'"),
        ("not_there:best", "not_there"),
        ("scoring_for_test:number", "is a int"),
    ):
        with pytest.raises(ConfigError, match=message):
            get_metric(path)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (float("nan"), "NaN or infinite"),
        ("good", "Got 'good'"),
        (np.zeros(3), r"shape \(3,\)"),
        (None, "Got None"),
        ({}, "Got {}"),
    ],
)
def test_what_a_function_may_not_return(result: Any, message: str) -> None:
    with pytest.raises(EvaluationError, match=message):
        get_metric(lambda predictions, labels: result).score([1, 2], [1, 2])


def test_a_function_that_raises_is_named() -> None:
    def careless(predictions: np.ndarray, labels: np.ndarray) -> float:
        raise KeyError("start")

    with pytest.raises(EvaluationError, match=r"careless raised KeyError: 'start'"):
        get_metric(careless).score([1], [1])


def test_a_metric_class_of_ones_own() -> None:
    class Constant(Metric):
        name = "constant"

        def __init__(self, value: float = 1.0) -> None:
            self.value = value

        def score(self, predictions: Any, labels: Any) -> Score:
            return Score.of(self.value)

    assert get_metric(Constant, value=3.0).score([], []).value == 3
    with pytest.raises(ConfigError, match="already built"):
        get_metric(Constant(), value=2.0)


# SQuAD's scores


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The  U.S.", "us"),
        ("a theory", "theory"),
        ("an-other\tthing", "another thing"),
        ("“quoted”", "“quoted”"),
        ("A", ""),
        ("Éa", "éa"),
    ],
)
def test_normalisation(text: str, normal: str) -> None:
    assert normalize_answer(text) == normal


def test_token_f1_counts_words() -> None:
    assert token_f1("the Denver Broncos", "Denver Broncos") == 1
    assert token_f1("Denver", "Denver Broncos") == pytest.approx(2 / 3)
    assert token_f1("b b b", "b b") == pytest.approx(0.8)
    assert token_f1("Carolina", "Denver") == 0
    assert (
        token_f1("the", "a"),
        token_f1("the", "a", version_2=True),
        token_f1("x", "", version_2=True),
    ) == (0, 1, 0)


def test_squad_takes_the_best_of_the_accepted_answers() -> None:
    accepted = [["Denver Broncos", "Broncos"], "1990", {"answers": {"text": ["x"], "answer_start": [3]}}]
    score = SquadF1().score(["Broncos", "in 1990", "nobody"], accepted)
    np.testing.assert_allclose(items(score), [100, 100 * 2 / 3, 0])
    assert score.hits is not None
    assert list(score.hits) == [1, 0, 0]
    assert score.value == pytest.approx(500 / 9)
    exact = ExactMatch().score(
        [{"id": "1", "prediction_text": "The Broncos!"}, "1991"], [[{"text": "broncos"}], ["1990"]]
    )
    assert list(items(exact)) == [100, 0]


def test_squad_v2_scores_no_answer() -> None:
    metric = SquadF1(version_2=True)
    assert list(items(metric.score(["", "x", ""], [[], [], ["x"]]))) == [100, 0, 0]
    # "the" is empty after normalisation
    assert list(items(metric.score(["", "x"], [["the"], ["the", "x"]]))) == [100, 100]


def test_span_logits_by_name_by_place_or_stacked() -> None:
    start, end = np.arange(6.0).reshape(2, 3), -np.arange(6.0).reshape(2, 3)
    for outputs in (
        {"hidden": np.zeros((2, 3, 8)), "end_logits": end, "start_logits": start},
        {"0": start, "1": end},
        {"output": np.stack([start, end], axis=-1)},
    ):
        rows = SquadF1().predictions(outputs)
        assert len(rows) == 2
        np.testing.assert_array_equal(np.array(rows), np.stack([start, end], axis=1))
    with pytest.raises(EvaluationError, match=r"start and end logits.*\(2, 3\)"):
        SquadF1().predictions({"logits": start})
