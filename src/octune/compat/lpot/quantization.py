"""LPOT's ``Quantization``: a YAML file, helpers to build data and metric, and one call that tunes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from octune.compat.handover import hand_over, read_config, refuse_training
from octune.compat.lpot.data import DataLoader, make_dataset
from octune.compat.lpot.metric import UpdateMetric
from octune.config import Config
from octune.errors import CriterionError
from octune.evaluation.metrics import Metric, get_metric
from octune.evaluation.postprocess import Postprocessed, Step
from octune.result import Result
from octune.sources import make_metric
from octune.tune import quantize, tune

__all__ = ["Quantization"]


class Quantization:
    """Tunes models as a YAML file says, in LPOT's dialect or any other that Octune reads.

    With ``strict``, a run in which nothing meets the criterion raises CriterionError instead of handing over
    the closest model.
    """

    def __init__(self, conf: str | Path | dict[str, Any] | Config, *, strict: bool = False) -> None:
        self.config = read_config(conf)
        self.strict = strict
        self.result: Result | None = None
        self._metric: Metric | None = None
        self._steps: list[Step] = []

    def dataset(self, dataset_type: str, *args: Any, **kwargs: Any) -> Any:
        """A data set by its name: dummy, bert, GLUE or ImageFolder."""
        return make_dataset(dataset_type, *args, **kwargs)

    def dataloader(
        self,
        dataset: Any,
        batch_size: int = 1,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        last_batch: str = "rollover",
        sampler: Iterable[int] | None = None,
        batch_sampler: Iterable[Sequence[int]] | None = None,
        num_workers: int = 0,
        pin_memory: bool = False,
    ) -> Any:
        """Batches of a data set. PyTorch's own loader serves a YAML file that names pytorch, and only it can
        use several workers.
        """
        if self.config.model is not None and self.config.model.framework == "pytorch":
            from torch.utils.data import DataLoader as TorchLoader

            common: dict[str, Any] = {
                "collate_fn": collate_fn,
                "num_workers": num_workers,
                "pin_memory": pin_memory,
            }
            if batch_sampler is not None:
                return TorchLoader(dataset, batch_sampler=[list(batch) for batch in batch_sampler], **common)
            return TorchLoader(
                dataset, batch_size, sampler=sampler, drop_last=last_batch == "discard", **common
            )
        return DataLoader(
            dataset, batch_size, collate_fn, last_batch, sampler, batch_sampler, num_workers, pin_memory
        )

    def metric(self, name: str, metric_cls: Any, **kwargs: Any) -> None:
        """Score by a class of your own, with ``update(preds, labels)`` and ``result()``; or by one of
        Octune's metrics.
        """
        ours = isinstance(metric_cls, Metric) or (
            isinstance(metric_cls, type) and issubclass(metric_cls, Metric)
        )
        self._metric = get_metric(metric_cls, **kwargs) if ours else UpdateMetric(name, metric_cls, kwargs)

    def postprocess(self, name: str, postprocess_cls: Callable[..., Step], **kwargs: Any) -> None:
        """Put a step between the model's output and the metric: called with ``(predictions, labels)``, it
        returns both.
        """
        self._steps.append(postprocess_cls(**kwargs))

    def __call__(
        self,
        model: Any,
        q_dataloader: Any = None,
        q_func: Callable[[Any], Any] | None = None,
        eval_dataloader: Any = None,
        eval_func: Callable[[Any], Any] | None = None,
    ) -> Any:
        """The fastest quantized form of ``model`` that meets the criterion: a tf.Graph for a graph, a module
        for a module.

        It is scored by ``eval_func(model) -> float``, or by a metric over ``eval_dataloader``. With neither,
        agreement with fp32 is what counts. A loader that the call leaves out may be named in the YAML file.
        ``performance_only`` in the file skips scoring.
        """
        refuse_training(q_func)
        if self.config.tuning.performance_only:
            return self._unscored(model, q_dataloader)
        self.result = tune(
            model,
            calibration=q_dataloader,
            evaluate=eval_func,
            evaluation=eval_dataloader,
            metric=None if eval_func is not None else self._scoring(),
            config=self.config,
        )
        return hand_over(self.result, strict=self.strict)

    def _scoring(self) -> Metric | None:
        """The metric of the calls above, after its steps; None leaves it to the YAML file."""
        metric = self._metric
        if metric is None and self._steps and self.config.evaluation.metric is not None:
            metric = make_metric(self.config.evaluation.metric, self.config.evaluation.metric_options)
        return Postprocessed(metric, self._steps) if metric is not None and self._steps else metric

    def _unscored(self, model: Any, q_dataloader: Any) -> Any:
        story = (
            "tuning.exit_policy.performance_only skips scoring: the fastest plan is applied, and nothing "
            "is known of its accuracy."
        )
        if self.strict:
            raise CriterionError(f"{story} Leave 'strict' out, or set performance_only to false.")
        warnings.warn(story, stacklevel=3)
        config = self.config.model_copy(
            update={"tuning": self.config.tuning.model_copy(update={"performance_only": False})}
        )
        return quantize(model, calibration=q_dataloader, config=config)
