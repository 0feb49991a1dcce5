"""The sections that say what goes into a run: the model, calibration data, evaluation data and its metric."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from octune.config import fields as kinds
from octune.config.fields import Options, Positive, Reference, Text, conflict, expected
from octune.config.messages import got
from octune.config.section import Section, word

__all__ = ["Calibration", "DataSource", "Evaluation", "ModelSource"]


def _or_text(schema: dict[str, Any]) -> None:
    schema["anyOf"].append({"type": "string", "minLength": 1})


def _or_mapping(schema: dict[str, Any]) -> None:
    schema["anyOf"].append({"type": "object", "minProperties": 1, "maxProperties": 1})


class ModelSource(Section):
    """The model to quantize, when it is not handed over in Python."""

    path: Text | None = Field(
        None,
        description=(
            "A Hugging Face folder or hub name, 'package.module:factory', a .pt2, .onnx, .pb or "
            ".keras file, a SavedModel folder."
        ),
    )
    framework: kinds.Framework | None = Field(
        None,
        description=(
            "pytorch, tensorflow or onnx (or torch, tf, onnxruntime, onnxrt_*). Inferred from the "
            "model if left out."
        ),
    )
    target: Annotated[str, *word("onnx")] | None = Field(
        None,
        description=(
            "onnx exports a model of PyTorch or TensorFlow and tunes it for ONNX Runtime and "
            "OpenVINO. Its own if left out."
        ),
    )
    name: Text | None = Field(None, description="A name for the model in reports; it changes nothing.")
    inputs: kinds.Names = Field(
        (), description="Names of the input tensors, as a list or 'a, b'. Inferred if left out."
    )
    outputs: kinds.Names = Field(
        (), description="Names of the output tensors, as a list or 'a, b'. Inferred if left out."
    )


class DataSource(Section):
    """Where data comes from: a known task's folder, a function, or saved arrays. Exactly one of the three.

    Text is short for the latter two: 'package.module:factory' or 'arrays.npz'.
    """

    task: Text | None = Field(
        None, description="A known task, such as sst-2, squad, ner or retrieval; needs 'folder'."
    )
    folder: kinds.FilePath | None = Field(None, description="The folder that holds the task's files.")
    split: Text | None = Field(
        None,
        description="The split of the task's data to read, such as train or dev. Chosen for you if left out.",
    )
    max_length: Positive | None = Field(
        None, description="Longest input in tokens. The task's usual length if left out."
    )
    tokenizer: Text | None = Field(
        None, description="Folder or hub name of the task's tokenizer. The model's own if left out."
    )
    size: kinds.Size | None = Field(
        None,
        description="Height and width of images for a task of images: [480, 640], or one number for both. "
        "The model's own if left out.",
    )
    factory: Reference | None = Field(
        None, description="'package.module:factory': a function without arguments that returns the data."
    )
    arrays: kinds.FilePath | None = Field(
        None,
        description="An .npz file with one array per model input, and 'labels' where a metric needs them.",
    )
    part: Annotated[str, *word("calibration", "evaluation")] | None = Field(
        None,
        description=(
            "Use only a part of 'arrays': 'calibration' is a random fifth of its rows, at most 512, and "
            "'evaluation' all others, so that one file can serve as both. All rows if left out."
        ),
    )

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, data: Any) -> Any:
        if isinstance(data, str | Path):
            written = str(data)
            if written.endswith(".npz"):
                return {"arrays": written}
            if ":" in written:
                return {"factory": written}
        if isinstance(data, Mapping | DataSource):
            return data
        raise expected(
            "a path that ends in .npz, 'package.module:factory', or a mapping such as {task: sst-2, folder: "
            "data/SST-2}"
        )

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        given = [name for name in ("task", "factory", "arrays") if getattr(self, name) is not None]
        if self.task is None and self.folder is not None and not given:
            raise conflict(
                "has a 'folder' but no 'task' that says how to read it. Add 'task', such as sst-2 or squad."
            )
        if len(given) != 1:
            said = f"has {' and '.join(repr(name) for name in given)}" if given else "says nothing"
            raise conflict(f"{said}; give exactly one of 'task' (with 'folder'), 'factory' and 'arrays'.")
        if self.task is not None and self.folder is None:
            raise conflict("has a 'task' but no 'folder' that holds its files. Add 'folder'.")
        lost = [
            name
            for name in ("folder", "split", "max_length", "tokenizer", "size")
            if self.task is None and getattr(self, name) is not None
        ]
        if self.part is not None and self.arrays is None:
            raise conflict("has 'part', which only 'arrays' can use. Remove it.")
        if lost:
            raise conflict(
                f"has {' and '.join(repr(name) for name in lost)}, which only a 'task' can use. Remove it."
            )
        return self


class Calibration(Section):
    """Data that shows which values flow through the model."""

    data: DataSource | None = Field(
        None, description="Calibration data; no labels are needed.", json_schema_extra=_or_text
    )
    samples: kinds.Counts = Field(
        (128,),
        description="How many samples to calibrate on; with a list, each value is an option of the search.",
    )
    batches: kinds.Counts | None = Field(
        None, description="How many batches to calibrate on; overrides 'samples'."
    )
    batch_size: Positive = Field(8, description="Samples in a batch of data that Octune reads.")

    @property
    def most_batches(self) -> int:
        """More are never needed, whatever their size: it is what stops an endless generator."""
        return max(self.batches or self.samples)


class Evaluation(Section):
    """How a model is scored, when no scoring function is handed over in Python."""

    data: DataSource | None = Field(
        None, description="Evaluation data with labels.", json_schema_extra=_or_text
    )
    metric: Text | None = Field(
        None,
        description=(
            "A metric's name such as accuracy, or 'package.module:function'. {topk: 1} is short for "
            "a name with its options."
        ),
        json_schema_extra=_or_mapping,
    )
    metric_options: Options = Field(
        {}, description="Options of the metric, such as {k: 5} for topk or {task: mrpc} for GLUE."
    )
    batch_size: Positive = Field(32, description="Samples in a batch of data that Octune reads.")
    samples: Positive | None = Field(
        None, description="Use only the first samples, this many; all if left out."
    )
    outputs: kinds.Names = Field(
        (),
        description=(
            "Names of the outputs that are scored, as a list or 'a, b'. If left out: what the metric reads; "
            "without labels all, except recurrent state and caches."
        ),
    )
    postprocess: Options | None = Field(
        None,
        description=(
            "Steps between the model's output and the metric, as name: options, such as {LabelShift: 1}."
        ),
    )

    @model_validator(mode="before")
    @classmethod
    def _metric_with_options(cls, data: Any) -> Any:
        if not (isinstance(data, Mapping) and isinstance(data.get("metric"), Mapping)):
            return data
        if data.get("metric_options"):
            raise conflict("has options of the metric in both 'metric' and 'metric_options'. Keep one.")
        try:
            name, options = kinds.split_metric(data["metric"])
        except PydanticCustomError as error:
            raise conflict(f"{error.message()}. Got {got(data['metric'])}.", at=("metric",)) from None
        return {**data, "metric": name, "metric_options": options}
