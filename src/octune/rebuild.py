"""The winner of a run, made again from its workspace: the fp32 model under the plan and the ranges that the
run has kept. Nothing is searched, and no data is read.

    result = octune.replay("octune_runs/bert", rebuild=True)
    result.save("model-int8")

An int8 model is a function of these three, so what is made is the run's own, to the bit. The workspace does
not hold the fp32 model: it is opened again where the run has found it, and its weights must be the same.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from octune.backends import Backend, as_onnx, backend_for
from octune.calibration import Ranges
from octune.config import Config
from octune.engine.journal import EXAMPLE, Journal
from octune.engine.survey import kept_example, kept_ranges
from octune.errors import OctuneError, WorkspaceError, summary
from octune.job import came_from, settings_of
from octune.result import Result, Saving, Trial
from octune.sources import Materials, open_model
from octune.trust import digest_of_name, made_here

__all__ = ["rebuilt"]


def rebuilt(result: Result, model: Any = None) -> Result:
    """The result of a workspace with its model, ready to be saved; ``model`` is the fp32 one, if the
    workspace does not name it.
    """
    journal = None if result.evidence is None else result.evidence.journal
    if journal is None or journal.folder is None:
        raise WorkspaceError("This result has no workspace that its model could be rebuilt from.")
    folder, told = journal.folder, journal.last("run") or {}
    config = Config.from_json(told.get("config", {}))
    materials = _found(model, told, config, folder)
    settings = settings_of(config, materials)
    origin = came_from(config, materials)
    if config.model is not None and config.model.target == "onnx":
        materials.model, settings = as_onnx(materials.model, settings, _batch(journal))
    backend = backend_for(materials.model, settings)
    try:
        start = journal.last("start") or {}
        if backend.fingerprint() != start.get("model"):
            raise WorkspaceError(
                f"{materials.source or 'This model'} is not the model of the run in {folder}: its "
                "weights differ. Give the fp32 model that was tuned, as --model or model=."
            )
        example = kept_example(journal, backend)
        if example is not None:
            backend.prepare(example)
        elif any(record.get("name") == EXAMPLE for record in journal.records("kept")):
            raise WorkspaceError(_lost(journal, EXAMPLE))
        made, notes = _made(backend, result.best, journal, example)
        saving = Saving(backend.name, backend.limit.safe_on, backend.writer(), origin)
        return replace(result, model=made, notes=(*result.notes, *notes), saving=saving)
    finally:
        backend.close()


def _made(backend: Backend, best: Trial, journal: Journal, example: Any) -> tuple[Any, list[str]]:
    """The model of a trial in its form, else eager, and what is to be said of that."""
    if best.form == "fp32":
        return backend.fp32_model(), []
    ranges = kept_ranges(journal, best.samples) if best.samples else Ranges()
    if ranges is None:
        raise WorkspaceError(_lost(journal, "the file of its ranges"))
    if best.form == "eager":
        return backend.apply(best.plan, ranges), []
    try:
        for finalist in backend.finalists(best.plan, ranges, example):
            if finalist.form == best.form:
                return finalist.model, []
        why = "it is not made here"
    except Exception as error:  # whatever a compiler does
        why = f"{type(error).__name__}: {summary(error)}"
    return backend.apply(best.plan, ranges), [f"the winner was {best.form}, and is eager int8 here: {why}"]


def _found(model: Any, told: dict[str, Any], config: Config, folder: Path) -> Materials:
    """The fp32 model that was given, else the one that the run has worked on, opened again."""
    framework = config.model.framework if config.model is not None else None
    source = told.get("model")
    if model is None and source is None:
        raise WorkspaceError(
            f"The run in {folder} was given its model as an object in Python, which a workspace does not "
            "hold. Give the fp32 model that was tuned: octune replay --model, or octune.replay(..., model=)."
        )
    if model is not None and not isinstance(model, str | Path):
        return Materials(model, source=source)
    named = str(source if model is None else model)
    if model is None:
        place = str(told.get("folder", "."))
        beside = Path(place) / named
        if not beside.exists():  # a name that is looked up from here
            place = os.getcwd()
        if not made_here(digest_of_name(named, place)):
            raise WorkspaceError(
                f"The run in {folder} was not made by you on this machine, or not from this folder, so the "
                f"model that it names ({named}) is not opened. Give the fp32 model yourself, as --model or "
                "model=."
            )
        named = str(beside) if beside.exists() else named
    try:
        return Materials(open_model(named, framework), source=named)
    except OctuneError as error:
        raise WorkspaceError(
            f"The model of the run in {folder} cannot be opened again: {error} Give the fp32 model that was "
            "tuned, as --model or model=."
        ) from error


def _batch(journal: Journal) -> dict[str, Any]:
    """What the model was converted on: the batch that was kept, by the names of the inputs."""
    from octune.backends import example

    content = journal.kept(EXAMPLE)
    if content is None or journal.folder is None:
        raise WorkspaceError(_lost(journal, EXAMPLE))
    return dict(example.from_bytes(content, journal.folder / EXAMPLE).kwargs)


def _lost(journal: Journal, what: str) -> str:
    return (
        f"The workspace {journal.folder} has lost {what}, without which the model cannot be rebuilt. Go on "
        "with the run (workspace.resume: true), which makes it again."
    )
