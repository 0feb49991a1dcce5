"""Which schemes are refused here, because their int8 kernels disagree with fp32 or do not run at all.

    refused = refused_schemes(rewriter, watcher, inputs)
    refused["dense/MatMul", "static", False]                    # "int8 disagrees with fp32 ..."

All ops are tried at once on a few rows of the first calibration batch: first in the static scheme, then in
the dynamic one, or with all their repairs if they have none. Some kernels are silently wrong; how that is
found out is said in :mod:`octune.backends.tensorflow.probe.kernel_check`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy.typing as npt
import tensorflow as tf

from octune.backends.batches import Inputs
from octune.backends.tensorflow.int8.rewrite import Rewriter
from octune.backends.tensorflow.probe.kernel_check import Check, check, needed
from octune.backends.tensorflow.probe.watching import Watcher
from octune.calibration import Observer, Ranges
from octune.errors import summary
from octune.plan import Mode, Op, Plan, Scheme

__all__ = ["refused_schemes"]

Refused = dict[tuple[str, Mode | None, bool], str]


def refused_schemes(rewriter: Rewriter, watcher: Watcher, inputs: Inputs) -> Refused:
    """(op, mode, whether repaired) -> why it may not be used, for those that may not."""
    ranges = _ranges(watcher, inputs)
    batch = _Batch(rewriter, watcher, inputs, ranges)
    rounds: tuple[dict[str, Scheme], ...] = ({}, {})
    for op in rewriter.ops():
        if op.name in ranges and ranges[op.name].finite:
            for schemes, scheme in zip(rounds, _asked(op), strict=True):
                schemes.update({} if scheme is None else {op.name: scheme})
    batch.fetch(name for schemes in rounds for name in needed(rewriter, Plan(schemes), ranges))
    return {
        (name, schemes[name].mode, bool(schemes[name].repairs)): why
        for schemes in rounds
        for name, why in _failures(batch, schemes).items()
    }


def _asked(op: Op) -> tuple[Scheme | None, Scheme | None]:
    """The two schemes in which an op is tried."""
    static = [scheme for scheme in op.schemes if scheme.mode == "static"]
    dynamic = next((scheme for scheme in op.schemes if scheme.mode == "dynamic"), None)
    repaired = max(
        (scheme for scheme in static if scheme.repairs), key=lambda scheme: len(scheme.repairs), default=None
    )
    return next((scheme for scheme in static if not scheme.repairs), None), dynamic or repaired


class _Batch:
    """What fp32 makes of one batch. A new set of tensors costs TensorFlow seconds, so they are fetched
    together where possible.
    """

    def __init__(self, rewriter: Rewriter, watcher: Watcher, inputs: Inputs, ranges: Ranges) -> None:
        self.rewriter, self._watcher, self._inputs, self.ranges = rewriter, watcher, inputs, ranges
        self._values: dict[str, npt.NDArray[Any]] = {}

    def fetch(self, names: Iterable[str]) -> None:
        missing = [name for name in dict.fromkeys(names) if name not in self._values]
        if missing:
            self._values.update(self._watcher.fetch(missing, self._inputs))

    def check(self, plan: Plan) -> dict[str, Check]:
        self.fetch(needed(self.rewriter, plan, self.ranges))
        return check(
            self.rewriter, plan, self.ranges, self._values, self._inputs.kwargs, self._watcher.threads
        )


def _ranges(watcher: Watcher, inputs: Inputs) -> Ranges:
    observers: dict[str, Observer] = {}

    def visit(op: str, array: object, *, shape: tuple[int, ...], channel_axis: int = -1) -> None:
        if array is not None:
            observers.setdefault(op, Observer()).update(array, channel_axis=channel_axis, shape=shape)  # type: ignore[arg-type]

    watcher(inputs, visit)
    return Ranges(
        {name: stats for name, observer in observers.items() if (stats := observer.stats()) is not None}
    )


def _failures(batch: _Batch, wanted: Mapping[str, Scheme]) -> dict[str, str]:
    if not wanted:
        return {}
    try:
        found = batch.check(Plan(wanted))
    except (tf.errors.OpError, ValueError) as error:
        if len(wanted) == 1:
            return {name: f"its int8 form does not run here: {summary(error)}" for name in wanted}
        # At least one of them fails: halves in which none does are done.
        names, half = list(wanted), len(wanted) // 2
        parts = ({name: wanted[name] for name in part} for part in (names[:half], names[half:]))
        return {name: why for part in parts for name, why in _failures(batch, part).items()}
    return {
        name: f"int8 disagrees with fp32 on a calibration batch: {one}"
        for name, one in found.items()
        if not one.agrees
    }
