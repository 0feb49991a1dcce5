"""What TensorBoard and MLflow find of a run, read back by their own readers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import octune
from octune import tracking
from octune.engine.events import Silent
from octune.errors import ConfigError, MissingDependency
from octune.tracking import Recording
from octune.tracking.numbers import numbers
from tests.digits import config, digits


def tuned(workspace: Path | None, **tuning: Any) -> octune.Result:
    data = digits()
    place = {} if workspace is None else {"workspace": {"path": str(workspace)}}
    return octune.tune(
        data.model(),
        calibration=data.batches(),
        evaluate=data.accuracy,
        config={**config(**tuning), **place},
        progress=False,
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[octune.Result, Path]:
    """One run with both records."""
    folder = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)  # MLflow puts artifacts of a local store into the working directory
        return tuned(folder / "work", tensorboard=True, mlflow=f"sqlite:///{folder}/runs.db"), folder


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder)).Reload()
    return {tag: [(one.step, one.value) for one in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_tensorboard_has_every_trial_and_the_harm_of_every_op(run: tuple[octune.Result, Path]) -> None:
    result, folder = run
    found = scalars(folder / "work" / "tensorboard")
    trials = [result.baseline, *result.trials]
    assert [step for step, _ in found["trial/score"]] == list(range(len(trials)))
    scores = [trial.score.value for trial in trials if trial.score is not None]
    assert [value for _, value in found["trial/score"]] == pytest.approx(scores)
    assert "trial/speed-up" in found
    assert {tag for tag in found if tag.startswith("harm/")} == {f"harm/{op.name}" for op in result.ops}


def test_tensorboard_shows_trials_as_hyperparameters(run: tuple[octune.Result, Path]) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams import metadata

    _, folder = run
    own = sorted((folder / "work" / "tensorboard").glob("trial-001-*"))
    assert len(own) == 1
    events = EventAccumulator(str(own[0])).Reload()
    content = events.PluginTagToContent(metadata.PLUGIN_NAME)[metadata.SESSION_START_INFO_TAG]
    given = metadata.parse_session_start_info_plugin_data(content).hparams
    assert given["form"].string_value == "eager"
    assert given["int8 ops"].number_value == 3
    assert "score" in scalars(own[0])


def test_mlflow_has_parameters_metrics_and_artifacts(run: tuple[octune.Result, Path]) -> None:
    from mlflow import MlflowClient

    result, folder = run
    client = MlflowClient(tracking_uri=f"sqlite:///{folder}/runs.db")
    experiment = client.get_experiment_by_name("octune")
    assert experiment is not None
    (found,) = client.search_runs([experiment.experiment_id])
    assert found.info.status == "FINISHED"
    assert found.data.params["tuning.objective"] == "modelsize"
    assert found.data.tags["octune.met"] == str(result.met)
    history = client.get_metric_history(found.info.run_id, "score")
    assert len(history) == 1 + len(result.trials)
    best = numbers(result.best)
    assert {f"best/{name}": pytest.approx(value) for name, value in best.items()}.items() <= (
        found.data.metrics.items()
    )
    assert {name for name in found.data.metrics if name.startswith("harm/")} == {
        f"harm/{op.name}" for op in result.ops
    }
    artifacts = {item.path for item in client.list_artifacts(found.info.run_id)}
    assert {"config.yaml", "result.json", "result.txt", "journal.jsonl", "report.html"} <= artifacts
    kept = client.download_artifacts(found.info.run_id, "result.json", str(folder))
    assert json.loads(Path(kept).read_text())["met"] == result.met


def test_a_run_that_fails_is_a_failed_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow import MlflowClient

    monkeypatch.chdir(tmp_path)
    store = f"sqlite:///{tmp_path}/runs.db"
    with pytest.raises(octune.OctuneError):
        octune.tune(
            digits().model(),
            calibration=digits().batches(),
            evaluate=lambda model: "no number",
            config=config(mlflow=store),
            progress=False,
        )
    client = MlflowClient(tracking_uri=store)
    (found,) = client.search_runs([str(client.get_experiment_by_name("octune").experiment_id)])
    assert found.info.status == "FAILED"


def test_a_resumed_run_is_not_told_twice(run: tuple[octune.Result, Path]) -> None:
    result, folder = run
    place = {"path": str(folder / "work"), "resume": True}
    octune.tune(
        digits().model(),
        calibration=digits().batches(),
        evaluate=digits().accuracy,
        config={**config(tensorboard=True), "workspace": place},
        progress=False,
    )
    assert len(scalars(folder / "work" / "tensorboard")["trial/score"]) == 1 + len(result.trials)


def test_no_record_without_a_place_or_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"Set workspace\.path"):
        tuned(None, tensorboard=True)
    with pytest.raises(ConfigError, match=r"tuning\.mlflow: no run can be logged to nonsense://"):
        tuned(None, mlflow="nonsense://store")
    monkeypatch.setattr(tracking, "find_spec", lambda name: None)
    for name in ("tensorboard", "mlflow"):
        with pytest.raises(MissingDependency, match=rf"octune\[{name}\]"):
            tuned(tmp_path / "work", **{name: True})
    assert not (tmp_path / "work").exists()


def test_a_record_that_fails_is_given_up_and_the_run_goes_on() -> None:
    heard: list[str] = []

    class Ear(Silent):
        def note(self, text: str) -> None:
            heard.append(text)

        def stage(self, name: str, detail: str) -> None:
            heard.append(name)

    class Full(Silent):
        def stage(self, name: str, detail: str) -> None:
            raise OSError("No space left on device")

    kept = Recording(Ear(), [Full()])
    kept.stage("harm", "")
    kept.stage("cost", "")
    assert heard == [
        "harm", "Full has no record of the rest of this run: OSError: No space left on device", "cost",
    ]  # fmt: skip


def test_tensorboard_does_not_bring_tensorflow() -> None:
    code = "import sys, octune.tracking.tensorboard; print('tensorflow' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
