"""What a configuration names, made real: models, data and metrics from folders, files and
``package.module:name``.

materials = collect(config, model=None, calibration=None, evaluation=None, metric=None)
materials.model, materials.calibration, materials.evaluation, materials.metric
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from octune.backends.select import backend_named
from octune.errors import ConfigError, DataError, UnsupportedError
from octune.evaluation.metrics import Metric, MetricFunction, get_metric
from octune.importing import resolve
from octune.tasks import glue_metric, load_task
from octune.tasks.glue import plain_name

if TYPE_CHECKING:
    from octune.config import Config
    from octune.config.inputs import DataSource

__all__ = ["ArrayBatches", "Materials", "collect", "import_name", "is_reference", "make_metric"]


@dataclass
class Materials:
    """What a run works on, wherever it came from."""

    model: Any
    calibration: Any = None
    evaluation: Any = None
    metric: str | Metric | Callable[..., Any] | None = None
    source: str | None = None


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
    return materials


def open_model(source: str, framework: str | None) -> Any:
    """A model by folder, file, hub name, or ``package.module:factory``."""
    if is_reference(source):
        made = import_name(source, "model.path")
        return made() if callable(made) else made
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
        made = import_name(source.factory, f"{role}.data")
        return made() if callable(made) else made
    if source.arrays is not None:
        return ArrayBatches(Path(source.arrays), size)
    if source.task is None or source.folder is None:
        raise ConfigError(f"{role}.data needs one of: task and folder, factory, arrays.")
    if role == "calibration" and source.split not in (None, "train"):
        raise ConfigError(
            f"calibration.data.split is {source.split!r}; calibration reads the training rows. Remove it, or "
            "say train."
        )
    split = source.split if role == "evaluation" else None
    key = (source.task, str(source.folder), source.max_length, split, source.tokenizer)
    if key not in tasks:
        tokenizer = source.tokenizer or _tokenizer_folder(model_source, role)
        tasks[key] = load_task(
            source.task,
            source.folder,
            tokenizer=tokenizer,
            max_length=source.max_length,
            split=split,
            label2id=getattr(getattr(materials.model, "config", None), "label2id", None),
            calibration_batch_size=config.calibration.batch_size,
            evaluation_batch_size=config.evaluation.batch_size,
        )
    task = tasks[key]
    if role == "calibration":
        return task.calibration
    if materials.metric is None and config.evaluation.metric is None and wants_metric:
        materials.metric = task.metric
    return task.evaluation


def _tokenizer_folder(model_source: str | None, role: str) -> str:
    if model_source is None or is_reference(model_source) or Path(model_source).suffix == ".onnx":
        raise UnsupportedError(
            f"{role}.data names a task, which needs a tokenizer: model.path must be a Hugging Face folder, "
            f"or {role}.data.tokenizer name one. Or give {role}.data as a factory."
        )
    return model_source


class ArrayBatches(Sequence[Any]):
    """Batches of an ``.npz`` file: every array except ``label`` (or ``labels``, ``y``) is an input of that
    name.

    A single array named ``x`` or ``input`` is passed by position.
    """

    def __init__(self, path: Path, batch_size: int) -> None:
        try:
            with np.load(path, allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
        except (OSError, ValueError) as error:
            raise DataError(
                f"The arrays in {path} cannot be read: {error}. Expected an .npz file without pickled "
                "objects."
            ) from error
        self._label = next((arrays.pop(name) for name in ("label", "labels", "y") if name in arrays), None)
        if not arrays:
            raise DataError(f"{path} holds no input array. Expected inputs by name, and labels as 'label'.")
        self._inputs, self._size = arrays, batch_size
        lengths = {
            name: len(array)
            for name, array in (
                *arrays.items(),
                *([("label", self._label)] if self._label is not None else []),
            )
        }
        if len(set(lengths.values())) != 1:
            raise DataError(f"The arrays in {path} differ in length: {lengths}.")
        self._rows = next(iter(lengths.values()))

    def __len__(self) -> int:
        return -(-self._rows // self._size)

    def __getitem__(self, index: Any) -> Any:
        if not 0 <= index < len(self):
            raise IndexError(index)
        rows = slice(index * self._size, (index + 1) * self._size)
        inputs: Any = {name: array[rows] for name, array in self._inputs.items()}
        if set(inputs) in ({"x"}, {"input"}):
            inputs = next(iter(inputs.values()))
        return inputs if self._label is None else (inputs, self._label[rows])

    def __iter__(self) -> Iterator[Any]:
        return (self[index] for index in range(len(self)))
