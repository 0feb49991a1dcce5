"""Octune turns a trained fp32 model into the fastest int8 model that keeps its accuracy.

result = octune.tune(model, calibration=batches, evaluate=score)
result.save("model-int8")
model = octune.load("model-int8")
"""

from octune.analysis import Analysis, analyze
from octune.artifact import load
from octune.benchmark import Bench, bench
from octune.check import Check, check
from octune.config import Config
from octune.criterion import Absolute, Criterion, Relative, Verdict
from octune.engine.events import Listener
from octune.errors import OctuneError
from octune.plan import Op, Plan, Scheme
from octune.quantized import save
from octune.replay import replay
from octune.result import Result, Trial
from octune.score import Score
from octune.tune import quantize, tune

__version__ = "0.1.0"

__all__ = [
    "Absolute",
    "Analysis",
    "Bench",
    "Check",
    "Config",
    "Criterion",
    "Listener",
    "OctuneError",
    "Op",
    "Plan",
    "Relative",
    "Result",
    "Scheme",
    "Score",
    "Trial",
    "Verdict",
    "analyze",
    "bench",
    "check",
    "load",
    "quantize",
    "replay",
    "save",
    "tune",
]
