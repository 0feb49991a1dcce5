"""BERT on SQuAD v1.1 as a TensorFlow 1 graph with its own iterator: tune it to int8, score it, time it.

    python tune_squad.py --model_dir=./model --data_dir=./data --output_model=./result                 # tune
    python tune_squad.py --model_dir=./model --data_dir=./data --mode=accuracy                         # fp32
    python tune_squad.py --input_model=./result --model_dir=./model --data_dir=./data --mode=accuracy  # int8
    python tune_squad.py --input_model=./result --model_dir=./model --data_dir=./data --mode=benchmark \\
        --iteration=40 --batch_size=1

``model_dir`` holds a checkpoint of google-research or a Hugging Face folder (see prepare_model.sh),
``data_dir`` the official SQuAD files (see prepare_dataset.sh). ``input_model`` is what tuning saved; a frozen
graph (.pb) with the same names works as well.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf
from model import squad_graph
from records import by_window, load_tokenizer, make_tfrecord, run_graph, squad_windows

import octune
from octune.config import load_config
from octune.evaluation import ExactMatch, SquadF1
from octune.tasks.squad import SquadWindows

HERE = Path(__file__).resolve().parent
WARM_UP = 5


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="BERT on SQuAD v1.1 with TensorFlow.")
    parser.add_argument(
        "--model_dir", type=Path, required=True, help="the checkpoint; its vocabulary is used in every mode"
    )
    parser.add_argument(
        "--data_dir", type=Path, required=True, help="the folder of dev-v1.1.json and train-v1.1.json"
    )
    parser.add_argument("--mode", choices=("tune", "accuracy", "benchmark"), default="tune")
    parser.add_argument("--config", type=Path, default=HERE / "bert.yaml")
    parser.add_argument(
        "--input_model",
        type=Path,
        help="a tuned folder or a .pb file to score or time instead of the checkpoint",
    )
    parser.add_argument(
        "--output_model", type=Path, default=Path("result"), help="where to save the tuned model"
    )
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument(
        "--iteration", type=int, default=-1, help="batches to time in benchmark mode; -1: all"
    )
    parser.add_argument("--questions", type=int, help="use only this many questions, the first ones")
    parser.add_argument("--max_seq_length", type=int, default=384)
    parser.add_argument(
        "--doc_stride", type=int, default=128, help="tokens by which windows over a long context overlap"
    )
    parser.add_argument("--n_best_size", type=int, default=20)
    parser.add_argument("--max_answer_length", type=int, default=30)
    parser.add_argument("--threads", type=int, help="threads of the model; the machine's if left out")
    return parser.parse_args()


class Squad:
    """The questions, as windows and as the TFRecord file that the graph reads."""

    def __init__(self, args: argparse.Namespace, folder: Path) -> None:
        self.args, self._folder = args, folder
        self._tokenizer = load_tokenizer(args.model_dir)

    def record(self, stem: str, questions: int | None) -> tuple[SquadWindows, Path]:
        """The windows of dev-v1.1.json or train-v1.1.json (or a part of it), and the TFRecord file made of
        them.
        """
        args = self.args
        file = next(iter(sorted(args.data_dir.glob(f"{stem}*v1.1*.json"))), None)
        if file is None:
            raise SystemExit(
                f"{args.data_dir} has no {stem}-v1.1.json. Run: bash prepare_dataset.sh "
                f"--output_dir={args.data_dir}"
            )
        windows = squad_windows(
            file,
            self._tokenizer,
            questions=questions,
            max_seq_length=args.max_seq_length,
            doc_stride=args.doc_stride,
            n_best_size=args.n_best_size,
            max_answer_length=args.max_answer_length,
        )
        made = self._folder / f"{stem}.tf_record"
        make_tfrecord(windows.windows, made, args.max_seq_length)
        return windows, made


def load_graph(args: argparse.Namespace) -> Any:
    """The graph to score: a tuned folder, a frozen graph, or the checkpoint itself."""
    if args.input_model is None:
        return squad_graph(args.model_dir, args.max_seq_length)
    if args.input_model.is_dir():
        return octune.load(args.input_model)
    definition = tf.compat.v1.GraphDef()
    definition.ParseFromString(args.input_model.read_bytes())
    graph = tf.Graph()
    with graph.as_default():
        tf.import_graph_def(definition, name="")
    return graph


def main() -> None:
    args = arguments()
    with tempfile.TemporaryDirectory() as folder:
        squad = Squad(args, Path(folder))
        graph = load_graph(args)
        windows, dev = squad.record("dev", args.questions)

        if args.mode == "benchmark":
            _, seconds = run_graph(
                graph, dev, args.batch_size, iteration=args.iteration, threads=args.threads
            )
            if len(seconds) <= WARM_UP:
                raise SystemExit(
                    f"There were {len(seconds)} batches. Expected more than the {WARM_UP} of the warm-up: "
                    "raise --iteration."
                )
            each = np.array(seconds[WARM_UP:]) / args.batch_size
            print(
                f"Latency is {np.mean(each):.6f} s per sample (median {np.median(each):.6f}, 90 % within "
                f"{np.quantile(each, 0.9):.6f})"
            )
            print(f"Batch size is {args.batch_size}, batches timed after a warm-up of {WARM_UP}: {len(each)}")
            return

        def evaluate(graph: tf.Graph) -> octune.Score:
            """F1 of a graph. A bare number would do; a Score with its items lets octune pair the answers of
            two models.
            """
            results, _ = run_graph(graph, dev, args.batch_size, threads=args.threads)
            return SquadF1(windows).score(*by_window(results))

        if args.mode == "accuracy":
            results, _ = run_graph(graph, dev, args.batch_size, threads=args.threads)
            print(f"accuracy is F1: {SquadF1(windows).score(*by_window(results)).value:.4f}")
            print(f"exact match: {ExactMatch(windows).score(*by_window(results)).value:.4f}")
            return

        config = load_config(args.config)
        _, train = squad.record("train", max(config.calibration.samples))
        # The graph reads its data itself: what it is fed is the name of the file and the size of a batch.
        result = octune.tune(
            graph, calibration=[(str(train), args.batch_size)], evaluate=evaluate, config=config
        )
        print(result)
        print(f"saved to {result.save(args.output_model, overwrite=True)}")


if __name__ == "__main__":
    main()
