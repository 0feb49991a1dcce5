"""The two inherited ways of writing a configuration, iLiT's and LPOT's, as tables: old key -> key of the
schema.

    detect_dialect({"framework": [{"name": "pytorch"}]})       "ilit"
    to_native("ilit", {"framework": "pytorch"}).native         {"model": {"framework": "pytorch"}, ...}

Where the two differ from the schema in a default (strategy basic, static ranges, little calibration data),
theirs is kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import Any, Literal

from pydantic_core import PydanticCustomError

from octune.config.datasets import read_dataset
from octune.config.fields import is_pattern, split_metric
from octune.config.messages import Keys, Where, got, keys_of
from octune.config.schema import Config
from octune.config.translate import Dialect, Row, Translation, keep, keys_of_rows, move, refuse, translate

DialectName = Literal["native", "ilit", "lpot"]
OPTIONS = "{granularity,scheme,dtype}"


def _metric(done: Translation, value: Any, where: Where) -> None:
    """``topk``, ``{topk: 1}``, ``- topk: 1`` or ``{GLUE: {task: mrpc}}``."""
    given = value if isinstance(value, str) else {key: item for key, item, _ in done.entries(value, where)}
    try:
        name, options = split_metric(given)
    except PydanticCustomError as error:
        done.problem(where, f"{error.message()}. Got {got(value)}.")
        return
    done.put(("evaluation", "metric"), name, where)
    done.put(("evaluation", "metric_options"), options, where)


def _postprocess(done: Translation, value: Any, where: Where) -> None:
    """``{transform: {LabelShift: 1}}``; the schema has the steps without the word around them."""
    for key, item, at in done.entries(value, where):
        if key != "transform":
            done.unknown(
                at,
                Keys(
                    {"evaluation": Keys({"accuracy": Keys({"postprocess": Keys({"transform": Keys({})})})})}
                ),
            )
            continue
        done.put(
            ("evaluation", "postprocess"), {step: options for step, options, _ in done.entries(item, at)}, at
        )


def _ops(done: Translation, value: Any, where: Where, *, patterns: bool) -> None:
    """``{'conv1': {'weight': {'dtype': ['fp32']}}}``. iLiT knows exact names only, so its names are never
    regular expressions.
    """
    for op, tensors, at in done.entries(value, where):
        new = ("quantization", "ops", op if patterns or not is_pattern(op) else re.escape(op))
        done.put(new, {}, at)
        for tensor, options, below in done.entries(tensors, at):
            done.put((*new, tensor), {}, below)
            for key, item, last in done.entries(options, below):
                done.put((*new, tensor, key), item, last)


def _ilit_ops(done: Translation, value: Any, where: Where) -> None:
    _ops(done, value, where, patterns=False)


def _lpot_ops(done: Translation, value: Any, where: Where) -> None:
    _ops(done, value, where, patterns=True)


def _calibration_data(done: Translation, value: Any, where: Where) -> None:
    read_dataset(done, value, where, ("calibration", "data"))


def _evaluation_data(done: Translation, value: Any, where: Where) -> None:
    read_dataset(done, value, where, ("evaluation", "data"))


def _all_is_none(value: Any) -> Any:
    """LPOT's -1 for "until the data ends" is the schema's "no limit"."""
    return None if value == -1 else value


def _defaults(done: Translation) -> None:
    done.default(("tuning", "strategy"), "basic")
    done.default(("quantization", "approach"), "static")


def _finish_ilit(done: Translation) -> None:
    _defaults(done)
    done.default(("calibration", "batches"), [1])


def _finish_lpot(done: Translation) -> None:
    _defaults(done)
    done.default(("calibration", "samples"), [100])
    loaders = {
        "quantization.calibration": "calibration",
        "evaluation.accuracy": "evaluation",
        "evaluation.performance": "performance",
    }
    for old, section in loaders.items():
        if f"{old}.dataloader" in done.visited:
            done.default((section, "batch_size"), 1)
    _evaluated_batches(done)
    _timed_data(done)
    _resume(done)


def _evaluated_batches(done: Translation) -> None:
    """LPOT limits the evaluation in batches, the schema in samples."""
    value, where = done.kept.get("evaluation.accuracy.iteration", (None, ()))
    if not where or value == -1:
        return
    size = done.native.get("evaluation", {}).get("batch_size")
    if size is None:
        done.problem(
            where,
            "counts batches, but no batch size is known here. Add evaluation.accuracy.dataloader.batch_size, "
            "or remove it.",
        )
    elif not isinstance(value, int) or isinstance(value, bool) or value < 1:
        done.problem(where, f"must be a whole number >= 1, or -1 for all data. Got {got(value)}.")
    elif isinstance(size, int):
        done.put(("evaluation", "samples"), value * size, where)


def _timed_data(done: Translation) -> None:
    """Latency is measured on the data that the model is scored on; a request for other data is refused."""
    timed, where = done.kept.get("evaluation.performance.dataloader.dataset", (None, ()))
    if where and timed != done.kept.get("evaluation.accuracy.dataloader.dataset", (None, ()))[0]:
        done.problem(
            where,
            "cannot be honoured: latency is measured on evaluation.accuracy.dataloader.dataset. Give the "
            "same data, or none.",
        )


def _resume(done: Translation) -> None:
    """LPOT's resume is the path of what a run left behind; ours is a switch beside the path."""
    value, where = done.kept.get("tuning.workspace.resume", (None, ()))
    if not isinstance(value, str):
        if where:
            done.put(("workspace", "resume"), value, where)
        return
    path = done.native.get("workspace", {}).get("path")
    if PurePath(value).suffix in (".snapshot", ".pkl", ".pickle"):
        done.problem(
            where,
            "names a history file of LPOT, which cannot be read. Write true, or the folder of an Octune "
            f"run. Got {value!r}.",
        )
    elif path is not None and PurePath(str(path)) != PurePath(value):
        done.problem(
            where,
            f"names a different folder from tuning.workspace.path ({path!r}). Write 'resume: true' to go on "
            "in that folder.",
        )
    else:
        done.put(("workspace", "path"), value, where)
        done.put(("workspace", "resume"), True, where)


