"""Streaming calibration: the fp32 graph with extra outputs, shown batch by batch, and forgotten.

observer = Taps(view, found, threads)
for feed in feeds: observer.show(feed, visit)

Memory does not grow with the data: a batch is cut into parts whose tensors together stay below a limit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import onnxruntime as ort
from onnx import ValueInfoProto

from octune.backends.base import OUTPUT, B, Visit
from octune.backends.batches import Inputs, real_rows
from octune.backends.onnx.discover import Found
from octune.backends.onnx.edit import Edit
from octune.backends.onnx.graph import Model, View
from octune.backends.onnx.insert import site_of
from octune.backends.onnx.runtimes import session

__all__ = ["Taps", "activated", "tapped"]

LIMIT = 256 << 20


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


class Taps:
    """Runs fp32 and shows every op's input to ``visit``."""

    def __init__(self, view: View, found: Sequence[Found], threads: int | None, *, splits: bool) -> None:
        self._splits = splits
        self._visits: list[tuple[str, str, str, Found]] = []  # name, tensor, tensor whose shape counts, op
        for item in found:
            if len(item.op.schemes) == 1:
                continue
            name = item.op.name
            if item.op.kind == "attention":
                self._visits.append((name, site_of(view, item, 0), item.x, item))
                self._visits.append((name + B, site_of(view, item, 1), item.b, item))
            else:
                self._visits.append((name, item.x, item.x, item))
            if item.op.kind == "conv":
                self._visits.append((name + OUTPUT, activated(view, item), item.output, item))
        tensors = {tensor for _, tensor, _, _ in self._visits}
        shapes = sorted({shaped for _, tensor, shaped, _ in self._visits if shaped not in tensors})
        graph, names = tapped(view, tensors, shapes)
        self._tensors, self._shapes = (
            sorted(tensors - set(view.inputs)),
            dict(zip(shapes, names, strict=True)),
        )
        self._session: ort.InferenceSession = session(graph, threads)
        self._rows: float | None = None

    def show(self, feed: Inputs, visit: Visit) -> None:
        """One batch, in parts that fit."""
        left = feed
        if self._rows is None and self._splits and feed.batch_size > 1:
            first, left = feed.resized(1), feed.rows(slice(1, None))
            self._rows = max(1.0, LIMIT / max(self._run(first, visit), 1))
        for part in left.parts(int(self._rows or left.batch_size)):
            self._run(part, visit)

    def _run(self, feed: Inputs, visit: Visit) -> int:
        """Run, visit, and return the bytes of what was visited."""
        wanted = [*self._tensors, *self._shapes.values()]
        # No names would mean all outputs; then everything to be seen is an input.
        made = self._session.run(wanted, dict(feed.kwargs)) if wanted else []
        values = dict(zip(wanted, made, strict=True)) | dict(feed.kwargs)
        for name, tensor, shaped, item in self._visits:
            array = values[tensor]
            shape = (
                tuple(int(n) for n in values[self._shapes[shaped]])
                if shaped in self._shapes
                else tuple(values[shaped].shape)
            )
            if item.op.kind == "embedding" or array.dtype.kind != "f":
                visit(name, None, shape=shape)
            elif (real := real_rows(array, feed.mask)) is not None:
                visit(name, real, shape=shape)
            else:
                visit(name, array, shape=shape, channel_axis=item.channel_axis)
        return sum(values[name].nbytes for name in self._tensors)


def activated(view: View, item: Found) -> str:
    """The output that a convolution is fused up to."""
    reader = view.only_reader(item.output)
    fused = reader is not None and view.nodes[reader].op_type in ("Relu", "Clip")
    return view.nodes[reader].output[0] if fused and reader is not None else item.output
