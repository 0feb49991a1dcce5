"""Everything a run needs, made ready and checked before the first second of work is spent.

``Job.of`` takes what the user asks for, as arguments or in the configuration, and says what is missing or
contradictory.
"""

from __future__ import annotations

import json
import os
import shlex
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from octune import huggingface, sources
from octune.backends import Backend, Settings, as_onnx, backend_for
from octune.checks import check_scoring, criterion_of, rehearse, with_criterion
from octune.config import Config, as_config, match_ops
from octune.cost.latency import Timing
from octune.data import Batches, as_batches
from octune.engine import Journal, Stop, Study
from octune.engine.events import Listener
from octune.engine.isolation import Isolation
from octune.engine.stopwatch import Stopwatch
from octune.errors import ConfigError, UnsupportedError, WorkspaceError, plural, summary
from octune.evaluation.agreement import Agreement
from octune.folders import check_writable
from octune.identity import identity
from octune.machine import probe_machine
from octune.request import Request
from octune.scoring import evaluators_of, without_labels
from octune.scratch import sweep
from octune.search import STRATEGIES, Space, Strategy
from octune.sizes import sizes_of
from octune.sources import Materials
from octune.trust import digest_of_name, remember

__all__ = ["Job", "came_from", "settings_of"]


@dataclass
class Job:
    """A checked set of everything that :func:`octune.tune` works with."""

    config: Config
    study: Study
    calibration: Batches | None
    sample_options: tuple[int, ...]
    huggingface: Path | None = None  # the folder that the model or its tokenizer came from
    request: Request | None = None
    identity: Callable[[], dict[str, Any]] = dict  # what it is about, to be compared with another process's

    @classmethod
    def of(cls, request: Request) -> Job:
        """Make a job of a request; arguments win over the configuration."""
        sweep()
        config = with_criterion(as_config(request.config), request.criterion)
        _refuse_unimplemented(config)
        check_scoring(request.evaluate, request.metric)
        if request.workspace and config.workspace.path is not None:
            check_writable(config.workspace.path, "The workspace", WorkspaceError)
        materials = sources.collect(
            config,
            request.model,
            request.calibration,
            request.evaluation,
            request.metric,
            wants_metric=request.evaluate is None and not request.unchecked,
        )
        labelled = (
            request.unchecked
            or request.evaluate is not None
            or materials.metric not in (None, Agreement.name)
        )
        unlabelled = () if labelled else without_labels(materials, config)
        settings = settings_of(config, materials)
        origin = came_from(config, materials)  # a converted model does not know it any more
        if config.model is not None and config.model.target == "onnx":
            materials.model, settings = _as_onnx(materials, config, settings)
        backend = backend_for(materials.model, settings)
        try:
            _refuse_foreign_settings(settings, backend)
            job = cls._ready(request, config, materials, backend, settings, unlabelled)
            job.huggingface, job.request = origin, request
            return job
        except BaseException:
            backend.close()  # it has set threads for the whole process
            raise

    @classmethod
    def _ready(
        cls,
        request: Request,
        config: Config,
        materials: Materials,
        backend: Backend,
        settings: Settings,
        unlabelled: Sequence[str],
    ) -> Job:
        calibration_batches = (
            as_batches(materials.calibration, role="calibration", limit=config.calibration.most_batches)
            if materials.calibration is not None
            else None
        )
        certify = request.certify or config.criterion.certify
        if certify not in (None, "holdout"):
            raise ConfigError(f"certify must be 'holdout' or be left out. Got {certify!r} instead.")
        evaluator, certifier, evaluation_batches = evaluators_of(
            backend, request, materials, config, certify is not None
        )
        notes = [
            *unlabelled,
            *materials.notes,
            *(note for data in (calibration_batches, evaluation_batches) if data for note in data.notes),
        ]
        if calibration_batches is None and config.quantization.approach == "static":
            raise ConfigError(
                "quantization.approach is static, which takes ranges from calibration data, and there is "
                "none. Give calibration=."
            )
        if calibration_batches is None and not request.unchecked:
            notes.append("no calibration data: only dynamic schemes are used")
        if request.evaluate is not None and evaluation_batches is not None:
            notes.append("evaluate= scores the model; of the evaluation data one batch is timed, no more")
        if materials.calibration is not None and materials.calibration is materials.evaluation:
            notes.append(sources.SAME_DATA)
        if (config.performance.num_of_instance or 1) > 1:
            notes.append("one instance is timed here; octune bench runs performance.num_of_instance at once")
        threads, cpus = _threads(config), probe_machine().cores
        if threads is not None and threads > cpus:
            notes.append(
                f"performance.threads is {threads}, and this process may use {plural(cpus, 'CPU')}: speeds "
                "are those of threads that wait for each other"
            )
        match_ops(config.quantization.ops, [op.name for op in backend.ops()])  # refuses what is not there
        criterion = criterion_of(request.criterion, config, evaluator)
        calibrated, evaluated = rehearse(backend, evaluator, calibration_batches, evaluation_batches)
        samples = (0,) if calibrated is None else config.calibration.samples
        if calibrated is not None and config.calibration.batches is not None:
            samples = tuple(count * backend.batch_size(calibrated) for count in config.calibration.batches)
        example = calibrated if evaluated is None else evaluated  # what is timed
        if example is not None and config.performance.batch_size is not None:
            example = backend.resized(example, config.performance.batch_size)
        sizes = sizes_of(backend, example, config.performance)
        example = sizes[0].inputs if sizes else example
        folder = config.workspace.path if request.workspace else None
        data = {"calibration data": calibration_batches, "evaluation data": evaluation_batches}
        about = partial(identity, backend, evaluator, certify, criterion, config, data)
        journal = Journal.open(
            folder,
            {} if folder is None else about(),
            resume=config.workspace.resume,
        )
        stop = Stop(config.tuning.timeout, config.tuning.max_trials, spent=journal.spent)
        stopwatch = Stopwatch(
            backend,
            Timing(config.performance.warmup, config.performance.iterations),
            stop,
            example,
            sizes=sizes,
        )
        listener = request.listener or Listener()
        parts = (backend, evaluator, criterion, journal, stop, listener, stopwatch, certifier)
        study = (
            Study(*parts) if config.engine.name == "local" else _on_ray(parts, config, materials, settings)
        )
        for note in notes:
            study.note(note)
        job = cls(config, study, calibration_batches, samples)
        job.identity = about
        study.apart.isolation = Isolation(lambda: job.again(request), listener.progress)
        # workers of a cluster are processes of their own
        study.apart.always = config.tuning.isolate and config.engine.name == "local"
        journal.append("run", {**job._stamp(), "model": materials.source})
        if materials.source is not None and journal.folder is not None:
            remember(digest_of_name(materials.source, os.getcwd()))
        return job

    def again(self, request: Request) -> dict[str, Any]:
        """What another process makes this job again from, and how it knows that it is the same
        (isolated.py).
        """
        # What may end a process is tried on this machine, not on those of a cluster.
        config = as_config(request.config).model_copy(update={"engine": Config().engine})
        return {
            "request": replace(request, config=config, listener=None, workspace=False),
            "identity": json.loads(json.dumps(self.identity())),
            "threads": self.study.backend.environment().get("threads"),
            "parent": os.getpid(),
            "folder": os.getcwd(),
        }

    def strategy(self, space: Space) -> Strategy:
        """The strategy that the configuration names, over this space."""
        tuning = self.config.tuning
        return STRATEGIES[tuning.strategy](space, keep_going=tuning.timeout > 0, seed=tuning.random_seed)

    @property
    def environment(self) -> dict[str, Any]:
        """Machine and versions, to stamp results with."""
        return {"machine": probe_machine().to_json(), **self.study.backend.environment()}

    def _stamp(self) -> dict[str, Any]:
        """What it takes to run this again, and to see whether it still runs; of every process that has worked
        on it.
        """
        from octune import __version__

        return {
            "at": time.time(),
            "command": _command(),
            "folder": os.getcwd(),
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "octune": __version__,
            "config": self.config.model_dump(mode="json", exclude_defaults=True),
            "environment": self.environment,
        }

    def __enter__(self) -> Job:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.study.journal.append(
                "failed", {"at": time.time(), "error": f"{type(error).__name__}: {summary(error)}"}
            )
        if isinstance(error, Exception) and self.study.baseline_trial is None:
            self.study.journal.discard()
        self.study.close()