ILIT = Dialect(
    "iLiT",
    [
        *move("framework", "model.framework"),
        *move("framework.name", "model.framework"),
        *move("framework.{inputs,outputs}", "model.{}"),
        *move("device", "device"),
        *move("calibration.iterations", "calibration.batches"),
        *move("calibration.algorithm.{weight,activation}", "quantization.{}.algorithm"),
        *move("quantization.approach", "quantization.approach"),
        *move(f"quantization.{{weight,activation}}.{OPTIONS}", "quantization.{}.{}"),
        Row("tuning.ops", _ilit_ops),
        *move("tuning.strategy", "tuning.strategy"),
        *move("tuning.strategy.name", "tuning.strategy"),
        Row("tuning.metric", _metric),
        *move("tuning.accuracy_criterion.{relative,absolute,higher_is_better}", "criterion.{}"),
        *move("tuning.{objective,timeout,random_seed}", "tuning.{}"),
        *move("snapshot.path", "workspace.path"),
    ],
    _finish_ilit,
)

_NO_TRANSFORM = (
    "data is read as it is. Do this in the data loader you pass, or in a function named as "
    "'package.module:factory'."
)


def _loader(old: str, section: str, dataset: list[Row]) -> list[Row]:
    """An LPOT data loader: what it reads, and in batches of what size. What it does to the data on the way
    cannot be reproduced.
    """
    return [
        *move(f"{old}.batch_size", f"{section}.batch_size"),
        *dataset,
        refuse(f"{old}.last_batch", "the last batch is always used.", unless="rollover"),
        refuse(f"{old}.shuffle", "data is read in its own order.", unless=False),
        refuse(f"{old}.transform", _NO_TRANSFORM),
        refuse(f"{old}.filter", _NO_TRANSFORM),
    ]


def _scored_data(old: str) -> list[Row]:
    """The data that models are scored on. It is also remembered, because the data for timing must be the
    same.
    """
    kept = keep(old)

    def act(done: Translation, value: Any, where: Where) -> None:
        kept.act(done, value, where)
        _evaluation_data(done, value, where)

    return [Row(old, act)]


