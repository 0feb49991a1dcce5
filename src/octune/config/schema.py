"""What a configuration says: one schema for every way of writing it.

    from octune.config import Config

    Config(criterion={"relative": "1%"}, tuning={"timeout": 60})
    Config.build(tuning={"timeout": "soon"})     # ConfigError: ... timeout must be a number >= 0. Got 'soon'.
    print(config.to_yaml())                      # the effective configuration, ready to be loaded again

Every section can be left out, and so can every key. Objects are frozen: a changed configuration is a new one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    WithJsonSchema,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from octune.config import fields as kinds
from octune.config.fields import (
    EmptyIsDefault,
    Natural,
    Options,
    Positive,
    Reference,
    Seconds,
    Switch,
    Text,
    conflict,
    expected,
)
from octune.config.messages import config_error, explain, got, keys_of
from octune.config.yaml_lines import dump
from octune.criterion import Criterion

STRATEGIES = ("auto", "basic", "mse", "bayesian", "tpe", "random", "exhaustive")
APPROACHES = {"post_training_static_quant": "static", "post_training_dynamic_quant": "dynamic"}


def _word(*choices: str, why: str = "", **aliases: str) -> tuple[BeforeValidator, WithJsonSchema]:
    def read(value: Any) -> str:
        return kinds.one_of(value, choices=choices, aliases=aliases, why=why)

    return BeforeValidator(read), WithJsonSchema({"enum": [*choices, *aliases]})


def _or_text(schema: dict[str, Any]) -> None:
    schema["anyOf"].append({"type": "string", "minLength": 1})


def _or_mapping(schema: dict[str, Any]) -> None:
    schema["anyOf"].append({"type": "object", "minProperties": 1, "maxProperties": 1})


class Section(BaseModel):
    """Base of all sections: frozen, and a key that is not known is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


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
    target: Annotated[str, *_word("onnx")] | None = Field(
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
        None, description="A known task, such as sst-2, mrpc, stsb or squad; needs 'folder'."
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
    factory: Reference | None = Field(
        None, description="'package.module:factory': a function without arguments that returns the data."
    )
    arrays: kinds.FilePath | None = Field(
        None,
        description="An .npz file with one array per model input, and 'labels' where a metric needs them.",
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
            for name in ("folder", "split", "max_length", "tokenizer")
            if self.task is None and getattr(self, name) is not None
        ]
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
        None, description="Use only the first this many samples; all if left out."
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


class TensorOptions(Section):
    """What the search may choose from for one kind of tensor. If left out, the backend chooses."""

    dtype: kinds.Dtypes | None = Field(None, description="int8, uint8, bf16 or fp32, or a list of these.")
    granularity: kinds.Granularities | None = Field(
        None, description="per_channel or per_tensor, or a list of these."
    )
    scheme: kinds.Schemes | None = Field(None, description="sym or asym, or a list of these.")
    algorithm: kinds.Algorithms | None = Field(
        None, description="How ranges are found: minmax, percentile, mse or kl, or a list of these."
    )


class OpOptions(Section):
    """What the search may choose from for one op."""

    weight: Annotated[TensorOptions, EmptyIsDefault] = Field(TensorOptions(), description="The op's weight.")
    activation: Annotated[TensorOptions, EmptyIsDefault] = Field(
        TensorOptions(), description="The op's input."
    )


class Quantization(Section):
    """Limits of the search for all ops, and for single ones."""

    approach: Annotated[
        Literal["auto", "static", "dynamic"], *_word("auto", "static", "dynamic", **APPROACHES)
    ] = Field(
        "auto",
        description=(
            "static: ranges from calibration; dynamic: ranges at run time; auto: whichever serves "
            "each op best."
        ),
    )
    weight: Annotated[TensorOptions, EmptyIsDefault] = Field(
        TensorOptions(), description="Weights of all ops."
    )
    activation: Annotated[TensorOptions, EmptyIsDefault] = Field(
        TensorOptions(), description="Inputs of all ops."
    )
    ops: dict[str, OpOptions] = Field(
        {},
        description="Limits for single ops by name. A name with a character outside A-Z a-z 0-9 _ . - / "
        "is a regular expression "
        "that must match the whole name.",
    )

    @field_validator("ops")
    @classmethod
    def _patterns_compile(cls, ops: dict[str, OpOptions]) -> dict[str, OpOptions]:
        for key in filter(kinds.is_pattern, ops):
            try:
                re.compile(key)
            except re.error as error:
                raise conflict(f"is not a valid regular expression: {error}.", at=(key,)) from None
        return ops


class CriterionSection(Section):
    """How much of the baseline's score may be lost: relative or absolute, exactly one. A number alone
    is relative: ``criterion: 1%``.
    """

    relative: kinds.Loss | None = Field(
        0.01,
        description="Largest loss as a share of the baseline's score: 0.01 or '1%'. Negative demands a gain.",
    )
    absolute: kinds.Number | None = Field(
        None, description="Largest loss in the metric's own units. Negative demands a gain."
    )
    higher_is_better: Switch | None = Field(
        None,
        description=(
            "Direction of the score. If left out, the metric's own; for your own function, higher is better."
        ),
    )
    confidence: kinds.Confidence | None = Field(
        None,
        description=(
            "How sure a pass must be, such as 0.95; needs one score per item. If left out, the score "
            "alone decides."
        ),
    )
    certify: Annotated[Literal["holdout"], *_word("holdout")] | None = Field(
        None,
        description=(
            "holdout: 30 % of the evaluation data is kept out of the search, and has the final say "
            "on its winner."
        ),
    )

    @model_validator(mode="before")
    @classmethod
    def _exactly_one(cls, data: Any) -> Any:
        if isinstance(data, int | float | str) and not isinstance(data, bool):
            return {"relative": data}
        if isinstance(data, Criterion):
            return data.to_json()
        if not isinstance(data, Mapping):
            return data
        if data.get("absolute") is not None:
            if data.get("relative") is not None:
                raise conflict("has both 'relative' and 'absolute'; keep one.")
            return {**data, "relative": None}
        if "relative" in data and data["relative"] is None:
            raise conflict("needs a number for 'relative' or for 'absolute'.")
        return data


class Tuning(Section):
    """How the search runs and when it stops."""

    strategy: Annotated[
        Literal["auto", "basic", "mse", "bayesian", "tpe", "random", "exhaustive"], *_word(*STRATEGIES)
    ] = Field("auto", description="How the search space is explored.")
    timeout: Seconds = Field(
        0.0,
        description=(
            "Seconds to search. 0: stop at the first plan that passes; more: use it to find a faster one."
        ),
    )
    max_trials: Positive = Field(100, description="The largest number of plans to try.")
    trial_timeout: Seconds = Field(0.0, description="Time limit for one trial in seconds; 0: no limit.")
    random_seed: kinds.Seed = Field(
        1978, description="Seed of everything random; the same seed repeats a run."
    )
    objective: Annotated[
        Literal["performance", "footprint", "modelsize"], *_word("performance", "footprint", "modelsize")
    ] = Field("performance", description="What to optimise: latency, memory in use, or size on disk.")
    performance_only: Switch = Field(
        False,
        description="Not supported: return the first plan without scoring it, as octune.quantize() does.",
    )
    tensorboard: Switch = Field(
        False, description="Not supported: write histograms of tensors for TensorBoard in each trial."
    )


class Performance(Section):
    """How latency is measured."""

    warmup: Natural = Field(
        5, description="Runs before timing starts; fewer for a slow model, unless 'iterations' is given."
    )
    iterations: Positive | None = Field(
        None, description="Timed runs; enough for a stable median if left out."
    )
    threads: Positive | None = Field(None, description="Threads of the model; the machine's if left out.")
    streams: Positive = Field(
        1,
        description=(
            "TensorFlow: also try the int8 graph in this many parts side by side, each on its share "
            "of the threads."
        ),
    )
    portable: Switch = Field(
        True,
        description=(
            "Keep int8 weights small enough for any x86-64 CPU; false: use all 8 bits where this CPU "
            "can add their products."
        ),
    )
    batch_size: Positive | None = Field(
        None, description="Samples in a timed batch; as many as the data's own batches have if left out."
    )
    compile: Annotated[Literal["auto", "never"], *_word("auto", "never")] = Field(
        "auto", description="Whether the final model may be compiled: auto where it is faster, or never."
    )
    cores_per_instance: Positive | None = Field(
        None, description="LPOT's name for 'threads'; used where 'threads' is left out."
    )
    num_of_instance: Positive | None = Field(
        None, description="Not supported: more than one instance side by side."
    )

    @property
    def extra(self) -> dict[str, Any]:
        """What was asked for and only some frameworks have; a backend takes or refuses it."""
        return {} if self.streams == 1 else {"streams": self.streams}


class Workspace(Section):
    """Where a run keeps its journal."""

    path: kinds.FilePath | None = Field(None, description="Folder for the journal of the run.")
    resume: Switch = Field(False, description="Continue the interrupted run in that folder.")


class Config(Section):
    """The whole configuration of a run."""

    model: ModelSource | None = Field(
        None, description="The model to quantize, when it is not handed over in Python."
    )
    device: Annotated[
        Literal["cpu"],
        BeforeValidator(
            lambda value: kinds.one_of(value, choices=("cpu",), why=", the only device that is tuned for")
        ),
    ] = Field("cpu", description="The device to tune for: cpu.")
    calibration: Annotated[Calibration, EmptyIsDefault] = Field(
        Calibration(), description="Data that shows which values flow through the model."
    )
    evaluation: Annotated[Evaluation, EmptyIsDefault] = Field(
        Evaluation(), description="How a model is scored."
    )
    quantization: Annotated[Quantization, EmptyIsDefault] = Field(
        Quantization(), description="Limits of the search."
    )
    criterion: Annotated[CriterionSection, EmptyIsDefault] = Field(
        CriterionSection(), description="How much of the score may be lost."
    )
    tuning: Annotated[Tuning, EmptyIsDefault] = Field(
        Tuning(), description="How the search runs and when it stops."
    )
    performance: Annotated[Performance, EmptyIsDefault] = Field(
        Performance(), description="How latency is measured."
    )
    workspace: Annotated[Workspace, EmptyIsDefault] = Field(
        Workspace(), description="Where a run keeps its journal."
    )

    @classmethod
    def build(cls, **sections: Any) -> Self:
        """A configuration from Python values: ``Config.build(tuning={"timeout": 60})``. Mistakes raise
        ``ConfigError``.
        """
        try:
            return cls.model_validate(sections)
        except ValidationError as error:
            raise config_error("Config", explain(error, keys_of(cls))) from None

    @classmethod
    def schema_json(cls) -> str:  # type: ignore[override]  # pydantic 1's method of this name is deprecated; ours takes no options
        """The JSON schema of the native dialect, for editors:
        ``Path("octune.schema.json").write_text(Config.schema_json())``.
        """
        return json.dumps(cls.model_json_schema(), indent=2, ensure_ascii=False)

    def to_yaml(self) -> str:
        """The effective configuration in the native dialect; ``parse_config(config.to_yaml()) == config``."""
        return dump(_written(self))

    def to_json(self) -> dict[str, Any]:
        """Plain data for the journal; ``Config.from_json`` is the way back."""
        return self.model_dump(mode="json")

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """The inverse of :meth:`to_json`."""
        return cls.build(**data)


def _written(section: BaseModel) -> dict[str, Any]:
    """A section as plain data, without the keys that are None: they would only distract from the others."""
    written: dict[str, Any] = {}
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if value is None and field.default is None:
            continue
        if isinstance(value, BaseModel):
            written[name] = _written(value)
        elif name == "ops":
            written[name] = {op: _written(options) for op, options in value.items()}
        elif isinstance(value, Path):
            written[name] = str(value)
        else:
            written[name] = list(value) if isinstance(value, tuple) else value
    return written
