"""A bad plan of a real model is stopped early; the answer is the same, also when the run is resumed, or
certified on data held out.
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import octune  # noqa: E402
from octune.errors import ConfigError, WorkspaceError  # noqa: E402
from octune.report.tables import result_table  # noqa: E402
from tests.digits import Digits, config  # noqa: E402


def fragile(data: Digits) -> nn.Sequential:
    """The trained network with a few channels blown up and taken back behind the ReLU: the same in fp32,
    ruined by int8.
    """
    model = data.model()
    with torch.no_grad():
        for first, second in ((model[0], model[2]), (model[2], model[4])):
            first.weight[:3] *= 3000
            first.bias[:3] *= 3000
            second.weight[:, :3] /= 3000
    return model


def tune(
    data: Digits, evaluation: Any = None, workspace: Path | None = None, **options: Any
) -> octune.Result:
    settings: dict[str, Any] = {
        **config(strategy="basic", max_trials=4),
        "quantization": {"approach": "static", "activation": {"algorithm": "minmax"}},
    }
    if workspace is not None:
        settings["workspace"] = {"path": workspace, "resume": True}
    evaluation = data.labelled(4) if evaluation is None and "evaluate" not in options else evaluation
    options = {"metric": "accuracy", **options} if "evaluate" not in options else options
    return octune.tune(
        fragile(data), calibration=data.batches(), evaluation=evaluation, config=settings, **options
    )


def batches_of(*trials: octune.Trial) -> int:
    """How many batches of four these trials were scored on."""
    return sum(-(-(trial.score.n or 0) // 4) for trial in trials if trial.score is not None)


def test_a_bad_plan_is_stopped_early(data: Digits, scored: list[int]) -> None:
    result = tune(data)
    first = result.trials[0]
    assert first.score is not None
    assert first.verdict is not None
    assert first.score.partial
    assert first.score.n is not None
    assert first.score.n < len(data.test) / 3
    assert first.verdict.outcome == "fail"
    assert first.verdict.stopped is not None
    assert first.verdict.stopped.startswith(
        f"stopped after {first.score.n} of {len(data.test)} items: fails "
    )
    # Nothing is scored but one batch to rehearse, all of them with fp32, and as many as each trial took.
    assert len(scored) == 1 + batches_of(result.baseline, *result.trials)
    assert all(
        trial.score is not None and not trial.score.partial
        for trial in (result.baseline, *result.trials)
        if trial.passed
    )
    assert first not in result.front


def test_what_is_stopped_would_have_failed(data: Digits) -> None:
    result = tune(data)
    stopped = [trial for trial in result.trials if trial.score is not None and trial.score.partial]
    assert stopped
    again = tune(data, lambda: iter([(data.test, data.labels)]))  # one batch: nothing to stop
    full = {trial.plan: trial for trial in again.trials}
    for trial in stopped:
        assert full[trial.plan].complete
        assert not full[trial.plan].passed


def test_the_same_when_resumed(data: Digits, scored: list[int], tmp_path: Path) -> None:
    whole = tune(data, workspace=tmp_path / "whole")
    lines = (tmp_path / "whole" / "journal.jsonl").read_bytes().splitlines(keepends=True)
    events = [json.loads(line)["event"] for line in lines]
    for kept in (events.index("trial"), events.index("trial") + 1, len(lines)):
        folder = tmp_path / str(kept)
        folder.mkdir()
        # As if it had ended between two questions: one that was begun is asked in a process of its own, where
        # nothing is counted.
        left = [line for line, event in zip(lines[:kept], events, strict=False) if event != "begun"]
        (folder / "journal.jsonl").write_bytes(b"".join(left))
        scored.clear()
        resumed = tune(data, workspace=folder)
        known = events[:kept].count("trial")
        assert len(scored) == 1 + batches_of(*resumed.trials[known:])
        assert [trial.plan for trial in resumed.trials] == [trial.plan for trial in whole.trials]
        assert [trial.verdict for trial in resumed.trials] == [trial.verdict for trial in whole.trials]
        assert [trial.score for trial in resumed.trials] == [trial.score for trial in whole.trials]
        assert resumed.plan == whole.plan


def test_the_report_shows_how_far_a_trial_came(data: Digits) -> None:
    from rich.console import Console

    result = tune(data)
    console = Console(width=250, record=True, file=io.StringIO())
    console.print(result_table(result))
    text = console.export_text()
    assert result.trials[0].score is not None
    assert f"{result.trials[0].score.n} of {len(data.test)}" in text
    assert "fail, stopped early" in text


def test_a_function_with_a_subset(data: Digits) -> None:
    asked: list[int] = []

    def evaluate(model: nn.Module, subset: list[int] | None = None) -> torch.Tensor:
        rows = torch.arange(len(data.test)) if subset is None else torch.tensor(subset)
        asked.append(len(rows))
        with torch.no_grad():
            return (model(data.test[rows]).argmax(1) == data.labels[rows]).float()

    result = tune(data, evaluate=evaluate)
    first = result.trials[0]
    assert first.score is not None
    assert first.score.partial
    assert asked[:2] == [2, len(data.test)]  # it is tried on two items before fp32 is scored on all
    assert sum(asked[2:]) < len(data.test) * len(result.trials)


# -- confidence ----------------------------------------------------------------------------------------------


def test_confidence_in_the_configuration(data: Digits) -> None:
    settings = {**config(), "criterion": {"relative": "1%", "confidence": 0.95}}
    result = octune.tune(
        data.model(),
        calibration=data.batches(),
        metric="accuracy",
        evaluation=data.labelled(4),
        config=settings,
    )
    assert result.criterion == octune.Relative(0.01, confidence=0.95)
    for trial in result.trials:
        assert trial.verdict is not None
        assert trial.verdict.confidence == 0.95
        assert trial.passed is (
            trial.verdict.bound is not None and trial.verdict.bound <= trial.verdict.allowed
        )
    assert result.baseline.passed


def test_confidence_needs_items(data: Digits) -> None:
    with pytest.raises(
        ConfigError,
        match=r"criterion.confidence is 0.95, which needs one score per item, and 'accuracy' returns a",
    ):
        tune(data, evaluate=data.accuracy, criterion=octune.Relative(0.01, confidence=0.95))


# -- certify -------------------------------------------------------------------------------------------------


def plain(data: Digits, **options: Any) -> octune.Result:
    options = {"metric": "accuracy", "evaluation": data.labelled(4), **options}
    return octune.tune(
        data.model(),
        calibration=data.batches(),
        config=options.pop("config", config()),
        certify="holdout",
        **options,
    )


def test_certified_on_data_held_out(data: Digits) -> None:
    result = plain(data, criterion=octune.Absolute(0.05))
    assert result.met
    assert result.certified is not None
    assert result.certified.passed
    assert result.baseline.score is not None
    assert result.baseline.score.n is not None
    assert result.certified.n is not None
    assert result.baseline.score.n + result.certified.n == len(data.test)
    assert 0.25 < result.certified.n / len(data.test) < 0.35
    assert "certified pass" in str(result)


def test_the_data_held_out_has_the_final_word(data: Digits) -> None:
    """A function that is right about the items of the search and wrong about those held out."""
    from octune.evaluation.holdout import held_items

    held = set(held_items(500, 1978).tolist())

    def evaluate(model: nn.Module) -> list[float]:
        fp32 = not any("Int8" in type(module).__name__ for module in model.modules())
        return [float(fp32 or number not in held) for number in range(500)]

    result = plain(data, metric=None, evaluation=None, evaluate=evaluate)
    assert result.best.passed
    assert result.certified is not None
    assert not result.certified.passed
    assert not result.met
    assert result.stopped_because.endswith("the data held out of the search does not confirm it")


def test_certifying_is_resumed(data: Digits, scored: list[int], tmp_path: Path) -> None:
    settings = {**config(), "workspace": {"path": tmp_path, "resume": True}}
    batches = data.labelled(4)
    first = plain(data, evaluation=batches, config=settings, criterion=octune.Absolute(0.05))
    assert len(scored) > 2 * len(batches)
    scored.clear()
    again = plain(data, evaluation=batches, config=settings, criterion=octune.Absolute(0.05))
    assert again.certified == first.certified
    assert scored == [0], "something was scored again, beside the batch that is rehearsed with"
    with pytest.raises(WorkspaceError, match="its evaluation differs"):
        octune.tune(
            data.model(),
            calibration=data.batches(),
            metric="accuracy",
            evaluation=batches,
            criterion=octune.Absolute(0.05),
            config=settings,
        )


def test_what_cannot_be_held_out(data: Digits) -> None:
    with pytest.raises(ConfigError, match="can be picked by number"):
        plain(data, evaluation=lambda: iter(data.labelled(4)))
    with pytest.raises(octune.OctuneError, match="needs one score per item"):
        plain(data, metric=None, evaluation=None, evaluate=data.accuracy)
    with pytest.raises(ConfigError, match="certify must be 'holdout'"):
        octune.tune(data.model(), evaluate=data.accuracy, certify="half")
    with pytest.raises(ConfigError, match="cannot be combined"):
        plain(data, config={**config(), "evaluation": {"samples": 100}})
