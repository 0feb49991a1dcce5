"""Streaming calibration: the fp32 graph with extra outputs runs batch by batch, and nothing is kept.

observer = Observer(view, found, threads, splits=True)
for feed in feeds: observer.show(feed, visit)

Memory does not grow with the data: a batch is cut into parts whose tensors together stay below a limit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import onnxruntime as ort
from onnx import ValueInfoProto

from octune.backends.batches import Inputs, real_rows
from octune.backends.onnx.edit import Edit
from octune.backends.onnx.graph import Array, Model, View
from octune.backends.onnx.kinds import Found, Tap
from octune.backends.onnx.runtimes import session
from octune.backends.terms import Visit

__all__ = ["Observer", "can_be_cut", "tapped"]

PART_BYTES = 256 << 20  # of the tensors that one run shows


def tapped(view: View, tensors: Iterable[str], shapes: Iterable[str] = ()) -> tuple[Model, list[str]]:
    """The graph with those tensors, and the shapes of others, as extra outputs; and the names of those
    shapes.
    """
    edit = Edit(view)
    known = {*view.outputs, *view.inputs}
    edit.outputs = [ValueInfoProto(name=name) for name in dict.fromkeys(tensors) if name not in known]
    names = []
    for tensor in shapes:
        names.append(edit.after(tensor, "Shape", [tensor], edit.name(f"{tensor}/shape")))
        edit.outputs.append(ValueInfoProto(name=names[-1]))
    return edit.finish(), names


def can_be_cut(model: Model, feed: Inputs, threads: int | None) -> bool:
    """Whether the first sample of a batch can be run without the others. It cannot where the first axis is
    time, say, and another input has the lengths of sequences.
    """
    if feed.batch_size == 1 or all(
        len(array) == feed.batch_size for array in feed.kwargs.values() if array.ndim
    ):
        return True
    quietly = ort.RunOptions()
    quietly.log_severity_level = 4
    try:
        session(model, threads).run(None, dict(feed.resized(1).kwargs), quietly)
    except Exception:  # onnxruntime has an exception class for every status
        return False
    return True


class Observer:
    """Runs fp32 and shows every op's input to ``visit``."""

    def __init__(self, view: View, found: Sequence[Found], threads: int | None, *, splits: bool) -> None:
        self._splits = splits
        self._taps: list[tuple[Tap, int]] = [
            (tap, item.kind.channel_axis)
            for item in found
            if len(item.op.schemes) > 1
            for tap in item.kind.taps(view, item)
        ]
        tensors = {tap.tensor for tap, _ in self._taps}
        shapes = sorted({tap.shaped for tap, _ in self._taps} - tensors)
        graph, names = tapped(view, tensors, shapes)
        self._tensors = sorted(tensors - set(view.inputs))
        self._shapes = dict(zip(shapes, names, strict=True))
        self._session: ort.InferenceSession = session(graph, threads)
        self._rows: dict[tuple[tuple[int, ...], ...], int] = {}  # that fit, by the shapes of one row

    def show(self, feed: Inputs, visit: Visit) -> None:
        """One batch, in parts that fit into memory. Which parts depends on this batch alone."""
        whole = not self._splits or feed.batch_size == 1 or feed.is_joined
        rows = feed.batch_size if whole else self._rows_of(feed)
        for part in feed.parts(rows):
            self._look(part, visit)

    def _rows_of(self, feed: Inputs) -> int:
        first = feed.resized(1)
        shapes = tuple(getattr(first.kwargs[name], "shape", ()) for name in sorted(first.kwargs))
        if shapes not in self._rows:
            values = self._run(first)
            size = sum(values[name].nbytes for name in self._tensors)
            self._rows[shapes] = max(1, PART_BYTES // max(size, 1))
        return self._rows[shapes]

    def _run(self, feed: Inputs) -> dict[str, Array]:
        wanted = [*self._tensors, *self._shapes.values()]
        # An empty list would mean all outputs; it is empty only if all tensors are inputs of the model.
        made = self._session.run(wanted, dict(feed.kwargs)) if wanted else []
        return dict(zip(wanted, made, strict=True)) | dict(feed.kwargs)

    def _look(self, feed: Inputs, visit: Visit) -> None:
        values = self._run(feed)
        for (name, tensor, shaped), channel_axis in self._taps:
            array = values[tensor]
            shape = (
                tuple(int(n) for n in values[self._shapes[shaped]])
                if shaped in self._shapes
                else tuple(values[shaped].shape)
            )
            if array.dtype.kind != "f":  # indices have no range
                visit(name, None, shape=shape)
            elif (real := real_rows(array, feed.mask)) is not None:
                visit(name, real, shape=shape)
            else:
                visit(name, array, shape=shape, channel_axis=channel_axis)
