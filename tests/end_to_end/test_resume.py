"""Kill it anywhere, start it again, get the same answer; and nothing that was finished is done twice."""

from __future__ import annotations

import json
import logging
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import octune  # noqa: E402
from octune.errors import WorkspaceError  # noqa: E402
from tests.digits import Digits, config, network  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
# Range methods may find the same range: with one of them, different plans are different models.
ONE_METHOD = {"quantization": {"activation": {"algorithm": "minmax"}}}

# Scores by the number of int8 layers, so that no timing and no luck has a say in which plan wins; notes every
# call in a file.
CHILD = """
import json, sys, time
from pathlib import Path
import torch
torch.set_num_threads(1)
import octune
from tests.digits import config, digits
from tests.end_to_end.test_resume import ONE_METHOD, few_int8, shape_of

workspace, calls, hang_at, resume = sys.argv[1:]
data = digits()

def evaluate(model):
    with Path(calls).open("a") as file:
        file.write(shape_of(model) + "\\n")
    if len(Path(calls).read_text().splitlines()) == int(hang_at):
        print("hanging", flush=True)
        time.sleep(600)
    return few_int8(model)

options = {**config(), **ONE_METHOD, "workspace": {"path": workspace, "resume": resume == "resume"}}
result = octune.tune(data.model(), calibration=data.batches(), evaluate=evaluate, config=options)
trials = [trial.plan.digest for trial in result.trials]
print(json.dumps({"plan": result.plan.digest, "met": result.met, "trials": trials}))
"""


def shape_of(model: nn.Module) -> str:
    """Which layer stands where, and its numbers: enough to tell one plan from another."""
    return " | ".join(
        f"{type(module).__name__} {getattr(module, 'settings', '')}" for module in model.children()
    )


def few_int8(model: nn.Module) -> float:
    return 1.0 if sum("Int8" in type(module).__name__ for module in model.children()) <= 1 else 0.5


def tune(
    data: Digits, workspace: Path, calls: list[str] | None = None, *, resume: bool = True, **options: Any
) -> octune.Result:
    def evaluate(model: nn.Module) -> float:
        if calls is not None:
            calls.append(shape_of(model))
        return few_int8(model)

    options = {"model": data.model(), "calibration": data.batches(), "evaluate": evaluate, **options}
    settings = {
        **config(**options.pop("tuning", {})),
        **ONE_METHOD,
        "workspace": {"path": workspace, "resume": resume},
    }
    return octune.tune(options.pop("model"), config=settings, **options)


def test_killed_in_the_middle_of_the_second_trial(data: Digits, tmp_path: Path) -> None:
    workspace, calls = tmp_path / "run", tmp_path / "calls.txt"

    def child(hang_at: int, resume: str) -> subprocess.Popen[str]:
        arguments = [str(workspace), str(calls), str(hang_at), resume]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        return subprocess.Popen(
            [sys.executable, "-c", CHILD, *arguments],
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=tmp_path,
        )

    first = child(3, "fresh")  # the baseline is the first call, so the second trial is the third
    try:
        assert first.stdout is not None
        assert first.stdout.readline() == "hanging\n"
    finally:
        first.send_signal(signal.SIGKILL)
        first.communicate()
    before = calls.read_text().splitlines()
    assert len(before) == 3
    finished = [json.loads(line)["event"] for line in (workspace / "journal.jsonl").read_text().splitlines()]
    assert finished.count("baseline") == 1
    assert finished.count("trial") == 1

    second = child(0, "resume")
    output, _ = second.communicate(timeout=300)
    assert second.returncode == 0
    resumed = json.loads(output.splitlines()[-1])
    after = calls.read_text().splitlines()[3:]
    assert after[0] == before[2]  # the trial that was broken off is run again, and first
    assert not set(after) & set(before[:2])  # what was finished is not
    assert len(set(after)) == len(after)

    whole = tune(data, tmp_path / "whole", resume=False)
    assert whole.met
    assert resumed == {
        "plan": whole.plan.digest,
        "met": True,
        "trials": [trial.plan.digest for trial in whole.trials],
    }


