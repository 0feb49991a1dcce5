"""The ONNX backend: plans become Q/DQ graphs on ONNX Runtime, and the winner is tried on OpenVINO as well."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto

from octune.backends.base import Backend
from octune.backends.batches import Fitting, Inputs
from octune.backends.onnx import storage
from octune.backends.onnx.alone import alone
from octune.backends.onnx.branches import Guard, guarded, open_branches, takes
from octune.backends.onnx.discover import discover
from octune.backends.onnx.doctor import self_test
from octune.backends.onnx.edit import Edit
from octune.backends.onnx.errors import LocalErrors
from octune.backends.onnx.graph import Model, View
from octune.backends.onnx.harm import first_order_harm
from octune.backends.onnx.insert import quantized_graph
from octune.backends.onnx.kinds import KINDS
from octune.backends.onnx.observe import Observer, can_be_cut
from octune.backends.onnx.opened import opened
from octune.backends.onnx.runtimes import (
    IN_BF16,
    ONNX_RUNTIME,
    RUNTIMES,
    OnnxModel,
    Runtime,
    outputs_by_name,
)
from octune.backends.onnx.smoothing import SmoothingGroups
from octune.backends.onnx.source import batch_is_free, inferred, input_slots, normalised, open_model
from octune.backends.onnx.weights import Int8Weights
from octune.backends.onnx.work import counted
from octune.backends.opened import Opened, Source
from octune.backends.terms import Finalist, Outputs, SelfTest, Servable, Settings, Visit, Writer, notes_on
from octune.calibration import Ranges
from octune.coverage import Work
from octune.errors import DataError, ModelError, UnsupportedError, summary
from octune.int8 import limit_for
from octune.machine import probe_machine
from octune.plan import Op, Plan, Scheme

__all__ = ["OnnxBackend"]


class OnnxBackend(Backend):
    """Works on an ``.onnx`` file or a ``ModelProto``; neither is changed."""

    name = "onnx"
    fp32_forms = frozenset(runtime.name for runtime in (*RUNTIMES[1:], *IN_BF16))
    form_choices = ("native", *(runtime.form for runtime in RUNTIMES[1:]))
    eager_title = f"model.onnx in plain {ONNX_RUNTIME.title}"

    @classmethod
    def accepts(cls, model: object) -> bool:
        return isinstance(model, ModelProto) or (
            isinstance(model, str | Path) and Path(model).suffix == ".onnx"
        )

    def __init__(self, model: ModelProto | str | Path, settings: Settings) -> None:
        source, self._notes = open_model(model)
        self._threads = settings.threads or probe_machine().cores
        self._forms = settings.forms  # all of them, where none is named
        self.limit = limit_for(portable=settings.portable)
        self._weights = Int8Weights(self.limit)
        self._source = Edit(View(source)).finish()  # what nothing reads is left out
        self._guards: list[Guard] = []
        self._known_groups: SmoothingGroups | None = None
        self._look_at(self._source)
        self._check_names(settings)
        self._splitter = Fitting(input_slots(self._source))
        self._splits = batch_is_free(self._source)
        self._fp32 = ONNX_RUNTIME.build(self._source, self._threads)

    def _look_at(self, graph: Model) -> None:
        """Find the ops of a graph. Plans are for them."""
        self._view = View(graph)
        self._view.learn(inferred(graph))
        self._found = discover(self._view)

    def prepare(self, inputs: Inputs) -> None:
        """Open the branches that this data takes, so that they are quantized like the rest."""
        self._splits = self._splits and can_be_cut(self._source, inputs, self._threads)
        try:
            graph, self._guards = open_branches(self._source, inputs.kwargs)
        except Exception as error:  # onnxruntime has an exception class for every status
            raise _refused(error, "data") from error
        if self._guards:
            self._look_at(Edit(View(normalised(graph))).finish())

    def _check_names(self, settings: Settings) -> None:
        for wanted, there, what in (
            (settings.inputs, self._view.inputs, "inputs"),
            (settings.outputs, self._view.outputs, "outputs"),
        ):
            if wanted and set(wanted) != set(there):
                raise UnsupportedError(
                    f"model.{what} is {', '.join(wanted)}; the model has {', '.join(there)}. An ONNX "
                    "graph is always used as a whole: leave it out."
                )

    # -- what is there ---------------------------------------------------------------------------------------

    def fp32_model(self) -> OnnxModel:
        return self._fp32.fresh()

    @property
    def notes(self) -> Sequence[str]:
        quantizable = dict.fromkeys(kind.title for kind in KINDS if len(kind.schemes()) > 1)
        return [*self._notes, *notes_on(self.ops(), ", ".join(quantizable))]

    def ops(self) -> tuple[Op, ...]:
        return tuple(item.op for item in self._found)

    def split(self, batch: Any) -> tuple[Inputs, Any]:
        return self._splitter(batch)

    def batch_size(self, inputs: Inputs) -> int:
        return inputs.batch_size

    def resized(self, inputs: Inputs, samples: int) -> Inputs:
        return inputs.resized(samples) if self._splits else inputs

    def rows(self, inputs: Inputs, numbers: Sequence[int]) -> Inputs | None:
        return super().rows(inputs, numbers) if self._splits else None

    # -- look ------------------------------------------------------------------------------------------------

    def observe(self, batches: Iterable[Inputs], visit: Visit) -> None:
        observer = Observer(self._view, self._found, self._threads, splits=self._splits)
        for feed in batches:
            try:
                if takes(self._guards, feed.kwargs):
                    observer.show(feed, visit)
            except Exception as error:  # onnxruntime has an exception class for every status
                raise _refused(error, "calibration data") from error

    def work(self, inputs: Inputs) -> Work:
        names = {item.index: item.op.name for item in self._found}
        listed = {item.op.name for item in self._found}
        return counted(
            self._view, names, inputs, self._threads, lambda name, node: name if name in listed else None
        )

    def harm(
        self,
        candidates: Mapping[str, Sequence[Scheme]],
        ranges: Ranges,
        batches: Sequence[Inputs],
        only: Collection[str] | None = None,
    ) -> dict[tuple[str, Scheme], float]:
        found = {item.op.name: item for item in self._found}
        batches = [feed for feed in batches if takes(self._guards, feed.kwargs)]
        errors = LocalErrors(self._weights, self._groups(ranges), self._threads)
        return first_order_harm(
            self._view, found, candidates, batches, errors, self._threads, splits=self._splits, only=only
        )

    def probed_together(self, names: Iterable[str]) -> list[list[str]]:
        sources = {item.op.name: item.source(self._view) for item in self._found if item.multiplies_weight}
        groups: dict[str, list[str]] = {}
        for name in names:  # ops that read one tensor agree on its range
            groups.setdefault(sources.get(name, f"{name}:"), []).append(name)
        return list(groups.values())

    def alone(self, op: Op, scheme: Scheme, ranges: Ranges) -> Callable[[], object]:
        item = next(item for item in self._found if item.op.name == op.name)
        return alone(self._view.model, item, scheme, ranges, self._weights, self._threads)

    # -- act -------------------------------------------------------------------------------------------------

    def _groups(self, ranges: Ranges) -> SmoothingGroups:
        """The smoothing groups for these ranges. A run has one set of ranges, so the last groups are kept."""
        if self._known_groups is None or self._known_groups.ranges is not ranges:
            self._known_groups = SmoothingGroups(self._view, self._found, ranges)
        return self._known_groups

    def _graph(self, plan: Plan, ranges: Ranges, runtime: Runtime) -> Model:
        plan.check(self.ops())
        groups = self._groups(ranges)
        made = quantized_graph(self._view, self._found, plan, self._weights, groups, runtime)
        return guarded(made, self._guards)

    def apply(self, plan: Plan, ranges: Ranges) -> OnnxModel:
        return ONNX_RUNTIME.build(self._graph(plan, ranges, ONNX_RUNTIME), self._threads)

    def run(self, model: OnnxModel, inputs: Inputs) -> Outputs:
        try:
            values = model.run(None, inputs.kwargs)
        except Exception as error:
            raise _refused(error, "data") from error
        return outputs_by_name((port.name for port in model.get_outputs()), values)

    def finalists(self, plan: Plan, ranges: Ranges, inputs: Inputs) -> Iterator[Finalist]:
        bf16 = IN_BF16 if probe_machine().bf16 and not plan.names("int8") else ()
        for runtime in (*RUNTIMES[1:], *bf16):
            if self._forms and runtime.form not in self._forms:
                continue
            if not runtime.installed():
                note = f"{runtime.title} is not installed, so it was not tried. pip install 'octune[onnx]'"
                self._notes += [note] if note not in self._notes else []
                continue
            model = runtime.build(self._graph(plan, ranges, runtime), self._threads)
            model.graph = self._graph(plan, ranges, ONNX_RUNTIME)  # is saved beside it, for any runtime
            yield Finalist(runtime.name, model)

    @contextlib.contextmanager
    def capture(self, model: OnnxModel) -> Iterator[list[Inputs]]:
        calls: list[Any] = []
        seen: list[Inputs] = []
        model.seen = calls
        try:
            yield seen
        finally:
            model.seen = None
            seen.extend(self._splitter(call)[0] for call in calls)

    def undo_user_changes(self, model: OnnxModel) -> OnnxModel:
        return model.fresh()

    def fingerprint(self) -> str:
        digest = hashlib.sha256(self._source.proto.SerializeToString(deterministic=True))
        for name, array in sorted(self._source.tensors.items()):
            digest.update(name.encode())
            digest.update(
                np.asarray(array, order="C").view(np.uint8).data
                if array.size and array.ndim
                else array.tobytes()
            )
        return digest.hexdigest()

    def size(self, model: OnnxModel) -> int:
        if model.graph is None:
            raise ModelError("The size of a loaded model is that of its files.")
        return model.graph.nbytes

    # -- keep ------------------------------------------------------------------------------------------------

    def writer(self) -> Writer:
        return storage.save

    @classmethod
    def load(
        cls,
        folder: Path,
        metadata: Mapping[str, Any],
        factory: Callable[[], Any] | None = None,
        *,
        limit_again: bool = False,
        trusted: bool = False,
    ) -> OnnxModel:
        return storage.load(folder, metadata, trusted=trusted)

    @classmethod
    def servable(cls, folder: Path, metadata: Mapping[str, Any], *, trusted: bool = False) -> Servable:
        return storage.servable(folder, metadata)

    @classmethod
    def open(cls, source: str) -> Path:
        path = Path(source)
        if path.suffix != ".onnx" or not path.is_file():
            raise ModelError(f"There is no file {source}. Expected an .onnx file.")
        return path

    @classmethod
    def opened(cls, model: Any, source: Source) -> Opened:
        return opened(model, source)

    @classmethod
    def runs(cls, model: object) -> bool:
        return cls.accepts(model) or isinstance(model, OnnxModel)

    @classmethod
    def to_onnx(cls, model: Any, settings: Settings, batch: Any) -> tuple[Any, Settings]:
        return model, settings

    @classmethod
    def self_test(cls) -> SelfTest:
        return self_test(lambda model: cls(model, Settings()))

    def environment(self) -> dict[str, Any]:
        return {
            **super().environment(),
            **storage.versions(),
            "threads": self._threads,
        }


def _refused(error: Exception, data: str) -> DataError:
    return DataError(f"The model cannot be run on the {data}: {type(error).__name__}: {summary(error)}")
