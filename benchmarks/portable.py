"""What weights that are safe on any CPU cost in accuracy and speed, against weights that use all 8 bits, on
fine-tuned models.

    python benchmarks/portable.py --models MODELS --data DATA                            # prints the table
    python benchmarks/portable.py --models MODELS --data DATA --markdown docs/cpus.md    # writes it there
    python benchmarks/portable.py --models MODELS --data DATA --only onnx-mrpc

MODELS and DATA are those of ``zoo.py``. Every op is in its fastest int8 scheme, no plan is repaired, nothing
is compiled: only the weights differ. Needs a CPU with VNNI or AMX; others always have portable weights. The
portable model is saved, and scored again by a process that runs AVX2 kernels (ONNX Runtime's own kernels
cannot be limited: there that column shows OpenVINO or nothing).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pages
from bench_machine import describe, quiet

import octune
from zoo import PACKAGES, ROWS, TITLES, Missing, Place, Row

AVX2 = "AVX2"


def tuned(row: Row, place: Place, portable: bool, folder: Path) -> dict[str, Any]:
    """One plan, every op in int8, scored; the model is saved."""
    job = row.job(place, row.task)
    job["config"] |= {"tuning": {"max_trials": 1}, "performance": {"portable": portable, "compile": "never"}}
    result = octune.tune(**job)
    trial, baseline = result.trials[0], result.baseline.score
    if trial.score is None or baseline is None:
        raise SystemExit(f"{row.name} was not scored: {trial.error}")
    if trial is result.best:
        result.save(folder, overwrite=True)
    return {
        "fp32": baseline.value,
        "score": trial.score.to_json(),
        "speedup": trial.speedup,
    }


def scored_again(row: Row, place: Place, folder: Path) -> dict[str, Any]:
    """The saved model, as this process runs it."""
    from octune.backends import Settings, backend_for
    from octune.data import as_batches
    from octune.evaluation.evaluator import MetricEvaluator
    from octune.evaluation.metrics import get_metric

    job = row.job(place, row.task)
    model = octune.load(folder)
    metric = get_metric(job["metric"]) if isinstance(job["metric"], str) else job["metric"]
    named = job["config"].get("model", {})
    if row.framework == "onnx":
        import onnx

        backend = backend_for(onnx.load(str(folder / "model.onnx")), Settings())
    elif isinstance(job["model"], str):
        from octune.backends import backend_named

        backend = backend_for(backend_named(row.framework).open(job["model"]), Settings())
    else:
        backend = backend_for(
            job["model"],
            Settings(inputs=tuple(named.get("inputs", ())), outputs=tuple(named.get("outputs", ()))),
        )
    score = MetricEvaluator(backend, as_batches(job["evaluation"], role="evaluation"), metric)(model)
    return {"score": score.to_json()}


def child(words: list[str], level: str | None = None) -> dict[str, Any] | None:
    """A measurement in a process of its own."""
    environment = {**os.environ, **({"ONEDNN_MAX_CPU_ISA": level} if level else {})}
    done = subprocess.run(
        [sys.executable, __file__, *words], env=environment, stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        return None
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def change(before: dict[str, Any], after: dict[str, Any] | None) -> str:
    """How much better the second model scores, with its interval and the answers that differ."""
    if after is None:
        return "-"
    one, other = (octune.Score.from_json(found["score"]) for found in (before, after))
    verdict = octune.Absolute(1.0).judge(one, other)
    text = f"{other.value - one.value:+.4f}"
    if verdict.low is not None and verdict.high is not None:
        text += f" [{-verdict.high:+.4f}, {-verdict.low:+.4f}]"
    return text if verdict.lost is None else f"{text}, {verdict.lost} lost, {verdict.gained} gained"


def cells(row: Row, full: dict[str, Any], portable: dict[str, Any], old: dict[str, Any] | None) -> list[str]:
    return [
        f"{TITLES[row.task]}, {row.framework}",
        f"{full['fp32']:.4f}",
        f"{full['score']['value']:.4f}",
        f"{portable['score']['value']:.4f}",
        change(full, portable),
        change(portable, old),
        f"{full['speedup']:.2f}x",
        f"{portable['speedup']:.2f}x",
    ]


HEADER = [
    "model",
    "fp32",
    "8 bits",
    "portable",
    "change",
    "change on AVX2 kernels",
    "speed, 8 bits",
    "portable",
]


def main() -> None:
    parser = argparse.ArgumentParser(description="What portable weights cost.")
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--only", action="append", choices=[row.name for row in ROWS])
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--child", nargs=3, metavar=("ROW", "WHAT", "FOLDER"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    quiet()
    place = Place(args.models, args.data)
    if args.child:
        name, what, folder = args.child
        row = next(row for row in ROWS if row.name == name)
        answer = (
            scored_again(row, place, Path(folder))
            if what == "again"
            else tuned(row, place, what == "portable", Path(folder))
        )
        print(json.dumps(answer))
        return
    lines = [HEADER, ["---"] * len(HEADER)]
    for row in ROWS if args.only is None else [row for row in ROWS if row.name in args.only]:
        if row.task == "squad" and args.only is None:
            continue  # minutes for every score
        try:
            place.folder(row.task)
        except Missing as reason:
            print(f"{row.name} is left out: {reason}")
            continue
        with tempfile.TemporaryDirectory() as folder:
            common = ["--models", str(args.models), "--data", str(args.data), "--child", row.name]
            full, portable = (child([*common, what, f"{folder}/{what}"]) for what in ("full", "portable"))
            old = child([*common, "again", f"{folder}/portable"], AVX2) if row.framework != "onnx" else None
        if full is None or portable is None:
            raise SystemExit(f"{row.name} failed")
        lines.append(cells(row, full, portable, old))
        print(" | ".join(lines[-1]), flush=True)
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    where = describe(0, [package for packages in PACKAGES.values() for package in packages])
    versions = ", ".join(f"{name} {version}" for name, version in where["versions"].items())
    table += (
        f"\n\n{where['date']}; {where['cpu']}, {where['cores']} cores; {', '.join(where['features'])}\n\n"
    )
    table += f"Python {where['python']}, {versions}\n"
    print(table)
    if args.markdown:
        pages.write(args.markdown, "portable", table.splitlines())


if __name__ == "__main__":
    main()
