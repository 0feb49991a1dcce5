"""The founding documents' code, read from them and run with only its import lines changed, and what has to
exist around it.

    exec(block(documents / "lpot-tensorflow-bert.md", "def eval_func"), lpot_names(reader, output,
    batch_size=8))

The blocks of the documents are fragments: names such as ``args``, ``evaluate`` or ``FLAGS`` come from the
scripts of their time. Here those are small, and real: they read GLUE or SQuAD files, and run the model that
they are given.
"""

from __future__ import annotations

import logging
import re
import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.compat.subjects import Bert, Reader
from tests.examples.load import load_example

ILIT, LPOT = "ilit-pytorch-bert.md", "lpot-tensorflow-bert.md"
FENCED = re.compile(r"^[ \t]*```[^`\n]*\n(.*?)^[ \t]*```[ \t]*$", re.MULTILINE | re.DOTALL)
IMPORTS = {  # what each import line of the documents becomes
    re.compile(r"^(\s*)import ilit$", re.MULTILINE): r"\1from octune.compat import ilit",
    re.compile(r"^(\s*)from lpot[\w.]* import ", re.MULTILINE): r"\1from octune.compat.lpot import ",
}


def block(document: Path, mark: str) -> str:
    """The one code block of a markdown file that holds ``mark``, at the left margin, importing Octune."""
    found = [code for code in FENCED.findall(document.read_text(encoding="utf-8")) if mark in code]
    if len(found) != 1:
        pytest.fail(
            f"{document.name} has {len(found)} code blocks with {mark!r}. Expected one: adapt the test to "
            "the document."
        )
    code = textwrap.dedent(found[0])
    for old, new in IMPORTS.items():
        code = old.sub(new, code)
    return code


def ilit_names(bert: Bert) -> dict[str, Any]:
    """The names that iLiT's run_glue_tune.py and run_squad_tune.py had when they reached the document's
    lines.
    """
    from torch.utils.data import DataLoader, SequentialSampler
    from transformers import AutoTokenizer

    def load_and_cache_examples(
        args: Any, tokenizer: Any, evaluate: bool = False, output_examples: bool = False
    ) -> Any:
        return bert.rows

    def evaluate(args: Any, model: Any, tokenizer: Any) -> tuple[dict[str, float], float]:
        metric = bert.loaded.metric.name
        return {
            {"accuracy": "acc", "squad_f1": "f1"}.get(metric, metric): bert.score(model, args.eval_batch_size)
        }, 0.0

    args = SimpleNamespace(
        do_ilit_tune=True,
        per_gpu_eval_batch_size=8,
        eval_batch_size=8,
        n_gpu=0,
        model_type="bert",
        device="cpu",
    )
    return {
        "args": args,
        "model": bert.model,
        "tokenizer": AutoTokenizer.from_pretrained(str(bert.folder)),
        "evaluate": evaluate,
        "load_and_cache_examples": load_and_cache_examples,
        "logger": logging.getLogger("seed"),
        "DataLoader": DataLoader,
        "SequentialSampler": SequentialSampler,
    }


def lpot_names(reader: Reader, output: Path, batch_size: int) -> dict[str, Any]:
    """The names that LPOT's tune_squad.py had when it reached the document's lines."""
    import six
    import tensorflow as tf

    from octune.compat import lpot

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
        label_file=str(reader.label_file),
        n_best_size=20,
        max_answer_length=30,
        do_lower_case=True,
        output_model=str(output),
    )
    return {
        "tf": tf,
        "np": np,
        "six": six,
        "FLAGS": flags,
        "eval_writer": SimpleNamespace(filename=reader.file),
        "eval_examples": reader.questions,
        "eval_features": reader.windows,
        "RawResult": load_example("tensorflow/bert_squad/records.py").RawResult,
        "Dataset": Dataset,
        "collate_fn": lambda batch: batch[0],
        "graph": reader.graph,
        "parse_label_file": lpot.parse_label_file,
        "SquadV1PostTransform": lpot.SquadV1PostTransform,
        "SquadF1": lpot.SquadF1,
    }
