"""What a configuration says: one schema for every way of writing it.

    from octune.config import Config

    Config(criterion={"relative": "1%"}, tuning={"timeout": 60})
    Config.build(tuning={"timeout": "soon"})     # ConfigError: ... timeout must be a number >= 0. Got 'soon'.
    print(config.to_yaml())                      # the effective configuration, ready to be loaded again

Every section can be left out, and so can every key. Objects are frozen: a changed configuration is a new one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    Field,
    ValidationError,
    model_validator,
)

from octune.config import fields as kinds
from octune.config.fields import (
    EmptyIsDefault,
    Natural,
    Positive,
    Seconds,
    Switch,
    conflict,
)
from octune.config.inputs import Calibration, Evaluation, ModelSource
from octune.config.limits import Quantization
from octune.config.messages import config_error, explain, keys_of
from octune.config.section import Section, word
from octune.config.yaml_lines import dump
from octune.criterion import Criterion

Strategy = Literal["auto", "basic", "mse", "bayesian", "tpe", "random", "exhaustive"]


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
    certify: Annotated[Literal["holdout"], *word("holdout")] | None = Field(
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

    strategy: Annotated[Strategy, *word(*get_args(Strategy))] = Field(
        "auto", description="How the search space is explored."
    )
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
        Literal["performance", "footprint", "modelsize"], *word("performance", "footprint", "modelsize")
    ] = Field("performance", description="What to optimise: latency, memory in use, or size on disk.")
    performance_only: Switch = Field(
        False,
        description="Not supported: return the first plan without scoring it, as octune.quantize() does.",
    )
    isolate: Switch = Field(
        False,
        description=(
            "Run what a plan runs in a process of its own: one that crashes or hangs there has failed, an op "
            "that does stays in float, and the run goes on. If false, only a resumed run does so, with what "
            "an earlier process has ended at."
        ),
    )
    tensorboard: Switch = Field(
        False, description="Write scores, speed-ups and harm for TensorBoard into the workspace."
    )
    mlflow: kinds.Store = Field(
        False, description="Log the run to MLflow: a tracking URI, or true for the one that MLflow is set to."
    )


class InputSize(Section):
    """A size of inputs that the model should be fast at. Samples of the data are cut, or repeated from the
    start, to make it.
    """

    batch: Positive | None = Field(
        None, description="Samples in a call; as many as the data's batches have if left out."
    )
    sequence: Positive | None = Field(
        None, description="Tokens, or vectors, in each sequence; as many as the data has if left out."
    )
    weight: kinds.AboveZero = Field(1.0, description="How much its time counts, against the others.")

    def __str__(self) -> str:
        named = [
            f"batch {self.batch}" if self.batch else "",
            f"sequence {self.sequence}" if self.sequence else "",
        ]
        return ", ".join(filter(None, named)) or "as the data"


class Performance(Section):
    """How latency is measured."""

    warmup: Natural = Field(
        5, description="Runs before timing starts; fewer for a slow model, unless 'iterations' is given."
    )
    iterations: Positive | None = Field(
        None, description="Timed runs; enough for a stable median if left out."
    )
    threads: Positive | None = Field(None, description="Threads of the model; the machine's if left out.")
    streams: Positive | None = Field(
        None,
        description=(
            "TensorFlow: in how many parts, side by side, the winner is tried as well. If left out: in 2 or "
            "4, which any session can run; 1: in none. More, for graphs only: in that many, each on its "
            "share of the threads, for sessions with settings to match."
        ),
    )
    forms: kinds.Forms | None = Field(
        None,
        description=(
            "Which forms of the winner are made, timed and scored: native are those of its own framework "
            "(compiled, streams); litert is for TensorFlow, openvino for ONNX and PyTorch. If left out: "
            "native, and openvino for ONNX."
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
    inputs: tuple[InputSize, ...] | None = Field(
        None,
        description=(
            "Sizes of inputs to be fast at: [{batch: 1, sequence: 128}, {batch: 8, weight: 0.5}]. The winner "
            "has the best weighted time over them; the data's own first batch alone if left out."
        ),
    )
    objective: Annotated[Literal["latency", "throughput"], *word("latency", "throughput")] = Field(
        "latency",
        description=(
            "What counts where there are several inputs: latency, the time of a call, or throughput, the "
            "time of a sample."
        ),
    )
    compile: Annotated[Literal["auto", "never"], *word("auto", "never")] = Field(
        "auto", description="Whether the final model may be compiled: auto where it is faster, or never."
    )
    compare_fp32: Annotated[Literal["auto", "always", "never"], *word("auto", "always", "never")] = Field(
        "auto",
        description=(
            "Whether float models compete, fp32 in other forms (compiled, OpenVINO) and bf16: auto where "
            "int8 is not at least twice as fast as fp32, or where making them takes less time than the rest "
            "of the run."
        ),
    )
    cores_per_instance: Positive | None = Field(
        None,
        description="Cores of each instance in 'octune bench'; elsewhere 'threads', where that is left out.",
    )
    num_of_instance: Positive | None = Field(
        None, description="Instances that 'octune bench' runs at once. While tuning there is one."
    )

    @model_validator(mode="after")
    def _one_way_to_say_how_large(self) -> Self:
        if self.inputs and self.batch_size is not None:
            raise conflict("has both 'inputs' and 'batch_size'; say batch: in each of the inputs.")
        return self

    @property
    def extra(self) -> dict[str, Any]:
        """What was asked for and only some frameworks have; a backend takes or refuses it."""
        return {} if self.streams is None else {"streams": self.streams}


class Workspace(Section):
    """Where a run keeps its journal."""

    path: kinds.FilePath | None = Field(None, description="Folder for the journal of the run.")
    resume: Switch = Field(False, description="Continue the interrupted run in that folder.")


class Engine(Section):
    """Where models are scored: in this process, or on the nodes of a Ray cluster. A name alone will do:
    ``engine: ray``.
    """

    name: Annotated[Literal["local", "ray"], *word("local", "ray")] = Field(
        "local", description="local: in this process; ray: on a Ray cluster."
    )
    address: kinds.Text = Field(
        "auto",
        description=(
            "The cluster: host:port, auto for the one that this machine is a node of, local to start one "
            "here for this run."
        ),
    )
    cpus: Positive | None = Field(
        None, description="CPUs of each worker. If left out, a node has one worker with all its CPUs."
    )
    workers: Positive | None = Field(
        None, description="The largest number of workers. If left out, as many as the nodes have room for."
    )
    timing: Annotated[Literal["driver", "node"], *word("driver", "node")] = Field(
        "driver",
        description=(
            "Where speed is measured: driver is the machine that tunes, node those with the resource "
            "octune_timing, on which nothing else runs."
        ),
    )

    @model_validator(mode="before")
    @classmethod
    def _by_name(cls, data: Any) -> Any:
        return {"name": data} if isinstance(data, str) else data


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
    engine: Annotated[Engine, EmptyIsDefault] = Field(Engine(), description="Where models are scored.")

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
            written[name] = [_plain(item) for item in value] if isinstance(value, tuple) else value
    return written


def _plain(item: Any) -> Any:
    return _written(item) if isinstance(item, BaseModel) else item
