"""A BERT as ONNX: tune it to int8 for ONNX Runtime or OpenVINO, whichever is faster.

    python tune_bert.py --task=sst-2 --model=models/bert-sst2 --data=data/glue --output=sst2-int8
    python tune_bert.py --task=sst-2 --model=bert-sst2.onnx --tokenizer=models/bert-sst2 --data=data/glue

A Hugging Face folder is exported first.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import octune
from octune.tasks import load_task


def main() -> None:
    parser = argparse.ArgumentParser(description="A BERT as ONNX, tuned to int8.")
    parser.add_argument("--task", required=True, help="a GLUE task or squad")
    parser.add_argument(
        "--model", required=True, help="an .onnx file, or a Hugging Face folder, which is exported"
    )
    parser.add_argument(
        "--data",
        type=Path,
        required=True,
        help="the folder of the task's official files, or the one that holds it",
    )
    parser.add_argument("--tokenizer", help="the folder of the tokenizer, if it is not the model's")
    parser.add_argument("--output", type=Path, default=Path("result"))
    args = parser.parse_args()
    data = load_task(args.task, args.data, tokenizer=args.tokenizer or args.model)
    config = {} if args.model.endswith(".onnx") else {"model": {"target": "onnx"}}
    result = octune.tune(
        args.model,
        calibration=data.calibration,
        evaluation=data.evaluation,
        metric=data.metric,
        config=config,
    )
    print(result)
    saved = result.save(args.output, overwrite=True)
    print(f"saved to {saved}: {', '.join(sorted(path.name for path in saved.iterdir()))}")
    # What is saved runs like a session of ONNX Runtime: a feed in, arrays out.
    session: Any = octune.load(saved)
    inputs, _ = next(iter(data.evaluation))
    answers = session.run(None, inputs)
    print(f"loaded again, it answers with {', '.join(str(array.shape) for array in answers)}")


if __name__ == "__main__":
    main()
