"""How the models of a run are scored: the evaluators that a request and its configuration ask for."""

from __future__ import annotations

from functools import partial

from octune import sources
from octune.backends import Backend
from octune.config import Config
from octune.data import Batches, as_batches
from octune.errors import ConfigError
from octune.evaluation.agreement import Agreement, AgreementEvaluator
from octune.evaluation.base import Evaluator
from octune.evaluation.evaluator import MetricEvaluator
from octune.evaluation.function import FunctionEvaluator
from octune.evaluation.holdout import held_items, search_items, split_batches
from octune.evaluation.metrics import Metric
from octune.evaluation.postprocess import postprocessed
from octune.request import Request
from octune.sources import Materials

__all__ = ["evaluators_of", "without_labels"]


def evaluators_of(
    backend: Backend, request: Request, materials: Materials, config: Config, certify: bool
) -> tuple[Evaluator, Evaluator | None, Batches | None]:
    """The evaluator of the search, the one on data held out of it, and the evaluation data, where it is
    known.
    """
    limit, seed, evaluate = config.tuning.trial_timeout, config.tuning.random_seed, request.evaluate
    if request.unchecked:
        return FunctionEvaluator(lambda model: 0.0), None, None
    if evaluate is not None:
        if config.evaluation.outputs:
            raise ConfigError(
                "evaluation.outputs names what a metric reads, and evaluate= reads the outputs itself. Leave "
                "one of them out."
            )
        batches = None
        if materials.evaluation is not None:
            batches = as_batches(materials.evaluation, role="evaluation")
        if not certify:
            return FunctionEvaluator(evaluate, limit, seed), None, batches
        search, held = (
            FunctionEvaluator(evaluate, limit, seed, partial(items, seed=seed))
            for items in (search_items, held_items)
        )
        return search, held, batches
    if materials.metric is None or materials.evaluation is None:
        missing = "evaluation data" if materials.evaluation is None else "a metric"
        raise ConfigError(
            f"There is no way to score the model: {missing} is missing. Give evaluate=fn, or metric= and "
            "evaluation= (in a file: evaluation.data and evaluation.metric); octune.quantize() applies a "
            "plan without checking."
        )
    metric = (
        materials.metric
        if isinstance(materials.metric, Metric)
        else sources.make_metric(materials.metric, config.evaluation.metric_options)
    )
    metric = postprocessed(metric, config.evaluation.postprocess or {})
    batches = as_batches(materials.evaluation, role="evaluation")
    named = config.evaluation.data
    if request.evaluation is None and named is not None and named.factory is not None:
        batches.again = partial(sources.made_data, named.factory)
    kind = AgreementEvaluator if isinstance(metric, Agreement) else MetricEvaluator
    by = partial(kind, outputs=config.evaluation.outputs)
    if not certify:
        return by(backend, batches, metric, limit, config.evaluation.samples, seed), None, batches
    if config.evaluation.samples is not None:
        raise ConfigError(
            "certify: holdout and evaluation.samples cannot be combined. Leave one out, or give less data."
        )
    to_search, to_hold = split_batches(batches, seed)
    return (
        by(backend, to_search, metric, limit, seed=seed),
        by(backend, to_hold, metric, limit, seed=seed),
        batches,
    )


def without_labels(materials: Materials, config: Config) -> tuple[str, ...]:
    """Without a metric or an evaluate function, fp32's answers are what counts. Without evaluation data, half
    of the calibration data judges.
    """
    if materials.evaluation is None and materials.calibration is None:
        return ()  # nothing to compare on either: the missing data is refused further on
    materials.metric = Agreement(**config.evaluation.metric_options)
    notes = [
        "NO LABELS: nothing says how to score the model, so the criterion is agreement with fp32, not "
        "accuracy"
    ]
    if materials.evaluation is None:
        kept = list(
            as_batches(materials.calibration, role="calibration", limit=config.calibration.most_batches)
        )
        separate = len(kept) > 1
        materials.calibration, materials.evaluation = (kept[::2], kept[1::2]) if separate else (kept, kept)
        if separate:
            notes.append("no evaluation data: every second calibration batch judges, and does not calibrate")
    return tuple(notes)
