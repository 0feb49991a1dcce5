"""What the inherited interfaces are tried on: a BERT in PyTorch with the rows of a task, and a graph that
reads its own file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import octune
from octune.tasks import load_task
from octune.tasks.batches import TaskData
from tests.examples.load import load_example


@dataclass(frozen=True)
class Bert:
    """A model of a Hugging Face folder, and rows of its task: ids, mask, segments and the label, or the
    number of the window in SQuAD.
    """

    task: str
    folder: Path
    model: Any
    rows: Any
    loaded: TaskData

    @classmethod
    def of(cls, task: str, folder: Path, data: Path, rows: int, length: int) -> Bert:
        import torch
        from torch.utils.data import TensorDataset
        from transformers import AutoModelForQuestionAnswering, AutoModelForSequenceClassification

        loaded = load_task(task, data, tokenizer=str(folder), max_length=length)
        columns: list[list[Any]] = [[], [], [], []]
        for inputs, labels in loaded.evaluation:
            for column, name in zip(columns, ("input_ids", "attention_mask", "token_type_ids"), strict=False):
                column.extend(np.pad(row, (0, length - len(row))) for row in inputs[name])
            columns[3].extend(labels)
            if len(columns[3]) >= rows:
                break
        kind = AutoModelForQuestionAnswering if task == "squad" else AutoModelForSequenceClassification
        model = kind.from_pretrained(str(folder), dtype=torch.float32).eval()
        return cls(
            task,
            folder,
            model,
            TensorDataset(*(torch.as_tensor(np.stack(column)) for column in columns)),
            loaded,
        )

    def score(self, model: Any, batch_size: int = 8) -> float:
        """The task's own metric over the rows."""
        import torch
        from torch.utils.data import DataLoader

        predictions: list[Any] = []
        labels: list[Any] = []
        for ids, mask, segments, label in DataLoader(self.rows, batch_size=batch_size):
            inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": segments}
            if self.task != "squad":
                inputs["labels"] = label.float() if self.task == "sts-b" else label
            with torch.no_grad():
                outputs = model(**inputs)
            predictions.extend(
                self.loaded.metric.predictions(
                    {name: value.numpy() for name, value in outputs.items() if name != "loss"}
                )
            )
            labels.extend(label.tolist())
        return self.loaded.metric.score(predictions, labels).value


@dataclass(frozen=True)
class Reader:
    """A graph that answers SQuAD's questions from a file of windows over their contexts, which it reads by
    itself.
    """

    graph: Any
    file: str
    label_file: Path
    questions: Sequence[Any]
    windows: Sequence[Any]

    @classmethod
    def of(cls, model: Path, data: Path, folder: Path, length: int) -> Reader:
        example, records = (load_example(f"tensorflow/bert_squad/{name}.py") for name in ("model", "records"))
        label_file, file = data / "dev-v1.1.json", str(folder / "eval.tf_record")
        stride = min(128, length // 3)
        made = records.squad_windows(
            label_file, records.load_tokenizer(model), max_seq_length=length, doc_stride=stride
        )
        records.make_tfrecord(made.windows, file, length)
        return cls(example.squad_graph(model, length), file, label_file, made.questions, made.windows)

    def feed(self, batch_size: int) -> dict[str, Any]:
        """What starts the graph's iterator."""
        return {"input_file:0": self.file, "batch_size:0": batch_size}


def most_int8(result: octune.Result) -> int:
    """How many ops ran in int8 in a plan that met the criterion; whether that plan is fast enough to win is
    for the machine to say.
    """
    return max((len(trial.plan.names("int8")) for trial in result.trials if trial.passed), default=0)
