"""The founding documents' code, copied as it stands with only the import lines changed, and what has to exist around it.

The snippets of the documents are fragments: names such as ``args``, ``evaluate`` or ``tokenizer`` come from the scripts of their time. Here
those are small, and real: they read GLUE or SQuAD files, and run the model that they are given.
"""

from __future__ import annotations

import logging
import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from octune.tasks import load_task
from octune.tasks.glue import plain_name

SEEDS = Path(__file__).parent / "seeds"
CHANGED = {  # what each import line of the documents became
    "    from octune.compat import ilit\n": "    import ilit\n",
    "from octune.compat.lpot import iterator_sess_run": "from lpot.adaptor.tf_utils.util import iterator_sess_run",
    "from octune.compat.lpot import write_graph": "from lpot.adaptor.tf_utils.util import write_graph",
    "from octune.compat.lpot import Quantization": "from lpot.quantization import Quantization",
}


def snippet(name: str) -> str:
    """A fragment, moved to the left margin."""
    return textwrap.dedent((SEEDS / name).read_text())


def pytorch_script(task: str, model: Path, data: Path, rows: int, length: int) -> dict[str, Any]:
    """The names that iLiT's run_glue_tune.py and run_squad_tune.py had when they reached the document's lines."""
    import torch
    from torch.utils.data import DataLoader, SequentialSampler, TensorDataset
    from transformers import AutoModelForQuestionAnswering, AutoModelForSequenceClassification, AutoTokenizer

    squad = task == "squad"
    loaded = load_task(task, data, tokenizer=str(model), max_length=length)
    kind = AutoModelForQuestionAnswering if squad else AutoModelForSequenceClassification
    network = kind.from_pretrained(str(model), dtype=torch.float32).eval()

    def load_and_cache_examples(args: Any, tokenizer: Any, evaluate: bool = False, output_examples: bool = False) -> TensorDataset:
        """All features in four tensors: ids, mask, segments and the label, which for SQuAD is the number of the window."""
        columns: list[list[Any]] = [[], [], [], []]
        for inputs, labels in loaded.evaluation:
            for column, name in zip(columns, ("input_ids", "attention_mask", "token_type_ids"), strict=False):
                column.extend(np.pad(row, (0, length - len(row))) for row in inputs[name])
            columns[3].extend(labels)
            if len(columns[3]) >= rows:
                break
        return TensorDataset(*(torch.as_tensor(np.stack(column)) for column in columns))

    def evaluate(args: Any, model: Any, tokenizer: Any) -> tuple[dict[str, float], float]:
        dataset = load_and_cache_examples(args, tokenizer, evaluate=True)
        predictions: list[Any] = []
        labels: list[Any] = []
        for ids, mask, segments, label in DataLoader(dataset, batch_size=args.eval_batch_size):
            with torch.no_grad():
                inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": segments}
                outputs = model(**inputs) if squad else model(**inputs, labels=label.float() if task == "sts-b" else label)
            names = {name: value.numpy() for name, value in outputs.items() if name != "loss"}
            predictions.extend(loaded.metric.predictions(names))
            labels.extend(label.tolist())
        name = {"accuracy": "acc", "squad_f1": "f1"}.get(loaded.metric.name, loaded.metric.name)
        return {name: loaded.metric.score(predictions, labels).value}, 0.0

    args = SimpleNamespace(do_ilit_tune=True, per_gpu_eval_batch_size=8, eval_batch_size=8, n_gpu=0, model_type="bert", device="cpu")
    return {
        "args": args,
        "model": network,
        "tokenizer": AutoTokenizer.from_pretrained(str(model)),
        "evaluate": evaluate,
        "load_and_cache_examples": load_and_cache_examples,
        "logger": logging.getLogger("seed"),
        "DataLoader": DataLoader,
        "SequentialSampler": SequentialSampler,
        "task": plain_name(task),
        "loaded": loaded,
    }


def tensorflow_script(model: Path, data: Path, folder: Path, length: int, batch_size: int) -> dict[str, Any]:
    """The names that LPOT's tune_squad.py had when it reached the document's lines, on a graph with its own iterator."""
    import six
    import tensorflow as tf

    from octune.compat import lpot
    from tests.examples.load import load_example

    example, records = (load_example(f"tensorflow/bert_squad/{name}.py") for name in ("model", "records"))
    stride = min(128, length // 3)
    windows = records.squad_windows(data / "dev-v1.1.json", records.load_tokenizer(model), max_seq_length=length, doc_stride=stride)
    writer = SimpleNamespace(filename=str(folder / "eval.tf_record"))
    records.make_tfrecord(windows.windows, writer.filename, length)

    class Dataset:
        """One item: what the graph's placeholders are fed."""

        def __init__(self, file_name: str, batch_size: int) -> None:
            self.file_name, self.batch_size = file_name, batch_size

        def __getitem__(self, index: int) -> Any:
            return (self.file_name, self.batch_size), 0

        def __len__(self) -> int:
            return 1

    flags = SimpleNamespace(
        predict_batch_size=batch_size,
        label_file=str(data / "dev-v1.1.json"),
        n_best_size=20,
        max_answer_length=30,
        do_lower_case=True,
        output_model=str(folder / "out" / "bert.pb"),
    )
    return {
        "tf": tf,
        "np": np,
        "six": six,
        "FLAGS": flags,
        "eval_writer": writer,
        "eval_examples": windows.questions,
        "eval_features": windows.windows,
        "RawResult": records.RawResult,
        "Dataset": Dataset,
        "collate_fn": lambda batch: batch[0],
        "graph": example.squad_graph(model, length),
        "parse_label_file": lpot.parse_label_file,
        "SquadV1PostTransform": lpot.SquadV1PostTransform,
        "SquadF1": lpot.SquadF1,
    }
