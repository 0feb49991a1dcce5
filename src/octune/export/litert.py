"""LiteRT (TensorFlow Lite): ``model.tflite`` and a model card.

A saved model is int8 in ops of TensorFlow that LiteRT does not have, so the file is made from the fp32 model,
with int8 weights in the ops that the plan has in int8, and scored before it is written.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from shutil import copyfile
from typing import TYPE_CHECKING, Any

from octune.backends.select import backend_named
from octune.backends.terms import Servable, Settings
from octune.criterion import Criterion
from octune.errors import ConfigError, CriterionError, UnsupportedError
from octune.export.base import Layout, Saved
from octune.export.card import model_card
from octune.int8 import ANYWHERE
from octune.plan import Plan, Scheme

if TYPE_CHECKING:
    from octune.comparison import Check
    from octune.config import Config
    from octune.request import Request

__all__ = ["LITERT"]

FILE = "model.tflite"


def _twin(saved: Saved, request: Request, place: Path) -> Saved:
    """The file, made and scored; CriterionError if it misses the criterion."""
    from octune.check import check
    from octune.config import as_config

    config = as_config(request.config)
    source = request.model if request.model is not None else (config.model and config.model.path)
    if source is None:
        raise ConfigError("There is no fp32 model to convert: give model=, or name it as model.path.")
    plan = Plan.from_json(saved.manifest["plan"])
    file = place / FILE
    content, int8 = _converted(saved.manifest["framework"], source, config, plan)
    if not int8:
        raise UnsupportedError(
            f"None of the {len(plan.names('int8'))} int8 ops of the saved plan was found in the converted "
            "model. Is it the model that was tuned?"
        )
    file.write_bytes(content)
    found = check(
        source,
        file,
        request.calibration if request.evaluation is None else request.evaluation,
        metric=request.metric,
        criterion=request.criterion or Criterion.from_json(saved.manifest["criterion"]),
        config=config,
    )
    if not found.met:
        raise CriterionError(
            f"The plan misses the criterion in LiteRT ({found.verdict or found.failure}), so nothing was "
            "written."
        )
    kept = Plan({name: Scheme.int8("dynamic") if name in int8 else Scheme.fp32() for name in plan})
    return replace(
        saved,
        manifest=_described(saved.manifest, found, kept),
        servable=Servable({"litert": lambda folder: copyfile(file, folder / FILE)}, (), ()),
        twin_of=saved.manifest,
    )


def _converted(framework: str, source: Any, config: Config, plan: Plan) -> tuple[bytes, set[str]]:
    from octune.sources import open_model

    named = config.model
    model = open_model(str(source), framework) if isinstance(source, str | Path) else source
    settings = Settings() if named is None else Settings(named.inputs, named.outputs)
    return backend_named(framework).to_litert(model, settings, plan)


def _described(manifest: dict[str, Any], found: Check, plan: Plan) -> dict[str, Any]:
    """The manifest of the saved model, with what was found out about the file."""
    fp32, int8 = found.fp32.to_json(), found.int8.to_json()
    speed = None if found.timed is None else found.timed.speed
    return manifest | {
        "plan": plan.to_json(),
        "plan_digest": plan.digest,
        "criterion": found.criterion.to_json(),
        "baseline": fp32 | {"form": "fp32", "speedup": 1.0},
        "best": int8
        | {
            "form": "litert",
            "speedup": None if speed is None else speed.ratio,
            "speedup_interval": None if speed is None else [speed.low, speed.high],
        },
        "batch": found.batch,
        "verdict": str(found.verdict),
        "met": True,
        "environment": dict(found.environment),
        "safe_on": ANYWHERE,  # its kernels add products of 8 bits in 32
    }


def _write(saved: Saved, form: str, folder: Path) -> None:
    saved.servable.formats[form](folder)
    (folder / "README.md").write_text(model_card(saved))


LITERT = Layout("litert", "LiteRT", ("litert",), _write, per_model=False, twin=_twin)