LPOT = Dialect(
    "LPOT",
    [
        refuse("version", "only version 1.0 of the format is known.", unless=1.0),
        *move("model.{name,framework,inputs,outputs}", "model.{}"),
        *move("device", "device"),
        *move("quantization.calibration.sampling_size", "calibration.samples"),
        *_loader(
            "quantization.calibration.dataloader",
            "calibration",
            [Row("quantization.calibration.dataloader.dataset", _calibration_data)],
        ),
        *move("quantization.approach", "quantization.approach"),
        *move(
            "quantization.model_wise.{weight,activation}.{granularity,scheme,dtype,algorithm}",
            "quantization.{}.{}",
        ),
        Row("quantization.op_wise", _lpot_ops),
        Row("evaluation.accuracy.metric", _metric),
        *_loader(
            "evaluation.accuracy.dataloader",
            "evaluation",
            _scored_data("evaluation.accuracy.dataloader.dataset"),
        ),
        Row("evaluation.accuracy.postprocess", _postprocess),
        keep("evaluation.accuracy.iteration"),
        *move("evaluation.performance.warmup", "performance.warmup"),
        *move("evaluation.performance.iteration", "performance.iterations", _all_is_none),
        *move("evaluation.performance.configs.{cores_per_instance,num_of_instance}", "performance.{}"),
        *move("evaluation.performance.configs.intra_num_of_threads", "performance.threads"),
        refuse(
            "evaluation.performance.configs.inter_num_of_threads",
            "ops run one after the other; set intra_num_of_threads.",
            unless=1,
        ),
        refuse(
            "evaluation.performance.configs.kmp_blocktime", "set KMP_BLOCKTIME in the environment instead."
        ),
        refuse("evaluation.performance.configs.kmp_affinity", "set KMP_AFFINITY in the environment instead."),
        *_loader(
            "evaluation.performance.dataloader",
            "performance",
            [keep("evaluation.performance.dataloader.dataset")],
        ),
        refuse("evaluation.performance.postprocess", "only the model itself is timed."),
        *move("tuning.strategy", "tuning.strategy"),
        *move("tuning.strategy.name", "tuning.strategy"),
        *move("tuning.accuracy_criterion.{relative,absolute,higher_is_better}", "criterion.{}"),
        *move("tuning.exit_policy.{timeout,max_trials,performance_only}", "tuning.{}"),
        *move("tuning.{objective,random_seed,tensorboard}", "tuning.{}"),
        *move("tuning.workspace.path", "workspace.path"),
        keep("tuning.workspace.resume"),
    ],
    _finish_lpot,
)

DIALECTS: dict[str, Dialect] = {"ilit": ILIT, "lpot": LPOT}
CALLED: dict[DialectName, str] = {
    "native": "Octune's own dialect",
    "ilit": "the iLiT dialect",
    "lpot": "the LPOT dialect",
}
KEYS: dict[DialectName, Keys] = {
    "native": keys_of(Config),
    "ilit": keys_of_rows(ILIT.rows),
    "lpot": keys_of_rows(LPOT.rows),
}


def detect_dialect(data: Mapping[str, Any]) -> DialectName:
    """The dialect that knows most of a document's keys: ``detect_dialect({"tuning": {"exit_policy": {}}}) ==
    "lpot"``.

    Keys that all dialects have decide nothing. In a tie, a list of mappings means iLiT, and
    ``model.framework`` without ``model.path`` means LPOT; everything else is native.
    """
    known = {name: _known(data, keys, lists=name != "native") for name, keys in KEYS.items()}
    best = {name for name, count in known.items() if count == max(known.values())}
    model = data.get("model")
    if "ilit" in best and (_has_list_of_mappings(data) or "framework" in data or best == {"ilit"}):
        return "ilit"
    if "lpot" in best and (
        "native" not in best or (isinstance(model, Mapping) and "framework" in model and "path" not in model)
    ):
        return "lpot"
    return "native"


def to_native(name: DialectName, data: Mapping[str, Any]) -> Translation:
    """Translates a document of one of the inherited dialects into the schema's terms."""
    return translate(DIALECTS[name], data, foreign_key(name, data))


def foreign_key(name: DialectName, data: Mapping[str, Any]) -> Callable[[Where], str]:
    """Says that an unknown key belongs to another dialect, and which key made this a document of this
    dialect.
    """

    def note(where: Where) -> str:
        other = next((other for other in KEYS if other != name and _leads_to(KEYS[other], where)), None)
        sign = _sign(data, name) if other else None
        return (
            f"It is a key of {CALLED[other]}, but {sign!r} makes this a document of {CALLED[name]}."
            if other and sign
            else ""
        )

    return note


def _known(data: Any, keys: Keys, *, lists: bool) -> int:
    if lists and isinstance(data, list | tuple):
        return sum(_known(item, keys, lists=lists) for item in data)
    if not isinstance(data, Mapping):
        return 0
    return sum(
        1 + _known(item, keys.known[str(key)], lists=lists)
        for key, item in data.items()
        if str(key) in keys.known
    )


def _has_list_of_mappings(data: Any) -> bool:
    if isinstance(data, Mapping):
        return any(_has_list_of_mappings(item) for item in data.values())
    return isinstance(data, list | tuple) and bool(data) and all(isinstance(item, Mapping) for item in data)


def _leads_to(keys: Keys, where: Where) -> bool:
    here: Keys | None = keys
    for key in where:
        if isinstance(key, int):
            continue
        here = here.known.get(key) if here else None
    return here is not None


def _sign(data: Mapping[str, Any], name: DialectName) -> str | None:
    """A key of the document that only this dialect has."""
    own = [
        path
        for path in KEYS[name].paths()
        if not any(_leads_to(KEYS[other], path) for other in KEYS if other != name)
    ]
    for path in own:
        found: Any = data
        for key in path:
            found = found.get(key) if isinstance(found, Mapping) else None
        if found is not None:
            return ".".join(path)
    return None
