"""Sentence embeddings: pooling, correlation of cosines, and rankings."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import ndcg_score

from octune.backends.batches import Inputs
from octune.errors import EvaluationError
from octune.evaluation.embedding_metrics import Retrieval, SimilarityCorrelation

TOKENS = np.arange(24, dtype=np.float32).reshape(2, 3, 4) % 7 + 1
MASK = np.array([[1, 1, 0], [1, 1, 1]])


def unit(array: np.ndarray) -> np.ndarray:
    return np.asarray(array / np.linalg.norm(array, axis=-1, keepdims=True))


@pytest.mark.parametrize(
    ("pooling", "first"),
    [("mean", TOKENS[0, :2].mean(axis=0)), ("cls", TOKENS[0, 0]), ("max", TOKENS[0, :2].max(axis=0))],
)
def test_tokens_are_pooled_without_padding(pooling: str, first: np.ndarray) -> None:
    metric = SimilarityCorrelation([1.0], pooling)
    outputs = {"last_hidden_state": TOKENS, "pooler_output": np.ones((2, 4), np.float32)}
    for inputs in (Inputs(mask=MASK.astype(bool)), {"attention_mask": MASK}):
        rows = metric.predictions_from(outputs, inputs)
        np.testing.assert_allclose(rows[0], unit(first), rtol=1e-6)
    left = {"last_hidden_state": TOKENS[:, ::-1]}
    np.testing.assert_allclose(
        SimilarityCorrelation([1.0], "mean").predictions_from(left, {"attention_mask": MASK[:, ::-1]})[0],
        unit(TOKENS[0, :2].mean(axis=0)),
        rtol=1e-6,
    )


def test_an_embedding_is_taken_as_it_is() -> None:
    outputs = {"token_embeddings": TOKENS, "sentence_embedding": np.eye(2, dtype=np.float32)}
    assert np.array_equal(SimilarityCorrelation([1.0]).predictions(outputs), np.eye(2))
    with pytest.raises(EvaluationError, match="finds no embedding"):
        SimilarityCorrelation([1.0]).predictions({"ids": np.zeros((2, 3), np.int64)})
    with pytest.raises(EvaluationError, match="NaN"):
        SimilarityCorrelation([1.0]).predictions({"y": np.full((2, 3), np.nan)})


def test_the_correlation_is_that_of_scipy_whatever_the_order_of_rows() -> None:
    random = np.random.default_rng(0)
    vectors, truth = unit(random.normal(size=(40, 8))), random.normal(size=20)
    cosines = [vectors[2 * pair] @ vectors[2 * pair + 1] for pair in range(20)]
    metric = SimilarityCorrelation(truth)
    rows = random.permutation(20)
    numbers = [number for pair in rows for number in (2 * pair + 1, 2 * pair)]
    score = metric.score([vectors[number] for number in numbers], numbers)
    assert score.value == pytest.approx(stats.spearmanr(cosines, truth).statistic)
    assert score.n == 20
    assert metric.groups([0, 1, 5, 4]) == [0, 0, 2, 2]


def ranked(queries: int = 7, documents: int = 50) -> tuple[Retrieval, np.ndarray, np.ndarray, np.ndarray]:
    random = np.random.default_rng(1)
    vectors = unit(random.normal(size=(queries + documents, 16)))
    relevant = np.where(
        random.random((queries, documents)) < 0.2, random.integers(1, 4, (queries, documents)), 0
    )
    judged = {
        query: {queries + document: float(relevant[query, document]) for document in np.flatnonzero(row)}
        for query, row in enumerate(relevant)
    }
    names = [f"q{n}" for n in range(queries)] + [f"d{n}" for n in range(documents)]
    numbers = np.arange(queries + documents)
    return Retrieval(judged, list(numbers[queries:]), names), vectors, relevant, numbers


def test_the_ranking_is_scored_as_scikit_learn_does() -> None:
    metric, vectors, relevant, numbers = ranked()
    cosines = vectors[:7] @ vectors[7:].T
    score = metric.score(list(vectors), list(numbers))
    assert score.value == pytest.approx(ndcg_score(relevant, cosines, k=10))
    assert score.n == 7
    shuffled = np.random.default_rng(2).permutation(numbers)
    assert metric.score(list(vectors[shuffled]), list(shuffled)).value == pytest.approx(score.value)


def test_a_query_does_not_find_itself() -> None:
    vectors = unit(np.array([[1.0, 0.0], [1.0, 0.0], [0.9, 0.1], [0.0, 1.0]]))
    found = Retrieval({0: {2: 1.0}}, [1, 2, 3], ["a", "a", "b", "c"]).score(list(vectors), [0, 1, 2, 3])
    assert found.value == 1.0


def test_a_part_of_the_documents_cannot_be_ranked() -> None:
    metric, vectors, _, numbers = ranked()
    with pytest.raises(EvaluationError, match=r"3 texts were not run.*evaluation.samples"):
        metric.score(list(vectors[:-3]), list(numbers[:-3]))
