"""benchmarks/peers.py: tools in processes of their own are scored and timed by one judge, whatever becomes of
them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from octune.evaluation import get_metric
from tests.scripts import load_script

ROOT = Path(__file__).resolve().parents[1]
TOOLS = ROOT / "benchmarks" / "peer_tools"
# It asks for two scores, and hands back the model as it came; its outputs are printed over.
HONEST = """
import running
from job import Job, main

def quantize(job, target):
    print("tools print what they like")
    run = running.on_onnxruntime(job.onnx)
    assert job.score(run) == job.score(run)
    return job.onnx

if __name__ == "__main__":
    main(quantize, running.on_onnxruntime, "numpy")
"""
RAISES = HONEST.replace("return job.onnx", "raise ValueError('no such kernel')")
DIES = HONEST.replace("return job.onnx", "__import__('os')._exit(3)")
HANGS = HONEST.replace("return job.onnx", "__import__('time').sleep(60)")
GIVES_UP = HONEST.replace("return job.onnx", "return None")


@pytest.fixture(scope="module")
def peers() -> Iterator[Any]:
    before = list(sys.path)
    sys.path.insert(0, str(ROOT / "benchmarks"))
    yield load_script("benchmarks/peers.py")
    sys.path[:] = before


@pytest.fixture(scope="module")
def job(peers: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A linear classifier on six batches, the last of them smaller."""
    torch.manual_seed(0)
    model = nn.Linear(8, 3).eval()
    batches = [(torch.randn(n, 8), torch.randint(3, (n,))) for n in (8, 8, 8, 8, 8, 5)]
    jobs = sys.modules["peer_jobs"]
    material = jobs.Material(model, [x for x, _ in batches[:2]], batches, get_metric("accuracy"))
    folder = tmp_path_factory.mktemp("job")
    return jobs.written(jobs.Case("linear", "a linear layer", lambda place: material), None, folder)


def start(peers: Any, job: Any, folder: Path, code: str, minutes: float = 1.0) -> Any:
    script = folder / "tool.py"
    script.write_text(f"import sys; sys.path.insert(0, {str(TOOLS)!r})\n{code}")
    target = folder / "target"
    command = [sys.executable, str(script), str(job.folder), str(target)]
    return peers.Process(command, target, lambda answers: job.score(answers).value, minutes)


def test_a_tool_is_scored_by_the_judge_and_timed_where_it_is(peers: Any, job: Any, tmp_path: Path) -> None:
    with start(peers, job, tmp_path, HONEST) as process:
        made = process.made
        assert made["model"]
        assert made["evaluations"] == 2
        assert made["file"].endswith("fp32.onnx")
        own = torch.load(job.folder / "own.pt", weights_only=False)
        model = torch.load(job.folder / "model.pt", weights_only=False)
        x = np.concatenate(list(_inputs(job)))
        wanted = model(torch.from_numpy(x)).argmax(1).numpy() == np.concatenate(own["labels"])
        assert job.score(process.answers()).value == pytest.approx(wanted.mean())
        times = process.turn(4)
    assert len(times) == 4
    assert min(times) > 0


def _inputs(job: Any) -> Iterator[Any]:
    batches = sys.modules["job"].Batches(job.folder / "evaluation.npz")
    return (next(iter(batch.values())) for batch in batches)


@pytest.mark.parametrize(
    ("code", "minutes", "error"),
    [
        (RAISES, 1.0, "ValueError: no such kernel"),
        (DIES, 1.0, "ended with exit code 3"),
        (HANGS, 0.1, "not finished after 0.1 minutes"),
        (GIVES_UP, 1.0, ""),
    ],
    ids=["raises", "dies", "hangs", "gives up"],
)
def test_what_ends_a_tool_is_said(
    peers: Any, job: Any, tmp_path: Path, code: str, minutes: float, error: str
) -> None:
    with start(peers, job, tmp_path, code, minutes) as process:
        assert not process.works
        assert error in process.made["error"]
        assert bool(error) == bool(process.made["error"])


def test_the_page_says_who_failed(peers: Any, job: Any, tmp_path: Path) -> None:
    tools = [
        peers.Tool("float_onnxruntime", "fp32", "octune", "float_onnxruntime"),
        peers.Tool("onnxruntime_dynamic", "A tool", "octune", "float_onnxruntime", "nothing"),
        peers.Tool("nncf_default", "Another", "octune", "float_onnxruntime", "nothing"),
    ]
    processes = {
        tool.name: start(peers, job, _made(tmp_path / tool.name), code)
        for tool, code in zip(tools, (HONEST, HONEST, RAISES), strict=True)
    }
    try:
        row = {
            "title": "a linear layer",
            "metric": "accuracy",
            "tools": peers.judged(job, tools, processes),
            "ms": peers.timed(processes),
            "neighbours": 0.0,
            "where": {"date": "today", "cpu": "a CPU", "cores": 2, "generation": "VNNI", "python": "3"},
        }
    finally:
        for process in processes.values():
            process.close()
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "cnn.json").write_text(json.dumps(row))
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- peers: begin -->\n<!-- peers: end -->\nafter\n")
    sys.modules["peers_page"].write_page(tmp_path / "rows", page)
    lines = page.read_text().splitlines()
    tool = next(line for line in lines if line.startswith("| A tool |")).split(" | ")
    assert tool[1] == "yes"
    assert tool[3].startswith(("+0.00", "-0.00"))
    assert tool[4] == "0%"
    assert tool[5] == "2"
    assert "| Another | failed | - |" in "\n".join(lines)
    assert "- Another failed: ValueError: no such kernel" in lines
    assert lines[0] == "before"
    assert lines[-1] == "after"


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def test_every_tool_has_its_file_and_its_environment_is_pinned(peers: Any) -> None:
    for tool in peers.PEERS:
        assert tool.file.is_file()
        assert tool.baseline in {each.name for each in peers.PEERS}
        assert tool.lines > 3 or tool.is_fp32
        if tool.environment != peers.OWN:
            pins = (TOOLS / "requirements" / f"{tool.environment}.txt").read_text().splitlines()
            assert any("==" in pin for pin in pins)