def test_a_finished_run_is_answered_by_its_journal_alone(data: Digits, tmp_path: Path) -> None:
    first_calls: list[str] = []
    first = tune(data, tmp_path, first_calls)
    calls: list[str] = []
    again = tune(data, tmp_path, calls)
    assert calls == []
    assert len(first_calls) == 1 + len(first.trials)
    assert again.plan == first.plan
    assert again.met == first.met
    assert [(t.plan, t.score, t.verdict, t.latency_ms, t.size) for t in again.trials] == [
        (t.plan, t.score, t.verdict, t.latency_ms, t.size) for t in first.trials
    ]
    assert torch.equal(again.model(data.test), first.model(data.test))
    # A resumed result is as good as any: it can be saved, and loaded.
    model = octune.load(again.save(tmp_path / "model"), factory=network)
    assert torch.equal(model(data.test), first.model(data.test))


def test_not_resuming_starts_anew(data: Digits, tmp_path: Path) -> None:
    first = tune(data, tmp_path)
    calls: list[str] = []
    tune(data, tmp_path, calls, resume=False)
    assert len(calls) == 1 + len(first.trials)
    assert (tmp_path / "journal-1.jsonl").exists()


@pytest.mark.parametrize("strategy", ["auto", "basic"])
def test_a_journal_cut_at_any_line_leads_to_the_same_answer(
    data: Digits, tmp_path: Path, strategy: str
) -> None:
    tuning = {"strategy": strategy}
    whole = tune(data, tmp_path, tuning=tuning)
    path = tmp_path / "journal.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    for count in range(len(lines)):
        path.write_bytes(b"".join(lines[:count]) + lines[count][: len(lines[count]) // 2])
        again = tune(data, tmp_path, tuning=tuning)
        assert again.plan == whole.plan
        assert [trial.plan for trial in again.trials] == [trial.plan for trial in whole.trials]
        assert torch.equal(again.model(data.test), whole.model(data.test))


@pytest.mark.parametrize("harm", ["truncated", "deleted"])
def test_ranges_that_are_lost_are_made_again(
    data: Digits, tmp_path: Path, harm: str, caplog: pytest.LogCaptureFixture
) -> None:
    whole = tune(data, tmp_path)
    ranges = tmp_path / "ranges.npz"
    if harm == "deleted":
        ranges.unlink()
    else:
        ranges.write_bytes(ranges.read_bytes()[:100])
    with caplog.at_level(logging.WARNING, "octune"):
        again = tune(data, tmp_path)
    assert again.plan == whole.plan
    assert torch.equal(again.model(data.test), whole.model(data.test))
    said = "is not the file that this run has written" if harm == "truncated" else "cannot be read"
    assert said in caplog.text


def test_ranges_of_another_model_are_not_used(data: Digits, tmp_path: Path) -> None:
    tune(data, tmp_path / "one")
    fresh = tune(data, tmp_path / "two", calibration=[10 * batch for batch in data.batches()])
    (tmp_path / "one" / "journal.jsonl").unlink()
    mixed = tune(data, tmp_path / "one", calibration=[10 * batch for batch in data.batches()])
    assert torch.equal(mixed.model(data.test), fresh.model(data.test))


def other_model(data: Digits) -> nn.Module:
    model = data.model()
    with torch.no_grad():
        model[0].weight[0, 0] += 1e-3
    return model


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"model": other_model}, "model"),
        ({"criterion": octune.Relative(0.02)}, "criterion"),
        ({"tuning": {"strategy": "basic"}}, "strategy"),
        ({"tuning": {"random_seed": 1}}, "seed"),
        ({"evaluate": lambda model: 1.0}, "evaluation"),
    ],
)
def test_another_run_is_not_continued(
    data: Digits, tmp_path: Path, changed: dict[str, Any], what: str
) -> None:
    tune(data, tmp_path)
    options = {key: value(data) if value is other_model else value for key, value in changed.items()}
    with pytest.raises(WorkspaceError, match=f"belongs to another run: its {what} differs"):
        tune(data, tmp_path, **options)


def test_two_runs_in_one_workspace_are_refused(data: Digits, tmp_path: Path) -> None:
    def nested(model: nn.Module) -> float:
        with pytest.raises(WorkspaceError, match="Another run is using"):
            tune(data, tmp_path)
        return 1.0

    assert tune(data, tmp_path, evaluate=nested).met


