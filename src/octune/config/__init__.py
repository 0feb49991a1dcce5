"""The configuration of a run: one schema, written natively or in the dialects of iLiT and LPOT.

    from octune.config import Config, load_config

    config = load_config("conf.yaml")
    config = Config(criterion={"relative": "1%"}, tuning={"timeout": 60})

Every key is described in the schema itself: ``print(Config.schema_json())``.
"""

from __future__ import annotations

from octune.config.dialects import detect_dialect
from octune.config.inputs import Calibration, DataSource, Evaluation, ModelSource
from octune.config.limits import OpOptions, Quantization, TensorOptions
from octune.config.load import as_config, load_config, parse_config
from octune.config.ops import match_ops
from octune.config.schema import Config, CriterionSection, Engine, Performance, Tuning, Workspace

__all__ = [
    "Calibration",
    "Config",
    "CriterionSection",
    "DataSource",
    "Engine",
    "Evaluation",
    "ModelSource",
    "OpOptions",
    "Performance",
    "Quantization",
    "TensorOptions",
    "Tuning",
    "Workspace",
    "as_config",
    "detect_dialect",
    "load_config",
    "match_ops",
    "parse_config",
]
