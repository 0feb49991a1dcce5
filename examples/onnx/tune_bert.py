"""A BERT as ONNX: export it, tune it to int8, and run it in ONNX Runtime.

    python tune_bert.py --task=sst-2 --model=models/bert-sst2 --data=data/glue --output=sst2-int8
    python tune_bert.py --task=sst-2 --model=models/bert-sst2 --data=data/glue --onnx=bert-sst2.onnx      # a model that is ONNX already

``model`` is a Hugging Face folder: what is exported, and where the tokenizer is.
"""

from __future__ import annotations

import argparse
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForQuestionAnswering, AutoModelForSequenceClassification

import octune
from octune.tasks import load_task

INPUTS = ("input_ids", "attention_mask", "token_type_ids")


def export(folder: str, task: str, file: Path) -> Path:
    """Writes a Hugging Face BERT as ONNX, with free batch and sequence sizes."""
    squad = task.startswith("squad")
    kind = AutoModelForQuestionAnswering if squad else AutoModelForSequenceClassification
    # Attention written out in single ops: its softmax and matmuls are then ONNX ops of their own.
    model = kind.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    example = {name: torch.ones(2, 16, dtype=torch.long) for name in INPUTS}
    names = ["start_logits", "end_logits"] if squad else ["logits"]
    axes = {name: {0: "batch", 1: "sequence"} for name in (*INPUTS, *(names if squad else ()))}
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # the exporter's remarks on code of transformers
        torch.onnx.export(
            model,
            (),
            str(file),
            kwargs=example,
            input_names=list(INPUTS),
            output_names=names,
            dynamic_axes=axes | {name: {0: "batch"} for name in names if name not in axes},
            opset_version=17,
            dynamo=False,
        )
    return file


def main() -> None:
    parser = argparse.ArgumentParser(description="A BERT as ONNX, tuned to int8.")
    parser.add_argument("--task", required=True, help="a GLUE task or squad")
    parser.add_argument("--model", required=True, help="a Hugging Face folder")
    parser.add_argument("--data", type=Path, required=True, help="the folder of the task's official files, or the one that holds it")
    parser.add_argument("--onnx", type=Path, help="the model as ONNX; exported from --model if left out")
    parser.add_argument("--output", type=Path, default=Path("result"))
    args = parser.parse_args()
    data = load_task(args.task, args.data, tokenizer=args.model)
    with tempfile.TemporaryDirectory() as folder:
        file = args.onnx or export(args.model, args.task, Path(folder) / "model.onnx")
        result = octune.tune(str(file), calibration=data.calibration, evaluation=data.evaluation, metric=data.metric)
        print(result)
        saved = result.save(args.output, overwrite=True)
    print(f"saved to {saved}: {', '.join(sorted(path.name for path in saved.iterdir()))}")
    # What is saved runs as it came: feed in, arrays out.
    session: Any = octune.load(saved)
    inputs, _ = next(iter(data.evaluation))
    answer = session.run(None, {name: inputs[name].astype(np.int64) for name in INPUTS})
    print(f"loaded again, it answers: {[array.shape for array in answer]}")


if __name__ == "__main__":
    main()
