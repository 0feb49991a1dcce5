"""Data sets by name, and a data loader that knows no framework.

dataset = make_dataset("dummy", shape=(100, 3, 224, 224), label=True)
for inputs, label in DataLoader(dataset, batch_size=8): ...
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from octune.errors import DataError, UnsupportedError

__all__ = ["DataLoader", "make_dataset"]


class DataLoader:
    """Batches of a data set, which has ``__getitem__`` or ``__iter__``.

    ``last_batch`` is "rollover" (a last batch may be short) or "discard". Without ``collate_fn`` the fields
    of samples are stacked.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int = 1,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        last_batch: str = "rollover",
        sampler: Iterable[int] | None = None,
        batch_sampler: Iterable[Sequence[int]] | None = None,
        num_workers: int = 0,
        pin_memory: bool = False,
    ) -> None:
        if last_batch not in ("rollover", "discard"):
            raise DataError(f"last_batch must be 'rollover' or 'discard'. Got {last_batch!r} instead.")
        if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
            raise DataError(f"batch_size must be a whole number >= 1. Got {batch_size!r} instead.")
        if num_workers or pin_memory:
            raise UnsupportedError(
                "num_workers and pin_memory need PyTorch's DataLoader: pass one of those instead. This one "
                "reads in one thread."
            )
        if not hasattr(dataset, "__getitem__") and (sampler is not None or batch_sampler is not None):
            raise DataError("A sampler needs a data set with __getitem__. This one can only be iterated.")
        self.dataset, self.batch_size, self.last_batch = dataset, batch_size, last_batch
        self._collate, self._sampler, self._batch_sampler = collate_fn or _stack, sampler, batch_sampler

    def __iter__(self) -> Iterator[Any]:
        if self._batch_sampler is not None:
            yield from (
                self._collate([self.dataset[index] for index in batch]) for batch in self._batch_sampler
            )
            return
        samples = self._samples()
        while batch := list(islice(samples, self.batch_size)):
            if len(batch) == self.batch_size or self.last_batch == "rollover":
                yield self._collate(batch)

    def _samples(self) -> Iterator[Any]:
        if self._sampler is not None:
            yield from (self.dataset[index] for index in self._sampler)
        elif hasattr(self.dataset, "__getitem__") and hasattr(self.dataset, "__len__"):
            # A data set need not raise IndexError at its end, so its length decides.
            yield from (self.dataset[index] for index in range(len(self.dataset)))
        else:
            yield from self.dataset


def _stack(samples: list[Any]) -> Any:
    """One array per field, whatever the nesting of fields."""
    first = samples[0]
    if isinstance(first, Mapping):
        return {name: _stack([sample[name] for sample in samples]) for name in first}
    if isinstance(first, list | tuple):
        return tuple(_stack(list(column)) for column in zip(*samples, strict=True))
    if isinstance(first, str | bytes):
        return samples
    return np.stack([np.asarray(sample) for sample in samples])


def make_dataset(dataset_type: str, *args: Any, **options: Any) -> Any:
    """One of LPOT's data sets by its name; an unknown name raises, and the message lists those that exist."""
    known: dict[str, Callable[..., Any]] = {
        "dummy": _dummy,
        "bert": _BertDataset,
        "glue": _glue,
        "imagefolder": _image_folder,
    }
    build = known.get(dataset_type.lower())
    if build is None:
        raise UnsupportedError(
            f"The data set {dataset_type!r} is not supported; dummy, bert, GLUE and ImageFolder are. "
            "Anything with __getitem__ and __len__ is a data set: write your own."
        )
    try:
        return build(*args, **options)
    except TypeError as error:
        raise DataError(
            f"The data set {dataset_type} cannot be made from these arguments: {error}."
        ) from error


def _dummy(
    shape: Any, low: float = -128.0, high: float = 127.0, dtype: str = "float32", label: bool = False
) -> list[Any]:
    """Random samples; ``shape`` includes their number, and a list of shapes makes several inputs."""
    rng = np.random.default_rng(1978)
    shapes = shape if isinstance(shape, list) else [shape]
    if len({each[0] for each in shapes}) != 1:
        raise DataError(f"dummy needs the same number of samples in every shape. Got {shape} instead.")
    inputs = [np.asarray(rng.uniform(low, high, each), dtype=dtype) for each in shapes]
    samples = inputs[0] if len(inputs) == 1 else list(zip(*inputs, strict=True))
    return [(sample, 0) for sample in samples] if label else list(samples)


class _BertDataset:
    """A TensorDataset of ids, mask, segments and labels, as (inputs by name, label)."""

    def __init__(self, dataset: Any, task: str = "", model_type: str = "bert") -> None:
        self._dataset, self._model_type = dataset, model_type

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < len(self):
            raise IndexError(index)
        row = self._dataset[index]
        inputs = {"input_ids": row[0], "attention_mask": row[1]}
        if self._model_type in ("bert", "xlnet"):  # the others have no segments
            inputs["token_type_ids"] = row[2]
        return inputs, row[3]


def _glue(
    data_dir: str | Path,
    model_name_or_path: str,
    task: str = "mrpc",
    max_seq_length: int = 128,
    evaluate: bool = True,
    **ignored: Any,
) -> list[Any]:
    """Rows of a GLUE task, padded to ``max_seq_length``."""
    from octune.tasks import load_task

    if set(ignored) - {"model_type", "do_lower_case", "dynamic_length"}:
        raise DataError(
            f"GLUE does not know {sorted(set(ignored))}. It knows data_dir, model_name_or_path, task, "
            "max_seq_length, evaluate."
        )
    loaded = load_task(task, data_dir, tokenizer=str(model_name_or_path), max_length=max_seq_length)
    rows: list[Any] = []
    for inputs, labels in loaded.evaluation if evaluate else loaded.calibration:
        width = max_seq_length - inputs["input_ids"].shape[1]
        padded = {name: np.pad(array, ((0, 0), (0, width))) for name, array in inputs.items()}
        rows.extend(
            ({name: array[row] for name, array in padded.items()}, labels[row]) for row in range(len(labels))
        )
    return rows


class _Images:
    """Folders of images, one folder a class, in the order of their names."""

    def __init__(self, root: Path, transform: Callable[[Any], Any] | None) -> None:
        folders = sorted(child for child in root.iterdir() if child.is_dir()) if root.is_dir() else []
        self._files = [
            (file, number)
            for number, folder in enumerate(folders)
            for file in sorted(folder.iterdir())
            if file.is_file()
        ]
        self._transform = transform
        if not self._files:
            raise DataError(f"{root} contains no images. Expected one folder of images per class.")

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < len(self):
            raise IndexError(index)
        try:
            images = importlib.import_module("PIL.Image")
        except ImportError as error:
            raise DataError(
                "ImageFolder needs Pillow to read images. Install it with: pip install pillow."
            ) from error
        file, label = self._files[index]
        with images.open(file) as image:
            sample = (np.asarray(image.convert("RGB")), label)
        return self._transform(sample) if self._transform is not None else sample


def _image_folder(root: str | Path, transform: Callable[[Any], Any] | None = None) -> _Images:
    return _Images(Path(root), transform)
