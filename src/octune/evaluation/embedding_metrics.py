"""Metrics of sentence embeddings: how well cosines follow human judgement, and how well they find documents.

    SimilarityCorrelation(truth).score(vectors, rows)       # Spearman of the cosines of pairs: STS
    Retrieval(judged, documents).score(vectors, rows)       # NDCG@10 by cosine: BEIR

Labels are numbers of texts. What the model says of a text is one vector: an output with two axes as it is
(``sentence_embedding``; ``pooler_output`` only if there is nothing else), else its tokens, pooled under the
mask.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from octune.errors import EvaluationError
from octune.evaluation import formulas
from octune.evaluation.arrays import check_lengths
from octune.evaluation.metrics import Answer, Array, Floats, Metric, Outputs
from octune.score import Score

__all__ = ["POOLINGS", "Retrieval", "SimilarityCorrelation"]

# How tokens become one vector, and the key of sentence-transformers that says so.
POOLINGS = {
    "mean": "pooling_mode_mean_tokens",
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
}
DEPTH = 10  # of a ranking
AT_ONCE = 256  # queries that are ranked at a time


class _Embedding(Metric):
    """What both have in common: a unit vector for every row."""

    def __init__(self, pooling: str) -> None:
        self._pooling = pooling

    def predictions(self, outputs: Outputs) -> Sequence[Any]:
        return self.predictions_from(outputs, {})

    def predictions_from(self, outputs: Outputs, inputs: Any) -> Sequence[Any]:
        floats = {name: array for name, array in outputs.items() if np.asarray(array).dtype.kind == "f"}
        vectors = {
            name: array for name, array in floats.items() if array.ndim == 2 and name != "pooler_output"
        }
        tokens = [array for array in floats.values() if array.ndim == 3]
        if vectors:
            found = next((a for name, a in vectors.items() if "embed" in name), next(iter(vectors.values())))
        elif tokens:
            found = _pooled(np.asarray(tokens[0], np.float32), mask_of(inputs), self._pooling)
        elif "pooler_output" in floats:
            found = floats["pooler_output"]
        else:
            shapes = {name: np.shape(array) for name, array in outputs.items()}
            raise EvaluationError(
                f"{self.name} finds no embedding: expected an output of shape (rows, width) or "
                f"(rows, tokens, width), got {shapes}."
            )
        found = np.asarray(found, np.float32)
        if not np.isfinite(found).all():
            raise EvaluationError(f"{self.name} is undefined because the model outputs NaN or infinity.")
        return list(found / np.maximum(np.linalg.norm(found, axis=1, keepdims=True), 1e-12))

    def answers(self, predictions: Sequence[Any], labels: Sequence[Any]) -> list[Answer]:
        return []  # vectors say nothing to people


class SimilarityCorrelation(_Embedding):
    """Spearman's correlation of the cosine of two texts with their true similarity. Texts 2 i and 2 i + 1 are
    pair i, which is an item.
    """

    name = "spearman_cosine"
    items = "jackknife"

    def __init__(self, truth: Sequence[float], pooling: str = "mean") -> None:
        super().__init__(pooling)
        self._truth = np.asarray(truth, np.float64)

    def groups(self, labels: Sequence[Any]) -> Sequence[Any]:
        return [int(row) // 2 for row in labels]

    def score(self, predictions: Sequence[Any], labels: Sequence[Any]) -> Score:
        check_lengths(self.name, predictions, labels)
        rows = {int(row): vector for row, vector in zip(labels, predictions, strict=True)}
        pairs = list(dict.fromkeys(self.groups(labels)))
        cosines = np.array([float(rows[2 * pair] @ rows[2 * pair + 1]) for pair in pairs])
        truth = self._truth[pairs]
        for what, values in (("cosines", cosines), ("true similarities", truth)):
            if np.ptp(values) == 0:
                raise EvaluationError(f"{self.name} is undefined because all {values.size} {what} are equal.")
        return formulas.spearmanr(cosines, truth)


class Retrieval(_Embedding):
    """NDCG@10 of the documents by their cosine with a query, as BEIR computes it; an item is a query.

    ``judged``: number of a query's text -> number of a document's text -> how relevant it is. ``names`` are
    the identifiers of texts: a document with the identifier of the query is not found by it.
    """

    name = "ndcg@10"
    items = None  # a ranking needs all documents

    def __init__(
        self,
        judged: Mapping[int, Mapping[int, float]],
        documents: Sequence[int],
        names: Sequence[str],
        pooling: str = "mean",
    ) -> None:
        super().__init__(pooling)
        self._judged, self._documents, self._names = judged, np.asarray(documents), names

    def groups(self, labels: Sequence[Any]) -> Sequence[Any]:
        """Nothing can be scored by itself."""
        return [0] * len(labels)

    def score(self, predictions: Sequence[Any], labels: Sequence[Any]) -> Score:
        check_lengths(self.name, predictions, labels)
        rows = {int(row): vector for row, vector in zip(labels, predictions, strict=True)}
        missing = {*self._judged, *self._documents.tolist()} - set(rows)
        if missing:
            raise EvaluationError(
                f"{self.name} ranks all documents, and {len(missing):,} texts were not run. Leave "
                "evaluation.samples and criterion.certify out."
            )
        corpus = np.stack([rows[number] for number in self._documents])
        queries = list(self._judged)
        found: list[float] = []
        for start in range(0, len(queries), AT_ONCE):
            some = queries[start : start + AT_ONCE]
            cosines = np.stack([rows[query] for query in some]) @ corpus.T
            found += [self._ndcg(query, row) for query, row in zip(some, cosines, strict=True)]
        return Score.from_items(np.array(found), limits=(0.0, 1.0))

    def _ndcg(self, query: int, cosines: Floats) -> float:
        depth = min(DEPTH + 1, cosines.size)
        nearest = np.argpartition(-cosines, depth - 1)[:depth]
        order = self._documents[nearest[np.lexsort((nearest, -cosines[nearest]))]]
        ranked = [number for number in order if self._names[number] != self._names[query]][:DEPTH]
        judged = self._judged[query]
        best = sorted(judged.values(), reverse=True)[:DEPTH]
        return _gain([judged.get(int(number), 0.0) for number in ranked]) / _gain(best)


def _gain(relevances: Sequence[float]) -> float:
    return float(sum(value / np.log2(place + 2) for place, value in enumerate(relevances)))


def mask_of(inputs: Any) -> Array | None:
    """Which tokens are real, where the inputs say so."""
    mask = inputs.get("attention_mask") if isinstance(inputs, Mapping) else getattr(inputs, "mask", None)
    return None if mask is None else np.asarray(mask).astype(bool)


def _pooled(tokens: Floats, mask: Array | None, pooling: str) -> Floats:
    real = np.ones(tokens.shape[:2], bool) if mask is None else mask
    if pooling == "cls":
        return np.asarray(tokens[np.arange(len(tokens)), real.argmax(axis=1)])
    if pooling == "max":
        return np.asarray(np.where(real[..., None], tokens, -np.inf).max(axis=1))
    weights = real[..., None].astype(np.float32)
    return np.asarray((tokens * weights).sum(axis=1) / np.maximum(weights.sum(axis=1), 1))
