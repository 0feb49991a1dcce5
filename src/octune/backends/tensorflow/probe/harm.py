"""How much every op in every scheme changes the model's output, from gradients of the fp32 graph and each op
by itself.

To first order an error dy at an op's output moves the model's output by J dy. With a random vector v, E[(v .
J dy)^2] = |J dy|^2, and v . J comes out of one backward pass for all ops at once. So no op is ever quantized
in the running model: its int8 form is placed beside it and reads the same fp32 input, and the difference of
the two outputs is weighted by the gradient, all inside one graph. Ops whose kernels output int8
(convolutions) are simulated there (see :mod:`octune.backends.tensorflow.probe.simulate`), all others run on
their own kernels.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from octune.backends.batches import Inputs
from octune.backends.tensorflow.clean.layernorm import LAYERNORM
from octune.backends.tensorflow.graph.sessions import new_session
from octune.backends.tensorflow.int8.rewrite import Rewriter
from octune.backends.tensorflow.model.freeze import as_graph
from octune.backends.tensorflow.probe.simulate import Simulated
from octune.calibration import Ranges
from octune.harm import output_spread
from octune.plan import Op, Scheme
from octune.repair import without_bias

__all__ = ["first_order_harm"]

# Backward passes. For each sample and draw, (v . J dy)^2 is |J dy|^2 times a chi-square number with one
# degree of freedom, so with n samples the relative error is sqrt(2 / (DRAWS n)): a third for 8 of
# them. Ops differ by factors of ten.
DRAWS = 2
# Weights that are placed beside the model at a time; more of them take more passes.
GROUP = 1 << 26
Key = tuple[str, Scheme]


@tf.RegisterGradient(LAYERNORM)  # type: ignore[untyped-decorator]  # TensorFlow has no types
def _layernorm_gradient(op: Any, gradient: Any) -> tuple[Any, None, None]:
    """TensorFlow has no gradient for the one-pass form; gamma and beta are constants here."""
    x, gamma, _ = op.inputs
    centred = x - tf.reduce_mean(x, -1, keepdims=True)
    inverse = tf.math.rsqrt(tf.reduce_mean(tf.square(centred), -1, keepdims=True) + op.get_attr("epsilon"))
    normal, scaled = centred * inverse, gradient * gamma
    projected = tf.reduce_mean(scaled, -1, keepdims=True) + normal * tf.reduce_mean(
        scaled * normal, -1, keepdims=True
    )
    return inverse * (scaled - projected), None, None


def first_order_harm(
    rewriter: Rewriter,
    outputs: Iterable[str],
    candidates: Mapping[str, Sequence[Scheme]],
    ranges: Ranges,
    batches: Sequence[Inputs],
    threads: int | None,
    only: Collection[str] | None = None,
) -> dict[Key, float]:
    """Relative mean squared output change by (op, scheme), without ops that the outputs have no
    gradient to; of all candidates, or of ``only`` these.
    """
    known = {op.name: op for op in rewriter.ops()}
    wanted = {
        known[name]: schemes
        for name, schemes in candidates.items()
        if schemes and name in known and name in ranges
    }
    values: dict[Key, float] = {}
    simulated = Simulated(rewriter, wanted, ranges)
    for group in _groups(wanted):
        asked = {op.name for op in group if only is None or op.name in only}
        if not asked:
            continue
        graph = as_graph(rewriter.weightless.graph_def)
        with graph.as_default():
            rows = tf.compat.v1.placeholder(tf.int32, [], name="octune_rows")
            simulated.begin()
            built = _weighted(
                graph,
                rewriter,
                simulated,
                list(outputs),
                {op: wanted[op] for op in group},
                asked,
                ranges,
                rows,
            )
        if built is None:
            continue
        sums, results = built
        totals, variance = dict.fromkeys(sums, 0.0), 0.0
        with new_session(graph, threads, optimized=False) as session:
            for inputs in batches:
                fed = {**rewriter.weightless.arrays, **inputs.kwargs, rows.name: inputs.batch_size}
                found, answers = session.run((list(sums.values()), results), fed)
                variance += sum(map(output_spread, answers))
                for key, value in zip(sums, found, strict=True):
                    totals[key] += float(value)
        if variance <= 0:
            return {}
        # Sums over samples on both sides: the number of samples cancels.
        values.update({key: total / variance for key, total in totals.items()})
    return values


def _groups(wanted: Mapping[Op, Sequence[Scheme]]) -> Iterator[list[Op]]:
    group: list[Op] = []
    size = 0
    for op, schemes in wanted.items():
        weight = op.parameters * sum(scheme == without_bias(scheme) for scheme in schemes)
        if group and size + weight > GROUP:
            yield group
            group, size = [], 0
        group.append(op)
        size += weight
    if group:
        yield group


def _weighted(
    graph: Any,
    rewriter: Rewriter,
    simulated: Simulated,
    outputs: list[str],
    wanted: Mapping[Op, Sequence[Scheme]],
    asked: Collection[str],
    ranges: Ranges,
    rows: Any,
) -> tuple[dict[Key, Any], list[Any]] | None:
    """For every scheme of the ops that are asked for, the squared weighted error as a tensor; and the outputs
    that it is relative to.
    """
    results = [graph.get_tensor_by_name(name) for name in outputs]
    results = [result for result in results if result.dtype.is_floating and result.shape.rank != 0]
    if not results:
        return None
    taps, ends = rewriter.taps(), rewriter.outputs()
    answers = {op: graph.get_tensor_by_name(ends[op.name]) for op in wanted}
    draws = []
    for draw in range(DRAWS):
        noise = [
            tf.random.stateless_normal(tf.shape(result), (draw, index))
            for index, result in enumerate(results)
        ]
        target = tf.add_n([tf.reduce_sum(result * v) for result, v in zip(results, noise, strict=True)])
        try:
            draws.append(tf.gradients(target, list(answers.values())))
        except LookupError:  # an op on the way has no gradient
            return None
    sums: dict[Key, Any] = {}
    for index, (op, schemes) in enumerate(wanted.items()):
        gradients = [draw[index] for draw in draws]
        if op.name not in asked or any(gradient is None for gradient in gradients):
            continue  # between it and the outputs is something without a slope, such as rounding
        shape = _by_sample(answers[op], rows)
        answer, slope = (
            tf.reshape(answers[op], shape),
            tf.stack([tf.reshape(gradient, shape) for gradient in gradients]),
        )
        x = graph.get_tensor_by_name(taps[op.name].tensor)
        made: dict[Scheme, Any] = {}
        for number, scheme in enumerate(schemes):
            if (op.name, scheme) in simulated:
                quantized = simulated(op, scheme, x)
            else:
                uncorrected = made.get(without_bias(scheme))
                correction = None if uncorrected is None else rewriter.correction(op, scheme, ranges)
                if correction is not None:
                    quantized = uncorrected + correction
                else:
                    part, fed, name = rewriter.alone(op, scheme, ranges)
                    (quantized,) = tf.graph_util.import_graph_def(
                        part, {fed: x}, [name], name=f"octune_{index}_{number}"
                    )
            made[scheme] = quantized
            weighted = tf.reduce_sum(slope * (tf.reshape(quantized, shape) - answer), -1)
            sums[op.name, scheme] = tf.reduce_sum(tf.square(weighted)) / DRAWS
    return sums, results


def _by_sample(answer: Any, rows: Any) -> Any:
    """The shape with a row for each sample, where the first dimension is samples or their tokens, else with
    one row.

    v is independent over samples, so products of two samples' sums are zero except for noise.
    """
    return tf.stack([tf.where(tf.equal(tf.shape(answer)[0] % rows, 0), rows, 1), -1])
