"""Repairs of int8 ops: outlier channels smoothed or brought to one range, biases corrected, and who is blamed
for what.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import octune
from octune.backends import Settings, backend_for
from octune.backends.tensorflow.int8.rewrite import Rewriter
from octune.backends.tensorflow.probe import kernel_check, refusals
from octune.backends.tensorflow.probe.kernel_check import check, needed
from octune.calibration import Ranges, collect
from octune.harm import probe
from octune.plan import Plan, Scheme
from octune.repair import BIAS, SMOOTH
from tests.machines import runnable

from . import cnns
from .graphs import Array, calibrated, error, frozen, normal, op_types, run, v1, weight

PLAIN, SMOOTHED = Scheme.int8("static"), Scheme.int8("static", repairs=(SMOOTH.name,))
CORRECTED, BOTH = (
    Scheme.int8("static", repairs=(BIAS.name,)),
    Scheme.int8("static", repairs=(SMOOTH.name, BIAS.name)),
)
SHAPE = (8, 12, 12, 8)


def spikes(channels: int, factor: float) -> Array:
    made = np.ones(channels, np.float32)
    made[[1, channels // 2]] = factor
    return made


def chain(
    activation: Callable[[Any], Any] = tf.nn.relu,
    *,
    pool: bool = True,
    shown: bool = False,
    factor: float = 150.0,
) -> Callable[[], dict[str, tf.Tensor]]:
    """Three convolutions with outlier channels between them; the last one is depthwise."""

    def build() -> dict[str, tf.Tensor]:
        first, second = spikes(16, factor), spikes(24, factor)
        x = v1.placeholder(tf.float32, [None, *SHAPE[1:]], "x")
        y = tf.nn.conv2d(x, weight(normal(3, 3, 8, 16, scale=0.1) * first), 1, "SAME", name="a")
        y = inner = activation(tf.nn.bias_add(y, weight(normal(16, scale=0.1) * first)))
        y = tf.nn.conv2d(
            y, weight(normal(3, 3, 16, 24, scale=0.1) / first[:, None] * second), 2, "SAME", name="b"
        )
        y = activation(tf.nn.bias_add(y, weight(normal(24, scale=0.1) * second)))
        y = tf.nn.max_pool2d(y, 2, 2, "SAME") if pool else y
        y = tf.nn.depthwise_conv2d(
            y, weight(normal(3, 3, 24, 2) / second[:, None]), [1, 1, 1, 1], "SAME", name="c"
        )
        outputs = {"y": tf.identity(tf.nn.relu(y), "y")}
        return {**outputs, "inner": tf.identity(inner, "inner")} if shown else outputs

    return build


def rewritten(
    build: Callable[[], dict[str, tf.Tensor]], plan: Plan, shape: tuple[int, ...] = SHAPE
) -> tuple[Any, float]:
    """The graph under a plan and its error. Every piece is checked on the way."""
    graph, feed = frozen(build), {"x:0": normal(*shape)}
    rewriter = Rewriter(graph)
    ranges = calibrated(rewriter, [feed])
    made = rewriter.rewrite(plan, ranges)
    tensors = needed(rewriter, plan, ranges)
    found = check(
        rewriter, plan, ranges, dict(zip(tensors, run(rewriter.reference, list(tensors), feed), strict=True))
    )
    assert set(found) == set(plan)
    assert all(one.agrees for one in found.values()), {name: str(one) for name, one in found.items()}
    names = list(graph.outputs.values())
    wanted, got = run(graph.graph_def, names, feed), run(made, names, feed)
    return made, max(error(a, b) for a, b in zip(got, wanted, strict=True))


def everywhere(scheme: Scheme, names: str = "abc") -> Plan:
    return Plan(dict.fromkeys(names, scheme))


# -- smoothing -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", [SMOOTHED, BOTH], ids=str)
@pytest.mark.parametrize("pool", [True, False])
@pytest.mark.parametrize("activation", [tf.nn.relu, lambda x: x], ids=["relu", "none"])
def test_smoothing_is_folded_into_the_convolution_before(
    activation: Callable[[Any], Any], pool: bool, scheme: Scheme
) -> None:
    build = chain(activation, pool=pool)
    _, plain = rewritten(build, everywhere(PLAIN))
    made, repaired = rewritten(build, everywhere(scheme))
    assert repaired < 0.03 < 5 * repaired < plain
    # The image is multiplied before it is quantized; nothing else is, and nothing is float in between.
    assert (
        op_types(made).count("Mul")
        == op_types(made).count("QuantizeV2")
        == op_types(made).count("Dequantize")
        == 1
    )


def test_a_tensor_that_others_read_is_multiplied_and_stays_what_it_was() -> None:
    made, repaired = rewritten(chain(shown=True), everywhere(SMOOTHED))
    assert repaired < 0.03
    assert op_types(made).count("Mul") == 3  # the image; what `a` gives, once back and once for `b`


def test_what_a_relu6_gives_is_not_folded() -> None:
    """It clips at the end of the range, which is one for all channels."""
    made, repaired = rewritten(chain(tf.nn.relu6, factor=1.5), everywhere(SMOOTHED))
    assert repaired < 0.05
    assert op_types(made).count("Mul") == 3


@pytest.mark.parametrize("smoothed", ["a", "b", "c", "ab", "bc"])
@pytest.mark.parametrize("other", runnable([PLAIN, Scheme.fp32(), Scheme.bf16()]))
def test_any_part_of_a_chain_can_be_smoothed(smoothed: str, other: Scheme) -> None:
    plan = (
        everywhere(SMOOTHED, smoothed)
        if other.dtype == "fp32"
        else everywhere(other).with_(everywhere(SMOOTHED, smoothed))
    )
    _, off = rewritten(chain(factor=4.0), plan)
    assert off < 0.06


def test_readers_of_one_tensor_are_smoothed_together() -> None:
    factor = spikes(16, 100.0)

    def build() -> dict[str, tf.Tensor]:
        x = v1.placeholder(tf.float32, [None, *SHAPE[1:]], "x")
        y = tf.nn.relu(tf.nn.conv2d(x, weight(normal(3, 3, 8, 16, scale=0.1) * factor), 1, "SAME", name="a"))
        left = tf.nn.conv2d(y, weight(normal(1, 1, 16, 6) / factor[:, None]), 1, "SAME", name="b")
        right = tf.nn.depthwise_conv2d(
            y, weight(normal(3, 3, 16, 1) / factor[:, None]), [1, 1, 1, 1], "SAME", name="c"
        )
        return {"left": tf.identity(left, "left"), "right": tf.identity(right, "right")}

    made, repaired = rewritten(build, everywhere(SMOOTHED))
    assert repaired < 0.03
    assert op_types(made).count("Mul") == 1
    # One of them alone must not suffer from what the other one asks for.
    graph, feed = frozen(build), {"x:0": normal(*SHAPE)}
    rewriter = Rewriter(graph)
    mixed = rewriter.rewrite(Plan({"a": PLAIN, "b": SMOOTHED, "c": PLAIN}), calibrated(rewriter, [feed]))
    assert error(run(mixed, "left:0", feed), run(graph.graph_def, "left:0", feed)) < 0.03


def test_large_channels_that_are_read_in_float_are_given_in_a_range_of_their_own() -> None:
    factor = spikes(16, 200.0)

    def build() -> dict[str, tf.Tensor]:
        x = v1.placeholder(tf.float32, [None, *SHAPE[1:]], "x")
        y = tf.nn.conv2d(x, weight(normal(3, 3, 8, 16, scale=0.1) * factor), 1, "SAME", name="a")
        return {"y": tf.identity(tf.reduce_mean(tf.nn.relu(y), [1, 2]) / factor, "y")}

    _, off = rewritten(build, everywhere(PLAIN, "a"))
    assert off < 0.02


def test_a_sum_may_be_written_over_an_int8_pooling() -> None:
    def build() -> dict[str, tf.Tensor]:
        x = v1.placeholder(tf.float32, [None, *SHAPE[1:]], "x")
        x = tf.nn.relu(tf.nn.conv2d(x, weight(normal(3, 3, 8, 16, scale=0.1)), 1, "SAME", name="a"))
        x = tf.nn.max_pool2d(x, 3, 2, "SAME")
        y = tf.nn.relu(tf.nn.conv2d(x, weight(normal(3, 3, 16, 16, scale=0.1)), 1, "SAME", name="b"))
        y = tf.nn.relu(
            tf.nn.conv2d(y, weight(normal(3, 3, 16, 16, scale=0.1, seed=1)), 1, "SAME", name="c") + x
        )
        return {"y": tf.identity(tf.nn.conv2d(y, weight(normal(1, 1, 16, 4)), 1, "SAME", name="d"), "y")}

    made, off = rewritten(build, everywhere(PLAIN, "abcd"))
    assert off < 0.03
    assert sum(b"Sum" in node.attr["fused_ops"].list.s for node in made.node) == 1
    assert op_types(made).count("QuantizeV2") == 1


# -- bias correction -----------------------------------------------------------------------------------------


def positive(kind: str) -> Callable[[], dict[str, tf.Tensor]]:
    """One op whose input has a mean, and whose weights are much larger in one column than in the others."""
    columns = np.full(6, 0.02, np.float32)
    columns[0] = 1.0

    def build() -> dict[str, tf.Tensor]:
        x = tf.abs(v1.placeholder(tf.float32, [None, *SHAPE[1:]], "x")) + 1.0
        if kind == "matmul":
            y = tf.matmul(tf.reshape(x, [-1, 8]), weight(normal(8, 6) * columns), name="a")
        elif kind == "conv2d":
            y = tf.nn.conv2d(x, weight(normal(3, 3, 8, 6) * columns), 1, "VALID", name="a")
        else:
            y = tf.nn.depthwise_conv2d(
                x, weight(normal(3, 3, 8, 6) * columns), [1, 1, 1, 1], "VALID", name="a"
            )
        return {"y": tf.identity(y / np.tile(columns, y.shape[-1] // 6), "y")}

    return build


@pytest.mark.parametrize("kind", ["matmul", "conv2d", "depthwise"])
@pytest.mark.parametrize("repairs", [(BIAS.name,), (SMOOTH.name, BIAS.name)], ids=str)
def test_a_corrected_bias_takes_the_shift_of_rounded_weights_away(
    kind: str, repairs: tuple[str, ...]
) -> None:
    plain = Scheme.int8(
        "static", granularity="per_tensor", repairs=tuple(repair for repair in repairs if repair != BIAS.name)
    )
    corrected = Scheme.int8("static", granularity="per_tensor", repairs=repairs)
    shift = {}
    for scheme in (plain, corrected):
        graph, feed = frozen(positive(kind)), {"x:0": normal(*SHAPE)}
        made, _ = rewritten(positive(kind), everywhere(scheme, "a"))
        off = run(made, "y:0", feed) - run(graph.graph_def, "y:0", feed)
        shift[scheme] = float(np.abs(off.reshape(-1, off.shape[-1]).mean(axis=0)).mean())
    assert shift[corrected] < 0.4 * shift[plain]


def test_only_static_schemes_have_repairs() -> None:
    graph, feed = frozen(positive("matmul")), {"x:0": normal(*SHAPE)}
    rewriter = Rewriter(graph)
    with pytest.raises(octune.OctuneError, match="no repair named 'bias'"):
        rewriter.rewrite(
            Plan({"a": Scheme.int8("dynamic", repairs=(BIAS.name,))}), calibrated(rewriter, [feed])
        )


# -- blame, time, refusal ------------------------------------------------------------------------------------


def opened(build: Callable[[], dict[str, tf.Tensor]]) -> tuple[Any, Ranges, list[Any]]:
    backend = backend_for(frozen(build).graph_def, Settings())
    inputs = [backend.split(normal(*SHAPE, seed=seed))[0] for seed in range(2)]
    backend.prepare(inputs[0])
    return backend, collect(backend, inputs, 16), inputs


def test_who_reads_outlier_channels_is_blamed_and_not_who_makes_them() -> None:
    backend, ranges, inputs = opened(chain())
    found = backend.harm({name: [PLAIN, SMOOTHED, BOTH] for name in "abc"}, ranges, inputs)
    for name in "bc":
        assert found["a", PLAIN] < 0.05 * found[name, PLAIN]
        assert found[name, SMOOTHED] < 0.05 * found[name, PLAIN]
        assert found[name, BOTH] < 0.05 * found[name, PLAIN]


@pytest.mark.parametrize(
    "scheme", runnable([PLAIN, Scheme.int8(range_method="mse"), SMOOTHED, Scheme.bf16()])
)
def test_harm_of_convolutions_agrees_with_quantizing_them(scheme: Scheme) -> None:
    backend, ranges, inputs = opened(chain(factor=1.0))
    candidates = {name: [scheme] for name in "abc"}
    quick, slow = backend.harm(candidates, ranges, inputs), probe(backend, candidates, ranges, inputs)
    assert set(quick) == set(slow)
    for key, value in slow.items():
        # Alone among float ops, an op's output is rounded as well, which is not what it is blamed for.
        assert 0.2 * value < quick[key] < 2.5 * value, (key, quick[key], value)


def test_a_convolution_between_others_is_timed_without_conversions() -> None:
    rewriter = Rewriter(frozen(chain()))
    ranges = calibrated(rewriter, [{"x:0": normal(*SHAPE)}])
    ops = {op.name: op for op in rewriter.ops()}
    parts = {name: rewriter.in_place(ops[name], SMOOTHED, ranges) for name in "abc"}
    takes = {
        name: next(node.op for node in part.node if node.name == fed.partition(":")[0])
        for name, (part, fed, _) in parts.items()
    }
    gives = {
        name: next(node.op for node in part.node if node.name == got.partition(":")[0])
        for name, (part, _, got) in parts.items()
    }
    assert takes == {"a": "Placeholder", "b": "QuantizeV2", "c": "QuantizeV2"}
    assert gives == {"a": "_FusedQuantizedConv2D", "b": "_FusedQuantizedConv2D", "c": "Dequantize"}
    backend, ranges, _ = opened(chain())
    for op in backend.ops():
        for scheme in (PLAIN, SMOOTHED, Scheme.fp32()):
            backend.alone(op, scheme, ranges)()


def test_repairs_that_disagree_with_fp32_are_refused_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(rewriter: Any, plan: Plan, ranges: Any, values: Any, inputs: Any, threads: Any) -> Any:
        found = kernel_check.check(rewriter, plan, ranges, values, inputs, threads)
        return {
            name: kernel_check.Check(1.0, 0.1) if name == "b" and plan[name].repairs else one
            for name, one in found.items()
        }

    monkeypatch.setattr(refusals, "check", failing)
    backend, _, _ = opened(chain())
    for op in backend.ops():
        assert PLAIN in op.schemes
        assert (SMOOTHED in op.schemes) == (op.name != "b")
    assert any(note.startswith("b: int8 disagrees") for note in backend.notes)


# -- from end to end -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_network_with_outlier_channels_stays_int8() -> None:
    data = cnns.digits()
    params = cnns.with_outliers(cnns.train(cnns.plain, data), cnns.PLAIN_CHAIN, (200.0, 30.0, 100.0))
    definition = cnns.frozen(cnns.plain, params)
    backend = backend_for(definition, Settings())
    inputs = [backend.split(batch)[0] for batch in data.batches()]
    backend.prepare(inputs[0])
    ranges = collect(backend, inputs, 256)
    fp32 = data.accuracy(backend.fp32_model())
    plain = data.accuracy(backend.apply(Plan({op.name: PLAIN for op in backend.ops()}), ranges))
    assert plain < 0.99 * fp32, "the case is meant to be hard"
    config = {"performance": {"iterations": 1}, "tuning": {"objective": "modelsize"}}
    result = octune.tune(definition, calibration=data.batches(), evaluate=data.accuracy, config=config)
    assert result.met, str(result)
    assert len(result.plan.names("int8")) >= 0.8 * len(result.plan)
    assert len(result.trials) + 1 <= 2 + np.log2(len(result.plan))
    assert any(scheme.repairs for scheme in result.plan.values())
