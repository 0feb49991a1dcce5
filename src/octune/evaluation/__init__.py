"""Scoring models: metrics, and how two models' scores compare."""

from __future__ import annotations

from octune.evaluation.metrics import (
    FunctionMetric,
    Metric,
    MetricFunction,
    Outputs,
    get_metric,
    metric_names,
)
from octune.evaluation.squad_metric import ExactMatch, SquadF1

__all__ = [
    "ExactMatch",
    "FunctionMetric",
    "Metric",
    "MetricFunction",
    "Outputs",
    "SquadF1",
    "get_metric",
    "metric_names",
]
