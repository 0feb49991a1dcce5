"""What a handful of nodes computes, found out by computing it.

    for region in regions(graph, "dense/BiasAdd:0"):
        activation_of(graph, region)            # Activation("GeluApproximate") for any spelling of it

Frameworks, versions and authors spell GELU and layer normalisation in dozens of ways. Instead of a pattern
for each, a closed region (one tensor in, one tensor out, constants inside) is evaluated on a few numbers and
compared with the functions that have kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from scipy import special
from tensorflow.core.framework.node_def_pb2 import NodeDef

from octune.backends.tensorflow.clean.fold import value_of
from octune.backends.tensorflow.graph.graph import Array, Graph, attribute, node_of, tensor

__all__ = ["Activation", "Region", "activation_of", "evaluate", "regions"]

LONGEST_FORMULA = 32  # nodes; the longest spelling of a layer normalisation seen so far has 14

Function = Callable[[NodeDef, list[Array]], Array]


def _mean(made: NodeDef, x: list[Array]) -> Array:
    return np.asarray(
        x[0].mean(
            axis=tuple(int(axis) for axis in np.atleast_1d(x[1])), keepdims=attribute(made, "keep_dims").b
        )
    )


def _leaky(x: Array, alpha: float) -> Array:
    return np.where(x > 0, x, alpha * x)


OPS: dict[str, Function] = {
    "Mul": lambda n, x: x[0] * x[1],
    "Add": lambda n, x: x[0] + x[1],
    "AddV2": lambda n, x: x[0] + x[1],
    "BiasAdd": lambda n, x: x[0] + x[1],
    "Sub": lambda n, x: x[0] - x[1],
    "RealDiv": lambda n, x: x[0] / x[1],
    "Div": lambda n, x: x[0] / x[1],
    "DivNoNan": lambda n, x: x[0] / x[1],
    "Pow": lambda n, x: x[0] ** x[1],
    "Maximum": lambda n, x: np.maximum(x[0], x[1]),
    "Minimum": lambda n, x: np.minimum(x[0], x[1]),
    "SquaredDifference": lambda n, x: (x[0] - x[1]) ** 2,
    "Neg": lambda n, x: -x[0],
    "Square": lambda n, x: x[0] ** 2,
    "Sqrt": lambda n, x: np.sqrt(x[0]),
    "Rsqrt": lambda n, x: 1 / np.sqrt(x[0]),
    "Reciprocal": lambda n, x: 1 / x[0],
    "Inv": lambda n, x: 1 / x[0],
    "Exp": lambda n, x: np.exp(x[0]),
    "Tanh": lambda n, x: np.tanh(x[0]),
    "Erf": lambda n, x: special.erf(x[0]),
    "Erfc": lambda n, x: special.erfc(x[0]),
    "Sigmoid": lambda n, x: special.expit(x[0]),
    "Relu": lambda n, x: np.maximum(x[0], 0),
    "Relu6": lambda n, x: np.clip(x[0], 0, 6),
    "Elu": lambda n, x: np.where(x[0] > 0, x[0], np.expm1(np.minimum(x[0], 0))),
    "LeakyRelu": lambda n, x: _leaky(x[0], attribute(n, "alpha").f),
    "Mean": _mean,
    "Identity": lambda n, x: x[0],
    "StopGradient": lambda n, x: x[0],
}


@dataclass(frozen=True, slots=True)
class Region:
    """Nodes between a tensor and ``tail``; nothing outside reads what is inside. In the order of computation,
    tail last.
    """

    start: str
    nodes: tuple[str, ...]

    @property
    def tail(self) -> str:
        return self.nodes[-1]

    @property
    def output(self) -> str:
        return f"{self.nodes[-1]}:0"


def regions(graph: Graph, start: str, *, closed: bool) -> Iterator[Region]:
    """All closed regions behind a tensor, largest first. ``closed``: the tensor itself must have no reader
    outside either.
    """
    start = tensor(start)
    order: list[str] = []
    parents: dict[str, set[str]] = {}
    queue = [reader for reader, _ in graph.readers(start)]
    while queue and len(order) < LONGEST_FORMULA:
        name = queue.pop(0)
        made = graph.nodes[name]
        if name in parents or made.op not in OPS:
            continue
        varying = [read for read in graph.inputs(made) if read == start or value_of(graph, read) is None]
        if any(
            read != start and (node_of(read) not in parents or not read.endswith(":0")) for read in varying
        ):
            continue  # it comes again when its other input has been reached, if it ever is
        parents[name] = {node_of(read) for read in varying if read != start}
        order.append(name)
        queue.extend(reader for reader, _ in graph.readers(f"{name}:0"))
    for tail in reversed(order):
        inside = {tail}
        for name in reversed(order[: order.index(tail) + 1]):
            if name in inside:
                inside |= parents[name]
        hidden = inside - {tail}
        exposed = any(
            not graph.is_private(name) or not set(graph.followers(name)) <= inside for name in hidden
        )
        if exposed or (closed and not {reader for reader, _ in graph.readers(start)} <= inside):
            continue
        yield Region(start, tuple(name for name in order if name in inside))


def evaluate(graph: Graph, region: Region, x: Array) -> Array:
    """What the region computes for x, in float64."""
    values: dict[str, Array] = {region.start: np.asarray(x, np.float64)}
    with np.errstate(all="ignore"):
        for name in region.nodes:
            made = graph.nodes[name]
            read = [values[t] if t in values else np.asarray(value_of(graph, t)) for t in graph.inputs(made)]
            read = [v.astype(np.float64) if v.dtype.kind == "f" else v for v in read]
            values[f"{name}:0"] = OPS[made.op](made, read)
    return values[region.output]


@dataclass(frozen=True, slots=True)
class Activation:
    """A function that the int8 matmul can apply itself, by the name that it has there."""

    name: str
    alpha: float = 0.2


GRID = np.concatenate([np.linspace(-10, 10, 401), [-40.0, 40.0]])
KNOWN: dict[str, Array] = {
    "Relu": np.maximum(GRID, 0),
    "Relu6": np.clip(GRID, 0, 6),
    "Elu": np.where(GRID > 0, GRID, np.expm1(np.minimum(GRID, 0))),
    "Tanh": np.tanh(GRID),
    "Sigmoid": special.expit(GRID),
    "GeluApproximate": 0.5 * GRID * (1 + np.tanh(np.sqrt(2 / np.pi) * (GRID + 0.044715 * GRID**3))),
    "GeluExact": 0.5 * GRID * (1 + special.erf(GRID / np.sqrt(2))),
}
TOLERANCE = 5e-5  # the two GELUs differ by 5e-4, constants rounded to float32 by 1e-6


def activation_of(graph: Graph, region: Region) -> Activation | None:
    """The activation that a region is, or None."""
    for name in region.nodes:
        made = graph.nodes[name]
        constants = [value_of(graph, read) for read in graph.inputs(made)]
        if made.op in ("Mean", "BiasAdd") or any(
            value is not None and value.size != 1 for value in constants
        ):
            return None
    y = evaluate(graph, region, GRID)
    if y.shape != GRID.shape or not np.isfinite(y).all():
        return None
    for name, wanted in KNOWN.items():
        if np.abs(y - wanted).max() < TOLERANCE:
            return Activation(name)
    slope = float(y[0] / GRID[0])
    if 0 < slope < 1 and np.abs(y - _leaky(GRID, slope)).max() < TOLERANCE:
        return Activation("LeakyRelu", slope)
    return None
