"""Everything Octune raises on purpose, and the wording that messages share.

    OctuneError
    ├── ConfigError          the YAML file or an argument: names file, line, key, and the nearest valid key
    ├── DataError            calibration or evaluation data: empty, one-shot, wrong type, missing folder
    ├── ModelError           the model: not recognised, cannot be copied, cannot be run on the data
    │   └── UnsupportedError a request that the backend cannot honour
    ├── EvaluationError      the user's scoring code: raised, hung, or returned something that is not a score
    │   └── EvaluationTimeout
    ├── CriterionError       nothing quantized met the criterion, and the caller asked for that to be an error
    ├── PlanError            a plan names an op that does not exist, or a scheme that the op cannot run
    ├── ArtifactError        a saved folder is tampered with, truncated, or needs code that is missing
    ├── WorkspaceError       the journal belongs to another run, or cannot be written
    ├── ClusterError         the cluster cannot be reached, has no fitting nodes, or lost all of them
    ├── DownloadError        a file of the demo cannot be fetched or does not match its hash
    └── MissingDependency    an extra is not installed; the message is the pip command

A failing set-up (configuration, data, baseline) raises. A failing trial does not: it is recorded and the
search goes on.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

__all__ = [
    "ArtifactError",
    "ClusterError",
    "ConfigError",
    "CriterionError",
    "DataError",
    "DownloadError",
    "EvaluationError",
    "EvaluationTimeout",
    "MissingDependency",
    "ModelError",
    "OctuneError",
    "PlanError",
    "UnsupportedError",
    "WorkspaceError",
]

# The end of a line that only says where in a library's sources an error passed: "Exception from
# src/inference/src/cpp/core.cpp:84:".
_LOCATION = re.compile(r"\.[ch]\w*:\d+:$")
_LONGEST = 300


class OctuneError(Exception):
    """Base of all errors that Octune raises on purpose."""


class ConfigError(OctuneError, ValueError):
    """A configuration that cannot be used."""


class DataError(OctuneError, ValueError):
    """Data that cannot be used."""


class ModelError(OctuneError):
    """A model that cannot be used."""


class UnsupportedError(ModelError):
    """A request that the backend cannot honour."""


class EvaluationError(OctuneError):
    """The user's scoring code failed or returned something that is not a score."""


class EvaluationTimeout(EvaluationError):
    """The user's scoring code ran past the limit for one trial."""


class CriterionError(OctuneError):
    """Nothing quantized met the criterion, and the caller asked for that to be an error."""


class PlanError(OctuneError, ValueError):
    """A plan that does not fit the model."""


class ArtifactError(OctuneError):
    """A saved model that cannot be loaded."""


class WorkspaceError(OctuneError):
    """A workspace that cannot be used."""


class ClusterError(OctuneError):
    """A cluster that cannot be used. What was learned is in the journal."""


class DownloadError(OctuneError):
    """A file that cannot be fetched."""


class MissingDependency(OctuneError, ImportError):
    """A package that is needed here is not installed."""

    def __init__(self, package: str, extra: str | None, purpose: str) -> None:
        wanted = package if extra is None else f"'octune[{extra}]'"
        super().__init__(
            f"{purpose} needs {package}, which is not installed. Install it with: pip install {wanted}"
        )


def nearest(name: str, known: Iterable[str], limit: int = 5) -> list[str]:
    """Names of a model to show for one that it does not have: those that contain it or end like it, then
    those spelt alike; if there are none, the first ones.
    """
    names = list(known)
    wanted = name.lower()
    last = wanted.rpartition("/")[2]
    inside = [other for other in names if wanted in other.lower() or other.lower().endswith(f"/{last}")]
    found = [*inside, *alike(name, names, limit, cutoff=0.4)]
    return list(dict.fromkeys(found))[:limit] or names[:limit]


def alike(word: str, choices: Iterable[str], limit: int = 1, cutoff: float = 0.6) -> list[str]:
    """The choices that a misspelt word may stand for, the likeliest first; case does not matter."""
    by_lower = {choice.lower(): choice for choice in choices}
    return [by_lower[found] for found in difflib.get_close_matches(word.lower(), by_lower, limit, cutoff)]


def plural(count: int, noun: str) -> str:
    """1 trial, 2 trials, 1,000 trials."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}{'es' if noun.endswith('ch') else 's'}"


def short(names: Iterable[str]) -> str:
    """A few of many names, for a message."""
    listed = list(names)
    return ", ".join(listed[:8]) + (f", ... ({len(listed)} in all)" if len(listed) > 8 else "")


def summary(error: BaseException) -> str:
    """What an error says, in one line of at most 300 characters; an error without a message is shown as
    ``repr`` does.

    summary(RuntimeError("Exception from src/core.cpp:84:\\nUnable to read it"))      # "Unable to read it"
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [repr(error)]
    said = lines[0]
    if _LOCATION.search(said):
        # OpenVINO begins with where the error passed and leads up to its cause, in lines that end with a
        # colon.
        said = " ".join(line for line in lines if not line.endswith(":")) or lines[-1]
    # TensorFlow tells first where each node was made.
    nodes = [index for index, line in enumerate(lines[:-1]) if line.startswith("Node:")]
    said = lines[nodes[0] + 1] if nodes else said
    if len(said) > _LONGEST:
        # Cut in the middle: ONNX Runtime puts names of its functions there, and the cause at the end.
        half = (_LONGEST - len(" ... ")) // 2
        said = f"{said[:half]} ... {said[-half:]}"
    return said
