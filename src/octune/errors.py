"""Everything Octune raises on purpose.

    OctuneError
    ├── ConfigError          the YAML file or an argument: names file, line, key, expectation, nearest valid key
    ├── DataError            calibration or evaluation data: empty, one-shot, wrong type, missing folder
    ├── ModelError           the model: not recognised, cannot be copied, cannot be run on the data
    │   └── UnsupportedError a request that the backend cannot honour
    ├── EvaluationError      the user's scoring code: raised, hung, or returned something that is not a score
    │   └── EvaluationTimeout
    ├── CriterionError       nothing quantized met the criterion, and the caller asked for an error instead of the closest model
    ├── PlanError            a plan names an op that is not there, or a scheme that op cannot run
    ├── ArtifactError        a saved folder is tampered with, truncated, or needs code that is not there
    ├── WorkspaceError       the journal belongs to another run, or cannot be written
    ├── DownloadError        a file of the demo cannot be fetched or does not match its hash
    └── MissingDependency    an extra is not installed; the message is the pip command

A failing set-up (configuration, data, baseline) raises. A failing trial does not: it is recorded and the search goes on.
"""

from __future__ import annotations

__all__ = [
    "ArtifactError",
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
    """Nothing quantized met the criterion, and that was asked to be an error."""


class PlanError(OctuneError, ValueError):
    """A plan that does not fit the model."""


class ArtifactError(OctuneError):
    """A saved model that cannot be loaded."""


class WorkspaceError(OctuneError):
    """A workspace that cannot be used."""


class DownloadError(OctuneError):
    """A file that cannot be fetched."""


class MissingDependency(OctuneError, ImportError):
    """A package that is needed here is not installed."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs {package}, which is not installed. Install it with: pip install 'octune[{extra}]'")
