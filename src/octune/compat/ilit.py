"""iLiT's ``Tuner``: code written for it runs after changing its import line.

    from octune.compat import ilit

    tuner = ilit.Tuner("./conf.yaml")
    model = tuner.tune(model, dataloader, eval_func=eval_func)
    tuner.result                      # everything that was learned: an octune.Result

The model needs no QuantStub and no fusion by hand; the one you bring is not changed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from octune.compat.handover import hand_over, read_config, refuse_training, resumed
from octune.config import Config
from octune.result import Result
from octune.tune import tune

__all__ = ["Tuner"]


class Tuner:
    """Tunes models as a YAML file says, in iLiT's dialect or any other that Octune reads.

    With ``strict``, a run in which nothing meets the criterion raises CriterionError instead of handing over
    the closest model.
    """

    def __init__(self, conf: str | Path | dict[str, Any] | Config, *, strict: bool = False) -> None:
        self.config = read_config(conf)
        self.strict = strict
        self.result: Result | None = None

    def tune(
        self,
        model: Any,
        q_dataloader: Any,
        q_func: Callable[[Any], Any] | None = None,
        eval_dataloader: Any = None,
        eval_func: Callable[[Any], Any] | None = None,
        resume_file: str | Path | None = None,
    ) -> Any:
        """The fastest quantized form of ``model`` that meets the criterion.

        It is scored by ``eval_func(model) -> float``, or by the YAML's ``tuning.metric`` over
        ``eval_dataloader``. Both loaders yield ``(inputs, label)``; a dict of inputs means
        ``model(**inputs)``. ``resume_file`` is the folder of an interrupted run, the one that
        ``snapshot.path`` named.
        """
        refuse_training(q_func)
        config = resumed(self.config, resume_file)
        self.result = tune(
            model, calibration=q_dataloader, evaluate=eval_func, evaluation=eval_dataloader, config=config
        )
        return hand_over(self.result, strict=self.strict)