def test_a_failed_trial_is_remembered_as_failed(data: Digits, tmp_path: Path) -> None:
    calls: list[int] = []

    def evaluate(model: nn.Module) -> float:
        calls.append(1)
        if "Int8" in shape_of(model):
            raise RuntimeError("no")
        return 1.0

    first = tune(data, tmp_path, evaluate=evaluate)
    count = len(calls)
    again = tune(data, tmp_path, evaluate=evaluate)
    assert len(calls) == count
    assert [trial.error for trial in again.trials] == [trial.error for trial in first.trials]
    assert any(trial.error for trial in again.trials)


def test_items_are_still_paired_after_resuming(data: Digits, tmp_path: Path) -> None:
    options: dict[str, Any] = {"metric": "accuracy", "evaluation": data.labelled(), "evaluate": None}
    first = tune(data, tmp_path, **options)
    again = tune(data, tmp_path, **options)
    assert first.best.verdict == again.best.verdict
    assert again.best.verdict is not None
    assert again.best.verdict.low is not None
    with pytest.raises(WorkspaceError, match="its evaluation data differs"):
        tune(data, tmp_path, **{**options, "evaluation": data.labelled()[::-1]})


def test_data_in_another_order_is_not_paired_after_resuming(data: Digits, tmp_path: Path) -> None:
    order = random.Random(0)

    class Shuffled:
        def __iter__(self) -> Any:
            return iter(order.sample(data.labelled(), len(data.labelled())))

    options: dict[str, Any] = {"metric": "accuracy", "evaluation": Shuffled(), "evaluate": None}
    first = tune(data, tmp_path, **options)
    journal = tmp_path / "journal.jsonl"
    lines = [
        line
        for line in journal.read_bytes().splitlines(keepends=True)
        if json.loads(line)["event"] != "trial"
    ]
    journal.write_bytes(b"".join(lines))
    shuffled = tune(data, tmp_path, **options)
    assert shuffled.best.verdict is not None
    assert shuffled.best.verdict.low is None
    assert shuffled.best.score is not None
    assert first.best.score is not None
    assert shuffled.best.score.value == pytest.approx(first.best.score.value)


def test_without_data_the_input_is_seen_again_in_the_evaluation(data: Digits, tmp_path: Path) -> None:
    def accuracy(model: nn.Module) -> float:
        return data.accuracy(model)

    first = tune(data, tmp_path, calibration=None, evaluate=accuracy)
    again = tune(data, tmp_path, calibration=None, evaluate=accuracy)
    assert again.plan == first.plan
    assert torch.equal(again.model(data.test), first.model(data.test))


def test_batchnorms_are_folded_again_when_resuming(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.Flatten()
    ).train()
    images = [torch.randn(4, 3, 8, 8) for _ in range(3)]
    for batch in images:
        model(batch)
    model.eval()
    options = {**config(), "workspace": {"path": tmp_path, "resume": True}}
    runs = [
        octune.tune(model, calibration=images, evaluate=lambda model: 1.0, config=options) for _ in range(2)
    ]
    assert runs[0].plan == runs[1].plan
    assert runs[0].plan.names("int8") == ["0", "3"]
    assert torch.equal(runs[0].model(images[0]), runs[1].model(images[0]))
    assert isinstance(runs[1].model[1], nn.Identity)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, a device that is always full")
def test_a_full_disk_costs_the_journal_and_not_the_result(data: Digits, tmp_path: Path) -> None:
    (tmp_path / "journal.jsonl").symlink_to("/dev/full")
    result = tune(data, tmp_path, resume=False)
    assert result.met
    assert any("could not be written" in note for note in result.notes)


def test_interrupted_and_resumed(data: Digits, tmp_path: Path) -> None:
    calls: list[str] = []

    def evaluate(model: nn.Module) -> float:
        calls.append(shape_of(model))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return few_int8(model)

    interrupted = tune(data, tmp_path, evaluate=evaluate)
    assert interrupted.stopped_because.startswith("interrupted by the user")
    assert len(interrupted.trials) == 1
    resumed = tune(data, tmp_path, evaluate=evaluate)
    assert resumed.met
    assert resumed.trials[0].plan == interrupted.trials[0].plan
    assert calls.count(calls[1]) == 1
    assert calls.count(calls[2]) == 2  # only the one that was broken off
    assert tune(data, tmp_path, evaluate=evaluate).plan == resumed.plan
