"""How far each int8 kernel is from fp32, op by op: some kernels of TensorFlow are silently wrong.

    tensors = needed(rewriter, plan, ranges)        # reference tensors to fetch on a calibration batch
    for name, found in check(rewriter, plan, ranges, values).items():
        found.error, found.bound, found.agrees

An int8 op is fed what the reference feeds it, and its output is compared with the reference's. How far it may
be off is not a guess: the reference itself computes the op on the input and the weight rounded to int8, which
is what an exact kernel would do. What follows from it is decided in
:mod:`octune.backends.tensorflow.probe.refusals`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import tensorflow as tf
from tensorflow.core.framework.graph_pb2 import GraphDef

from octune.backends.tensorflow.graph.emit import SUMMAND, node, quantize
from octune.backends.tensorflow.graph.graph import Array, Graph, node_of
from octune.backends.tensorflow.graph.sessions import new_session
from octune.backends.tensorflow.int8.activations import Quantized
from octune.backends.tensorflow.int8.emission import Piece
from octune.backends.tensorflow.int8.rewrite import Rewriter
from octune.backends.tensorflow.model.freeze import as_graph
from octune.calibration import Ranges
from octune.int8 import Grid
from octune.plan import Plan

__all__ = ["Check", "check", "needed"]

SLACK, FLOOR = 2.0, 0.01
CHECK = "octune_check"
AT_ONCE = 1 << 27  # bytes of float weights


@dataclass(frozen=True, slots=True)
class Check:
    """Relative errors of one op: the kernel's, and how large it may be."""

    error: float
    bound: float

    @property
    def agrees(self) -> bool:
        return self.error <= self.bound

    def __str__(self) -> str:
        return f"relative error {self.error:.3g}, at most {self.bound:.3g} expected"


def needed(rewriter: Rewriter, plan: Plan, ranges: Ranges) -> tuple[str, ...]:
    """The tensors of ``rewriter.reference`` that :func:`check` must be given."""
    wanted: dict[str, None] = {}
    for piece in rewriter.emit(plan, ranges).pieces:
        names = [
            _reference_input(piece),
            rewriter.origin(piece),
            piece.fusion.output,
            *([piece.fusion.addend] if piece.fusion.addend else []),
        ]
        wanted.update(dict.fromkeys(names))
    return tuple(wanted)


def check(
    rewriter: Rewriter,
    plan: Plan,
    ranges: Ranges,
    values: Mapping[str, Array],
    inputs: Mapping[str, Array] | None = None,
    threads: int | None = None,
) -> dict[str, Check]:
    """Op name -> how well its replacement agrees. ``values``: the tensors that :func:`needed` names, on one
    batch in fp32.

    ``inputs`` is that batch: an op may need sizes that the graph reads off it.
    """
    emission = rewriter.emit(plan, ranges)
    for number, piece in enumerate(emission.pieces):
        if piece.addend is not None:
            _own_addend(emission.graph, piece, number)
    found: dict[str, Check] = {}
    weightless = rewriter.weightless
    with (
        _Asked(rewriter.graph_def(emission), inputs or {}, threads) as real,
        _Asked(weightless.graph_def, {**weightless.arrays, **(inputs or {})}, threads) as exact,
    ):
        for part in _parts(emission.pieces):
            answers = real([_real(rewriter, piece, number, values) for number, piece in part])
            expected = exact([_simulated(rewriter, piece, values) for _, piece in part])
            second = {
                place: _corrected(piece, values, expected[place])
                for place, (_, piece) in enumerate(part)
                if _in_two(piece)
            }
            for place, answer in zip(second, exact(list(second.values())), strict=True):
                expected[place] = answer
            for (_, piece), answer, simulated in zip(part, answers, expected, strict=True):
                found[piece.fused.op.name] = _compared(piece, values, answer, simulated)
    return found


