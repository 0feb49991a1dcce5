"""A run for MLflow: the configuration as parameters, trials as metrics, the result and its report as
artifacts.

Only the tracking client is used, which the small package ``mlflow-skinny`` has. Nothing is set for the whole
process.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import mlflow
from mlflow import MlflowClient
from mlflow.entities import Metric, Param
from mlflow.exceptions import MlflowException

from octune.config import Config
from octune.engine.events import Silent
from octune.engine.journal import JOURNAL
from octune.errors import ConfigError, MissingDependency, summary
from octune.plan import Scheme
from octune.result import Result, Trial
from octune.scratch import scratch
from octune.tracking.numbers import least_harm, numbers

__all__ = ["Mlflow"]

EXPERIMENT = "octune"
MOST_METRICS, MOST_PARAMS, LONGEST = 1000, 100, 500  # in one request, and characters of a parameter


class Mlflow(Silent):
    """Begins a run in the store that ``tuning.mlflow`` names: a tracking URI, or true for MLflow's own."""

    def __init__(self, config: Config, folder: Path | None) -> None:
        self._folder, self._status, self._trials = folder, "FAILED", 0
        uri = config.tuning.mlflow if isinstance(config.tuning.mlflow, str) else mlflow.get_tracking_uri()
        try:
            self._client = MlflowClient(tracking_uri=uri)
            known = self._client.get_experiment_by_name(EXPERIMENT)
            experiment = self._client.create_experiment(EXPERIMENT) if known is None else known.experiment_id
            self._run = self._client.create_run(
                experiment, run_name=folder.name if folder else None
            ).info.run_id
        except MlflowException as error:
            raise ConfigError(f"tuning.mlflow: no run can be logged to {uri}: {summary(error)}") from error
        params = [Param(_key(name), str(value)[:LONGEST]) for name, value in _leaves(config.to_json())]
        for start in range(0, len(params), MOST_PARAMS):
            self._client.log_batch(self._run, params=params[start : start + MOST_PARAMS])
        self._client.log_text(self._run, config.to_yaml(), "config.yaml")

    def stage(self, name: str, detail: str) -> None:
        self._client.set_tag(self._run, "octune.stage", name)

    def harm(self, harms: Mapping[tuple[str, Scheme], float]) -> None:
        self._log({f"harm/{op}": value for op, value in least_harm(harms).items()}, 0)

    def trial(self, trial: Trial) -> None:
        self._log(numbers(trial), self._trials)
        self._trials += 1

    def result(self, result: Result) -> None:
        self._log({f"best/{name}": value for name, value in numbers(result.best).items()}, 0)
        self._client.set_tag(self._run, "octune.met", str(result.met))
        self._client.set_tag(self._run, "octune.stopped_because", result.stopped_because)
        self._client.log_text(self._run, result.to_json(), "result.json")
        self._client.log_text(self._run, str(result), "result.txt")
        if self._folder is not None and (self._folder / JOURNAL).exists():
            self._client.log_artifact(self._run, str(self._folder / JOURNAL))
        self._report(result)
        self._status = "FINISHED"

    def _report(self, result: Result) -> None:
        with scratch() as folder:
            try:
                report = result.report(folder / "report.html")
            except MissingDependency:
                return
            self._client.log_artifact(self._run, str(report))

    def close(self) -> None:
        self._client.set_terminated(self._run, self._status)

    def _log(self, values: Mapping[str, float], step: int) -> None:
        now = int(time.time() * 1000)
        metrics = [Metric(_key(name), value, now, step) for name, value in values.items()]
        for start in range(0, len(metrics), MOST_METRICS):
            self._client.log_batch(self._run, metrics=metrics[start : start + MOST_METRICS])


def _key(name: str) -> str:
    """A name as MLflow allows it."""
    return re.sub(r"[^\w\-./: ]", "_", name)[:250]


def _leaves(section: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """What was set, by its path in the configuration."""
    for name, value in section.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{path}{name}.")
        elif value is not None:
            yield f"{path}{name}", value
