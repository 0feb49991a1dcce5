"""What a configuration names, made real: models, data and metrics from folders, files and
``package.module:name``.

given = fill(config, model=None, calibration=None, evaluation=None, metric=None)
given.model, given.calibration, given.evaluation, given.metric
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from octune.backends.select import backend_named
from octune.errors import ConfigError, DataError, UnsupportedError
from octune.evaluation.metrics import Metric
from octune.importing import resolve
from octune.tasks import load_task

if TYPE_CHECKING:
    from octune.config import Config
    from octune.config.schema import DataSource

__all__ = ["ArrayBatches", "Given", "fill", "import_name"]


@dataclass
class Given:
    """What a run works on, wherever it came from."""

    model: Any
    calibration: Any = None
    evaluation: Any = None
    metric: str | Metric | Callable[..., Any] | None = None
    source: str | None = None


def fill(
    config: Config, model: Any, calibration: Any, evaluation: Any, metric: Any, *, wants_metric: bool = True
) -> Given:
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
    given = Given(model, calibration, evaluation, metric, source)
    tasks: dict[tuple[Any, ...], Any] = {}
    if given.calibration is None and config.calibration.data is not None:
        given.calibration = _data(
            config.calibration.data, "calibration", config, source, tasks, given, wants_metric
        )
    if given.evaluation is None and config.evaluation.data is not None:
        given.evaluation = _data(
            config.evaluation.data, "evaluation", config, source, tasks, given, wants_metric
        )
    if given.metric is None and config.evaluation.metric is not None:
        given.metric = config.evaluation.metric
    return given


def open_model(source: str, framework: str | None) -> Any:
    """A model by folder, file, hub name, or ``package.module:factory``."""
    if _is_reference(source):
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


def _is_reference(source: str) -> bool:
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
    given: Given,
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
            label2id=getattr(getattr(given.model, "config", None), "label2id", None),
            calibration_batch_size=config.calibration.batch_size,
            evaluation_batch_size=config.evaluation.batch_size,
        )
    task = tasks[key]
    if role == "calibration":
        return task.calibration
    if given.metric is None and config.evaluation.metric is None and wants_metric:
        given.metric = task.metric
    return task.evaluation


def _tokenizer_folder(model_source: str | None, role: str) -> str:
    if model_source is None or _is_reference(model_source) or Path(model_source).suffix == ".onnx":
        raise UnsupportedError(
            f"{role}.data names a task, which needs a tokenizer: model.path must be a Hugging Face folder, "
            f"or {role}.data.tokenizer name one. Or give {role}.data as a factory."
        )
    return model_source


class ArrayBatches(Sequence[Any]):
    """Batches of an ``.npz`` file: every array but ``label`` (or ``labels``, ``y``) is an input of that name.

    An array named ``x`` or ``input`` alone is passed by position.
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
