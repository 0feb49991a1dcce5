"""What a configuration names, made real: models, data and metrics from folders, files and
``package.module:name``.

materials = collect(config, model=None, calibration=None, evaluation=None, metric=None)
materials.model, materials.calibration, materials.evaluation, materials.metric
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octune.arrays import ArrayBatches
from octune.backends.select import backend_named
from octune.errors import ConfigError, DataError, ModelError, OctuneError, UnsupportedError, summary
from octune.evaluation.metrics import Metric, MetricFunction, get_metric
from octune.importing import resolve
from octune.tasks import glue_metric, load_task
from octune.tasks.glue import plain_name
from octune.tasks.load import OF_IMAGES

if TYPE_CHECKING:
    from octune.config import Config
    from octune.config.inputs import DataSource

__all__ = [
    "SAME_DATA",
    "Materials",
    "collect",
    "import_name",
    "is_reference",
    "made_data",
    "make_metric",
    "named",
    "open_model",
]

SAME_DATA = "calibration and evaluation use the same data: the score is flattered, give separate data"


@dataclass
class Materials:
    """What a run works on, wherever it came from."""

    model: Any
    calibration: Any = None
    evaluation: Any = None
    metric: str | Metric | Callable[..., Any] | None = None
    source: str | None = None
    notes: list[str] = field(default_factory=list)


def collect(
    config: Config, model: Any, calibration: Any, evaluation: Any, metric: Any, *, wants_metric: bool = True
) -> Materials:
    """Arguments first; what they leave open comes from the configuration."""
    source = config.model.path if config.model else None
    if model is None:
        if source is None:
            raise ConfigError(
                "There is no model: give one to tune(), or name it as model.path in the configuration."
            )
        model = open_model(source, config.model.framework if config.model else None)
    elif isinstance(model, str | Path):
        source = str(model)
        model = open_model(source, config.model.framework if config.model else None)
    materials = Materials(model, calibration, evaluation, metric, source)
    tasks: dict[tuple[Any, ...], Any] = {}
    if materials.calibration is None and config.calibration.data is not None:
        materials.calibration = _data(
            config.calibration.data, "calibration", config, source, tasks, materials, wants_metric
        )
    if materials.evaluation is None and config.evaluation.data is not None:
        materials.evaluation = _data(
            config.evaluation.data, "evaluation", config, source, tasks, materials, wants_metric
        )
    if materials.metric is None and config.evaluation.metric is not None:
        materials.metric = config.evaluation.metric
    shown = config.calibration.data
    named_twice = shown is not None and shown == config.evaluation.data and shown.task is None
    if named_twice and calibration is None and evaluation is None:
        materials.notes.append(SAME_DATA)
    return materials


def open_model(source: str, framework: str | None) -> Any:
    """A model by folder, file, hub name, or ``package.module:factory``."""
    if is_reference(source):
        model = _made(source, "model.path", ModelError)
        if framework is not None and not backend_named(framework).accepts(model):
            raise ConfigError(
                f"model.framework is {framework}, but {source} returned a {type(model).__name__}, which is "
                "not one of its models. Leave model.framework out, or return a model of that framework."
            )
        return model
    suffix = Path(source).suffix
    guessed = {".onnx": "onnx", ".pb": "tensorflow", ".keras": "tensorflow", ".pt2": "pytorch"}.get(suffix)
    if guessed is None and (Path(source) / "saved_model.pb").exists():
        guessed = "tensorflow"
    return backend_named(framework or guessed or "pytorch").open(source)


def import_name(reference: str, key: str) -> Any:
    """The object behind ``package.module:name``; ``key`` says where it was named."""
    try:
        return resolve(reference)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"{key} names {reference!r}, which cannot be imported: {error}. Expected package.module:name."
        ) from error


def _made(reference: str, key: str, failed: type[OctuneError]) -> Any:
    """What a function of the user's returns, or the object itself if it is not a function."""
    made = import_name(reference, key)
    if not callable(made):
        return made
    try:
        return made()
    except OctuneError:
        raise
    except Exception as error:
        raise failed(
            f"{key} names {reference!r}, which was called and raised {type(error).__name__}: "
            f"{summary(error)}. Expected a function that works without arguments, from this folder."
        ) from error


