"""What a user asks :func:`octune.tune` for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octune.config import Config
from octune.criterion import Criterion
from octune.engine.events import Listener
from octune.evaluation.metrics import Metric

__all__ = ["Request"]


@dataclass(frozen=True)
class Request:
    """What a user asks for: the arguments of :func:`octune.tune`, any of which may come from the
    configuration instead.

    With ``unchecked`` nothing is scored. Without ``workspace`` nothing is written, whatever the configuration
    says.
    """

    model: Any = None
    calibration: Any = None
    evaluate: Callable[..., Any] | None = None
    metric: str | Metric | Callable[..., Any] | None = None
    evaluation: Any = None
    criterion: Criterion | float | str | Mapping[str, Any] | None = None
    certify: str | None = None
    config: Config | str | Path | dict[str, Any] | None = None
    listener: Listener | None = None
    unchecked: bool = False
    workspace: bool = True
