"""What would another tool have made of the same model? Runs tools side by side on the same jobs, each in an
environment of its own, and judges what they hand back by the same rules.

    make peers                                                              # the environments, jobs and page
    python benchmarks/peers.py --models MODELS --data DATA                  # all jobs that were not run yet
    python benchmarks/peers.py --job cnn --tool nncf_default --rows rows    # one job with one tool
    python benchmarks/peers.py --markdown docs/peers.md                     # the page, from what was kept

MODELS and DATA are those of zoo.py; jobs whose data is missing are left out, with a message. The stress
cases need neither. A tool is a file in peer_tools/ that a user of it could have written; its environment is
made from peer_tools/requirements/ in the folder --environments (some GB in all, with pip). Every tool gets
the same model and batches, and two hours; whoever scores what it makes gets its numbers from this process.

All models that came out stay loaded, answer the evaluation data and are judged item by item against the fp32
model that they were made from; then they are timed in turns, at batch 1. A job is kept as a JSON file, so
that an interrupted table goes on where it stopped.
"""

from __future__ import annotations

import argparse
import ast
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bench_machine import describe, quiet, reason
from peer_jobs import CASES, TOOLS, Case, Job, Missing, Place, written
from peer_process import MINUTES, Process
from peers_page import write_page

import octune
from octune.cost import Latency, Load
from octune.cost.latency import in_turns
from octune.matching import Pair
from octune.opening import open_model

HERE = Path(__file__).parent
OWN = "octune"  # the environment that this script runs in
ROUNDS, BURST, PAUSE = 9, 5, 0.06
CRITERION = octune.Relative(0.01)


@dataclass(frozen=True)
class Tool:
    """A file in peer_tools/, whose environment it runs in, and the fp32 model that it is compared with.
    ``otherwise`` is what a user has where nothing meets the criterion.
    """

    name: str
    title: str
    environment: str
    baseline: str
    otherwise: str = ""

    @property
    def file(self) -> Path:
        return TOOLS / f"{self.name}.py"

    @property
    def is_fp32(self) -> bool:
        return self.name.startswith("float_")

    @property
    def lines(self) -> int:
        """Of code that a user writes: without docstrings, and without what only this comparison needs."""
        tree = ast.parse(self.file.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node):
                node.body = node.body[1:] or [ast.Pass()]
        tree.body = [node for node in tree.body if not isinstance(node, ast.If)]
        code = [line for line in ast.unparse(tree).splitlines() if line.strip()]
        return len([line for line in code if "from job" not in line and line != "import running"])


UNJUDGED, BEST, NOTHING, FLOAT = (
    "the int8 model: it is not scored",
    "the best it found",
    "nothing",
    "fp32, with the reason",
)
PEERS = (
    Tool("float_onnxruntime", "fp32, ONNX Runtime", OWN, "float_onnxruntime"),
    Tool("float_openvino", "fp32, OpenVINO", OWN, "float_onnxruntime"),
    Tool("float_torch", "fp32, PyTorch", OWN, "float_torch"),
    Tool("float_torch_compiled", "fp32, torch.compile", OWN, "float_torch"),
    Tool("octune_onnx", "Octune, ONNX", OWN, "float_onnxruntime", FLOAT),
    Tool("octune_torch", "Octune, PyTorch", OWN, "float_torch", FLOAT),
    Tool("onnxruntime_dynamic", "ONNX Runtime, dynamic", "onnxruntime", "float_onnxruntime", UNJUDGED),
    Tool("onnxruntime_static", "ONNX Runtime, static", "onnxruntime", "float_onnxruntime", UNJUDGED),
    Tool("nncf_default", "NNCF", "nncf", "float_onnxruntime", UNJUDGED),
    Tool("nncf_accuracy_control", "NNCF, accuracy control", "nncf", "float_onnxruntime", BEST),
    Tool(
        "neural_compressor_tuner", "Neural Compressor 2.6", "neural_compressor", "float_onnxruntime", NOTHING
    ),
    Tool("torchao_pt2e", "torchao, static (PT2E)", OWN, "float_torch", UNJUDGED),
    Tool("torchao_dynamic", "torchao, dynamic", OWN, "float_torch", UNJUDGED),
    Tool("neural_compressor_3", "Neural Compressor 3", "neural_compressor_3", "float_torch", UNJUDGED),
    Tool("olive_static", "Olive, static", "olive", "float_onnxruntime", UNJUDGED),
)


