"""What :func:`octune.quantize` returns is a plain model. What it takes to save it is remembered here, for as
long as the model lives.

model = octune.quantize(model, calibration=batches)
octune.save(model, "model-int8")
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from octune import artifact
from octune.criterion import Relative
from octune.errors import ArtifactError
from octune.plan import Plan, Scheme
from octune.result import Result, Saving, Trial

__all__ = ["remember", "save"]

UNCHECKED = "octune.quantize applied the plan as it is; accuracy was not checked"
_how: WeakKeyDictionary[Any, tuple[Plan, Saving, dict[str, Any]]] = WeakKeyDictionary()


def remember(model: Any, plan: Plan, saving: Saving, environment: dict[str, Any]) -> None:
    """Let this model be saved later."""
    with contextlib.suppress(TypeError):  # no weak reference to it is possible
        _how[model] = plan, saving, environment


def save(model: Any, folder: str | Path, *, overwrite: bool = False) -> Path:
    """Write a model of :func:`octune.quantize`, or a :class:`Result`, to one self-contained folder that
    :func:`octune.load` reads.
    """
    if isinstance(model, Result):
        return model.save(folder, overwrite=overwrite)
    try:
        plan, saving, environment = _how[model]
    except (KeyError, TypeError) as error:
        raise ArtifactError(
            f"This {type(model).__qualname__} is not what octune.quantize returned in this process, so it is "
            "not known how to save it. Give that model, or the result of octune.tune."
        ) from error
    fp32 = Trial(Plan({name: Scheme.fp32() for name in plan}), form="fp32", reason="the model as it came")
    result = Result(
        met=False,
        model=model,
        plan=plan,
        baseline=fp32,
        best=Trial(plan, reason=UNCHECKED),
        trials=(),
        stopped_because=UNCHECKED,
        criterion=Relative(0.0),
        environment=environment,
        saving=saving,
    )
    return artifact.save(result, Path(folder), overwrite=overwrite)