def _on_ray(parts: tuple[Any, ...], config: Config, materials: Materials, settings: Settings) -> Study:
    """A study whose models are scored on a Ray cluster."""
    from octune.engine.ray import Crew, Luggage, RayStudy, Wanted

    engine, source = config.engine, materials.source
    framework = None if config.model is None else config.model.framework
    converted = config.model is not None and config.model.target == "onnx"
    opens = None if source is None or converted else partial(sources.open_model, source, framework)
    crew = Crew(Wanted(engine.address, engine.cpus, engine.workers))
    wanted = Wanted(engine.address, timing=True, threads=settings.threads)
    timers = Crew(wanted) if engine.timing == "node" else None
    luggage = Luggage(materials.model, opens, settings)
    study = RayStudy(*parts, crew=crew, timers=timers, luggage=luggage)
    for some in filter(None, (crew, timers)):
        some.note, some.told = study.note, study.listener.spread
    return study


def _command() -> str:
    """What was typed to start this process; nothing where it was Python itself, a notebook for example."""
    program = Path(sys.argv[0]).name if sys.argv else ""
    if program in ("", "-", "-c"):
        return ""
    if Path(sys.argv[0]).parent == Path(__file__).parent:  # python -m octune
        return shlex.join(["octune", *sys.argv[1:]])
    return shlex.join(["python", *sys.argv] if program.endswith(".py") else [program, *sys.argv[1:]])