def python_of(tool: Tool, environments: Path) -> Path:
    """The interpreter of its environment, which is made if it is not there."""
    if tool.environment == OWN:
        return Path(sys.executable)
    folder = (environments / tool.environment).absolute()
    requirements = TOOLS / "requirements" / f"{tool.environment}.txt"
    python, done = folder / "bin" / "python", folder / "installed.txt"
    if not done.exists() or done.read_text() != requirements.read_text():
        print(f"making {folder}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*command, "-r", requirements], check=True)
        done.write_text(requirements.read_text())
    return python


def run(case: Case, options: argparse.Namespace) -> None:
    """A job with all its tools, in one run: only then can their speeds be compared."""
    place = Place(options.models, options.data) if options.models and options.data else None
    tools = [tool for tool in PEERS if options.tool is None or tool.is_fp32 or tool.name in options.tool]
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        files = Path(folder) / "job"
        files.mkdir()
        job = written(case, place, files)
        processes: dict[str, Process] = {}
        for tool in tools:
            print(f"== {case.name}: {tool.title}", flush=True)
            command = [str(python_of(tool, options.environments)), str(tool.file), str(files)]
            target = Path(folder) / tool.name
            processes[tool.name] = stack.enter_context(
                Process(
                    [*command, str(target)], target, lambda answers: job.score(answers).value, options.minutes
                )
            )
            print(json.dumps(processes[tool.name].made), flush=True)
        found = judged(job, tools, processes)
        with Load(with_children=True) as others:
            times = timed(processes)
    row = {
        "title": case.title,
        "metric": job.metric.name,
        "tools": found,
        "ms": times,
        "neighbours": round(others.cores, 2),
        "where": describe(0, ()),
    }
    options.rows.mkdir(parents=True, exist_ok=True)
    (options.rows / f"{case.name}.json").write_text(json.dumps(row, indent=1) + "\n")


def judged(job: Job, tools: list[Tool], processes: dict[str, Process]) -> dict[str, Any]:
    """Each model against the fp32 model that it was made from."""
    scores: dict[str, octune.Score] = {}
    found: dict[str, Any] = {}
    for tool in tools:
        process = processes[tool.name]
        about = {key: process.made.get(key) for key in ("seconds", "evaluations", "peak_mb", "versions")}
        about |= {"title": tool.title, "lines": tool.lines, "otherwise": tool.otherwise}
        about |= {"baseline": tool.baseline, "fp32": tool.is_fp32, "error": process.made["error"]}
        found[tool.name] = about
        if not process.works:
            continue
        try:
            scores[tool.name] = score = job.score(process.answers())
        except Exception as error:  # of this tool alone: NaN in its outputs, say
            about["error"] = reason(error)
            continue
        about["score"] = {"value": score.value, "n": score.n}
        if not tool.is_fp32:
            verdict = CRITERION.judge(scores[tool.baseline], score)
            about["verdict"] = {key: getattr(verdict, key) for key in ("drop", "allowed", "low", "high")}
            about["coverage"] = coverage(job, process.made["file"] or target_of(process))
    return found


def target_of(process: Process) -> str | None:
    """What a tool saved beside the model that it runs, if anything."""
    return next((str(path) for path in process.target.glob("int8*")), None)


def coverage(job: Job, file: str | None) -> float | None:
    """The share of multiply-adds that a file computes in int8; None where that cannot be told."""
    from job import Batches

    if file is None:
        return None
    inputs = Batches(job.folder / "evaluation.npz")[0]
    with closing(open_model(job.folder / "fp32.onnx")) as fp32, closing(open_model(file)) as int8:
        try:
            known = int8.coverage(Pair(fp32, int8).call(int8, inputs))
        except Exception:  # a table does not fail for want of a number
            return None
    return None if known is None else known.int8


def timed(processes: dict[str, Process]) -> dict[str, float]:
    """Median milliseconds of one call at batch 1, all in turns."""
    turns = {name: partial(process.turn, BURST) for name, process in processes.items() if process.works}
    taken = in_turns(turns, rounds=ROUNDS, pause=PAUSE)
    flat = {name: tuple(ms for turn in values for ms in turn) for name, values in taken.items()}
    return {name: Latency(values).median_ms for name, values in flat.items()}


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Run other tools on the same jobs, and judge what they make."
    )
    parser.add_argument("--models", type=Path, help="the folder of the models, as for zoo.py")
    parser.add_argument("--data", type=Path, help="the folder that holds glue and imagenet, as for zoo.py")
    parser.add_argument("--job", action="append", choices=CASES, help="this job only")
    parser.add_argument(
        "--tool", action="append", choices=[tool.name for tool in PEERS], help="this tool only"
    )
    parser.add_argument("--minutes", type=float, default=MINUTES, help="what a tool may take for a job")
    parser.add_argument("--again", action="store_true", help="also jobs that have been run")
    parser.add_argument("--rows", type=Path, default=HERE / "peer_rows", help="where rows are kept")
    parser.add_argument("--environments", type=Path, default=HERE.parent / ".peers", help="of the tools")
    parser.add_argument(
        "--markdown", type=Path, metavar="PAGE", help="write the page from the rows, run nothing"
    )
    options = parser.parse_args()
    if options.markdown is not None:
        write_page(options.rows, options.markdown)
        return 0
    quiet()
    for name in _chosen(options):
        try:
            run(CASES[name], options)
        except Missing as why:
            print(f"{name} is left out: {why}")
    return 0


def _chosen(options: argparse.Namespace) -> Iterator[str]:
    for name in CASES if options.job is None else options.job:
        if options.again or not (options.rows / f"{name}.json").exists():
            yield name


if __name__ == "__main__":
    sys.exit(main())
