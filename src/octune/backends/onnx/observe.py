"""Streaming calibration: the fp32 graph with extra outputs runs batch by batch, and nothing is kept.

observer = Observer(view, found, threads, splits=True)
for feed in feeds: observer.show(feed, visit)

Memory does not grow with the data: a batch is cut into parts whose tensors together stay below a limit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import onnxruntime as ort
from onnx import ValueInfoProto

from octune.backends.base import Visit
from octune.backends.batches import Inputs, real_rows
from octune.backends.onnx.edit import Edit
from octune.backends.onnx.graph import Model, View
from octune.backends.onnx.kinds import Found, Tap
from octune.backends.onnx.runtimes import session

__all__ = ["Observer", "tapped"]

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
        self._rows: float | None = None

    def show(self, feed: Inputs, visit: Visit) -> None:
        """One batch, in parts that fit into memory."""
        left = feed
        if self._rows is None and self._splits and feed.batch_size > 1:
            first, left = feed.resized(1), feed.rows(slice(1, None))
            self._rows = max(1.0, PART_BYTES / max(self._run(first, visit), 1))
        for part in left.parts(int(self._rows or left.batch_size)):
            self._run(part, visit)

    def _run(self, feed: Inputs, visit: Visit) -> int:
        """Run, visit, and return the bytes of what was visited."""
        wanted = [*self._tensors, *self._shapes.values()]
        # An empty list would mean all outputs; it is empty only if all tensors are inputs of the model.
        made = self._session.run(wanted, dict(feed.kwargs)) if wanted else []
        values = dict(zip(wanted, made, strict=True)) | dict(feed.kwargs)
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
        return sum(values[name].nbytes for name in self._tensors)
