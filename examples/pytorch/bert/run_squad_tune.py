"""A BERT that was fine-tuned on SQuAD: tune it to int8, score it, time it.

    python run_squad_tune.py --model_name_or_path=models/bert-squad --data_dir=data/squad \\
        --output_dir=squad-int8
    ... --mode=accuracy --input_model=squad-int8
    ... --mode=benchmark --batch_size=8 --iteration=40

The folder holds train-v1.1.json and dev-v1.1.json; with --version_2_with_negative the same of v2.0.
"""

from __future__ import annotations

from bert_tune import arguments, run

if __name__ == "__main__":
    parser = arguments("A BERT on SQuAD.")
    parser.add_argument(
        "--version_2_with_negative",
        action="store_true",
        help="SQuAD v2.0, which has questions without an answer",
    )
    args = parser.parse_args()
    run("squad_v2" if args.version_2_with_negative else "squad", args)
