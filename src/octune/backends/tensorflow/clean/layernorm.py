"""Layer normalisation, however it is spelled, as the one op that computes it in a single pass.

    fuse_layernorms(graph, shapes)          # -> names of the nodes that are now _MklLayerNorm

Stock TensorFlow has the op, and its own optimiser makes it out of one spelling only.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import tensorflow as tf

from octune.backends.tensorflow.clean.fold import value_of
from octune.backends.tensorflow.clean.formula import Region, evaluate, regions
from octune.backends.tensorflow.graph.emit import constant, node
from octune.backends.tensorflow.graph.graph import Array, Graph, node_of
from octune.backends.tensorflow.graph.shapes import Shapes

__all__ = ["LAYERNORM", "fuse_layernorms"]

LAYERNORM = "_MklLayerNorm"


def fuse_layernorms(graph: Graph, shapes: Shapes, avoid: Iterable[str] = ()) -> list[str]:
    """Replace every layer normalisation over the last axis, in place."""
    skipped, fused = set(avoid), []
    for made in list(graph):
        if made.op != "Mean" or made.name not in graph or made.name in skipped:
            continue
        # The mean over the last axis is where each of them begins, except for the variance, whose mean is
        # inside the same region.
        x = graph.inputs(made)[0]
        shape = shapes[x]
        if shape is None or len(shape) not in (2, 3) or shape[-1] is None or shapes.dtype(x) != tf.float32:
            continue
        for region in regions(graph, x, closed=False):
            found = _parameters(graph, region, len(shape), shape[-1])
            if found is not None:
                _replace(graph, region, x, *found)
                fused.append(region.tail)
                break
    return fused


def _parameters(graph: Graph, region: Region, rank: int, width: int) -> tuple[Array, Array, float] | None:
    """gamma, beta and epsilon, if the region is a layer normalisation."""
    members = [graph.nodes[name] for name in region.nodes]
    if not {"Mean"} <= {made.op for made in members} or not {"Rsqrt", "Sqrt", "Pow"} & {
        made.op for made in members
    }:
        return None
    scalars = set[float]()
    for made in members:
        for read in graph.inputs(made):
            value = value_of(graph, read)
            if (
                value is not None
                and value.size == 1
                and value.dtype.kind == "f"
                and 0 < float(value.reshape(())) < 0.1
            ):
                scalars.add(float(value.reshape(())))
    random = np.random.default_rng(0)
    large, small = random.normal(1, 3, (3, 2, width)[-rank:]), random.normal(0, 0.05, (3, 2, width)[-rank:])
    try:
        at_zero, at_large, at_small = (
            evaluate(graph, region, x) for x in (np.zeros_like(large), large, small)
        )
    except (ValueError, IndexError):  # it does not broadcast over such an input
        return None
    if at_large.shape != large.shape or width < 2:
        return None
    beta = at_zero.reshape(-1, width)[0]
    for epsilon in sorted(scalars):
        normal = _normalised(large, epsilon).reshape(-1, width)
        row = np.abs(normal).argmax(axis=0)
        columns = np.arange(width)
        gamma = (at_large.reshape(-1, width)[row, columns] - beta) / normal[row, columns]
        if all(
            np.allclose(_normalised(x, epsilon) * gamma + beta, y, rtol=1e-5, atol=1e-6)
            for x, y in ((large, at_large), (small, at_small))
        ):
            return gamma.astype(np.float32), beta.astype(np.float32), epsilon
    return None


def _normalised(x: Array, epsilon: float) -> Array:
    centred = x - x.mean(axis=-1, keepdims=True)
    return np.asarray(centred / np.sqrt(np.square(centred).mean(axis=-1, keepdims=True) + epsilon))


def _replace(graph: Graph, region: Region, x: str, gamma: Array, beta: Array, epsilon: float) -> None:
    names = [graph.fresh(f"{region.tail}/{role}") for role in ("gamma", "beta")]
    for name, value in zip(names, (gamma, beta), strict=True):
        graph.add(constant(name, value))
    old = [node_of(reference) for name in region.nodes for reference in graph.nodes[name].input]
    graph.add(node(region.tail, LAYERNORM, [x, *names], T=tf.float32, epsilon=epsilon))
    graph.sweep([*region.nodes[:-1], *old])
