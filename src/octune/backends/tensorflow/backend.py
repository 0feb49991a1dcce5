"""The TensorFlow backend: any kind of model becomes one frozen graph, whose ops are replaced by int8 ops of
stock TensorFlow.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.util import _pywrap_util_port

from octune.backends.base import Backend
from octune.backends.batches import Fitting, Inputs
from octune.backends.opened import Opened, Source
from octune.backends.tensorflow.doctor import self_test
from octune.backends.tensorflow.graph.sessions import Sessions, new_session, set_threads
from octune.backends.tensorflow.int8.rewrite import Rewriter
from octune.backends.tensorflow.int8.support import support
from octune.backends.tensorflow.model import storage
from octune.backends.tensorflow.model.callables import GraphCallable, call_shaped
from octune.backends.tensorflow.model.freeze import as_graph
from octune.backends.tensorflow.model.handover import is_model, take
from octune.backends.tensorflow.model.lite import lite_of
from octune.backends.tensorflow.model.pipeline import Feed, Pipeline
from octune.backends.tensorflow.model.sources import open_model
from octune.backends.tensorflow.opened import opened
from octune.backends.tensorflow.probe.harm import first_order_harm
from octune.backends.tensorflow.probe.refusals import refused_schemes
from octune.backends.tensorflow.probe.watching import Watcher
from octune.backends.terms import Finalist, Outputs, SelfTest, Servable, Settings, Visit, Writer, notes_on
from octune.calibration import Ranges
from octune.coverage import Work
from octune.errors import DataError
from octune.harm import probe
from octune.int8 import limit_for
from octune.machine import probe_machine
from octune.plan import Mode, Op, Plan, Scheme

__all__ = ["TensorFlowBackend"]

CHECKED_ROWS = 2
STREAMS = (4, 2)  # what is tried unasked: more threads than these gain little from splitting once more
PROBE_ROWS, PROBE_TOKENS = 8, 1536  # of each batch; long sequences have enough tokens in fewer rows


class TensorFlowBackend(Backend):
    """Works on a frozen copy of the model; hands out the kind of thing that came in."""

    name = "tensorflow"
    form_choices = ("native", "litert")
    fp32_forms = frozenset({"litert"})

    @classmethod
    def accepts(cls, model: object) -> bool:
        return is_model(model)

    def __init__(self, model: Any, settings: Settings) -> None:
        trouble = set_threads(settings.threads) if settings.threads else ""
        self.limit = limit_for(portable=settings.portable)
        taken = take(model, settings)
        self._frozen, self._handover = taken.frozen, taken.handover
        self._notes = [*taken.notes, *([trouble] if trouble else [])]
        self._forms = settings.forms or ("native",)
        self._threads, self._streams = settings.threads, settings.extra.get("streams")
        self._sessions = Sessions(settings.threads)
        self._slots = taken.slots()
        self._pipeline = Pipeline.of(self._frozen)
        self._splitter = Fitting(self._slots, strict=self._handover.kind == "graph")
        self._rewriter = Rewriter(self._frozen, limit=self.limit)
        self._refused: dict[tuple[str, Mode | None, bool], str] = {}  # by op, mode, and whether repaired
        self._watcher: Watcher | None = None
        if support().why:
            self._notes.append(support().why)
        ops = self._rewriter.ops()
        open_ops = [op for op in ops if len(op.schemes) > 1]
        self._notes += notes_on(open_ops, "MatMul, Einsum or Conv2D with constant weights", len(ops))

    # -- what it holds ---------------------------------------------------------------------------------------

    def fp32_model(self) -> Any:
        return self._handover.build(self._frozen.graph_def)

    @property
    def extras(self) -> frozenset[str]:
        # what is called and not run by a session has the threads of the whole process
        return frozenset({"streams"} if self._handover.kind == "graph" or self._streams == 1 else ())

    @property
    def notes(self) -> Sequence[str]:
        return self._notes

    def ops(self) -> tuple[Op, ...]:
        return tuple(map(self._allowed, self._rewriter.ops()))

    def _allowed(self, op: Op) -> Op:
        why = [note for (name, *_), note in self._refused.items() if name == op.name]
        # A kernel that is wrong without repairs stays wrong with them.
        schemes = tuple(
            scheme
            for scheme in op.schemes
            if all(
                (op.name, scheme.mode, repaired) not in self._refused
                for repaired in {False, bool(scheme.repairs)}
            )
        )
        return replace(op, schemes=schemes, note="; ".join(filter(None, [op.note, *why]))) if why else op

    def split(self, batch: Any) -> tuple[Inputs | Feed, Any]:
        if isinstance(batch, Inputs | Feed):
            return batch, None
        # A graph that reads its own data takes nothing, whatever it is given.
        inputs, label = self._splitter(batch) if self._slots else (Inputs(), None)
        return (inputs if self._pipeline is None else Feed(inputs.kwargs)), label

    def parts(self, inputs: Inputs | Feed) -> Iterator[Inputs]:
        if isinstance(inputs, Inputs):
            yield inputs
        elif self._pipeline is not None:
            yield from self._pipeline.batches(inputs)

    def batch_size(self, inputs: Inputs | Feed) -> int:
        return sum(part.batch_size for part in self.parts(inputs))

    def resized(self, inputs: Inputs | Feed, samples: int) -> Inputs:
        return next(self.parts(inputs)).resized(samples)

    # -- look ------------------------------------------------------------------------------------------------

    def observe(self, batches: Iterable[Inputs | Feed], visit: Visit) -> None:
        watcher, self._watcher = self._watching(), None
        try:
            for inputs in (part for batch in batches for part in self.parts(batch)):
                watcher(inputs, visit)
        finally:
            watcher.close()

    def _watching(self) -> Watcher:
        """What fetches tensors; the one that prepared is used again, because TensorFlow takes seconds to
        start a new one.
        """
        if self._watcher is None:
            self._watcher = Watcher(
                self._rewriter.weightless, self._rewriter.taps(), self._frozen.outputs.values(), self._threads
            )
        return self._watcher

    def work(self, inputs: Inputs | Feed) -> Work:
        return self._rewriter.work(next(self.parts(inputs)))

    def prepare(self, inputs: Inputs | Feed) -> None:
        """Run every op in int8 on a few rows, and refuse what disagrees with fp32: some kernels are silently
        wrong.
        """
        first = next(self.parts(inputs))
        fixed = any(slot.shape and slot.shape[0] is not None for slot in self._slots)
        few = first if fixed else first.resized(min(CHECKED_ROWS, first.batch_size))
        self._refused = refused_schemes(self._rewriter, self._watching(), few)
        self._notes.extend(f"{name}: {why}" for (name, *_), why in self._refused.items())

    def harm(
        self,
        candidates: Mapping[str, Sequence[Scheme]],
        ranges: Ranges,
        batches: Sequence[Inputs],
        only: Collection[str] | None = None,
    ) -> dict[tuple[str, Scheme], float]:
        inputs = [_some_rows(part) for batch in batches for part in self.parts(batch)]
        values = first_order_harm(
            self._rewriter, self._frozen.outputs.values(), candidates, ranges, inputs, self._threads, only
        )
        left = {
            name: [s for s in schemes if (name, s) not in values]
            for name, schemes in candidates.items()
            if name in ranges and (only is None or name in only)
        }
        return values | (probe(self, left, ranges, inputs) if any(left.values()) else {})

    def alone(self, op: Op, scheme: Scheme, ranges: Ranges) -> Callable[[], object]:
        graph_def, fed, fetched = self._rewriter.in_place(op, scheme, ranges)
        graph = as_graph(graph_def)
        dtype = graph.get_tensor_by_name(fed).dtype
        array = np.random.default_rng(0).standard_normal(ranges[op.name].shape)
        array = (
            (32 * array).astype(np.int8).view(dtype.as_numpy_dtype)
            if dtype.is_quantized
            else array.astype(dtype.as_numpy_dtype)
        )
        # The op and not its output is fetched: copying that out would be timed as well.
        run = new_session(graph, self._threads).make_callable(
            graph.get_tensor_by_name(fetched).op, feed_list=[fed]
        )
        return partial(run, array)

    # -- act -------------------------------------------------------------------------------------------------

    def apply(self, plan: Plan, ranges: Ranges) -> Any:
        plan.check(self.ops())
        return self._handover.build(self._rewriter.rewrite(plan, ranges))

    def finalists(self, plan: Plan, ranges: Ranges, inputs: Inputs | Feed) -> Iterator[Finalist]:
        if "native" in self._forms:
            yield from self._in_streams(plan, ranges)
        if "litert" in self._forms:
            yield from self._in_litert(plan)

    def _in_streams(self, plan: Plan, ranges: Ranges) -> Iterator[Finalist]:
        if self._streams == 1 or not plan.names("int8"):
            return
        if self._streams is None:
            threads = self._threads or probe_machine().cores
            counts = [count for count in STREAMS if count <= threads]
            made = self._rewriter.in_streams(plan, ranges, *counts)
        elif made := self._rewriter.in_streams(plan, ranges, self._streams, own_threads=True):
            self._notes.append(
                f"a graph in {self._streams} streams wants sessions with "
                f"inter_op_parallelism_threads={self._streams} and intra_op_parallelism_threads such that "
                "their product is the number of threads; with other settings it is slower"
            )
        else:
            self._notes.append(f"no part of the graph can be split into {self._streams} streams")
        if made is not None:
            yield Finalist("streams", self._handover.build(made))

    def _in_litert(self, plan: Plan) -> Iterator[Finalist]:
        from octune.backends.tensorflow.to_litert import in_litert  # imports the converter

        if self._pipeline is not None:
            self._notes.append("LiteRT was not tried: the graph reads its own data, which LiteRT cannot")
            return
        threads = self._threads or probe_machine().cores
        model, note = in_litert(self._frozen, self._handover, plan, threads)
        self._notes += [note] if note else []
        if model is not None:
            yield Finalist("litert", model)

    def run(self, model: Any, inputs: Inputs | Feed) -> Outputs:
        if isinstance(inputs, Feed):
            if self._pipeline is None:
                raise DataError("The graph has no iterator that these inputs could start.")
            return self._pipeline.run(model, self._sessions, self._handover.outputs, inputs)
        if isinstance(model, tf.Graph):
            return self._sessions.run(model, self._handover.outputs, inputs.kwargs)
        named = {slot.name: inputs.kwargs[slot.tensor] for slot in self._slots}
        if isinstance(model, GraphCallable):
            results = model.flat(named)
        else:
            tensors = {name: tf.constant(array) for name, array in named.items()}
            results = call_shaped(model, self._handover.takes, self._handover.gives, tensors)
        return {name: np.asarray(results[name]) for name in self._handover.outputs}

    def outputs(self, plan: Plan, ranges: Ranges, batches: Sequence[Inputs | Feed]) -> list[Outputs]:
        given = [inputs for inputs in batches if isinstance(inputs, Inputs)]
        if len(given) < len(batches):
            return super().outputs(plan, ranges, batches)
        plan.check(self.ops())
        names = self._handover.outputs
        # TensorFlow takes seconds to optimize a graph, and twice as long for a function: worth it only for
        # models that are kept.
        with new_session(
            as_graph(self._rewriter.rewrite(plan, ranges)), self._threads, optimized=False
        ) as session:
            answers = [session.run(list(names.values()), dict(inputs.kwargs)) for inputs in given]
        return [dict(zip(names, map(np.asarray, arrays), strict=True)) for arrays in answers]

    @contextmanager
    def capture(self, model: Any) -> Iterator[list[Inputs]]:
        # A graph is run by a session of the user's own, which cannot be watched.
        seen: list[Inputs] = []
        if not isinstance(model, GraphCallable):
            yield seen
            return
        with model.watched() as calls:
            yield seen
        seen.extend(self.split(call)[0] for call in calls)  # type: ignore[misc]  # a model that is called has no pipeline

    def fingerprint(self) -> str:
        digest = hashlib.sha256()
        # Without names: those of Keras count up with every model that a process makes.
        for node in self._frozen.graph_def.node:
            digest.update(node.op.encode())
            if node.op == "Const":
                digest.update(node.attr["value"].tensor.SerializeToString(deterministic=True))
        return digest.hexdigest()

    def size(self, model: Any) -> int:
        if (lite := lite_of(model)) is not None:
            return len(lite.content)
        graph = model if isinstance(model, tf.Graph) else self._function(model).graph
        return sum(
            constant.outputs[0].shape.num_elements() * constant.outputs[0].dtype.size
            for constant in graph.get_operations()
            if constant.type == "Const" and constant.outputs[0].dtype != tf.string
        )

    @staticmethod
    def _function(model: Any) -> Any:
        return next(iter(model.signatures.values())) if isinstance(model, GraphCallable) else model

    def close(self) -> None:
        if self._watcher is not None:
            self._watcher.close()
        self._sessions.close()

    # -- keep ------------------------------------------------------------------------------------------------

    def writer(self) -> Writer:
        handover = self._handover
        return lambda model, folder: storage.save(model, handover, folder)

    @classmethod
    def load(
        cls,
        folder: Path,
        metadata: Mapping[str, Any],
        factory: Callable[[], Any] | None = None,
        *,
        limit_again: bool = False,
        trusted: bool = False,
    ) -> Any:
        return storage.load(folder, metadata, trusted=trusted)

    @classmethod
    def servable(cls, folder: Path, metadata: Mapping[str, Any], *, trusted: bool = False) -> Servable:
        return storage.servable(folder, metadata, trusted=trusted)

    @classmethod
    def open(cls, source: str) -> Any:
        return open_model(source)

    @classmethod
    def opened(cls, model: Any, source: Source) -> Opened:
        return opened(model, source)

    @classmethod
    def to_onnx(cls, model: Any, settings: Settings, batch: Any) -> tuple[Any, Settings]:
        from octune.backends.tensorflow.to_onnx import to_onnx  # imports ONNX, which need not be installed

        # The names of inputs and outputs are those of the graph, which the converter has checked.
        return to_onnx(model, settings, batch), replace(settings, inputs=(), outputs=())

    @classmethod
    def to_litert(cls, model: Any, settings: Settings, plan: Plan) -> tuple[bytes, set[str]]:
        from octune.backends.tensorflow.to_litert import to_litert

        return to_litert(take(model, settings).frozen, plan)

    @classmethod
    def self_test(cls) -> SelfTest:
        return self_test()

    def environment(self) -> dict[str, Any]:
        return {
            **super().environment(),
            "tensorflow": tf.__version__,
            "onednn": bool(_pywrap_util_port.IsMklEnabled()),
            "threads": tf.config.threading.get_intra_op_parallelism_threads() or probe_machine().cores,
        }


def _some_rows(inputs: Inputs) -> Inputs:
    tokens = inputs.mask.shape[1] if inputs.mask is not None else 1
    return inputs.resized(min(inputs.batch_size, PROBE_ROWS, max(2, PROBE_TOKENS // tokens)))
