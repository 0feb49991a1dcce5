"""Where the time of BERT goes in TensorFlow: milliseconds per kind of op, in fp32 and in int8 graphs.

    python benchmarks/tensorflow_profile.py                                         # BERT-base, 1 x 128
    python benchmarks/tensorflow_profile.py --batch 8 --layers 2                    # other sizes
    python benchmarks/tensorflow_profile.py --markdown docs/internals/tensorflow.md # write the table there

Every graph runs in a process of its own. First the time of a call is taken as a user sees it; then calls are
traced, which costs a little, and what ops take is added up. Ops run side by side, so that sum may be up to as
many times the time of a call as there are threads.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from bench_machine import describe, quiet

CALLS, WARMUP = 30, 8
# Kinds of ops by how their names begin, without TensorFlow's marks for ops of oneDNN; the first that fits.
KINDS = {
    "int8 matmuls": ("QuantizedMatMul",),
    "attention's products": ("BatchMatMul", "FusedBatchMatMul", "Einsum"),
    "float matmuls": ("MatMul", "FusedMatMul"),
    "softmax": ("Softmax",),
    "to int8": ("Quantize",),
    "layer normalisation": ("LayerNorm", "Mean", "Rsqrt", "SquaredDifference"),
    "activations": ("Tanh", "Erf", "Pow", "Gelu"),
    "transpositions": ("Transpose",),
    "sums and products": ("Add", "Mul", "Sub", "BiasAdd"),
}
OTHER, SUM, CALL = "all else", "all ops", "one call"


def kind_of(op: str) -> str:
    """The row of the table that an op belongs to."""
    plain = op.lstrip("_")
    for mark in ("MklNative", "Mkl"):
        plain = plain.removeprefix(mark)
    plain = plain.lstrip("_")
    return next((kind for kind, names in KINDS.items() if plain.startswith(names)), OTHER)


def main() -> None:
    """Make the graphs, trace each, print the table."""
    options = _options()
    quiet()
    if options.trace:
        print(json.dumps(traced(options.trace, options)))
        return
    where = describe(options.threads, ("tensorflow-cpu",))
    with tempfile.TemporaryDirectory() as folder:
        found = {path.stem: _apart(path) for path in make(Path(folder), options)}
    lines = table(found, options, where)
    print("\n".join(lines))
    if options.markdown:
        write(options.markdown, lines)


def make(folder: Path, options: argparse.Namespace) -> list[Path]:
    """The graphs as files, named as columns of the table."""
    import bench_tf
    from bench_octune import calibrated

    from octune.backends.tensorflow.backend import TensorFlowBackend
    from octune.backends.terms import Settings

    title, _, hidden = bench_tf.SIZES["bert-base"]
    bench_tf.SIZES["bert-base"] = (title, options.layers, hidden)
    preparation = bench_tf.prepare("bert-base", quick=False, threads=options.threads)
    settings = Settings(bench_tf.INPUTS, (bench_tf.OUTPUT,), options.threads)
    backend = TensorFlowBackend(preparation.subject.model, settings)
    found = calibrated(backend, preparation.calibration)
    models = {"fp32": preparation.subject.model, "int8": backend.apply(found.plan, found.ranges)}
    models |= {each.form: each.model for each in backend.finalists(found.plan, found.ranges, None)}
    paths = []
    for name, model in models.items():
        paths.append(folder / f"{name}.pb")
        paths[-1].write_bytes(model.as_graph_def().SerializeToString())
    return paths


def _apart(path: Path) -> dict[str, float]:
    """What :func:`traced` finds, in a process of its own."""
    command = [sys.executable, *sys.argv, "--trace", str(path)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def traced(path: Path, options: argparse.Namespace) -> dict[str, float]:
    """Milliseconds of one call, and in ops of each kind."""
    import bench_tf
    import tensorflow as tf

    tf1 = tf.compat.v1
    graph = tf.Graph()
    with graph.as_default():
        tf.import_graph_def(tf1.GraphDef.FromString(path.read_bytes()), name="")
    shape = (options.batch, options.sequence)
    words = np.random.default_rng(0).integers(1000, 30000, shape).astype(np.int32)
    values = dict(zip(bench_tf.INPUTS, (words, np.ones_like(words), np.zeros_like(words)), strict=True))
    feed = {f"{name}:0": value for name, value in values.items()}
    fetch = f"{bench_tf.OUTPUT}:0"
    config = tf1.ConfigProto(
        inter_op_parallelism_threads=options.threads, intra_op_parallelism_threads=options.threads
    )
    with tf1.Session(graph=graph, config=config) as session:
        call = session.make_callable(fetch, feed_list=list(feed))
        found = {CALL: _milliseconds(lambda: call(*feed.values()))}
        times: list[Counter[str]] = []
        trace = tf1.RunOptions(trace_level=tf1.RunOptions.SOFTWARE_TRACE)
        for _ in range(WARMUP + CALLS):
            metadata = tf1.RunMetadata()
            session.run(fetch, feed, options=trace, run_metadata=metadata)
            times.append(_by_kind(metadata))
    kinds = (*KINDS, OTHER)
    found |= {kind: statistics.median(each[kind] for each in times[WARMUP:]) for kind in kinds}
    return found | {SUM: sum(found[kind] for kind in kinds)}


def _milliseconds(call: Callable[[], object]) -> float:
    times = []
    for _ in range(WARMUP + CALLS):
        begun = time.perf_counter()
        call()
        times.append(1000 * (time.perf_counter() - begun))
    return statistics.median(times[WARMUP:])


def _by_kind(metadata: Any) -> Counter[str]:
    """Milliseconds inside ops of each kind in one traced call."""
    found: Counter[str] = Counter()
    for device in metadata.step_stats.dev_stats:
        for node in device.node_stats:
            # "name = Op(inputs)"
            op = node.timeline_label.partition(" = ")[2].partition("(")[0]
            found[kind_of(op)] += (node.op_end_rel_nanos - node.op_start_rel_nanos) / 1e6
    return found


def table(
    found: dict[str, dict[str, float]], options: argparse.Namespace, where: dict[str, Any]
) -> list[str]:
    """The lines of a Markdown table, and where it was measured."""
    lines = [f"| ms | {' | '.join(found)} |", f"|---|{'---:|' * len(found)}"]
    lines += [
        f"| {kind} | {' | '.join(f'{times[kind]:.2f}' for times in found.values())} |"
        for kind in (*KINDS, OTHER, SUM, CALL)
    ]
    versions = ", ".join(f"{name} {version}" for name, version in where["versions"].items())
    return [
        *lines,
        "",
        f"- BERT-base, {options.layers} layers, {options.batch} x {options.sequence} tokens; "
        f"{where['date']}; {where['cpu']}, {options.threads} threads; {', '.join(where['features'])}",
        f"- Python {where['python']}, {versions}; other processes kept {where['load']:.2f} cores busy before "
        "the start",
    ]


def write(page: Path, lines: list[str]) -> None:
    """Put the table between its markers, which the page must have."""
    begin, end = (f"<!-- tensorflow_profile: {word} -->" for word in ("begin", "end"))
    before, _, rest = page.read_text().partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        raise SystemExit(f"{page} has no {begin} ... {end}")
    page.write_text("\n".join([f"{before}{begin}", *lines, f"{end}{after}"]))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Where the time of BERT goes in TensorFlow: milliseconds per kind of op, fp32 and int8."
    )
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--sequence", type=int, default=128)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--markdown", metavar="FILE", type=Path, help="write the table between its markers")
    parser.add_argument("--trace", metavar="FILE", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
