"""SQuAD as the TFRecord file that a graph with its own iterator reads, and answers from what such a graph
returns.

windows = squad_windows("data/dev-v1.1.json", tokenizer)
make_tfrecord(windows.windows, "eval.tf_record")
rows = run_graph(graph, "eval.tf_record", batch_size=32)
f1 = SquadF1(windows).score(*by_window(rows)).value
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from octune.tasks.squad import SquadWindows, read_squad
from octune.tasks.squad_answers import Question, SpanRules, Window

tf1 = tf.compat.v1
FIRST_ID = 1_000_000_000  # google-research numbers windows from here
COLUMNS = {"input_ids": "input_ids", "input_mask": "attention_mask", "segment_ids": "token_type_ids"}


class RawResult(NamedTuple):
    """What the model says about one window."""

    unique_id: int
    start_logits: np.ndarray
    end_logits: np.ndarray


def load_tokenizer(folder: Path | str) -> Any:
    """The fast tokenizer of a folder: its own, or one made of google-research's vocab.txt, uncased unless the
    folder's name says cased.
    """
    from transformers import AutoTokenizer, BertTokenizerFast

    folder = Path(folder)
    if (folder / "tokenizer.json").is_file():
        return AutoTokenizer.from_pretrained(str(folder))
    lower = "uncased" in folder.resolve().name or "cased" not in folder.resolve().name
    return BertTokenizerFast.from_pretrained(str(folder), do_lower_case=lower)


def squad_windows(
    file: Path | str,
    tokenizer: Any,
    *,
    questions: int | None = None,
    max_seq_length: int = 384,
    doc_stride: int = 128,
    n_best_size: int = 20,
    max_answer_length: int = 30,
) -> SquadWindows:
    """The windows of an official SQuAD v1.1 file, or of its first ``questions``; neighbours overlap by
    ``doc_stride`` tokens.
    """
    chosen: Sequence[Question] = read_squad(Path(file))[:questions]
    return SquadWindows(
        chosen, tokenizer, max_seq_length, doc_stride, SpanRules(n_best_size, max_answer_length)
    )


def make_tfrecord(windows: Iterable[Window], file: Path | str, max_seq_length: int = 384) -> int:
    """Write windows, padded to ``max_seq_length``, with unique ids that count from FIRST_ID. Returns how many
    there are.
    """
    written = 0
    with tf.io.TFRecordWriter(str(file)) as writer:
        for window in windows:
            columns = {name: _padded(window.tokens[ours], max_seq_length) for name, ours in COLUMNS.items()}
            columns["unique_ids"] = np.array([FIRST_ID + written])
            feature = {
                name: tf.train.Feature(int64_list=tf.train.Int64List(value=values))
                for name, values in columns.items()
            }
            writer.write(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())
            written += 1
    return written


def _padded(tokens: np.ndarray, length: int) -> np.ndarray:
    return np.pad(tokens, (0, length - len(tokens)))


def run_graph(
    graph: tf.Graph, file: Path | str, batch_size: int, *, iteration: int = -1, threads: int | None = None
) -> tuple[list[RawResult], list[float]]:
    """The logits of every window of a TFRecord file, or of the first ``iteration`` batches, and the seconds
    of each batch.
    """
    fetches = {"unique_ids": "IteratorGetNext:3", "start_logits": "unstack:0", "end_logits": "unstack:1"}
    options = tf1.ConfigProto(
        intra_op_parallelism_threads=threads or 0,
        inter_op_parallelism_threads=1,
        use_per_session_threads=True,
    )
    results: list[RawResult] = []
    seconds: list[float] = []
    with tf1.Session(graph=graph, config=options) as session:
        session.run("MakeIterator", {"input_file:0": str(file), "batch_size:0": batch_size})
        for _ in count() if iteration < 0 else range(iteration):
            begun = time.perf_counter()
            try:
                batch = session.run(fetches)
            except tf.errors.OutOfRangeError:
                break
            seconds.append(time.perf_counter() - begun)
            results += [
                RawResult(int(number), *logits) for number, *logits in zip(*batch.values(), strict=True)
            ]
    return results, seconds


def by_window(results: Sequence[RawResult]) -> tuple[list[tuple[np.ndarray, np.ndarray]], list[int]]:
    """What octune's SQuAD metrics take: span logits, and the number of the window that each belongs to."""
    return [(row.start_logits, row.end_logits) for row in results], [
        row.unique_id - FIRST_ID for row in results
    ]