def made_data(reference: str, role: str = "evaluation") -> Any:
    """The data that a configuration names as ``package.module:name``."""
    return _made(reference, f"{role}.data", DataError)


def named(config: Config) -> list[str]:
    """What a configuration names that may run code, for people to look at: the model, functions of the
    user's own, and addresses, all of which have a colon.
    """

    def texts(value: Any) -> Iterator[str]:
        if isinstance(value, dict):
            yield from value  # steps of postprocess are keys
        if isinstance(value, dict | list):
            for inner in value.values() if isinstance(value, dict) else value:
                yield from texts(inner)
        elif isinstance(value, str):
            yield value

    model = config.model.path if config.model is not None else None
    return sorted({*([model] if model else []), *(text for text in texts(config.to_json()) if ":" in text)})


def make_metric(metric: str | MetricFunction | Metric, options: Mapping[str, Any]) -> Metric:
    """The metric that a configuration names; ``GLUE`` with the option ``task`` is the one of that task."""
    if not isinstance(metric, str) or plain_name(metric) != "glue":
        return get_metric(metric, **options)
    if set(options) != {"task"}:
        raise ConfigError(
            f"The metric {metric} needs the option 'task' and no other, such as {{task: mrpc}}. Got "
            f"{dict(options)!r} instead."
        )
    return glue_metric(options["task"])


def is_reference(source: str) -> bool:
    """Whether this is ``package.module:name``, and not a path."""
    module, colon, name = source.partition(":")
    return (
        bool(colon)
        and all(part.isidentifier() for part in (*module.split("."), *name.split(".")))
        and not Path(source).exists()
    )


def _data(
    source: DataSource,
    role: str,
    config: Config,
    model_source: str | None,
    tasks: dict[tuple[Any, ...], Any],
    materials: Materials,
    wants_metric: bool,
) -> Any:
    size = config.calibration.batch_size if role == "calibration" else config.evaluation.batch_size
    if source.factory is not None:
        return made_data(source.factory, role)
    if source.arrays is not None:
        batches = ArrayBatches(Path(source.arrays), size, source.part)
        if source.part == "calibration":
            some = f"{batches.rows} random rows of {source.arrays} calibrate"
            judged = config.evaluation.data
            apart = judged is not None and (judged.arrays, judged.part) == (source.arrays, "evaluation")
            materials.notes.append(f"{some}, and the others judge" if apart else some)
        return batches
    if source.task is None or source.folder is None:
        raise ConfigError(f"{role}.data needs one of: task and folder, factory, arrays.")
    if role == "calibration" and source.split not in (None, "train"):
        raise ConfigError(
            f"calibration.data.split is {source.split!r}; calibration reads the training rows. Remove it, or "
            "say train."
        )
    split = source.split if role == "evaluation" else None
    key = (source.task, str(source.folder), source.max_length, split, source.tokenizer, source.size)
    if key not in tasks:
        of_images = plain_name(source.task) in OF_IMAGES
        tokenizer = source.tokenizer or (
            _processor_folder(model_source) if of_images else _tokenizer_folder(model_source, role)
        )
        tasks[key] = load_task(
            source.task,
            source.folder,
            tokenizer=tokenizer,
            max_length=source.max_length,
            split=split,
            calibrates=config.calibration.data is not None,
            label2id=getattr(getattr(materials.model, "config", None), "label2id", None),
            calibration_batch_size=config.calibration.batch_size,
            evaluation_batch_size=config.evaluation.batch_size,
            size=source.size,
        )
    task = tasks[key]
    if role == "calibration":
        return task.calibration
    if materials.metric is None and config.evaluation.metric is None and wants_metric:
        materials.metric = task.metric
    return task.evaluation


def _processor_folder(model_source: str | None) -> str | None:
    """The folder that may say how images are prepared."""
    return model_source if model_source is not None and Path(model_source).is_dir() else None


def _tokenizer_folder(model_source: str | None, role: str) -> str:
    if model_source is None or is_reference(model_source) or Path(model_source).suffix == ".onnx":
        raise UnsupportedError(
            f"{role}.data names a task, which needs a tokenizer: model.path must be a Hugging Face folder, "
            f"or {role}.data.tokenizer name one. Or give {role}.data as a factory."
        )
    return model_source