def _threads(config: Config) -> int | None:
    return config.performance.threads or config.performance.cores_per_instance


def settings_of(config: Config, materials: Materials) -> Settings:
    performance = config.performance
    settings = Settings(
        threads=_threads(config),
        portable=performance.portable,
        forms=performance.forms,
        extra=performance.extra,
    )
    if config.model is None:
        return settings
    return replace(
        settings, inputs=config.model.inputs, outputs=config.model.outputs, source=materials.source
    )


def came_from(config: Config, materials: Materials) -> Path | None:
    """The Hugging Face folder of the model, else that of the tokenizer which its data names."""
    named = (config.evaluation.data, config.calibration.data)
    tokenizers = [data.tokenizer for data in named if data is not None and data.tokenizer is not None]
    return huggingface.origin(materials.model, materials.source, *tokenizers)


def _refuse_foreign_settings(settings: Settings, backend: Backend) -> None:
    """What only another framework has is refused, never ignored."""
    for form in settings.forms or ():
        if form not in backend.form_choices:
            raise UnsupportedError(
                f"performance.forms has {form}, which this kind of model ({backend.name}) does not have. "
                f"Expected: {', '.join(backend.form_choices)}."
            )
    for name, value in settings.extra.items():
        if name not in backend.extras:
            raise UnsupportedError(
                f"performance.{name} is {value}, which this kind of model ({backend.name}) does not support. "
                "Leave it out."
            )


def _refuse_unimplemented(config: Config) -> None:
    """Keys that are legal in a configuration but have no implementation yet are refused, never ignored."""
    if config.tuning.performance_only:
        raise UnsupportedError(
            "tuning.performance_only skips scoring, which is what octune.quantize() is for. Call that, or "
            "set it to false."
        )


def _as_onnx(materials: Materials, config: Config, settings: Settings) -> tuple[Any, Settings]:
    """The model converted, with the first batch of the data as its example, and the settings for it."""
    if materials.calibration is not None:
        batches = as_batches(materials.calibration, role="calibration", limit=config.calibration.most_batches)
        if isinstance(materials.calibration, Iterator):  # drawn into memory: it can be walked only once
            materials.calibration = batches
    elif materials.evaluation is not None:
        materials.evaluation = batches = as_batches(materials.evaluation, role="evaluation")
    else:
        raise ConfigError(
            "model.target is onnx: exporting needs a batch of data to follow through the model. Give "
            "calibration=."
        )
    return as_onnx(materials.model, settings, batches.first())
