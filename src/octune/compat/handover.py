"""What both inherited interfaces do around :func:`octune.tune`: find the run to resume, and return the
model.

The originals returned None when nothing met the criterion. Here the closest model comes back with a warning,
or ``strict`` makes it an error.
"""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import Any

from octune.config import Config, load_config, parse_config
from octune.errors import CriterionError, UnsupportedError, WorkspaceError
from octune.result import Result

__all__ = ["hand_over", "read_config", "refuse_training", "resumed"]

log = logging.getLogger("octune")


def read_config(conf: str | Path | dict[str, Any] | Config) -> Config:
    """A configuration in any dialect, from a file or already in memory."""
    if isinstance(conf, Config):
        return conf
    return parse_config(conf, source="conf") if isinstance(conf, dict) else load_config(conf)


def refuse_training(q_func: object) -> None:
    """``q_func`` trained a model that pretends to be int8 (quantization-aware training)."""
    if q_func is not None:
        raise UnsupportedError(
            "q_func trains a model for quantization, which Octune does not do: it quantizes models after "
            "training. "
            "Train the model first, leave q_func out, and give calibration data as q_dataloader."
        )


def resumed(config: Config, resume_file: str | Path | None) -> Config:
    """The configuration with the workspace of an earlier run. ``resume_file`` names its folder, or the
    journal in it.
    """
    if resume_file is None:
        return config
    path = Path(resume_file)
    folder = path.parent if path.suffix == ".jsonl" else path
    if not folder.is_dir():
        wrong = (
            "is a file of another kind (a history of iLiT or LPOT cannot be read)"
            if path.is_file()
            else "does not exist"
        )
        raise WorkspaceError(
            f"resume_file is {str(path)!r}, which {wrong}. Expected the folder of an Octune run: "
            "snapshot.path of the YAML."
        )
    return config.model_copy(
        update={"workspace": config.workspace.model_copy(update={"path": folder, "resume": True})}
    )


def hand_over(result: Result, *, strict: bool) -> Any:
    """The model of a result; what was a failure in the originals is a warning, or an error if
    ``strict``.
    """
    log.info("%s", result)
    if not result.met:
        story = f"No quantized model met the criterion ({result.stopped_because})."
        if strict:
            raise CriterionError(
                f"{story} The best was {result.best.score}, fp32 {result.baseline.score}. Leave 'strict' out "
                "to get it."
            )
        warnings.warn(
            f"{story} The closest one is handed back: {result.best.score}, fp32 {result.baseline.score}. "
            "Check it before you deploy it.",
            stacklevel=3,
        )
    elif all(scheme.is_float for scheme in result.plan.values()):
        warnings.warn(
            f"The model that is handed back is not quantized: {result.stopped_because}.", stacklevel=3
        )
    return result.model
