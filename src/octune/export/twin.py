"""The same plan in ONNX, for models that no server runs: the fp32 model is converted, its ops get the schemes
that the plan has for them, and what comes out is scored before anything is written.

    made = onnx_twin(saved, request, place)     # request: the fp32 model and the data, as for tune()

The score is the twin's own: kernels differ, and so do the ops that can be found again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from octune import artifact
from octune.backends.select import backend_named
from octune.config import Config, as_config
from octune.criterion import Criterion
from octune.errors import CriterionError, UnsupportedError, short
from octune.export.base import Saved
from octune.job import Job
from octune.plan import Plan
from octune.request import Request
from octune.result import Result
from octune.same_plan import same_plan
from octune.search import Space
from octune.tune import conclude

__all__ = ["onnx_twin"]


def onnx_twin(saved: Saved, request: Request, place: Path) -> Saved:
    """The twin of a saved model, saved in a folder below ``place``."""
    result = _tried(saved.manifest, request)
    folder = artifact.save(result, place / saved.name)
    return Saved.read(folder, saved.name, saved.huggingface, twin_of=saved.manifest, run=result)


def _tried(manifest: Mapping[str, Any], request: Request) -> Result:
    """The plan of a saved model on ONNX Runtime or OpenVINO, whichever is faster; CriterionError if its score
    misses the criterion.
    """
    plan = Plan.from_json(manifest["plan"])
    if not plan.names("int8"):
        raise UnsupportedError(
            "The saved model is float: it has no int8 plan that a model in ONNX could follow. Export the "
            "fp32 model with the tools of its framework."
        )
    job = Job.of(_asked(request, Criterion.from_json(manifest["criterion"])))
    with job, job.study.stop.remembering_interrupts():
        study = job.study
        study.baseline()
        study.survey.prepare(job.calibration)
        ranges = study.survey.calibrate(job.calibration, job.sample_options[-1])
        ops = study.backend.ops()
        name_of = backend_named(manifest["framework"]).converted_name
        twin, missing = same_plan(plan, ops, name_of, calibrated=job.calibration is not None)
        if not twin.names("int8"):
            raise UnsupportedError(
                f"None of the {len(plan.names('int8'))} int8 ops of the saved plan was found in the model "
                "converted to ONNX. Is it the model that was tuned? Tune it with model.target: onnx."
            )
        trial = study.trial(twin, "the same plan in ONNX", ranges)
        if trial is not None and trial.passed and job.config.performance.compile == "auto":
            study.forms.make(trial, ranges)
        result = conclude(job, ops, Space({}), "the plan was given")
    if not result.met or result.best.form == "fp32":
        found = next((one.error or one.verdict for one in result.trials), "it was interrupted")
        raise CriterionError(
            f"The plan misses the criterion in ONNX ({found}), so nothing was written. Tune the model with "
            "model.target: onnx, which finds a plan for these kernels."
        )
    note = f"in fp32, because they were not found in the converted model: {short(missing)}"
    return replace(result, notes=(*result.notes, note)) if missing else result


def _asked(request: Request, criterion: Criterion) -> Request:
    """The request for the converted model. It is wanted as it is, whether or not it is faster than fp32."""
    sections = as_config(request.config).to_json()
    sections["model"] = {**(sections.get("model") or {}), "target": "onnx"}
    sections["tuning"] = {**(sections.get("tuning") or {}), "objective": "modelsize"}
    return replace(
        request,
        evaluate=None,  # it was written for the framework that was tuned: agreement with fp32 has to do
        criterion=request.criterion or criterion,
        certify=None,
        config=Config.build(**sections),
        workspace=False,
    )
