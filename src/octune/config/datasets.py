"""Reads the ``dataset`` entry of an LPOT data loader: ``{GLUE: {data_dir: glue/MRPC, task: mrpc}}`` becomes a
data source.

Text and the schema's own keys are taken as they are (``dataset: package.module:factory``), so a file of the
old kind can name any data. A data set that Octune cannot read from a file alone is a problem that says so.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import Any

from octune.config.inputs import DataSource
from octune.config.messages import Keys, Where, got
from octune.config.translate import Translation

# LPOT's name of the data set, in lower case -> the task it implies if none is named.
TASKS = {"glue": "mrpc", "bert": "squad", "squad": "squad"}
SAME = {
    "root": "folder",
    "data_dir": "folder",
    "task": "task",
    "split": "split",
    "max_seq_length": "max_length",
    "max_length": "max_length",
    "model_name_or_path": "tokenizer",
}
TOKENIZER = "the tokenizer's own folder says it. Remove it."
REFUSED = {"model_type": TOKENIZER, "do_lower_case": TOKENIZER}
LABELS = "dev-v1.1.json"
KNOWN = (*SAME, "evaluate", "dynamic_length", "label_file", *REFUSED)


def read_dataset(done: Translation, value: Any, where: Where, new: Where) -> None:
    """Puts the data source that ``value`` describes at ``new``, or notes why it cannot."""
    if isinstance(value, str):
        done.put(new, value, where)
        return
    entries = list(done.entries(value, where))
    if entries and all(key in DataSource.model_fields for key, _, _ in entries):
        done.put(new, {}, where)
        for key, item, at in entries:
            done.put((*new, key), item, at)
        return
    if len(entries) != 1:
        if entries or value in (None, {}, []):
            done.problem(
                where,
                f"must name one data set, such as {{GLUE: {{data_dir: glue/MRPC, task: mrpc}}}}. Got "
                f"{got(value)}.",
            )
        return
    name, options, at = entries[0]
    if name.lower() not in TASKS:
        done.problem(
            at,
            "cannot be read from the file alone (GLUE, bert and squad can). "
            "Pass the data loader in Python, or write 'dataset: package.module:factory'.",
        )
        return
    _task(done, TASKS[name.lower()], options, at, new)


def _task(done: Translation, task: str, options: Any, where: Where, new: Where) -> None:
    done.put(new, {"task": task}, where)
    folder: Any = None
    labels: tuple[Any, Where] | None = None
    for key, item, at in done.entries(options, where):
        if key in SAME:
            done.put((*new, SAME[key]), item, at)
            folder = item if SAME[key] == "folder" else folder
        elif key == "evaluate" and isinstance(item, bool):
            done.put((*new, "split"), "dev" if item else "train", at)
        elif key == "evaluate":
            done.problem(at, f"must be true or false. Got {got(item)}.")
        elif key == "dynamic_length":
            if item is not True:
                done.problem(
                    at, f"cannot be honoured: batches are padded to their longest text only. Got {got(item)}."
                )
        elif key == "label_file":
            labels = (item, at)
        elif key in REFUSED:
            done.problem(at, f"cannot be honoured: {REFUSED[key]} Got {got(item)}.")
        else:
            done.unknown(at, _nested(where, Keys({known: Keys({}) for known in KNOWN})))
    if isinstance(folder, str) and PurePath(folder).suffix in (".tf_record", ".tfrecord"):
        done.problem(
            where,
            "names a TFRecord file; name the folder that holds the task's own files instead. Got "
            f"{folder!r}.",
        )
    if labels and not _inside(labels[0], folder):
        done.problem(
            labels[1],
            f"cannot be honoured: answers are read from {LABELS} in the data set's folder. Got "
            f"{got(labels[0])}.",
        )


def _inside(labels: Any, folder: Any) -> bool:
    if not isinstance(labels, str) or PurePath(labels).name != LABELS:
        return False
    return PurePath(labels).parent in (PurePath("."), PurePath(str(folder)))


def _nested(where: Where, keys: Keys) -> Keys:
    for key in reversed([key for key in where if isinstance(key, str)]):
        keys = Keys({key: keys})
    return keys
