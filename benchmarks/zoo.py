"""Tunes a zoo of fine-tuned models with default settings, and writes what came out into a page.

    python benchmarks/zoo.py --models models --data data                              # all missing rows
    python benchmarks/zoo.py --models models --data data --only pytorch-sst2 --again  # one row again
    python benchmarks/zoo.py --page                                                   # the page alone

MODELS holds Hugging Face folders whose names end in a task (bert-base-mrpc, minilm-l6-squad). DATA holds
glue/SST-2 and so on with GLUE's official files, squad with SQuAD's, and imagenet with one folder of images
per class. Each row runs in a process of its own and is kept as a JSON file (--rows), so that an interrupted
table goes on where it stopped. A row whose model, data or framework is missing is left out, with a message.
Full SQuAD takes minutes per evaluation: --questions N looks at its first N only, and the page says so.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from bench_machine import describe, quiet
from zoo_page import write_page

import octune
from octune.cost import Load
from octune.tasks import load_task
from octune.tasks.glue import plain_name
from octune.tasks.squad import SpanRules

ROOT = Path(__file__).resolve().parents[1]
TITLES = {"sst2": "SST-2", "mrpc": "MRPC", "stsb": "STS-B", "squad": "SQuAD v1.1", "imagenet": "ImageNet"}
PACKAGES = {
    "pytorch": ("torch", "transformers"),
    "tensorflow": ("tensorflow-cpu", "transformers"),
    "onnx": ("onnx", "onnxruntime", "openvino"),
}
CALIBRATION = 128


class Missing(Exception):
    """What a row needs is missing."""


@dataclass(frozen=True)
class Place:
    """Where models and data are, and how much of SQuAD to use."""

    models: Path
    data: Path
    questions: int | None = None

    def model(self, task: str) -> Path:
        found = [
            path
            for path in sorted(self.models.iterdir())
            if path.is_dir() and plain_name(path.name).endswith(task)
        ]
        if not found:
            raise Missing(f"no folder in {self.models} has a name that ends in {task}")
        return found[0]

    def folder(self, task: str) -> Path:
        folder = self.data / (task if task in ("squad", "imagenet") else "glue")
        if not folder.is_dir():
            raise Missing(f"{folder} does not exist")
        return folder


def example(path: str) -> ModuleType:
    """A module of the examples."""
    name = "example_" + path.removesuffix(".py").replace("/", "_")
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / path)
    if spec is None or spec.loader is None:
        raise ImportError(path)
    # dataclasses look for their module by its name
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except ImportError as error:
        del sys.modules[name]
        raise Missing(f"{error.name} is not installed") from error
    return module


# -- the rows ------------------------------------------------------------------------------------------------

Job = dict[str, Any]  # arguments of octune.tune


def settings(place: Place, task: str) -> dict[str, Any]:
    """Nothing but the part of SQuAD to use, if it is not all of it."""
    return {"evaluation": {"samples": place.questions}} if task == "squad" and place.questions else {}


def pytorch(place: Place, task: str) -> Job:
    model = str(place.model(task))
    data = load_task(task, place.folder(task), tokenizer=model)
    config = settings(place, task)
    return {
        "model": model,
        "calibration": data.calibration,
        "evaluation": data.evaluation,
        "metric": data.metric,
        "config": config,
    }


def onnx(place: Place, task: str) -> Job:
    """The same model, exported; the speed-up is over ONNX Runtime's fp32."""
    job = pytorch(place, task)
    return job | {"config": {"model": {"target": "onnx"}, **job["config"]}}


def imagenet(place: Place, task: str) -> Job:
    folder, vision = place.folder(task), example("vision/tune_efficientnet.py")
    files = vision.find(folder)
    judged = [file for number, file in enumerate(files) if number % vision.CALIBRATE_EVERY]
    calibration, evaluation = (vision.Images(part, 16) for part in (files[:: vision.CALIBRATE_EVERY], judged))
    return {
        "model": vision.efficientnet(),
        "calibration": calibration,
        "evaluation": evaluation,
        "metric": "accuracy",
        "config": {},
    }


def tensorflow_classifier(place: Place, task: str) -> Job:
    model = place.model(task)
    data = load_task(task, place.folder(task), tokenizer=str(model))
    names = {"input_ids": "input_ids", "attention_mask": "input_mask", "token_type_ids": "segment_ids"}

    def renamed(batches: Any) -> Callable[[], Any]:
        return lambda: (
            ({names[name]: array for name, array in inputs.items()}, label) for inputs, label in batches
        )

    return {
        "model": example("tensorflow/bert_squad/model.py").classifier_graph(model),
        "calibration": renamed(data.calibration),
        "evaluation": renamed(data.evaluation),
        "metric": data.metric,
        "config": {
            "model": {"framework": "tensorflow", "inputs": list(names.values()), "outputs": ["logits"]}
        },
    }


