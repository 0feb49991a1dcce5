"""A BERT that was fine-tuned on a GLUE task: tune it to int8, score it, time it.

    python run_glue_tune.py --task_name=mrpc --model_name_or_path=models/bert-mrpc --data_dir=data/glue \\
        --output_dir=mrpc-int8
    ... --mode=accuracy
    ... --mode=benchmark --input_model=mrpc-int8 --batch_size=8 --iteration=40

Tasks: cola, sst-2, mrpc, sts-b, qqp, mnli, mnli-mm, qnli, rte, wnli. Each is scored by its own metric.
"""

from __future__ import annotations

from bert_tune import arguments, run

if __name__ == "__main__":
    parser = arguments("A BERT on a GLUE task.")
    parser.add_argument("--task_name", required=True)
    args = parser.parse_args()
    run(args.task_name, args)
