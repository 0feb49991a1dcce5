"""Sentence embeddings: similarity of pairs (STS), and retrieval from a folder in the layout of BEIR.

task = load_sts("data/glue/STS-B", tokenizer=tokenizer)
task = load_retrieval("data/scifact", tokenizer=tokenizer)
task.metric.name                        # "spearman_cosine", "ndcg@10"
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from octune.errors import DataError
from octune.evaluation.embedding_metrics import Retrieval, SimilarityCorrelation
from octune.tasks.batches import TaskData, TaskOptions, shuffled
from octune.tasks.glue import read_pairs
from octune.tasks.tables import read_table
from octune.tasks.texts import TextBatches, pooling_of

__all__ = ["load_retrieval", "load_sts"]

STS_LENGTH, RETRIEVAL_LENGTH = 128, 256
CALIBRATION_TEXTS = 512


def load_sts(folder: Path | str, *, tokenizer: Any, options: TaskOptions | None = None) -> TaskData:
    """Pairs of sentences with their similarity, in the files of GLUE's STS-B; each sentence is run by
    itself.
    """
    options = options or TaskOptions()
    train, evaluation, source = read_pairs("STS-B", Path(folder), options)
    length, (pooling, said) = options.length(tokenizer, STS_LENGTH), pooling_of(tokenizer)
    texts = [text for pair, _ in evaluation for text in pair]
    units = [[2 * pair, 2 * pair + 1] for pair in range(len(evaluation))]
    chosen = [train[row] for row in shuffled(len(train), options.calibration_samples)]
    shown = [text for pair, _ in chosen for text in pair]
    return TaskData(
        TextBatches(shown, tokenizer, length, options.calibration_batch_size),
        TextBatches(texts, tokenizer, length, options.evaluation_batch_size, units, random_blocks=True),
        SimilarityCorrelation([score for _, score in evaluation], pooling),
        f"Spearman of cosines on {len(evaluation):,} pairs of {source}, calibration on {len(chosen):,} "
        f"training pairs, at most {length} tokens; pooling: {said}",
    )


def load_retrieval(folder: Path | str, *, tokenizer: Any, options: TaskOptions | None = None) -> TaskData:
    """``corpus.jsonl``, ``queries.jsonl`` and ``qrels/test.tsv``; calibrated on texts that decide nothing:
    documents that no judged query asks for, and queries that are not judged.
    """
    options = options or TaskOptions()
    place, split = Path(folder), options.split or "test"
    documents, queries = (dict(_texts(place / name)) for name in ("corpus.jsonl", "queries.jsonl"))
    judged = _judged(place / "qrels" / f"{split}.tsv", queries, documents)
    relevant = {document for found in judged.values() for document in found}
    names = [*judged, *documents]
    numbers = (
        {name: number for number, name in enumerate(judged)},
        {name: number for number, name in enumerate(documents, start=len(judged))},
    )
    texts = [*(queries[name] for name in judged), *documents.values()]
    spare = [queries[name] for name in queries if name not in judged]
    spare += [text for name, text in documents.items() if name not in relevant]
    most = options.calibration_samples or CALIBRATION_TEXTS
    shown = [spare[row] for row in shuffled(len(spare), most)] if options.calibrates else []
    length, (pooling, said) = options.length(tokenizer, RETRIEVAL_LENGTH), pooling_of(tokenizer)
    return TaskData(
        TextBatches(shown, tokenizer, length, options.calibration_batch_size),
        TextBatches(texts, tokenizer, length, options.evaluation_batch_size),
        Retrieval(
            {
                numbers[0][query]: {numbers[1][name]: value for name, value in found.items()}
                for query, found in judged.items()
            },
            list(numbers[1].values()),
            names,
            pooling,
        ),
        f"NDCG@10 of {len(judged):,} queries over {len(documents):,} documents, calibration on "
        f"{len(shown):,} other texts, at most {length} tokens; pooling: {said}",
    )


def _texts(file: Path) -> Iterator[tuple[str, str]]:
    """Identifier and text of each line; a title stands before its text."""
    for row in read_table(file):
        name, text = row.values.get("_id"), row.values.get("text")
        if name is None or not isinstance(text, str):
            raise DataError(
                f'{row.where()} has no _id or no text. Expected both: {{"_id": ..., "text": ...}}.'
            )
        yield str(name), f"{row.values.get('title') or ''} {text}".strip()


def _judged(file: Path, queries: dict[str, str], documents: dict[str, str]) -> dict[str, dict[str, float]]:
    """Query -> document -> relevance, of the queries that have a relevant document."""
    found: defaultdict[str, dict[str, float]] = defaultdict(dict)
    for row in read_table(file):
        query, document, value = (row.values.get(name) for name in ("query-id", "corpus-id", "score"))
        if query not in queries or document not in documents:
            raise DataError(
                f"{row.where()} names the query {query!r} and the document {document!r}. Expected "
                "identifiers of queries.jsonl and corpus.jsonl, below query-id, corpus-id and score."
            )
        try:
            relevance = float(str(value))
        except ValueError as error:
            raise DataError(f"{row.where()}: the score is {value!r}. Expected a number.") from error
        if relevance > 0:
            found[str(query)][str(document)] = relevance
    if not found:
        raise DataError(f"{file} judges no document relevant. Expected at least one.")
    return dict(found)