def tensorflow_squad(place: Place, task: str) -> Job:
    """The graph that reads its own file, scored through its own iterator."""
    model, folder = place.model(task), place.folder(task)
    bert, records = (example(f"tensorflow/bert_squad/{name}.py") for name in ("model", "records"))
    tokenizer = records.load_tokenizer(model)
    files = {stem: next(iter(sorted(folder.glob(f"{stem}*v1.1*.json"))), None) for stem in ("train", "dev")}
    if None in files.values():
        raise Missing(f"{folder} lacks train-v1.1.json or dev-v1.1.json")
    rules = SpanRules()
    common = {"n_best_size": rules.n_best, "max_answer_length": rules.max_answer_length}
    dev = records.squad_windows(files["dev"], tokenizer, questions=place.questions, **common)
    train = records.squad_windows(files["train"], tokenizer, questions=CALIBRATION, **common)
    from octune.evaluation import SquadF1

    made = tempfile.TemporaryDirectory()  # removed together with the function that scores
    paths = {stem: Path(made.name) / f"{stem}.tf_record" for stem in files}
    for stem, windows in (("train", train), ("dev", dev)):
        records.make_tfrecord(windows.windows, paths[stem])

    def evaluate(graph: Any, made: Any = made) -> octune.Score:
        results, _ = records.run_graph(graph, paths["dev"], batch_size=32)
        return SquadF1(dev).score(*records.by_window(results))

    outputs = ["IteratorGetNext:3", "unstack:0", "unstack:1"]
    return {
        "model": bert.squad_graph(model),
        "calibration": [(str(paths["train"]), 8)],
        "evaluate": evaluate,
        "config": {
            "model": {"framework": "tensorflow", "inputs": ["input_file", "batch_size"], "outputs": outputs}
        },
    }


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    framework: str
    task: str
    job: Callable[[Place, str], Job]

    @property
    def name(self) -> str:
        return f"{self.framework}-{self.task}"


ROWS = [
    *(Row("pytorch", task, pytorch) for task in ("sst2", "mrpc", "stsb", "squad")),
    Row("pytorch", "imagenet", imagenet),
    Row("tensorflow", "sst2", tensorflow_classifier),
    Row("tensorflow", "squad", tensorflow_squad),
    *(Row("onnx", task, onnx) for task in ("sst2", "mrpc", "stsb", "squad")),
]


# -- running -------------------------------------------------------------------------------------------------


def int8_share(result: octune.Result) -> float:
    """The int8 share of the weights of all ops that compute; lookups do not count."""
    ops = [op for op in result.ops if op.kind != "embedding" and op.parameters]
    total = sum(op.parameters for op in ops)
    return (
        sum(
            op.parameters
            for op in ops
            if result.plan.get(op.name, None) and result.plan[op.name].dtype == "int8"
        )
        / total
        if total
        else 0.0
    )


def as_data(row: Row, result: octune.Result, place: Place, neighbours: float) -> dict[str, Any]:
    """Everything that the page shows of a row."""
    verdict, baseline, best = result.best.verdict, result.baseline.score, result.best.score
    if baseline is None or best is None:
        raise SystemExit(f"{row.name} was not scored: {result}")
    return {
        "name": row.name,
        "task": TITLES[row.task],
        "framework": row.framework,
        "model": row.task if row.task == "imagenet" else place.model(row.task).name,
        "fp32": baseline.value,
        "int8": best.value,
        "n": baseline.n,
        "low": verdict.low if verdict else None,
        "high": verdict.high if verdict else None,
        "lost": verdict.lost if verdict else None,
        "gained": verdict.gained if verdict else None,
        "met": result.met,
        "share": int8_share(result),
        "evaluations": 1 + len(result.trials),
        "trials": len(result.trials),
        "seconds": result.seconds,
        "stages": {name: round(seconds, 2) for name, seconds in result.stages.items()},
        "speedup": result.speedup,
        "form": result.best.form,
        "questions": place.questions if row.task == "squad" else None,
        "stopped": result.stopped_because,
        "neighbours": neighbours,
        "where": describe(result.environment.get("threads") or 0, PACKAGES[row.framework]),
    }


def run_here(row: Row, place: Place, folder: Path) -> None:
    """Runs a row in this process and keeps it."""
    quiet()
    with Load(with_children=True) as others:
        result = octune.tune(**row.job(place, row.task))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{row.name}.json").write_text(json.dumps(as_data(row, result, place, others.cores), indent=1))
    print(result)


def main() -> None:
    parser = argparse.ArgumentParser(description="Tune the whole zoo and write the page of results.")
    parser.add_argument("--models", type=Path, help="the folder of the models")
    parser.add_argument("--data", type=Path, help="the folder that holds glue, squad and imagenet")
    parser.add_argument(
        "--rows", type=Path, default=ROOT / "benchmarks" / "zoo_rows", help="where rows are kept"
    )
    parser.add_argument(
        "--only", action="append", choices=[row.name for row in ROWS], help="run this row; can be repeated"
    )
    parser.add_argument("--again", action="store_true", help="run rows again that are done")
    parser.add_argument("--questions", type=int, help="use only this many questions of SQuAD, the first ones")
    parser.add_argument("--page", action="store_true", help="run nothing, write the page")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "results.md", help="the page")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    failed: list[str] = []
    if not args.page:
        if args.models is None or args.data is None:
            parser.error("--models and --data are needed to run rows; --page writes the page alone")
        place = Place(args.models, args.data, args.questions)
        for row in ROWS if args.only is None else [row for row in ROWS if row.name in args.only]:
            if args.here:
                try:
                    run_here(row, place, args.rows)
                except Missing as reason:
                    print(f"{row.name} is left out: {reason}")
            elif args.again or not (args.rows / f"{row.name}.json").exists():
                print(f"== {row.name}", flush=True)
                words = [
                    "--models",
                    args.models,
                    "--data",
                    args.data,
                    "--rows",
                    args.rows,
                    "--only",
                    row.name,
                    "--here",
                ]
                words += ["--questions", args.questions] if args.questions else []
                if subprocess.run([sys.executable, __file__, *map(str, words)], check=False).returncode:
                    failed.append(row.name)
    if not args.here:
        write_page(args.rows, args.output)
        print(f"wrote {args.output}" + (f"; failed: {', '.join(failed)}" if failed else ""))
        raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