def _compared(piece: Piece, values: Mapping[str, Array], answer: Array, simulated: Array) -> Check:
    wanted = values[piece.fusion.output].astype(np.float64)
    if piece.correction is not None and not _in_two(piece):
        simulated = simulated.reshape(wanted.shape) + piece.correction
    if piece.factors is not None:  # compared as they are: the largest channels would hide the others
        wanted, simulated = wanted * piece.factors, simulated * piece.factors
    base = wanted - values[piece.fusion.addend] if piece.fusion.addend and piece.addend is None else wanted
    size = max(float(np.linalg.norm(base)), 1e-12)
    got = answer.reshape(wanted.shape)
    if isinstance(piece.result, Quantized) and piece.result.grid is not None:
        got, simulated = piece.result.grid.dequantize(got), piece.result.grid.round_trip(simulated)
    error, inevitable = (
        float(np.linalg.norm(array - wanted)) / size for array in (got, simulated.reshape(wanted.shape))
    )
    return Check(error, SLACK * inevitable + FLOOR)


def _parts(pieces: Sequence[Piece]) -> Iterator[list[tuple[int, Piece]]]:
    """Pieces with their numbers, some at a time: the float weights of all of them at once would be another
    model.
    """
    part: list[tuple[int, Piece]] = []
    size = 0
    for number, piece in enumerate(pieces):
        weight = 0 if piece.weight is None else 4 * piece.weight.values.size
        if part and size + weight > AT_ONCE:
            yield part
            part, size = [], 0
        part.append((number, piece))
        size += weight
    if part:
        yield part


@dataclass(frozen=True, slots=True)
class _Question:
    """One op: what to feed, what to fetch, and the tensors in between, which no other question may feed."""

    feed: Mapping[str, Array]
    fetch: str
    between: frozenset[str]


def _reference_input(piece: Piece) -> str:
    return piece.fused.x if piece.scheme.dtype == "int8" else str(piece.source)


def _own_addend(graph: Graph, piece: Piece, number: int) -> None:
    """Give an op an int8 addend of its own: its kernel writes the sum over it, and what is fed must not be
    written to.
    """
    if not isinstance(piece.result, Quantized) or piece.addend is None:
        return
    name = f"{CHECK}/{number}"
    graph.add(node(name, "Placeholder", (), dtype=tf.float32))
    graph.add(quantize(f"{name}/int8", name, piece.addend.low, piece.addend.high))
    graph.redirect(node_of(piece.result.values), SUMMAND, f"{name}/int8:0")


def _real(rewriter: Rewriter, piece: Piece, number: int, values: Mapping[str, Array]) -> _Question:
    x = values[rewriter.origin(piece)]
    if piece.premultiplied and piece.multiplier is not None:
        x = x * piece.multiplier
    feed: dict[str, Array] = {}
    if isinstance(piece.source, Quantized):
        if piece.source.grid is None:
            raise ValueError("int8 values that another op makes have a static grid")
        feed[piece.source.values] = piece.source.grid.quantize(_rows(x, piece) if piece.source.rows else x)
    else:
        feed[piece.source] = x
    if piece.fusion.addend:
        addend = values[piece.fusion.addend]
        feed[piece.fusion.addend if piece.addend is None else f"{CHECK}/{number}:0"] = addend
    return _Question(
        feed, piece.result.values if isinstance(piece.result, Quantized) else piece.result, _between(piece)
    )


def _simulated(rewriter: Rewriter, piece: Piece, values: Mapping[str, Array]) -> _Question:
    """The reference's own nodes, on the input and the weight as int8 would have them."""
    x = values[_reference_input(piece)].astype(np.float64)
    feed: dict[str, Array] = {}
    if piece.weight is None:
        return _Question(
            {str(piece.source): _half(x), **_addend(piece, values)}, piece.fusion.output, _between(piece)
        )
    factor = np.ones(1) if piece.multiplier is None else piece.multiplier.astype(np.float64)
    rows = _rows(x, piece) if piece.fused.kind.in_rows else x
    scaled = x if piece.multiplier is None else rows * factor
    grid = piece.input_grid or Grid.affine(float(scaled.min(initial=0.0)), float(scaled.max(initial=0.0)))
    feed[piece.fused.x] = (grid.round_trip(scaled) / factor).reshape(x.shape).astype(np.float32)
    weight = piece.weight.floats()
    if piece.multiplier is not None:
        weight = weight * piece.multiplier[:, None]
    feed[piece.fused.weight] = np.ascontiguousarray(rewriter.as_stored(piece.fused, weight))
    if _in_two(piece):
        return _Question(feed, f"{piece.fused.core}:0", _between(piece))
    return _Question({**feed, **_addend(piece, values)}, piece.fusion.output, _between(piece))


