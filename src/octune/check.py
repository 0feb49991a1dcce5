"""Judge an int8 model against the fp32 model that it was made from, whoever made it.

    found = octune.check("model-fp32.onnx", "model-int8.onnx", "dev.npz", metric="accuracy", criterion="1%")
    found.outcome           # "pass", "fail" or "undecidable"
    print(found)

The score, its interval and the verdict are those of :func:`octune.tune`: items are paired, and "undecidable"
says that this many of them cannot tell a pass from a fail. The two models may be of different kinds.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np

from octune import sources
from octune.backends.opened import Opened
from octune.checks import criterion_of, with_criterion
from octune.comparison import Check, Flip, Side
from octune.config import Config, as_config
from octune.cost.latency import Timed, Timing, compare
from octune.cost.load import Patience
from octune.coverage import Coverage
from octune.criterion import Criterion
from octune.data import Batches, as_batches
from octune.errors import ConfigError, DataError, EvaluationError, summary
from octune.evaluation.agreement import Agreement
from octune.evaluation.base import Evaluator
from octune.evaluation.metrics import Metric
from octune.evaluation.postprocess import postprocessed
from octune.evaluation.recording import Said, recording
from octune.huggingface import FOLDER, has_tokenizer, origin
from octune.machine import probe_machine
from octune.matching import Pair
from octune.opening import open_model
from octune.score import Score

__all__ = ["Check", "check"]

log = logging.getLogger("octune")


def check(
    fp32: Any,
    int8: Any,
    data: Any = None,
    *,
    metric: str | Metric | Callable[..., Any] | None = None,
    criterion: Criterion | float | str | Mapping[str, Any] | None = None,
    config: Config | str | Path | dict[str, Any] | None = None,
    timing: bool = True,
    trust: bool = False,
    progress: Callable[[str], None] = lambda doing: None,
) -> Check:
    """Score both models on the same data, item by item, and time them in turns.

    ``fp32`` and ``int8`` are what :func:`octune.opening.open_model` opens: paths, ``package.module:factory``,
    or objects. ``data`` is an ``.npz`` file, ``package.module:factory``, or batches as for
    :func:`octune.tune`; if left out, ``config`` names it in its ``evaluation`` section. Without labels, what
    counts is agreement with fp32. With whole numbers as labels and no ``metric``, it is accuracy. ``trust``:
    as for :func:`octune.load`, for folders that Octune saved elsewhere.
    """
    begun = time.perf_counter()
    settings = with_criterion(as_config(config), criterion)
    settings = _with_data(settings, data) if isinstance(data, str | Path) else settings
    _check_data_named(settings, data)
    threads = settings.performance.threads or settings.performance.cores_per_instance
    with ExitStack() as stack:
        progress("opening the models")
        models = [
            stack.enter_context(closing(open_model(one, threads=threads, trust=trust)))
            for one in (fp32, int8)
        ]
        pair = Pair(*models)
        progress("reading the data")
        settings = _only_evaluation(settings, [fp32, int8])
        given = None if isinstance(data, str | Path) else data
        materials = sources.collect(settings, pair.fp32, None, given, metric)
        batches = as_batches(materials.evaluation, role="evaluation")
        chosen = _metric(materials.metric, settings, pair, batches)
        evaluator = recording(pair, batches, chosen, settings.evaluation.samples, settings.evaluation.outputs)
        judge = criterion_of(criterion, settings, evaluator)
        evaluator.seen = lambda items: progress(f"scoring fp32: {items:,} items")
        baseline, pairing = evaluator.baseline(pair.fp32)
        _check_enough(baseline, judge, evaluator)
        before = evaluator.take()
        evaluator.seen = lambda items: progress(f"scoring int8: {items:,} of {len(before):,} items")
        score, failure, flips = None, None, None
        try:
            score = evaluator(pair.int8, pairing)
            flips = _flips(before, evaluator.take(), baseline, score, materials.evaluation)
        except EvaluationError as error:  # NaN, say: that is the model's fault, not the caller's
            failure = str(error)
        progress("timing both in turns")
        timed, rows = _timed(pair, batches, settings) if timing else (None, None)
        progress("counting multiply-adds")
        covered = [_coverage(pair, model, batches) for model in (pair.fp32, pair.int8)]
        return Check(
            Side.of(pair.fp32, covered[0], baseline, None if timed is None else timed.fp32_spread),
            Side.of(pair.int8, covered[1], score, None if timed is None else timed.spread),
            metric=evaluator.name,
            criterion=judge,
            verdict=None if score is None else judge.judge(baseline, score),
            timed=timed,
            batch=rows,
            flips=flips,
            failure=failure,
            notes=[
                *batches.notes,
                *_notes(chosen, baseline, score, flips),
                *evaluator.notes(pairing),
                *pair.notes,
            ],
            seconds=time.perf_counter() - begun,
            environment={"machine": probe_machine().to_json(), "threads": threads or probe_machine().cores},
        )


def _notes(
    metric: Metric, baseline: Score, score: Score | None, flips: Sequence[Flip] | None
) -> Iterator[str]:
    if isinstance(metric, Agreement):
        yield "no labels are used: what is judged is agreement with fp32, not accuracy"
    if score is None:
        return
    if baseline.items is not None and score.items is None:
        yield "the data came in another order for int8, so items cannot be compared: do not shuffle it"
    elif flips is None:
        yield f"{metric.name} knows no right and wrong answers here, so none can flip"


# -- data and metric -----------------------------------------------------------------------------------------


def _with_data(config: Config, data: str | Path) -> Config:
    """The configuration with the data that a path or ``package.module:factory`` names."""
    sections = config.to_json()
    return Config.build(
        **{**sections, "evaluation": {**(sections.get("evaluation") or {}), "data": str(data)}}
    )


def _check_data_named(config: Config, data: Any) -> None:
    source = config.evaluation.data
    if data is None and source is None:
        raise ConfigError(
            "There is no data to compare the models on. Give an .npz file, package.module:factory, a task "
            "with the folder of its files, or a configuration with evaluation.data."
        )
    if source is not None and source.arrays is not None and not source.arrays.is_file():
        raise DataError(
            f"There is no file {source.arrays}. Expected an .npz file with inputs by name, and labels."
        )


def _only_evaluation(config: Config, models: Sequence[Any]) -> Config:
    """Without calibration data, which is for tuning. A task is tokenized as one of the models says, if the
    configuration does not say it.
    """
    config = config.model_copy(
        update={"calibration": config.calibration.model_copy(update={"data": None}), "model": None}
    )
    source = config.evaluation.data
    if source is None or source.task is None or source.tokenizer is not None:
        return config
    named = [Path(model) for model in models if isinstance(model, str | Path)]
    places = [origin(None, str(place)) for model in named for place in (model / FOLDER, model)]
    held = [place for place in places if place is not None and has_tokenizer(place)]
    if not held:
        raise ConfigError(
            f"The task {source.task} needs a tokenizer, and neither {models[0]} nor {models[1]} has one. "
            "Name it: --tokenizer, or evaluation.data.tokenizer."
        )
    data = source.model_copy(update={"tokenizer": str(held[0])})
    return config.model_copy(update={"evaluation": config.evaluation.model_copy(update={"data": data})})


def _metric(named: Any, config: Config, pair: Pair, batches: Batches) -> Metric:
    if named is None:
        _, label = pair.split(batches.first())
        if label is None:
            named = Agreement.name
        elif np.asarray(label).dtype.kind in "iub" and np.ndim(label) == 1:
            named = "accuracy"
        else:
            raise ConfigError(
                "The data has labels that are not class numbers, so a metric must be named (--metric, or "
                "metric=), such as mse or spearmanr; agreement compares with fp32 instead."
            )
    metric = (
        named if isinstance(named, Metric) else sources.make_metric(named, config.evaluation.metric_options)
    )
    return postprocessed(metric, config.evaluation.postprocess or {})


def _check_enough(baseline: Score, judge: Criterion, evaluator: Evaluator) -> None:
    if baseline.n == 1:
        raise DataError(
            "The data has one item, which says nothing about a model. Give hundreds, or at least two."
        )
    if judge.confidence is not None and baseline.items is None:
        raise ConfigError(
            f"A confidence of {judge.confidence:g} needs one score per item, and {evaluator.name!r} returns "
            "a single number. Return one number per item, or leave the confidence out."
        )


# -- timing and flips ----------------------------------------------------------------------------------------


def _timed(pair: Pair, batches: Batches, config: Config) -> tuple[Timed, int]:
    """Both models in turns on the first batch, and how many rows that has."""
    named, _ = pair.split(batches.first())
    fp32, int8 = (pair.call(model, named) for model in (pair.fp32, pair.int8))
    if config.performance.batch_size is not None:
        fp32, int8 = (inputs.resized(config.performance.batch_size) for inputs in (fp32, int8))
    timing = Timing(config.performance.warmup, config.performance.iterations)
    timed = compare(lambda: pair.fp32.run(fp32), lambda: pair.int8.run(int8), timing, patience=Patience())
    return timed, fp32.batch_size


def _coverage(pair: Pair, model: Opened, batches: Batches) -> Coverage | None:
    """What a model computes in, on the first batch."""
    named, _ = pair.split(batches.first())
    try:
        return model.coverage(pair.call(model, named))
    except Exception as error:  # a verdict does not fail for want of a number
        log.debug("coverage of %s", model.name, exc_info=True)
        pair.notes.append(f"multiply-adds of {model.name} could not be counted: {summary(error)}")
        return None


def _flips(
    before: list[Said], after: list[Said], baseline: Score, score: Score, data: Any
) -> list[Flip] | None:
    """The items on which right and wrong differ; None where the metric knows no right and wrong."""
    if baseline.hits is None or score.hits is None or not len(before) == len(after) == baseline.hits.size:
        return None
    about = getattr(data, "about", None)
    begins = {said.batch: number for number, said in reversed(list(enumerate(before)))}
    flips = []
    for item in map(int, np.flatnonzero(baseline.hits != score.hits)):
        fp32, int8 = before[item].answer, after[item].answer
        number = before[item].batch
        known = about(number)[item - begins[number]] if about is not None else {}
        change = "lost" if baseline.hits[item] > score.hits[item] else "gained"
        flips.append(
            Flip(
                item,
                change,
                fp32.said,
                int8.said,
                fp32.label,
                fp32.output,
                int8.output,
                known,
            )
        )
    return flips
