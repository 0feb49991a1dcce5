"""What runs on the nodes: a process that keeps one model, makes it anew for every plan, and answers batches.

Only small things travel again and again: plans, numbers of batches, answers. The model, the data and the
ranges are in the object store of Ray, which sends them to a node once.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from octune.backends import Settings, backend_named
from octune.backends.base import Backend
from octune.calibration import Observed, Ranges, observed
from octune.cost.latency import Speedup, Timing
from octune.cost.table import measure_ops
from octune.engine.ray.kind import describe
from octune.engine.stop import Stop
from octune.engine.stopwatch import Stopwatch
from octune.errors import ClusterError
from octune.evaluation.base import Evaluator
from octune.evaluation.pairing import Pairing
from octune.pinning import placed, threads_of
from octune.plan import Op, Plan, Scheme
from octune.score import Score

__all__ = ["Box", "HowTimed", "Parcel", "Recipe", "Worker", "fetched"]

SOON = 1e-3  # seconds left when there are none: zero would be no limit


@dataclass(frozen=True, slots=True)
class Box:
    """Something in the object store. Inside a box it is not fetched before it is needed."""

    ref: Any

    @property
    def key(self) -> str:
        return str(self.ref.hex())


def fetched(box: Box) -> Any:
    """What is in the box."""
    import ray

    return ray.get(box.ref)


@dataclass(frozen=True, slots=True)
class Parcel:
    """What every model of a run is made from: the fp32 model, or a function that opens it (``opens``), and
    its evaluators.
    """

    model: Box
    opens: bool
    framework: str
    fingerprint: str
    settings: Settings
    threads: int | None  # of the driver
    evaluators: Mapping[str, Box]


@dataclass(frozen=True, slots=True)
class Recipe:
    """One model: its form and plan, the batch that the model is prepared with, the ranges, and the batch that
    other forms are made for.
    """

    form: str
    plan: Plan
    prepared: Box | None = None
    ranges: Box | None = None
    example: Box | None = None

    @property
    def key(self) -> tuple[str, ...]:
        boxes = (self.prepared, self.ranges)
        return (self.form, self.plan.digest, *(box.key if box else "" for box in boxes))


@dataclass(frozen=True, slots=True)
class HowTimed:
    """How models are timed: on which example and on which sizes of ``inputs``, and how many seconds are left
    for it.
    """

    inputs: Box
    timing: Timing
    left: float | None = None


class Worker:
    """One process of a cluster. ``pinned``: it keeps to its cores, as what is timed must."""

    def __init__(self, threads: int | None, *, pinned: bool = False) -> None:
        cores = threads
        if pinned:
            own = placed(1, threads)[0]
            os.sched_setaffinity(0, own)
            cores = len(own)
        # Before any framework is imported: all of them read this then, and Ray itself says 1.
        os.environ.update(threads_of(cores or 1))
        self._threads = cores
        self._backend: Backend | None = None
        self._opened_for: int | None = None  # threads
        self._prepared: Box | None = None
        self._evaluators: dict[str, Evaluator] = {}
        self._model: tuple[tuple[str, ...], Any] | None = None
        self._stopwatch: Stopwatch | None = None
        self._boxes: dict[str, Any] = {}

    def describe(self) -> dict[str, Any]:
        """Which kind of node this is."""
        return {**describe(), "host": socket.gethostname(), "pid": os.getpid(), "cores": _cores()}

    def open(self, parcel: Parcel) -> None:
        """Get ready: import the framework, open model and data. What cannot work shows here."""
        for name in parcel.evaluators:
            self._scoring(parcel, name)

    def idle(self) -> tuple[float, None]:
        """Returns when everything asked before is done."""
        return 0.0, None

    def answers(
        self,
        parcel: Parcel,
        recipe: Recipe,
        evaluator: str,
        parts: Sequence[tuple[int, Any]],
        pairing: Pairing,
    ) -> tuple[float, list[tuple[int, list[Any], list[Any]]]]:
        """Seconds, and what a model answers to these batches."""
        scoring, model = self._scoring(parcel, evaluator), self._made(parcel, recipe)
        begun, found = time.perf_counter(), []
        for answer in scoring.answers(model, parts, pairing):  # type: ignore[attr-defined]
            found.append(answer)
            if _cancelled():
                break
        return time.perf_counter() - begun, found

    def scores(
        self, parcel: Parcel, recipe: Recipe, evaluator: str, places: Sequence[int]
    ) -> tuple[float, Score]:
        """Seconds, and what the user's function says of these items."""
        scoring, model = self._scoring(parcel, evaluator), self._made(parcel, recipe)
        begun = time.perf_counter()
        score = scoring.score_of(model, places)  # type: ignore[attr-defined]
        return time.perf_counter() - begun, score

    # -- before a plan is scored -----------------------------------------------------------------------------

    def observed(self, parcel: Parcel, prepared: Box | None, inputs: Sequence[Any]) -> tuple[float, Observed]:
        """Seconds, and what is seen of these inputs."""
        backend = self._like_the_driver(parcel, prepared)
        begun = time.perf_counter()
        found = observed(backend, inputs)
        return time.perf_counter() - begun, found

    def harm(
        self, parcel: Parcel, prepared: Box | None, ranges: Box, asked: Box, only: Sequence[str]
    ) -> tuple[float, dict[tuple[str, Scheme], float]]:
        """Seconds, and the label-free harm of ``only`` these ops; what was ``asked`` is the same for all
        workers.
        """
        backend = self._like_the_driver(parcel, prepared)
        candidates, inputs = self._fetched(asked)
        begun = time.perf_counter()
        found = backend.harm(candidates, self._fetched(ranges), inputs, only)
        return time.perf_counter() - begun, found

    def _like_the_driver(self, parcel: Parcel, prepared: Box | None) -> Backend:
        """With as many threads as the driver, if there are that many here: in which order floats are added
        depends on it.
        """
        threads = None
        if parcel.threads is not None and self._threads is not None:
            threads = min(parcel.threads, self._threads)
        return self._ready(parcel, prepared, threads)

    # -- timing ----------------------------------------------------------------------------------------------

    def fp32_latency(self, parcel: Parcel, timed: HowTimed) -> tuple[float, Any]:
        """Seconds, and one look at how long fp32 takes."""
        begun = time.perf_counter()
        found = self._timing(parcel, timed).fp32()
        return time.perf_counter() - begun, found

    def speed(
        self, parcel: Parcel, recipe: Recipe, timed: HowTimed, rival: Speedup, most: float
    ) -> tuple[float, Any]:
        """Seconds, and how fast a model is here, in turns with fp32."""
        model, begun = self._made(parcel, recipe), time.perf_counter()
        found = self._timing(parcel, timed).speed(model, rival, most)
        return time.perf_counter() - begun, found

    def between(
        self, parcel: Parcel, plain: Recipe, recipe: Recipe, timed: HowTimed, inputs: Box
    ) -> tuple[float, Any]:
        """Seconds, and how fast a model is on these inputs, in turns with the plain one."""
        models, begun = (self._make(parcel, plain), self._made(parcel, recipe)), time.perf_counter()
        found = self._timing(parcel, timed).between(*models, self._fetched(inputs))
        return time.perf_counter() - begun, found

    def costs(
        self, parcel: Parcel, prepared: Box | None, ranges: Box, ops: Sequence[Op]
    ) -> tuple[float, dict[tuple[str, Scheme], float]]:
        """Seconds, and milliseconds of these ops in every scheme."""
        backend, begun = self._ready(parcel, prepared), time.perf_counter()
        found = measure_ops(backend, ops, self._fetched(ranges))
        return time.perf_counter() - begun, found

    def _timing(self, parcel: Parcel, timed: HowTimed) -> Stopwatch:
        if self._stopwatch is None:
            example, sizes = self._fetched(timed.inputs)
            backend = self._ready(parcel, None)
            self._stopwatch = Stopwatch(backend, timed.timing, Stop(), example, sizes=sizes)
        self._stopwatch.stop = Stop() if timed.left is None else Stop(max(timed.left, SOON))
        return self._stopwatch

    # -- what is kept ----------------------------------------------------------------------------------------

    def _scoring(self, parcel: Parcel, name: str) -> Evaluator:
        backend = self._ready(parcel, None)
        if name not in self._evaluators:
            self._evaluators[name] = fetched(parcel.evaluators[name])
        return self._evaluators[name].bound(backend)

    def _made(self, parcel: Parcel, recipe: Recipe) -> Any:
        """The model of a recipe; the last one is kept."""
        if self._model is None or self._model[0] != recipe.key:
            self._model = None  # two need twice the memory
            self._model = recipe.key, self._make(parcel, recipe)
        return self._model[1]

    def _make(self, parcel: Parcel, recipe: Recipe) -> Any:
        if recipe.form == "fp32":
            return self._ready(parcel, None).fp32_model()
        backend = self._ready(parcel, recipe.prepared)
        ranges = Ranges() if recipe.ranges is None else self._fetched(recipe.ranges)
        if recipe.form == "eager":
            return backend.apply(recipe.plan, ranges)
        example = None if recipe.example is None else self._fetched(recipe.example)
        for finalist in backend.finalists(recipe.plan, ranges, example):
            if finalist.form == recipe.form:
                return finalist.model
        raise ClusterError(
            f"The node {socket.gethostname()} cannot make the {recipe.form} form of a plan, which the driver "
            "can. Install the same packages on all nodes."
        )

    def _ready(self, parcel: Parcel, prepared: Box | None, threads: int | None = None) -> Backend:
        """The backend, prepared with the batch that the driver's was prepared with; on this many
        threads, or all of this worker.
        """
        threads = threads or self._threads
        if self._backend is not None and self._opened_for != threads:
            self._backend.close()
            self._backend = self._prepared = self._model = self._stopwatch = None
        if self._backend is None:
            self._backend, self._opened_for = self._opened(parcel, threads), threads
        if prepared is not None and self._prepared is None:
            self._backend.prepare(fetched(prepared))
            self._prepared = prepared
        return self._backend

    def _opened(self, parcel: Parcel, threads: int | None) -> Backend:
        model = fetched(parcel.model)
        settings = replace(parcel.settings, threads=threads)
        kind = backend_named(parcel.framework)
        if not parcel.opens:
            return kind(model, settings)
        open_model: Callable[[], Any] = model
        backend = kind(open_model(), settings)
        if backend.fingerprint() != parcel.fingerprint:
            raise ClusterError(
                f"The node {socket.gethostname()} opens another model than the driver under the same name: "
                "its weights differ. Put the model where all nodes see the same files."
            )
        return backend

    def _fetched(self, box: Box) -> Any:
        if box.key not in self._boxes:
            self._boxes[box.key] = fetched(box)
        return self._boxes[box.key]


def _cores() -> list[int]:
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def _cancelled() -> bool:
    import ray

    return bool(ray.get_runtime_context().is_canceled())