def _in_two(piece: Piece) -> bool:
    """Whether an op has a corrected bias and something behind it: that is simulated in two steps."""
    return piece.correction is not None and len(piece.fusion.members) > 1


def _corrected(piece: Piece, values: Mapping[str, Array], sums: Array) -> _Question:
    """The second half for an op whose bias was corrected, as if the correction had been part of it."""
    feed = {f"{piece.fused.core}:0": (sums + piece.correction).astype(np.float32), **_addend(piece, values)}
    return _Question(feed, piece.fusion.output, _between(piece) - {*feed})


def _between(piece: Piece) -> frozenset[str]:
    return frozenset(f"{name}:0" for name in (*piece.fused.path, *piece.fusion.members))


def _addend(piece: Piece, values: Mapping[str, Array]) -> dict[str, Array]:
    if not piece.fusion.addend:
        return {}
    addend = values[piece.fusion.addend]
    return {
        piece.fusion.addend: addend
        if piece.addend is None or piece.addend.grid is None
        else piece.addend.grid.round_trip(addend)
    }


def _rows(x: Array, piece: Piece) -> Array:
    inner = piece.weight.values.shape[0] if piece.weight is not None else x.shape[-1]
    return x.reshape(-1, inner)


def _half(x: Array) -> Array:
    """To bfloat16 and back."""
    return np.asarray(tf.cast(tf.cast(x.astype(np.float32), tf.bfloat16), tf.float32))


class _Asked:
    """A graph in a session. It is not optimised, so that kernels run as they are; no more of the graph is
    copied than a question needs.
    """

    def __init__(self, graph_def: GraphDef, inputs: Mapping[str, Array], threads: int | None) -> None:
        self._inputs = inputs
        self._graph = as_graph(graph_def)
        self._session = new_session(self._graph, threads, optimized=False)

    def __enter__(self) -> _Asked:
        return self

    def __exit__(self, *exception: object) -> None:
        self._session.close()

    def __call__(self, questions: Sequence[_Question]) -> list[Array]:
        """Answer all questions in as few runs as possible: one run may not fetch what it feeds, nor feed two
        values for one tensor.
        """
        rounds: list[list[int]] = []
        for number, question in enumerate(questions):
            for group in rounds:
                if all(_compatible(question, questions[other]) for other in group):
                    group.append(number)
                    break
            else:
                rounds.append([number])
        answers: dict[int, Array] = {}
        for group in rounds:
            feed = {
                **self._inputs,
                **{name: value for number in group for name, value in questions[number].feed.items()},
            }
            typed = {name: _typed(self._graph, name, value) for name, value in feed.items()}
            answers.update(
                zip(
                    group,
                    self._session.run([questions[number].fetch for number in group], typed),
                    strict=True,
                )
            )
        return [answers[number] for number in range(len(questions))]


def _compatible(one: _Question, other: _Question) -> bool:
    if not (one.between | {one.fetch}).isdisjoint(other.feed) or not (
        other.between | {other.fetch}
    ).isdisjoint(one.feed):
        return False
    return all(
        one.feed[name] is other.feed[name] or np.array_equal(one.feed[name], other.feed[name])
        for name in one.feed.keys() & other.feed.keys()
    )


def _typed(graph: tf.Graph, name: str, value: Array) -> Array:
    """Quantized tensors are fed as numpy's records of one field."""
    dtype = graph.get_tensor_by_name(name).dtype
    return value.view(dtype.as_numpy_dtype) if dtype.is_quantized else value
